"""Streams to Computers: shells, copies of files, tunnels, for as long as their clients hold them open. SPEC [C8], [C6], [C3].

The control plane that has the client must have the link of the Computer's worker too. A stream is a row while it lives, so that its
Computer is woken for it and stays awake; all else of it is memory, and ends with any connection on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog

from helmr.control.service.background import Background, Coalesced, until_stored
from helmr.control.service.commands import check_arguments
from helmr.control.service.core import Core, Effects
from helmr.control.service.exposures import refuse_exposed, why_not
from helmr.control.service.guests import Seat
from helmr.control.service.principals import Principal
from helmr.control.service.processes import Processes
from helmr.control.service.roster import Roster
from helmr.control.service.stream_run import StreamRun
from helmr.control.store.pool import Connection
from helmr.control.store.queries import audit, computers, streams
from helmr.protocol import frames, jsontext
from helmr.protocol.errors import (
    CapacityUnavailable,
    ComputerDeleting,
    ComputerNotFound,
    ComputerUnreachable,
    Forbidden,
    ShuttingDown,
    StreamBroken,
    StreamsExhausted,
)
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.link import control
from helmr.protocol.streams import STREAMS, StreamError, StreamKind

OPEN_SECONDS: Final = 120.0
"""How long a stream waits for its Computer."""
LEASE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 1.0
"""How often it looks whether its Computer is there, if nobody says so (I6)."""
OPERATIONS: Final[Mapping[StreamKind, str]] = MappingProxyType(
    {
        "shell": "computers.shell",
        "forward": "computers.forward",
        "read": "computers.read_files",
        "write": "computers.write_files",
    }
)
"""How the audit log calls them."""
HANGUP_SECONDS: Final = 6.0
"""What a stream's scope has to end by itself once its client is gone."""

log = structlog.get_logger("helmr.streams")


