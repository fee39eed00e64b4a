"""What a run of the `helmr` command leaves behind."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output; anything more or less fails."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The one error object on standard error, beside an empty standard output."""
        assert self.out == ""
        return json.loads(self.err)["error"]


Helmr = Callable[..., Awaitable[Done]]
