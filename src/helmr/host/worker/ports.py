"""What a worker needs of others, as small protocols: hostd, blobs, and links to a control plane."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from helmr.host.hostd.client import HostdRefused, Notify
from helmr.protocol.link import Link, LinkEnd

__all__ = ["BlobSource", "Hostd", "HostdConnect", "HostdRefused", "LinkFactory", "LinkUnavailable", "Notify", "SaveStore", "WorkerEnd"]


class Hostd(Protocol):
    """A connection to hostd, as `HostdClient` is; `docs/architecture.md` names the requests.

    A refusal raises `HostdRefused` (with hostd's code), a lost connection `ConnectionError`. Replies are hostd's JSON objects.
    """

    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def attach(self, computer: str, fence: Any, protected: Sequence[Mapping[str, Any]] | None = None) -> socket.socket:
        """The supervisor's stream. The caller owns the socket. `protected`: the Secrets that its proxy exchanges [X1]."""
        ...

    async def wait_closed(self) -> None:
        """Return when the connection is over."""
        ...

    async def close(self) -> None: ...


HostdConnect = Callable[[Notify], Awaitable[Hostd]]
"""Connects to hostd. Raises `OSError` when none listens."""


class BlobSource(Protocol):
    """Where a worker gets an Environment's blobs: the control plane's store, or a folder beside it."""

    async def fetch(self, environment: str, digest: str) -> Path:
        """A local file with exactly the bytes of `digest`, to be read and linked only.

        Raises `BlobNotFound` when that Environment has no such blob, `ConnectionFailed` when it could not be had now.
        """
        ...


class SaveStore(Protocol):
    """Where a worker's Computers are saved: the control plane's object store, as far as this worker may use it.

    Objects are named by the BLAKE3 of their bytes. Both raise `ConnectionFailed` when it can't be done now, `Forbidden` when the Computer
    is not, or no longer, this worker's to save or to restore.
    """

    async def put(self, computer: str, name: str, file: Path) -> None:
        """Store the local file; durable on return."""
        ...

    async def fetch(self, computer: str, name: str, target: Path) -> None:
        """Make the local file `target` of an object. Raises `ObjectNotFound`."""
        ...


class WorkerEnd(LinkEnd, Protocol):
    """The worker's end of a link."""

    on_drained: Callable[[], None]
    """The link's queue fell under the low-water mark after it had been above."""


class LinkUnavailable(Exception):
    """No link could be made now. `refused` says that the credential was not taken."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(message)


LinkFactory = Callable[[WorkerEnd], Awaitable[Link]]
"""Opens a link whose messages go to the given end. Raises `LinkUnavailable`."""
