"""Saves and restores of Computers [C5]: each in a process of its own (`saver.py`), with hostd holding the tree still for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.hostd import failure
from helmr.host.hostd.computer import Computer
from helmr.host.hostd.files import files_of, hold_still, let_go
from helmr.host.hostd.records import Fence
from helmr.host.hostd.saver import DESCRIPTOR
from helmr.host.sandbox import crowds
from helmr.host.sandbox.driver import DurableFiles
from helmr.host.sandbox.spawn import SOURCE, reap, spawn

STILL_SECONDS: Final = 0.25
"""How long a save may keep processes from running. Past it they go on, and the rest of the save looks twice at each file [C5]."""
MOST_SECONDS: Final = 1800.0
"""After which a saver is ended that has not: nobody waits for it any more, and others may."""
CACHE: Final = "saves"
_LINE_BYTES: Final = 1 << 24

_log = structlog.get_logger("helmr.hostd.saving")

Reached = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Order:
    """What a worker asked for: where the packs pass (`spool`, a folder of the user `owner`; None: root's, who may use any), and the keys
    as they came, in Base64."""

    spool: str
    owner: int | None
    keys: Mapping[str, str]


async def end_savers(state: Path) -> None:
    """End what a hostd that was killed had at work: it ends by itself, but until then it may be writing to folders that are to go."""
    await crowds.kill(lambda: crowds.marked(_mark(state)))


def _mark(state: Path) -> str:
    return f"saves.{hashlib.sha256(os.fsencode(state)).hexdigest()[:16]}"


class Saves:
    """The saves and restores of the hostd of `state`. As many processes as there are processors work at a time."""

    def __init__(self, state: Path) -> None:
        self._mark = _mark(state)
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)
        self._turns: dict[str, asyncio.Lock] = {}
        self._savers: dict[str, _Saver] = {}
        self.reached: Reached = lambda point: None
        """Called at each named step; tests end the process there."""

    async def save(self, computer: Computer, fence: Fence, order: Order, *, previous: str | None, keep_frozen: bool) -> Mapping[str, Any]:
        """Save its files as they are at one moment, if the last look takes no longer than `STILL_SECONDS`: `frozen` in the reply says so.

        With `keep_frozen` the moment lasts: its processes stand still afterwards, as after `freeze`. Saves of one Computer follow each
        other. Raises `Refusal`.
        """
        computer.check_fence(fence)
        async with self._turns.setdefault(computer.id, asyncio.Lock()), self._slots:
            files = await files_of(computer)
            job = self._job("save", order, files, computer.record.spec.folder)
            job |= {"root": str(files.root), "previous": previous, "moves": computer.moves, "tells_whole": True}
            job["lowers"] = files.layers
            moment = Moment(computer, fence, keep=keep_frozen)
            async with self._saver(computer.id, Path(computer.record.spec.folder)) as saver, moment, _in_time():
                self.reached("save:begun")
                await saver.say(job)
                async for message in saver.messages():
                    if message.get("n") == "still":
                        await moment.begin()
                        self.reached("save:still")
                        await saver.say({})
                    elif message.get("n") == "moving":
                        await moment.end()
                        self.reached("save:moving")
                        await saver.say({"whole": moment.whole})
                    else:
                        self.reached("save:done")
                        _log.info("computer.saved", computer=computer.id, **{name: message["ok"][name] for name in _TOLD})
                        return {**message["ok"], "generation": moment.generation, "frozen": moment.whole}
        raise AssertionError("a saver's messages end with its report")

    async def restore(self, folder: Path, files: DurableFiles, target: Path, order: Order, *, manifest: str) -> Mapping[str, Any]:
        """Make `target` of a save, for a Computer of `folder` that doesn't run. Raises `Refusal`; `target` isn't there then."""
        async with self._slots, self._saver(folder.name, folder) as saver, _in_time():
            self.reached("restore:begun")
            job = self._job("restore", order, files, str(folder))
            await saver.say(job | {"target": str(target), "manifest": manifest})
            async for message in saver.messages():
                self.reached("restore:made")
                return message["ok"]
        raise AssertionError("a saver's messages end with its report")

    def cancel(self, computer: str) -> None:
        """End what is being done for this Computer: its caller is refused."""
        if computer in self._savers:
            self._savers[computer].kill()

    @staticmethod
    def _job(kind: str, order: Order, files: DurableFiles, folder: str) -> dict[str, Any]:
        return {
            "job": kind,
            "spool": order.spool,
            "owner": order.owner,
            "keys": dict(order.keys),
            "cache": f"{folder}/{CACHE}",
            "first_id": files.first_id,
            "layout": files.layout,
        }

    @asynccontextmanager
    async def _saver(self, computer: str, folder: Path) -> AsyncGenerator[_Saver]:
        saver = self._savers[computer] = await _Saver.start(folder / "saver.log", self._mark)
        try:
            yield saver
        finally:
            if self._savers.get(computer) is saver:
                del self._savers[computer]
            await asyncio.shield(saver.end())


@asynccontextmanager
async def _in_time() -> AsyncGenerator[None]:
    limit = asyncio.timeout(MOST_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise failure.SaveFailed(f"The saver has not ended within {MOST_SECONDS:g} s.") from None


_TOLD: Final = ("files", "bytes", "changed_files", "new_bytes", "seconds")


class Moment:
    """The moment at which a tree is saved: from `begin` to `end` its processes stand still, but never longer than `STILL_SECONDS`."""

    def __init__(self, computer: Computer, fence: Fence, *, keep: bool) -> None:
        self._computer, self._fence, self._keep = computer, fence, keep
        self._timer: asyncio.Task[None] | None = None
        self._held = False
        self.generation = computer.record.generation
        self.whole = False
        """Whether nothing can have changed from `begin` to `end`."""

    async def begin(self) -> None:
        self._held = True  # whatever becomes of the next line, what it stopped goes on
        await hold_still(self._computer, self._fence, keep=self._keep)
        self.generation = self._computer.record.generation
        if not self._keep:
            self._timer = asyncio.ensure_future(self._run_out())

    async def end(self) -> None:
        if self._held:
            self.whole = self._computer.record.generation == self.generation
            await self._release()

    async def __aenter__(self) -> Moment:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.shield(self._release())

    async def _run_out(self) -> None:
        await asyncio.sleep(STILL_SECONDS)
        await self._release()

    async def _release(self) -> None:
        if self._held:
            self._held = False
            await let_go(self._computer)


class _Saver:
    """The process, and the connection to it."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Path) -> None:
        self._pid, self._reader, self._writer, self._log = pid, reader, writer, log
        self._ended = False

    @classmethod
    async def start(cls, log: Path, mark: str) -> _Saver:
        ours, theirs = socket.socketpair()
        with theirs:
            # Without site-packages' start-up: all that it needs is where this process found its own.
            variables = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([SOURCE, *filter(None, sys.path)]), crowds.MARK: mark}
            pid = spawn([sys.executable, "-S", "-m", "helmr.host.hostd.saver"], variables, log=log, descriptors=[theirs.fileno()])
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES)
        return cls(pid, reader, writer, log)

    async def say(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # its end is told where its messages are awaited
            await self._writer.drain()

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Until its report. Raises `Refusal` for its error, and when it ends without a word."""
        while line := await self._line():
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise failure.SaveRefused(str(message["error"]["code"]), str(message["error"]["message"]))
            yield message
        raise failure.SaveFailed(f"The saver ended without a word. {await asyncio.to_thread(_tail, self._log)}")

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:  # it was killed, with something of ours unread
            return b""

    def kill(self) -> None:
        if not self._ended:
            os.kill(self._pid, signal.SIGKILL)

    async def end(self) -> None:
        """End it, whatever it is at, and take its exit code."""
        self._writer.close()
        self.kill()
        await reap(self._pid)
        self._ended = True


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:]


assert DESCRIPTOR == 3, "`spawn` gives it this number"