class Streams:
    """`on_full` is told that a stream waits for room."""

    def __init__(
        self, core: Core, roster: Roster, work: Processes, background: Background, *, plane_id: str, on_full: Callable[[], None]
    ) -> None:
        self._core = core
        self._roster = roster
        self._processes = work
        self._background = background
        self._plane_id = plane_id
        self._on_full = on_full
        self._runs: dict[str, StreamRun] = {}
        self._arrivals: dict[str, set[asyncio.Event]] = {}
        self._renewing = Coalesced(background, "renew_streams")

    async def open(self, principal: Principal, computer_id: str, kind: StreamKind, opening: Mapping[str, Any]) -> StreamRun:
        """A stream to a process of its own on the Computer, which is started or woken for it. Whoever opened it must `close` it.

        Raises `ComputerNotFound`, `ComputerDeleting`, `StreamsExhausted`, `CapacityUnavailable`, `ComputerUnreachable`,
        `SecretUnavailable`, `InvalidValue`.
        """
        if principal.kind == "session":
            raise Forbidden("A Session has its Computer at hand: it opens no streams.")
        principal.require("computers.exec")
        if kind == "shell":
            check_arguments(opening.get("argv") or ("sh",), opening.get("env") or {}, opening.get("cwd"))
        await self._insert(principal, computer_id, id := new_id(), kind)
        run = self._runs[id] = StreamRun(id, computer_id, kind, lambda: self._renewing.ask("", self._renew))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                seat = await self._bring(run)
        except TimeoutError:
            self.close(run)
            raise run.error or ComputerUnreachable() from None
        except BaseException:
            self.close(run)
            raise
        stream = {"kind": kind, **opening}
        if kind == "shell" and seat.handed.variables:
            stream["env"] = {**seat.handed.variables, **(opening.get("env") or {})}
        seat.link.send(control("stream.start", computer=computer_id, channel=run.channel, stream=stream))
        return run

    def close(self, run: StreamRun) -> None:
        """End it, and soon what serves it. Idempotent; returns at once."""
        if self._runs.pop(run.id, None) is None:
            return
        if run.seat is not None and not run.exited.is_set():
            run.say("hangup")
            self._background.start(self._see_off(run), "stream_end")
        self._background.start(
            until_stored(lambda: self._core.write("end_stream", lambda c, _: streams.end_stream(c, id=run.id))), "end_stream"
        )

    async def renew(self) -> None:
        """Say in the database that the streams here live, and until when they count."""
        await self._renew("")

    # --- what is heard ------------------------------------------------------------------------------------------------------

    def arrived(self, seat: Seat) -> None:
        """The Computer's stream is there; those of clients that it had before are over."""
        self.lose(seat, "The connection to the Computer broke.")
        for event in self._arrivals.get(seat.computer_id, ()):
            event.set()

    def lose(self, seat: Seat, why: str) -> None:
        """The way to the Computer is lost."""
        for run in seat.streams.values():
            run.lost(StreamBroken(why))
        seat.streams.clear()

    def hear(self, seat: Seat, frame: frames.Frame) -> None:
        """A frame of a stream. One that breaks the protocol ends its scope (I4)."""
        run = seat.streams.get(frame.channel)
        if run is None or not frame.payload:
            return
        try:
            if frame.op:
                raise StreamError("its frames are not stored")
            run.hear(frame.payload)
        except StreamError as error:
            log.warning("a stream's scope broke the protocol", computer=seat.computer_id, error=str(error))
            del seat.streams[frame.channel]
            run.lost(StreamBroken("What serves the stream on the Computer broke the protocol."))
            self._roster.kill(seat.computer_id, frame.channel, "protocol_violated")

    def exited(self, seat: Seat, channel: int, said: Mapping[str, Any]) -> bool:
        """A scope has ended; whether it was a stream's."""
        run = seat.streams.pop(channel, None)
        if run is not None:
            run.gone(said)
        return run is not None

    def stop(self) -> None:
        """This control plane stops: every stream here is over."""
        for run in tuple(self._runs.values()):
            run.lost(ShuttingDown())
            self.close(run)

    # --- details ------------------------------------------------------------------------------------------------------------

    async def _insert(self, principal: Principal, computer_id: str, id: str, kind: StreamKind) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            row = await computers.lock_computer(connection, id=computer_id) if is_id(computer_id) else None
            if row is None or str(row["environment_id"]) != principal.environment_id or row["status"] == "deleted":
                raise ComputerNotFound()
            if row["status"] == "deleting":
                raise ComputerDeleting()
            if await streams.streams_open(connection, computer_id=computer_id) >= STREAMS:
                raise StreamsExhausted()
            await streams.insert_stream(
                connection,
                id=id,
                environment_id=principal.environment_id,
                computer_id=computer_id,
                kind=kind,
                requested_by=jsontext.dumps(principal.by),
                seconds=LEASE_SECONDS,
            )
            await audit.note(
                connection,
                id=new_id(),
                environment_id=principal.environment_id,
                principal_id=principal.id,
                kind=principal.kind,
                operation=OPERATIONS[kind],
                target=computer_id,
            )

        await self._core.write("open_stream", work)

    async def _bring(self, run: StreamRun) -> Seat:
        """Have the Computer run and be attached here, and take a channel of it."""
        arrival = asyncio.Event()
        self._arrivals.setdefault(run.computer_id, set()).add(arrival)
        try:
            while True:
                arrival.clear()
                seat = self._roster.seat_of(run.computer_id)
                there = seat is not None and seat.attached
                channel = await self._core.write("bring_stream", lambda c, effects, there=there: self._step(c, effects, run, there))
                if channel is not None and seat is not None and self._roster.seat_of(run.computer_id) is seat and seat.attached:
                    run.channel, run.seat = channel, seat
                    seat.streams[channel] = run
                    return seat
                if run.exited.is_set():
                    raise run.error or ShuttingDown()
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await arrival.wait()
                except TimeoutError:
                    continue
        finally:
            waiting = self._arrivals[run.computer_id]
            waiting.discard(arrival)
            if not waiting:
                del self._arrivals[run.computer_id]

    async def _step(self, connection: Connection, effects: Effects, run: StreamRun, there: bool) -> int | None:
        computer = await computers.lock_computer(connection, id=run.computer_id)
        if computer["status"] != "available":
            raise ComputerDeleting()
        run.error = None
        if computer["residency"] != "running":
            going = await self._processes.set_going(connection, effects, computer)
            if going == "secret":
                raise await why_not(connection, run.computer_id)
            if going == "full":
                run.error = CapacityUnavailable()
                self._on_full()
            return None
        await refuse_exposed(connection, run.computer_id)
        if await computers.worker_drains(connection, id=computer["worker_id"]):
            run.error = ComputerUnreachable("The Computer's worker takes nothing new: it is to stop.")
            return None
        if not there:
            if await streams.worker_elsewhere(connection, id=computer["worker_id"], plane_id=self._plane_id):
                raise ComputerUnreachable()
            return None
        channel: int = await computers.take_channel(connection, id=run.computer_id)
        if await streams.start_stream(connection, id=run.id, channel=channel) is None:
            raise StreamBroken("The stream waited for too long.")
        return channel

    async def _see_off(self, run: StreamRun) -> None:
        try:
            async with asyncio.timeout(HANGUP_SECONDS):
                await run.exited.wait()
        except TimeoutError:
            self._roster.kill(run.computer_id, run.channel, "client_gone")

    async def _renew(self, _: str) -> None:
        runs = list(self._runs.values())
        if runs:
            counts = [run.counts_seconds for run in runs]
            async with self._core.database.connection() as connection:
                await streams.renew_streams(connection, ids=[run.id for run in runs], counts=counts, seconds=LEASE_SECONDS)
