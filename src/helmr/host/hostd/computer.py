"""One Computer of hostd: its life between files on disk and processes in a sandbox. Every change is on disk before the reply."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.hostd import bundles, failure, hibernating, sleeping
from helmr.host.hostd.histories import Histories
from helmr.host.hostd.records import Fence, Record, save
from helmr.host.hostd.ways import Ways
from helmr.host.sandbox.bubblewrap import BaseMissing
from helmr.host.sandbox.cgroups import Usage
from helmr.host.sandbox.driver import ASIDE, Driver, Ending, Running
from helmr.host.sandbox.egress.protected import Protection
from helmr.host.sandbox.egress.rules import Exemption
from helmr.host.sandbox.identity import boot_id, is_alive
from helmr.host.sandbox.removal import remove_tree
from helmr.host.sandbox.spawn import LaunchFailed
from helmr.protocol.handing import ProtectedSecret, SecretFile
from helmr.protocol.wire import to_wire

ATTACH_SECONDS: Final = 10.0

_log = structlog.get_logger("helmr.hostd.computer")

Exited = Callable[["Computer", Ending], None]
"""Called when a running Computer ended by itself, after all of it is cleaned away."""
Spawn = Callable[[Awaitable[None]], None]


class Computer:
    """Operations on one Computer never overlap: each takes its lock, but for waiting ones (`attach`) and those of scopes."""

    def __init__(
        self,
        record: Record,
        driver: Driver,
        *,
        histories: Histories,
        spawn: Spawn,
        exited: Exited,
        exemptions: Sequence[Exemption] = (),
        store: Path | None = None,
        whole: bool = True,
    ) -> None:
        self.record = record
        self._histories = histories
        self._driver = driver
        self._spawn = spawn
        self._exited = exited
        self._lock = asyncio.Lock()
        self.ways = Ways(self, driver, exemptions, store)
        self._lapsed = False
        self.held = False
        """Whether a save holds its processes still, for a moment."""
        self.removed = False
        self.filled = whole
        """Whether it has files; one that is being restored hasn't."""

    @property
    def whole(self) -> bool:
        """Whether it is there for everybody: neither still being restored, nor being destroyed."""
        return self.filled and not self.removed

    @property
    def id(self) -> str:
        return self.record.computer

    @property
    def is_running(self) -> bool:
        return self.record.state == "running"

    def describe(self) -> dict[str, Any]:
        """The entry of `info`. `paths` name folders as the guest sees them."""
        record, paths = self.record, self._driver.paths(self.record.spec)
        rung = hibernating.rung(record)
        return {
            **({"rung": rung} if rung is not None else {}),
            "computer": self.id,
            "fence": record.fence,
            "environment": record.spec.environment,
            "state": "asleep" if rung is not None else record.state,
            "pid": record.running.pid1.pid if record.running is not None else None,
            "frozen": record.frozen or self._lapsed,
            "template": record.template,
            "layers": list(record.layers),
            "generation": record.generation,
            "declared": to_wire(record.declared),
            "paths": {"workspace": paths.workspace, "bundles": paths.bundles, "run": paths.run, "python": paths.python},
        }

    async def adopt(self) -> None:
        """After a restart of hostd: go on with what runs, end and clean what does not, say so on disk."""
        async with self._lock:
            running = self.record.running
            alive = self.record.state == "running" and running is not None and running.boot == boot_id() and is_alive(running.pid1)
            await asyncio.to_thread(remove_tree, Path(self.record.spec.folder) / ASIDE)
            if alive and running is not None:
                await self._driver.settle(self.record.spec, running)
                await hibernating.forget(self.record)
                await self.ways.open_egress()
                self.goes_on(running)
                _log.info("computer.adopted", computer=self.id, pid=running.pid1.pid)
            elif self.record.state == "waking":
                await sleeping.settle(self)
            elif self.record.state == "hibernated":
                await self._driver.end(self.record.spec, None)  # what was about to be freed when hostd was killed
            elif self.record.state != "stopped":
                await self._driver.end(self.record.spec, running)
                self._store(state="stopped", running=None, frozen=False)
                _log.warning("computer.lost", computer=self.id)

    async def start(self, fence: Fence, secrets: Sequence[ProtectedSecret] | None = None, files: Sequence[SecretFile] = ()) -> None:
        """Start it unless it runs, and show it `files`; either way it is the new fence's from now on. None: with the Secrets of the run
        that goes on, if any."""
        async with self._lock:
            self.check_fence(fence)
            if self.removed:
                raise failure.UnknownComputer(f"The Computer {self.id} is being destroyed.")
            if secrets is not None:
                self.ways.protect(secrets)
            if self.is_running:
                await self.awaken(self.running(), fence)
                return
            if self.record.state == "hibernated":
                with contextlib.suppress(failure.MemoryNotRestored):  # then it starts anew, as was asked
                    await sleeping.restore(self, fence, None, files)
                    return
            await hibernating.forget(self.record)
            spec = replace(self.record.spec, protected_origins=self._origins(secrets or ()))
            self._store(state="starting", spec=spec, fence=fence, frozen=False, image=None, generation=self.record.generation + 1)
            self.ways.known.clear()
            self.ways.listen()
            try:
                if secrets is None:
                    self.ways.protect(())
                await asyncio.to_thread(self.ways.prepare_trust)
                await self.ways.open_egress()
                running = await self._driver.start(spec, files=files)
            except BaseException as error:
                await self.ways.close()
                self._store(state="stopped")
                if isinstance(error, BaseMissing):
                    raise failure.BaseMismatch(str(error)) from error
                if isinstance(error, LaunchFailed):
                    raise failure.LaunchRefused(str(error)) from error
                raise
            self._store(state="running", running=running)
            self.goes_on(running)

    def protect(self, fence: Fence, secrets: Sequence[ProtectedSecret]) -> None:
        """What its proxy exchanges from now on, and nothing else: connections with what is no longer there end [X2]."""
        self.check_fence(fence)
        self.ways.protect(secrets)

    async def attach(self, fence: Fence) -> socket.socket:
        """The supervisor's stream; whoever had it before loses it."""
        self.check_fence(fence)
        if not self.is_running:
            raise failure.NotRunning(f"The Computer {self.id} does not run.")
        if self.record.fence != fence:
            async with self._lock:
                self._store(fence=fence)
        try:
            return await self.ways.take(ATTACH_SECONDS)
        except TimeoutError:
            raise failure.SupervisorSilent(f"The supervisor of {self.id} did not connect within {ATTACH_SECONDS:g} s.") from None

    def cut_off(self) -> None:
        """The worker that has the supervisor's stream is gone."""
        self.ways.cut_off()

    async def stop(self, fence: Fence | None) -> int:
        """End its processes; how many there were. The files stay. Without a fence: hostd ends, whoever owns it."""
        async with self._lock:
            if fence is not None:
                self.check_fence(fence)
            ended = await self.end_processes()
            await hibernating.forget(self.record)
            self._store(state="stopped", running=None, frozen=False, image=None, fence=self.record.fence if fence is None else fence)
            return ended

    async def destroy(self, fence: Fence) -> int:
        """End it and remove its files."""
        async with self._lock:
            self.check_fence(fence)
            self.removed = True
            ended = await self.end_processes()
            await self._driver.destroy(self.record.spec)
            return ended

    async def freeze(self, fence: Fence | None = None) -> None:
        """Stop its processes where they are. Without a fence: the watchdog does it, and a lease undoes it."""
        async with self._lock:
            if fence is not None:
                self.check_fence(fence)
            running = self.running()
            if fence is None:
                await self.ways.close_egress()  # whatever becomes of the freezing (I8)
            await self.ways.stand_still()
            await self._driver.freeze(self.record.spec, running)
            if fence is None:
                self._lapsed = True
            else:
                self._store(frozen=True, fence=fence)

    async def thaw(self, fence: Fence | None = None) -> None:
        """Let them go on, unless the other reason to stand still remains."""
        async with self._lock:
            if fence is not None:
                self.check_fence(fence)
            running = self.running()
            if fence is not None:
                await self.awaken(running, fence)
                return
            self._lapsed = False
            await self.ways.open_egress()
            await self.go_on(running)

    async def hibernate(self, fence: Fence, key: bytes | None = None) -> dict[str, Any]:
        """Put it to sleep by the strongest rung there is; says which, why none stronger, and how long it took [C6]. Idempotent.

        Memory on disk is sealed with `key`, where there is one.
        """
        return await sleeping.hibernate(self, fence, key)

    async def wake(self, fence: Fence, key: bytes | None = None, files: Sequence[SecretFile] = ()) -> dict[str, Any]:
        """Go on where `hibernate` left off: the same processes [C6]. Idempotent. Raises `MemoryNotRestored`; then it is stopped."""
        return await sleeping.wake(self, fence, key, files)

    def egress(self) -> Mapping[str, Any] | None:
        """What its proxy has decided; None without one."""
        return self.ways.decisions()

    async def stats(self) -> Usage:
        return await self._driver.stats(self.record.spec, self.running())

    async def bundle(self, digest: str, path: str, uid: int) -> str:
        """Copy a bundle in, once; its folder inside."""
        if self.removed:
            raise failure.UnknownComputer(f"The Computer {self.id} is being destroyed.")
        await asyncio.to_thread(bundles.place, Path(path), Path(self.record.spec.folder) / "bundles", digest, uid)
        return f"{self._driver.paths(self.record.spec).bundles}/{digest}"

    async def create_scope(self, channel: int) -> None:
        await self._driver.create_scope(self.record.spec, self.running(), channel)

    async def end_scope(self, channel: int) -> dict[str, Any]:
        """What is left of the scope ends. A Computer that doesn't run has nothing of it."""
        began = time.monotonic()
        if self.record.running is None:
            return {"ended": 0, "seconds": 0.0, "oom": None}
        found = await self._driver.end_scope(self.record.spec, self.record.running, channel)
        oom = found.out_of_memory
        return {
            "ended": found.processes,
            "seconds": round(time.monotonic() - began, 6),
            "oom": None if oom is None else {"limit": oom.limit, "peak": oom.peak},
        }

    async def release(self) -> None:
        """hostd stops: close what is ours; the Computer goes on."""
        await self.ways.close()

    # --- for what works on its files (`files.py`) and its sleep (`sleeping.py`) ---

    @property
    def driver(self) -> Driver:
        return self._driver

    @property
    def exclusive(self) -> asyncio.Lock:
        """Held by whoever changes it."""
        return self._lock

    @property
    def moves(self) -> bool:
        """Whether its processes may change its files now."""
        return self.is_running and not (self.record.frozen or self._lapsed)

    def note(self, **changes: Any) -> None:
        """Change its record, on disk before the return. Only under `exclusive`."""
        self._store(**changes)

    async def go_on(self, running: Running) -> None:
        """Thaw it unless there is another reason to stand still."""
        if not (self.record.frozen or self._lapsed or self.held):
            await self._driver.thaw(self.record.spec, running)
            self.ways.go_on()

    @property
    def lapsed(self) -> bool:
        """Whether the watchdog holds it."""
        return self._lapsed

    def goes_on(self, running: Running) -> None:
        """Its processes are known: hear of them, and of their end."""
        self.ways.listen()
        self.ways.known.set()
        self.ways.go_on()
        self._spawn(self._watch(running))

    def check_fence(self, fence: Fence) -> None:
        """Raise `FenceStale` for a fence older than the one that owns it; `InvalidRequest` for one that can't be compared [I11]."""
        self._histories.check(fence, self.record.fence, self.id)

    @property
    def of_earlier_history(self) -> bool:
        """Whether nobody of the database's present history has taken it over yet."""
        return self._histories.is_earlier(self.record.fence)

    # --- details ---

    def _origins(self, secrets: Sequence[ProtectedSecret]) -> tuple[str, ...]:
        if secrets and not self.ways.exchanges:
            _log.warning("computer.secrets_not_exchanged", computer=self.id, reason="no proxy: its Template or its driver has none")
            return ()
        return Protection(secrets).origins

    async def _watch(self, running: Running) -> None:
        ending = await self._driver.ended(self.record.spec, running)
        async with self._lock:
            if self.record.running != running:
                return
            # Its end took the rest of the sandbox with it; its groups and what had slipped out of it go now.
            await self._driver.end(self.record.spec, running)
            await self.ways.close()
            self._lapsed = False
            self._store(state="stopped", running=None, frozen=False)
        _log.info("computer.exited", computer=self.id, code=ending.code, signal=ending.signal)
        self._exited(self, ending)

    async def end_processes(self) -> int:
        ended = await self._driver.end(self.record.spec, self.record.running)
        running, self._lapsed = self.record.running, False
        self.record = replace(self.record, running=None)
        if running is not None:
            await self._driver.ended(self.record.spec, running)
        await self.ways.close()
        return ended

    async def awaken(self, running: Running, fence: Fence) -> None:
        was_frozen = self.record.frozen
        self._store(frozen=False, fence=fence)
        if was_frozen:
            await self.go_on(running)

    def running(self) -> Running:
        if self.record.running is None or not self.is_running:
            raise failure.NotRunning(f"The Computer {self.id} does not run.")
        return self.record.running

    def _store(self, **changes: Any) -> None:
        changed = replace(self.record, **changes)
        if changed != self.record or changed.state != "running":
            save(changed)
        self.record = changed
