"""What gVisor's launcher is told to do: a value that travels from hostd to the process that becomes `runsc`."""

from __future__ import annotations

import dataclasses
import marshal
from dataclasses import dataclass
from typing import Any

from helmr.host.sandbox.plan import Bind


@dataclass(frozen=True, slots=True, kw_only=True)
class GvisorPlan:
    """One sandbox, fully decided. A `Staged`."""

    layers: tuple[str, ...]
    upper: str
    work: str
    first_id: int
    binds: tuple[Bind, ...]
    places: tuple[str, ...]
    """Where each bind is staged; the bundle names them as sources."""
    bundle: dict[str, Any]
    """gVisor's config.json."""
    runsc: str
    argv: tuple[str, ...]
    """What is executed in the end, with `runsc` as its program."""
    cgroups: tuple[str, ...]
    image: str | None = None
    """Folder with an image of memory to go on from; None starts anew."""
    attempt: str | None = None
    """File that is made right before the image is used: from then on its processes may have run."""
    indexed: bool = True
    secrets: bool = False
    """Whether descriptor 4 holds files with values of Secrets, which are in no plan."""

    def encode(self) -> bytes:
        """For `staging.py`, which the same Python runs."""
        return marshal.dumps(dataclasses.asdict(self))
