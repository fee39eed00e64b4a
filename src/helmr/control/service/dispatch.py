"""The dispatcher: the `Reactor` of a control plane, and the meeting point of what is heard, told and placed. DESIGN 2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from helmr.control.domain.processes import End
from helmr.control.service import render
from helmr.control.service.background import Background, Coalesced, until_stored
from helmr.control.service.command_runs import CommandRuns
from helmr.control.service.controls import Controls
from helmr.control.service.core import Core
from helmr.control.service.guests import Seat
from helmr.control.service.hearing import Hearing
from helmr.control.service.manifests import Manifests
from helmr.control.service.processes import Processes
from helmr.control.service.roster import Roster
from helmr.control.service.sleeping import Sleeping
from helmr.control.service.streams import Streams
from helmr.control.service.telling import Telling
from helmr.control.store.flush import Admit, Flushed
from helmr.control.store.queries import commands, processes

PLACED_AT_ONCE: Final = 200


class Dispatcher:
    """`move_computer` tells a Computer's worker where it should go; the links set it."""

    def __init__(self, core: Core, manifests: Manifests, controls: Controls, work: Processes, sleeping: Sleeping, *, plane_id: str) -> None:
        self._core = core
        self._controls = controls
        self._processes = work
        self._sleeping = sleeping
        self.background = Background()
        self.roster = Roster()
        self.telling = Telling(core, self.roster, manifests, work, self.background)
        self.hearing = Hearing(core, self.roster, self.telling, work, self.background, on_drained=self.finish)
        self.commands = CommandRuns(core, self.roster, work, self.background, on_full=self.make_room)
        self.hearing.on_command = self.commands.hear
        self.streams = Streams(core, self.roster, work, self.background, plane_id=plane_id, on_full=self.make_room)
        self.hearing.on_stream = self.streams.hear
        self.roster.on_lost = lambda seat: self.streams.lose(
            seat, "The way to the Computer was lost: it sleeps or stopped, or its worker did."
        )
        self._placing = Coalesced(self.background, "place")
        self._finishing = Coalesced(self.background, "finish_close")
        self._moving = Coalesced(self.background, "move_computer")
        self._making_room = Coalesced(self.background, "make_room")
        self.move_computer: Callable[[str], Awaitable[None]] | None = None
        core.reactor = self

    async def stop(self) -> None:
        self.streams.stop()
        await self.background.stop()

    def attached(self, seat: Seat, rows: list[Any], alive: set[int], *, lost: End = "process_lost") -> None:
        """The Computer's stream is there: `rows` are its Sessions with a process, `alive` the channels its supervisor knows."""
        for guest in list(seat.guests.values()):
            self.roster.drop(guest)
        seat.attached = True
        seat.starting.clear()
        for row in rows:
            if row["channel"] in alive:
                guest = self.roster.meet(seat, row)
                seat.starting.add(guest.number)
            elif row["process"] != "starting":
                self.background.start(self._lost(str(row["id"]), row["channel"], lost), "process_ended")
            self.sync_session(str(row["id"]))

    def exited(self, seat: Seat, channel: int, work: Callable[[], Awaitable[None]]) -> None:
        """A process ended: `work` runs after all that it said before is stored."""
        guest = seat.guests.get(channel)
        if guest is None:
            self.background.start(until_stored(work), "process_ended")
            return

        async def then() -> None:
            await work()
            self.roster.drop(guest)

        self.hearing.after_all(guest, then)

    # --- the Reactor ------------------------------------------------------------------------------------------------------

    def sync_session(self, session_id: str) -> None:
        """Tell the Session's process, if its Computer is attached here, what it should know."""
        self.telling.sync_session(session_id)

    def place(self, session_id: str) -> None:
        self._placing.ask(session_id, self._place)

    def claim(self, session_id: str) -> None:
        self.telling.claim(session_id)

    def finish(self, root_session_id: str) -> None:
        self._finishing.ask(root_session_id, self._controls.finish)

    def move(self, computer_id: str) -> None:
        if self.move_computer is not None:
            self._moving.ask(computer_id, self.move_computer)

    def place_command(self, command_id: str) -> None:
        self.commands.place(command_id)

    def sync_commands(self, computer_id: str) -> None:
        self.commands.sync(computer_id)

    def make_room(self) -> None:
        """Something waits for which there is no room."""
        self._making_room.ask("make_room", self._make_room)

    def place_waiting(self) -> None:
        """Room may have come: place who waits for it, in fair order."""
        self._making_room.ask("place_waiting", self._place_waiting)

    def admitted(self, item: Admit, flushed: Flushed) -> None:
        """A Turn was admitted by a flush; if it runs, its process is told at once."""
        session_id = item.session_id
        if self._core.hub.followed(session_id):
            data = f'{{"sequence":{flushed.turn_sequence},"source":'.encode() + item.source + b"}"
            events = [render.event(session_id, item.turn_id, flushed.sequence, flushed.at, "turn.queued", data)]
            if flushed.next_turn is not None:
                events.append(render.event(session_id, item.turn_id, flushed.sequence + 1, flushed.at, "turn.running", b"{}"))
            self._core.hub.push(session_id, events)
        if flushed.next_turn is not None:
            following = flushed.next_turn._replace(input=item.input, source=item.source)
            self.telling.start(session_id, following)
        elif flushed.hint == "place":
            self.place(session_id)

    async def _lost(self, session_id: str, channel: int, end: End) -> None:
        await until_stored(lambda: self._processes.ended(session_id, channel, end))

    async def _place(self, session_id: str) -> None:
        placed, _ = await self._processes.place(session_id)
        if placed == "full":
            self.make_room()

    async def _make_room(self, _: str) -> None:
        await self._sleeping.make_room()

    async def _place_waiting(self, _: str) -> None:
        async with self._core.database.connection() as connection:
            rows = await processes.wanting(connection, count=PLACED_AT_ONCE)
            queued = await commands.queued(connection, count=PLACED_AT_ONCE)
        for row in rows:
            self.place(str(row["id"]))
        for row in queued:
            self.place_command(str(row["id"]))
