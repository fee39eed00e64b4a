"""What a worker is told, with its defaults [C10]."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from helmr.host.worker.pulse import PulseConfig
from helmr.protocol.storage import WaterMarks

CORES_FACTOR: Final = 8.0
"""Cores offered for each real one: agents mostly wait [C10]."""
MEMORY_SHARE: Final = 0.8
"""Part of the host's memory that is offered [C10]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """`state` keeps the worker's id and the cache of bundles and blobs; all of it may be lost."""

    state: Path
    name: str = field(default_factory=socket.gethostname)
    cpu: float | None = None
    """Cores to offer; by default 8 times what hostd reports."""
    memory: int | None = None
    """Bytes to offer; by default 80 % of what hostd reports."""
    drain_seconds: float = 30.0
    """How long a draining worker waits for its Sessions to end before it lets go of them."""
    reconnect_seconds: float = 0.2
    """First pause before a new link; it doubles, with jitter, up to `reconnect_limit_seconds`."""
    reconnect_limit_seconds: float = 2.0
    pulse: PulseConfig = field(default_factory=PulseConfig)
    """How supervisors are asked whether they run."""
    storage: WaterMarks = field(default_factory=WaterMarks.from_environ)
    """From where on the host's disks are too full, and no more [C7]."""
    welcome_seconds: float = 20.0
    """A control plane that answers hello later than this is left."""

    @property
    def cache(self) -> Path:
        return self.state / "cache"
