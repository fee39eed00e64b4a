"""The ways between one Computer and hostd: the supervisor's streams, scopes that join, and the egress proxy. [C3], [C4], I4."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from helmr.host.hostd import failure
from helmr.host.hostd.egress import ComputerEgress
from helmr.host.hostd.passing import PassedStreams
from helmr.host.hostd.records import Record
from helmr.host.hostd.runsocket import RunSocket
from helmr.host.hostd.supply import Supply
from helmr.host.hostd.trust import Trust
from helmr.host.sandbox.driver import Driver, Passed
from helmr.host.sandbox.egress.rules import Exemption
from helmr.protocol.handing import ProtectedSecret

_PRECEDENCE_SECONDS: Final = 2.0
"""How long the channel to the proxy waits for the supervisor's own stream, for which a Turn may wait."""


class Owner(Protocol):
    """The Computer, as far as its ways need it."""

    record: Record

    @property
    def moves(self) -> bool:
        """Whether its processes run, and nothing holds them still."""
        ...


class Ways:
    """Guests that can connect do so; to others each stream is passed in."""

    def __init__(self, owner: Owner, driver: Driver, exemptions: Sequence[Exemption], store: Path | None = None) -> None:
        """`store`: by what the proxy verifies the origins of Secrets; None: the system's."""
        spec = owner.record.spec
        self._owner, self._driver = owner, driver
        self._egress = None
        if spec.egress and driver.proxied:
            trust = Trust(Path(spec.folder), spec.computer, store)
            self._egress = ComputerEgress(spec.computer, spec.egress, exemptions, trust, expected=spec.protected_origins)
        passes = self._egress is not None and not driver.guests_connect
        self._supply = Supply(self._egress, self._pass_egress) if passes and self._egress is not None else None
        self._streams: RunSocket | PassedStreams | None = None
        self.known = asyncio.Event()
        """Whether pid 1's identity is known: its supervisor may connect before the launch returns."""

    def listen(self) -> None:
        """Be ready for the supervisor. A no-op where that is so."""
        if self._streams is None:
            if self._driver.guests_connect:
                self._streams = RunSocket(self._folder(), is_supervisor=self._is_supervisor, join_scope=self._join_scope)
            else:
                self._streams = PassedStreams(self._pass_in)
            self._streams.open()

    async def take(self, seconds: float) -> socket.socket:
        """The supervisor's stream, whoever had it before losing it. Raises `TimeoutError`, `NotRunning`."""
        if self._streams is None:
            raise failure.NotRunning(f"The Computer {self._owner.record.computer} does not run.")
        return await self._streams.take(seconds)

    async def answers(self, seconds: float) -> None:
        """Return once the supervisor of a woken Computer has taken a stream, for the next `take`. Raises `TimeoutError`."""
        if isinstance(self._streams, PassedStreams):
            await self._streams.prepare(seconds)

    def cut_off(self) -> None:
        """End the stream that was taken."""
        if self._streams is not None:
            self._streams.cut_off()

    async def cut_all(self) -> None:
        """End every stream that was passed in, before memory goes to disk. Raises `Busy` rather than end what is in flight."""
        if isinstance(self._streams, PassedStreams):
            self.require_quiet()
            self._streams.cut_all()
            if self._egress is not None:
                self._egress.cut()
            await self.stand_still()

    def go_on(self) -> None:
        """Its processes move: see to it that they have a way to the proxy. A no-op while they don't, or while the proxy is closed."""
        if self._supply is not None and self._egress is not None and self._egress.is_open and self._owner.moves:
            self._supply.start()

    async def stand_still(self) -> None:
        """Pass nothing in from now on: its processes will be held."""
        if self._supply is not None:
            await self._supply.stop()

    async def close(self) -> None:
        """Close what is ours. Idempotent."""
        await self.close_egress()
        if self._streams is not None:
            self._streams.cut_off()
            await self._streams.close()
            self._streams = None

    async def open_egress(self) -> None:
        if self._egress is not None:
            await self._egress.open(self._folder() if self._driver.guests_connect else None)
            self.go_on()

    async def close_egress(self) -> None:
        await self.stand_still()
        if self._egress is not None:
            await self._egress.close()

    @property
    def exchanges(self) -> bool:
        """Whether there is a proxy that could exchange Secrets."""
        return self._egress is not None

    def protect(self, secrets: Sequence[ProtectedSecret]) -> None:
        """What the proxy exchanges from now on [X1]. A no-op without one."""
        if self._egress is not None:
            self._egress.protect(secrets)

    def prepare_trust(self) -> None:
        """Write down what the programs of the next run will trust. It reads and writes files. Raises `OSError`."""
        spec = self._owner.record.spec
        if self._egress is not None and spec.protected_origins:
            self._egress.trust.prepare(spec)
        elif self._egress is not None:
            self._egress.trust.settle(spec)

    def require_quiet(self) -> None:
        """Raise `Busy` while something that it asked for by its proxy has not ended [C6]."""
        found = self._egress.in_flight() if self._egress is not None else None
        if found:
            raise failure.Busy(f"In flight: {found}.")

    def decisions(self) -> Mapping[str, Any] | None:
        """What its proxy has decided; None without one."""
        return None if self._egress is None else self._egress.decisions.describe()

    def _folder(self) -> Path:
        return Path(os.path.realpath(Path(self._owner.record.spec.folder) / "run"))

    async def _pass_in(self, seconds: float) -> socket.socket:
        return await self._pass("stream", seconds)

    async def _pass_egress(self, seconds: float) -> socket.socket:
        if isinstance(self._streams, PassedStreams):
            await self._streams.precede(_PRECEDENCE_SECONDS)
        return await self._pass("egress", seconds)

    async def _pass(self, what: Passed, seconds: float) -> socket.socket:
        record = self._owner.record
        if record.running is None:
            raise failure.NotRunning(f"The Computer {record.computer} does not run.")
        return await self._driver.channel(record.spec, record.running, what, seconds)

    async def _is_supervisor(self, pid: int) -> bool:
        await self.known.wait()
        running = self._owner.record.running
        return running is not None and running.pid1.pid == pid

    async def _join_scope(self, channel: int, pid: int) -> None:
        await self.known.wait()
        record = self._owner.record
        if record.running is None:
            raise LookupError("the Computer has ended")
        await self._driver.join_scope(record.spec, record.running, channel, pid)
