"""The requests of hostd about saves."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from helmr.host.hostd import failure
from helmr.host.hostd.computer import Computer
from helmr.host.hostd.files import replace_files
from helmr.host.hostd.params import Params, fence, text
from helmr.host.hostd.rpc import Connection
from helmr.host.hostd.saving import Order, Saves
from helmr.host.sandbox.driver import DurableFiles
from helmr.objects.saves.keys import KEY_BYTES
from helmr.objects.store import is_digest


class SaveMethods:
    """`find` gives the Computer of a request, `obtain` makes it, without files, if there is none, and tells whether it did."""

    def __init__(
        self,
        saves: Saves,
        computers: dict[str, Computer],
        find: Callable[[Params], Computer],
        obtain: Callable[[Params], Awaitable[tuple[Computer, bool]]],
    ) -> None:
        self._saves, self._computers, self._find, self._obtain = saves, computers, find, obtain

    async def save(self, connection: Connection, params: Params) -> Mapping[str, Any]:
        previous = None if params.get("previous") is None else _digest(params, "previous")
        keep_frozen = params.get("keep_frozen") is True
        return await self._saves.save(
            self._find(params), fence(params), _order(connection, params), previous=previous, keep_frozen=keep_frozen
        )

    async def restore(self, connection: Connection, params: Params) -> Mapping[str, Any]:
        order, manifest = _order(connection, params), _digest(params, "manifest")
        computer, new = await self._obtain(params)
        told: dict[str, Any] = {}

        async def make(files: DurableFiles, target: Path) -> None:
            told.update(await self._saves.restore(Path(computer.record.spec.folder), files, target, order, manifest=manifest))

        try:
            await replace_files(computer, fence(params), make, new=new)
        finally:
            if new and computer.removed and self._computers.get(computer.id) is computer:
                del self._computers[computer.id]  # it never was one
        return {**told, "state": computer.record.state, "generation": computer.record.generation}


def _order(connection: Connection, params: Params) -> Order:
    """What each of them needs. The keys stay as they came; they are only looked at."""
    keys: Any = params.get("keys")
    if not isinstance(keys, dict) or cast("dict[str, Any]", keys).keys() != {"data", "names"}:
        raise failure.InvalidRequest('"keys" are {"data", "names"}, each of 32 bytes in Base64.')
    found: dict[str, str] = {}
    for name, value in cast("dict[str, Any]", keys).items():
        try:
            length = len(base64.b64decode(value, validate=True))
        except (binascii.Error, TypeError, ValueError):
            length = -1
        if length != KEY_BYTES:
            raise failure.InvalidRequest('"keys" are {"data", "names"}, each of 32 bytes in Base64.')
        found[name] = value
    return Order(spool=text(params, "spool"), owner=connection.peer.uid or None, keys=found)


def _digest(params: Params, name: str) -> str:
    value = text(params, name)
    if not is_digest(value):
        raise failure.InvalidRequest(f'"{name}" must be a digest.')
    return value
