"""Worker links, the control plane's end. DESIGN 2, I4, I6, I8; messages in `protocol/link.py`.

Control messages of a link are handled one after another; frames are handed on as they come, once their Computer is attached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from helmr.control.domain.processes import End
from helmr.control.service import silences
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.core import Core
from helmr.control.service.deletions import Deletions
from helmr.control.service.dispatch import Dispatcher
from helmr.control.service.draining import Draining
from helmr.control.service.evictions import Evictions
from helmr.control.service.greeting import Greeting
from helmr.control.service.guests import Seat
from helmr.control.service.histories import Histories
from helmr.control.service.leases import Leases
from helmr.control.service.pressure import Pressure, PressureNotices
from helmr.control.service.processes import DRAINED, Processes
from helmr.control.service.reconciling import Reconciling
from helmr.control.service.save_orders import SaveOrders
from helmr.control.service.session_logs import LogLine, SessionLogs
from helmr.control.service.sleeping import Sleeping, how_slept
from helmr.control.service.vault import Vault
from helmr.control.service.worker_credentials import WorkerCredentials
from helmr.control.service.worker_end import WorkerEnd
from helmr.control.store.queries import commands, computers, processes
from helmr.protocol.link import Link, control

_WAYS: Final = {
    "starting": "computer.start",
    "restoring": "computer.start",
    "hibernating": "computer.sleep",
    "hibernated": "computer.sleep",
    "waking": "computer.wake",
}
"""What brings a Computer where its row says that it is or goes."""
_FACTS: Final = ("code", "signal", "limit", "peak", "ended", "seconds")
log = structlog.get_logger("helmr.links")


class Links:
    """All worker links of this control plane."""

    def __init__(
        self,
        core: Core,
        dispatcher: Dispatcher,
        work: Processes,
        sleeping: Sleeping,
        deletions: Deletions,
        histories: Histories,
        saving: SaveOrders,
        pressed: Pressure,
        draining: Draining,
        vault: Vault,
        credentials: WorkerCredentials,
        *,
        plane_id: str,
        on_log: LogLine | None = None,
    ) -> None:
        self._core = core
        self._processes = work
        self._sleeping = sleeping
        self._deletions = deletions
        self._histories = histories
        self._saving = saving
        self._plane_id = plane_id
        self._vault = vault
        self._logs = SessionLogs(on_log)
        self.evictions = Evictions(core, dispatcher.roster, work, vault)
        self.dispatcher = dispatcher
        self.background = Background()
        self._ends: dict[str, WorkerEnd] = {}
        self._poking = Coalesced(self.background, "poke")
        self.on_worker: Callable[[], None] = lambda: None
        """Called when a worker has said hello: what waited for one may go on."""
        self._greeting = Greeting(core, histories, plane_id)
        self._leases = Leases(core, histories, saving, draining, PressureNotices(pressed, self.background), credentials, plane_id)
        self._reconciling = Reconciling(core, work, sleeping, deletions, histories, draining, self)
        dispatcher.move_computer = self.move_computer

    def open(self, worker: str, link: Link) -> WorkerEnd:
        """Take over one end of a worker's new link. `worker` is an id where it may be that one only."""
        return WorkerEnd(self, link, worker)

    async def stop(self) -> None:
        for end in list(self._ends.values()):
            end.link.close("control plane stops")
        await self.background.stop()

    def restart(self, reason: str) -> None:
        """Close every link: each worker says hello again."""
        for end in list(self._ends.values()):
            end.leave(reason)

    def ask_to_renew(self) -> None:
        """Have each worker renew now, and tell what it has started since its last mark."""
        for end in self._ends.values():
            end.link.send(control("renew"))

    def any_end(self, environment_id: str) -> WorkerEnd | None:
        """Some live worker that serves the Environment: one that is not about to go and has room, where there is such."""
        ends = (end for end in self._ends.values() if not end.closed and (end.serves is None or environment_id in end.serves))
        return min(ends, key=lambda end: end.reluctant, default=None)

    def poke(self) -> None:
        """Look for what this control plane's workers should be told: lost notices, other planes' placements (I6)."""
        for worker_id in self._ends:
            self._poking.ask(worker_id, self._look)

    async def drain_asked(self) -> None:
        """Go on with what somebody asked of this control plane's workers."""
        await self._leases.asked(list(self._ends.values()))

    async def move_computer(self, computer_id: str) -> None:
        """Tell the Computer's worker where it should go, if its link is here."""
        async with self._core.database.connection() as connection:
            row = await computers.computer_row(connection, id=computer_id)
        if row is not None and row["worker_id"] is not None:
            end = self._ends.get(str(row["worker_id"]))
            if end is not None:
                await self.tell(end, row)
                await self._saving.tell(end, computer_id)
                await self.evictions.look(end, computer_id)

    async def rest(self) -> None:
        """Stop the running Computers here whose Sessions are all closed and gone: they hold capacity for nobody. Their files stay [C10]."""
        for end in list(self._ends.values()):
            for seat in list(end.seats.values()):
                if not seat.guests and await self._processes.computer_rests(seat.computer_id, seat.fence):
                    self.dispatcher.roster.remove_seat(seat)
                    end.seats.pop(seat.slot, None)
                    end.link.send(control("computer.stop", computer=seat.computer_id, fence=seat.fence))

    async def handle(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        kind = said.get("t")
        if kind == "hello":
            await self._hello(end, said)
        elif end.worker_id is None:
            end.leave("hello comes first")
        elif not await self._leases.may_say(end, said):
            return
        elif kind == "history.started":
            await self._histories.started(said["turns"])
        elif kind == "turn.repeated":
            await self._histories.repeated(said["turn"], said["computer"], int(said["channel"]), end.incarnation)
        elif kind == "history.entered":
            await self._entered(end)
        elif kind == "renew":
            await self._leases.renew(end, said)
        elif kind == "credential.offer":
            await self._leases.offered(end, said)
        elif kind == "leave":
            await self._leases.left(end)
        elif kind == "computer.state":
            await self._state(end, said)
        elif kind == "computer.silent":
            await silences.note(self._core, said["computer"], said["fence"], said.get("since"))
        elif kind == "computer.attached":
            await self._attached(end, said)
        elif kind == "computer.saved":
            await self._saving.saved(end, said)
        elif kind == "session.started":
            seat = end.seat_of(said["computer"])
            if seat is not None:
                self.dispatcher.commands.started(seat, int(said["channel"]))
        elif kind == "session.exited":
            self._exited(end, said)
        elif kind == "session.log":
            self._logs.hear(end.seat_of(said["computer"]), said)
        elif kind in ("image.log", "image.built", "image.resolved"):
            hear = end.builds.get(said["request"])
            if hear is not None:
                hear(said)

    def ended(self, end: WorkerEnd) -> None:
        """The link is gone. Its Computers go on by themselves; nothing is settled for that (C3)."""
        for seat in end.seats.values():
            self.dispatcher.roster.remove_seat(seat)
        end.seats.clear()
        if end.worker_id is not None and self._ends.get(end.worker_id) is end:
            del self._ends[end.worker_id]
        for hear in list(end.builds.values()):
            hear({"t": "lost"})

    # --- messages -----------------------------------------------------------------------------------------------------------

    async def _hello(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        worker_id, worker = await self._greeting.take_in(end, said), said["worker"]
        if worker_id is None:
            return
        old = self._ends.get(worker_id)
        if old is not None and old is not end and old.said_id != worker["id"]:
            end.leave(f"a worker named {end.name!r} is connected already: give this one another name")
            return
        if old is not None and old is not end:
            self.ended(old)
            old.link.close("the worker said hello on another link")
        end.worker_id, end.said_id = worker_id, worker["id"]
        self._ends[worker_id] = end
        log.info("worker connected", worker=end.name, driver=worker["driver"])
        if self._greeting.welcome(end, said):
            await self._entered(end)

    async def _entered(self, end: WorkerEnd) -> None:
        """The worker follows the present history of the database: it gets to do what there is."""
        await self._reconciling.reconcile(end, end.held)
        self.on_worker()
        self.dispatcher.place_waiting()

    async def _state(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        computer_id, fence, state = said["computer"], said["fence"], said["state"]
        if state == "asleep":
            if await self._sleeping.slept(computer_id, fence, how_slept(said)):
                end.asleep.add(computer_id)
                self.dispatcher.place_waiting()
            else:
                end.link.send(control("computer.stop", computer=computer_id, fence=fence))
            return
        end.asleep.discard(computer_id)
        if state == "awake":
            if said.get("error") is not None:
                log.warning("a Computer could not sleep", computer=computer_id, error=said["error"])
            error = said.get("error")
            if not await self._sleeping.woke(computer_id, fence, str(said.get("rung")), float(said.get("seconds", 0)), error=error):
                end.link.send(control("computer.stop", computer=computer_id, fence=fence))
            else:
                await self.attach(end, computer_id, fence)
            return
        if state == "running":
            if await self._processes.computer_running(computer_id, fence):
                await self.attach(end, computer_id, fence)
            else:
                end.link.send(control("computer.stop", computer=computer_id, fence=fence))
            return
        error = said.get("error") or {"code": "computer_gone", "message": "The Computer stopped."}
        seat = end.seat_of(computer_id)
        if said.get("reason") == "destroyed":
            if seat is not None:
                self.dispatcher.roster.remove_seat(seat)
                end.seats.pop(seat.slot, None)
            await self._deletions.gone(computer_id, fence)
            self.dispatcher.place_waiting()
            return
        if state == "failed" and await self._deletions.failed(computer_id, fence, error):
            return
        if seat is not None and seat.fence == fence:
            self.dispatcher.roster.remove_seat(seat)
            end.seats.pop(seat.slot, None)
            if state == "failed":
                end.unattached.add(computer_id)
        if state == "failed":
            if error.get("code") == DRAINED:
                await self._leases.drains(end)
            await self._processes.computer_failed(computer_id, fence, error)
        else:
            await self._processes.computer_lost(computer_id, fence, "cold", error)
        await self.place_on(computer_id)

    async def attach(self, end: WorkerEnd, computer_id: str, fence: int) -> None:
        """Have the worker join a running Computer's stream to a new slot of its link."""
        old = end.seat_of(computer_id)
        if old is not None:
            self.dispatcher.roster.remove_seat(old)
            del end.seats[old.slot]
        async with self._core.database.connection() as connection:
            row = await computers.computer_row(connection, id=computer_id)
            alive = await processes.alive_on(connection, computer_id=computer_id)
            alive += await commands.alive_briefly(connection, computer_id=computer_id)
            handed = await self._vault.handed(connection, row)
        seat = Seat(
            computer_id=computer_id,
            environment_id=str(row["environment_id"]),
            fence=fence,
            slot=end.slot(),
            link=end.link,
            worker_id=end.worker_id or "",
            handed=handed,
        )
        end.seats[seat.slot] = seat
        self.dispatcher.roster.add_seat(seat)
        acked = {str(session["channel"]): session["last_op"] for session in alive}
        end.link.send(control("computer.attach", computer=computer_id, fence=fence, slot=seat.slot, acked=acked, **handed.to_attach()))

    async def _attached(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        seat = end.seats.get(said["slot"])
        if seat is None or seat.computer_id != said["computer"]:
            return
        await silences.note(self._core, seat.computer_id, seat.fence, None)
        known = {int(number) for number in said["channels"]}
        running = await self.dispatcher.commands.attached(seat, known)
        async with self._core.database.connection() as connection:
            alive = await processes.alive_on(connection, computer_id=seat.computer_id)
        alive = await self._histories.untorn(alive, said["channels"])
        # From here to the last of what came early nothing is awaited: what comes from now on must not be heard before it.
        self.dispatcher.attached(seat, alive, known, lost="history_lost" if end.inherits else "process_lost")
        for stray in known - {row["channel"] for row in alive} - running:
            end.link.send(control("session.kill", computer=seat.computer_id, channel=stray, reason="unknown"))
        self.dispatcher.streams.arrived(seat)
        for body in end.early.pop(seat.slot, ()):
            self.dispatcher.hearing.on_frames(seat, body)
        self.dispatcher.sync_commands(seat.computer_id)
        await self.dispatcher.telling.look(seat)  # what was placed between that reading and the seat had nobody to tell it
        await self.place_on(seat.computer_id)

    def _exited(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        seat = end.seat_of(said["computer"])
        if seat is None:
            return
        channel = int(said["channel"])
        if self.dispatcher.streams.exited(seat, channel, said):
            end.link.send(control("session.forget", computer=seat.computer_id, channel=channel))
            return
        run = seat.commands.get(channel)
        if run is not None:
            forget = control("session.forget", computer=seat.computer_id, channel=channel)
            self.dispatcher.commands.exited(seat, run, said, lambda: end.link.send(forget))
            return
        guest = seat.guests.get(channel)
        kind: End = "out_of_memory" if said.get("cause") == "out_of_memory" else "process_lost"
        error: Mapping[str, Any] = said.get("error") or {}
        if error.get("code") == DRAINED:
            kind = "drained"
        facts = {name: said[name] for name in _FACTS if said.get(name) is not None}
        if guest is not None and guest.offence is not None:
            facts["offence"] = guest.offence

        async def work() -> None:
            session_id = guest.session_id if guest is not None else await self._session_of(seat.computer_id, channel)
            if session_id is not None:
                await self._processes.ended(session_id, channel, kind, facts=facts, message=error.get("message") or said.get("message"))
            else:
                await self.dispatcher.commands.exited_unheard(seat.computer_id, channel, said)
            end.link.send(control("session.forget", computer=seat.computer_id, channel=channel))

        self.dispatcher.exited(seat, channel, work)

    async def _session_of(self, computer_id: str, channel: int) -> str | None:
        async with self._core.database.connection() as connection:
            alive = await processes.alive_on(connection, computer_id=computer_id)
        return next((str(row["id"]) for row in alive if row["channel"] == channel), None)

    async def place_on(self, computer_id: str) -> None:
        """Place the Sessions of a Computer that want a process."""
        async with self._core.database.connection() as connection:
            rows = await processes.wanting_on(connection, computer_id=computer_id)
            queued = await commands.queued_on(connection, computer_id=computer_id)
        for row in rows:
            self.dispatcher.place(str(row["id"]))
        for row in queued:
            self.dispatcher.place_command(str(row["id"]))

    async def tell(self, end: WorkerEnd, row: Any, *, wake: bool = False) -> None:
        """Tell the worker where the row says that the Computer should go, unless that or something later was told on this link."""
        computer_id = str(row["id"])
        kind = "computer.wake" if wake else "computer.destroy" if row["status"] == "deleting" else _WAYS.get(row["residency"])
        if kind is None or end.told.get(computer_id, -1) >= row["moves"]:
            return
        end.told[computer_id] = row["moves"]
        try:
            members = await self._saving.members(kind, row)
        except BaseException:
            if end.told.get(computer_id) == row["moves"]:
                del end.told[computer_id]
            raise
        if end.told.get(computer_id) != row["moves"]:
            return  # something later was told while this was looked up
        if kind == "computer.sleep":
            seat = end.seat_of(computer_id)
            if seat is not None:
                self.dispatcher.roster.remove_seat(seat)
                end.seats.pop(seat.slot, None)
            end.asleep.add(computer_id)
        end.link.send(control(kind, computer=computer_id, fence=row["fence"], **members))

    async def _look(self, worker_id: str) -> None:
        end = self._ends.get(worker_id)
        if end is None:
            return
        async with self._core.database.connection() as connection:
            rows = await computers.computers_of(connection, worker_id=worker_id)
        for row in rows:
            if row["residency"] in ("starting", "restoring", "hibernating", "waking") or row["status"] == "deleting":
                await self.tell(end, row)
            elif row["residency"] == "running" and str(row["id"]) in end.unattached and end.seat_of(str(row["id"])) is None:
                end.unattached.discard(str(row["id"]))
                await self.attach(end, str(row["id"]), row["fence"])
        await self._saving.tell(end)
        await self.evictions.look(end)
        for seat in list(end.seats.values()):
            await self.dispatcher.telling.look(seat)
            await self.dispatcher.commands.look(seat)
