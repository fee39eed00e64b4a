"""Saves of this host's Computers: hostd makes them, this moves them to where they are kept, and back before a restore. SPEC [C5].

A save is named by the control plane, and told again on each link: one that is under way goes on, one that is done is reported again, until
the control plane says that it knows. A worker that was killed begins it anew.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from helmr.host.worker.failure import Failure, answered
from helmr.host.worker.gate import HostdGate
from helmr.host.worker.ports import SaveStore
from helmr.host.worker.uplink import Uplink
from helmr.objects.saves import packs_in
from helmr.protocol.ids import parse_id

TRANSFERS: Final = 4
"""Objects that are moved at once."""
AT_ONCE: Final = 2
"""Saves that are taken at once; the others wait."""


class Host(Protocol):
    """What is needed of the worker."""

    @property
    def gate(self) -> HostdGate: ...
    @property
    def uplink(self) -> Uplink: ...
    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class Saves:
    def __init__(self, host: Host, spool: Path, store: SaveStore) -> None:
        self._host = host
        self._spool = spool
        self._store = store
        self._under_way: set[str] = set()
        self._reports: dict[str, dict[str, Any]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._idle = asyncio.Event()
        self._idle.set()

    def clear(self) -> None:
        """Remove what an earlier worker left."""
        shutil.rmtree(self._spool, ignore_errors=True)
        self._spool.mkdir(mode=0o700, parents=True)

    def take(self, message: Mapping[str, Any]) -> None:
        """computer.save: answered by `computer.saved`."""
        save = str(message["save"])
        if save in self._reports:
            self._tell(save)
        elif save not in self._under_way:
            self._under_way.add(save)
            self._idle.clear()
            self._host.spawn(self._take(parse_id(save, "save"), message), f"save-{save}")

    def forget(self, message: Mapping[str, Any]) -> None:
        """save.forget: the control plane knows what became of it."""
        self._reports.pop(str(message["save"]), None)

    async def wait_idle(self) -> None:
        """Return when no save is under way."""
        await self._idle.wait()

    @asynccontextmanager
    async def fetched(self, computer: str, restore: Mapping[str, Any]) -> AsyncGenerator[Path]:
        """A spool folder with all that the save `restore` needs. Raises `ConnectionFailed`, `ObjectNotFound`."""
        async with self._folder(f"restore-{parse_id(computer, 'computer')}") as folder:
            names = [str(restore["manifest"]), *map(str, restore["packs"])]
            await self._move(names, lambda name: self._store.fetch(computer, name, folder / name))
            yield folder

    async def _take(self, save: str, message: Mapping[str, Any]) -> None:
        computer, fence = str(message["computer"]), message["fence"]

        def failed(failure: Failure) -> None:
            self._reports[save] = {"computer": computer, "fence": fence, "save": save, "error": failure.to_wire()}

        async def work() -> None:
            async with self._slots, self._folder(save) as folder:
                made = await self._host.gate.save(computer, fence, folder, message["keys"], message.get("previous"))
                packs = [str(pack["name"]) for pack in made["packs"]]
                await self._move(packs, lambda name: self._store.put(computer, name, folder / name))
                # The manifest is last: while it isn't there, nobody takes what is there for a save.
                manifest = str(made["manifest"]["name"])
                await self._store.put(computer, manifest, folder / manifest)
                needed = await asyncio.to_thread(_needed, folder / manifest)
            facts = {name: made[name] for name in ("files", "bytes", "changed_files", "new_bytes", "seconds", "generation")}
            self._reports[save] = {
                "computer": computer,
                "fence": fence,
                "save": save,
                "manifest": manifest,
                "packs": needed,
                **facts,
            }

        try:
            await answered(work, failed, "computer.save", computer=computer)
        finally:
            self._under_way.discard(save)
            if not self._under_way:
                self._idle.set()
        self._tell(save)

    def _tell(self, save: str) -> None:
        self._host.uplink.tell("computer.saved", **self._reports[save])

    async def _move(self, names: Sequence[str], move: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        slots = asyncio.Semaphore(TRANSFERS)

        async def one(name: str) -> None:
            async with slots:
                await move(name)

        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(one(name))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled, or failed for the same reason

    @asynccontextmanager
    async def _folder(self, name: str) -> AsyncGenerator[Path]:
        folder = self._spool / name
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.to_thread(folder.mkdir, mode=0o700)
        try:
            yield folder
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _needed(manifest: Path) -> list[str]:
    """The packs that a save is made of, those of earlier ones too."""
    with manifest.open("rb") as file:
        return sorted(packs_in(file))
