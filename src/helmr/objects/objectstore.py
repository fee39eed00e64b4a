"""The port of object stores: files by name, for saves and whatever else is too large for a database and is not named by its own digest."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from helmr.protocol.errors import InvalidValue

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_NAME_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    name: str
    size: int
    stored_at: datetime
    """By the store's clock."""


def check_name(name: str) -> str:
    """`name` if it is one: parts of letters, digits, `.`, `_` and `-` that begin with no dot, divided by `/`. Raises `InvalidValue`."""
    if len(name) > _NAME_BYTES or _NAME.fullmatch(name) is None:
        raise InvalidValue(f"{name[:80]!r} is no name of an object.")
    return name


class ObjectStore(Protocol):
    """Where objects lie. An object is either wholly there or not at all, also after a crash of its writer; the last writer wins.

    Every method raises `InvalidValue` for a bad name, and `OSError` when the store or its disk fails: try again later.
    """

    async def put(self, name: str, data: Path | bytes) -> None:
        """Store a local file or bytes; durable on return."""
        ...

    async def get(self, name: str) -> BinaryIO:
        """An open local file with the object's bytes, at its beginning; the caller closes it. Raises `ObjectNotFound`."""
        ...

    async def fetch(self, name: str, target: Path) -> int:
        """Make the local file `target` of the object, whole or not at all; its size. Raises `ObjectNotFound`."""
        ...

    async def delete(self, name: str) -> None:
        """Remove it. A no-op when it isn't there."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """All objects whose names begin with `prefix`, which is empty or ends with `/`; those that come or go meanwhile may be missed."""
        ...
