"""Worker links, the control plane's end. DESIGN 2, I4, I6, I8; messages in `protocol/link.py`.

Control messages of a link are handled one after another; frames are handed on as they come, once their Computer is attached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from helmr.control.domain.processes import End
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.core import Core
from helmr.control.service.dispatch import Dispatcher
from helmr.control.service.guests import Seat
from helmr.control.service.processes import Processes
from helmr.control.store.queries import computers, processes
from helmr.protocol import jsontext
from helmr.protocol.errors import DatabaseUnavailable, HelmrError
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.limits import LEASE_SECONDS, RENEW_SECONDS
from helmr.protocol.link import CONTROL, PROTOCOL, Link, control, split

_FACTS: Final = ("code", "signal", "limit", "peak", "ended", "seconds")

log = structlog.get_logger("helmr.links")

LogLine = Callable[[str, str, str], None]
"""(session id, stream, text)"""


class WorkerEnd:
    """One link's end (`LinkEnd`): its worker, and its Computers by slot."""

    def __init__(self, links: Links, link: Link) -> None:
        self.link = link
        self.worker_id: str | None = None
        self.said_id = ""
        """The id that the worker keeps for itself; its name finds its row again should it lose that."""
        self.name = ""
        self.seats: dict[int, Seat] = {}
        self.early: dict[int, list[bytes]] = {}
        self.started: set[tuple[str, int]] = set()
        """(computer, fence) for which computer.start was sent."""
        self.builds: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        """Who waits for what an image build says."""
        self.closed = False
        self._links = links
        self._queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._next_slot = 1
        self.on_message = self._on_message
        self.on_closed = self._on_closed
        links.background.start(self._run(), "worker_link")

    def slot(self) -> int:
        self._next_slot += 1
        return self._next_slot - 1

    def seat_of(self, computer_id: object) -> Seat | None:
        return next((seat for seat in self.seats.values() if seat.computer_id == computer_id), None)

    def _on_message(self, message: bytes) -> None:
        slot, body = split(message)
        if slot != CONTROL:
            seat = self.seats.get(slot)
            if seat is None:
                return
            if seat.attached:
                self._links.dispatcher.hearing.on_frames(seat, body)
            else:
                self.early.setdefault(slot, []).append(body)
            return
        said = jsontext.loads(body)
        if said.get("t") == "computer.attached":
            seat = self.seats.get(said.get("slot", -1))
            if seat is not None:
                seat.attached = False
        self._queue.put_nowait(said)

    def _on_closed(self) -> None:
        self._queue.put_nowait(None)

    async def _run(self) -> None:
        try:
            while True:
                said = await self._queue.get()
                if said is None:
                    return
                await self._handle(said)
        finally:
            self.closed = True
            self._links.ended(self)
            self.link.close("this end has ended")

    async def _handle(self, said: Mapping[str, Any]) -> None:
        while True:
            try:
                await self._links.handle(self, said)
                return
            except DatabaseUnavailable:
                await asyncio.sleep(0.25)
            except (HelmrError, KeyError, TypeError, ValueError):
                # A worker of another version, or a broken one: one message of it is not worth the link.
                log.exception("a worker's message was not understood", worker=self.name, message=said.get("t"))
                return


class Links:
    """All worker links of this control plane."""

    def __init__(self, core: Core, dispatcher: Dispatcher, work: Processes, *, plane_id: str, on_log: LogLine | None = None) -> None:
        self._core = core
        self._processes = work
        self._plane_id = plane_id
        self._on_log = on_log
        self.dispatcher = dispatcher
        self.background = Background()
        self._ends: dict[str, WorkerEnd] = {}
        self._poking = Coalesced(self.background, "poke")
        self.on_worker: Callable[[], None] = lambda: None
        """Called when a worker has said hello: what waited for one may go on."""
        dispatcher.start_computer = self.start_computer

    def open(self, worker: str, link: Link) -> WorkerEnd:
        """Take over one end of a worker's new link."""
        return WorkerEnd(self, link)

    async def stop(self) -> None:
        for end in list(self._ends.values()):
            end.link.close("control plane stops")
        await self.background.stop()

    def any_end(self) -> WorkerEnd | None:
        """Some live worker, for work that any can do."""
        return next((end for end in self._ends.values() if not end.closed), None)

    def poke(self) -> None:
        """Look for what this control plane's workers should be told: lost notices, other planes' placements (I6)."""
        for worker_id in self._ends:
            self._poking.ask(worker_id, self._look)

    async def start_computer(self, computer_id: str) -> None:
        """Ask the Computer's worker to start it, if its link is here."""
        async with self._core.database.connection() as connection:
            row = await computers.computer_row(connection, id=computer_id)
        if row is not None and row["residency"] == "starting" and row["worker_id"] is not None:
            end = self._ends.get(str(row["worker_id"]))
            if end is not None:
                self._send_start(end, row)

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
            end.link.close("hello comes first")
        elif kind == "renew":
            await self._renew(end, bool(said.get("draining")))
        elif kind == "computer.state":
            await self._state(end, said)
        elif kind == "computer.attached":
            await self._attached(end, said)
        elif kind == "session.exited":
            self._exited(end, said)
        elif kind == "session.log":
            self._log(end, said)
        elif kind in ("image.log", "image.built"):
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
        worker = said["worker"]
        if said.get("protocol") != PROTOCOL:
            end.link.close(f"this control plane speaks link protocol {PROTOCOL}")
            return
        async with self._core.database.connection() as connection:
            worker_id = str(
                await computers.upsert_worker(
                    connection,
                    id=worker["id"] if is_id(worker.get("id", "")) else new_id(),
                    name=worker["name"],
                    driver=worker["driver"],
                    base=worker["base"],
                    cpu=float(worker["cpu"]),
                    memory=int(worker["memory"]),
                    control_plane=self._plane_id,
                    seconds=LEASE_SECONDS,
                )
            )
            if worker.get("draining"):
                await computers.drain_worker(connection, id=worker_id)
        old = self._ends.get(worker_id)
        if old is not None and old is not end and old.said_id != worker["id"]:
            end.link.close(f"a worker named {worker['name']!r} is connected already: give this one another name")
            return
        if old is not None and old is not end:
            self.ended(old)
            old.link.close("the worker said hello on another link")
        end.worker_id, end.said_id, end.name = worker_id, worker["id"], worker["name"]
        self._ends[worker_id] = end
        end.link.send(
            control("welcome", worker=worker_id, lease_seconds=LEASE_SECONDS, renew_seconds=RENEW_SECONDS, control_plane=self._plane_id)
        )
        await self._reconcile(end, {entry["computer"]: entry for entry in said.get("computers", ())})
        log.info("worker connected", worker=end.name, driver=worker["driver"])
        self.on_worker()

    async def _reconcile(self, end: WorkerEnd, held: Mapping[str, Mapping[str, Any]]) -> None:
        """What the worker holds against what the database says: attach what fits, stop what is stale, take note of what is gone."""
        async with self._core.database.connection() as connection:
            rows = {str(row["id"]): row for row in await computers.computers_of(connection, worker_id=end.worker_id)}
        for computer_id, entry in held.items():
            row = rows.get(computer_id)
            if row is None or row["fence"] != entry["fence"] or row["residency"] not in ("starting", "running"):
                if entry.get("state") == "running":
                    end.link.send(control("computer.stop", computer=computer_id, fence=entry["fence"]))
            elif entry.get("state") == "running":
                if row["residency"] == "starting":
                    await self._processes.computer_running(computer_id, row["fence"])
                await self._attach(end, computer_id, row["fence"])
        for computer_id, row in rows.items():
            entry = held.get(computer_id)
            running = entry is not None and entry.get("state") == "running" and entry["fence"] == row["fence"]
            if row["residency"] == "running" and not running:
                error = {"code": "computer_gone", "message": "The Computer stopped while its worker was away."}
                await self._processes.computer_lost(computer_id, row["fence"], "cold", error)
            elif row["residency"] == "unavailable":
                await self._processes.computer_lost(computer_id, row["fence"], "cold", None)
            elif row["residency"] == "starting" and not running:
                self._send_start(end, row)
            await self._place_on(computer_id)

    async def _renew(self, end: WorkerEnd, draining: bool) -> None:
        async with self._core.database.connection() as connection:
            if draining:
                await computers.drain_worker(connection, id=end.worker_id)
            known = await computers.renew_worker(connection, id=end.worker_id, control_plane=self._plane_id, seconds=LEASE_SECONDS)
        if known is None:
            end.link.close("another control plane holds this worker now")
            return
        leased = [seat.computer_id for seat in end.seats.values()]
        end.link.send(control("renewed", lease_seconds=LEASE_SECONDS, computers=leased))

    async def _state(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        computer_id, fence, state = said["computer"], said["fence"], said["state"]
        if state == "running":
            if await self._processes.computer_running(computer_id, fence):
                await self._attach(end, computer_id, fence)
            else:
                end.link.send(control("computer.stop", computer=computer_id, fence=fence))
            end.started.discard((computer_id, fence))  # once it has its seat: whoever looked before must not start it again
            return
        end.started.discard((computer_id, fence))
        error = said.get("error") or {"code": "computer_gone", "message": "The Computer stopped."}
        seat = end.seat_of(computer_id)
        if seat is not None and seat.fence == fence:
            self.dispatcher.roster.remove_seat(seat)
            end.seats.pop(seat.slot, None)
        if state == "failed":
            await self._processes.computer_failed(computer_id, fence, error)
        else:
            await self._processes.computer_lost(computer_id, fence, "cold", error)
        await self._place_on(computer_id)

    async def _attach(self, end: WorkerEnd, computer_id: str, fence: int) -> None:
        old = end.seat_of(computer_id)
        if old is not None:
            self.dispatcher.roster.remove_seat(old)
            del end.seats[old.slot]
        async with self._core.database.connection() as connection:
            row = await computers.computer_row(connection, id=computer_id)
            alive = await processes.alive_on(connection, computer_id=computer_id)
        seat = Seat(
            computer_id=computer_id,
            environment_id=str(row["environment_id"]),
            fence=fence,
            slot=end.slot(),
            link=end.link,
            worker_id=end.worker_id or "",
        )
        end.seats[seat.slot] = seat
        self.dispatcher.roster.add_seat(seat)
        acked = {str(session["channel"]): session["last_op"] for session in alive}
        end.link.send(control("computer.attach", computer=computer_id, fence=fence, slot=seat.slot, acked=acked))

    async def _attached(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        seat = end.seats.get(said["slot"])
        if seat is None or seat.computer_id != said["computer"]:
            return
        async with self._core.database.connection() as connection:
            alive = await processes.alive_on(connection, computer_id=seat.computer_id)
        known = {int(number) for number in said["channels"]}
        self.dispatcher.attached(seat, alive, known)
        for stray in known - {row["channel"] for row in alive}:
            end.link.send(control("session.kill", computer=seat.computer_id, channel=stray, reason="unknown"))
        for body in end.early.pop(seat.slot, ()):
            self.dispatcher.hearing.on_frames(seat, body)
        await self._place_on(seat.computer_id)

    def _exited(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        seat = end.seat_of(said["computer"])
        if seat is None:
            return
        channel = int(said["channel"])
        guest = seat.guests.get(channel)
        kind: End = "out_of_memory" if said.get("cause") == "out_of_memory" else "process_lost"
        error: Mapping[str, Any] = said.get("error") or {}
        if error.get("code") == "worker_draining":
            kind = "drained"
        facts = {name: said[name] for name in _FACTS if said.get(name) is not None}
        if guest is not None and guest.offence is not None:
            facts["offence"] = guest.offence

        async def work() -> None:
            session_id = guest.session_id if guest is not None else await self._session_of(seat.computer_id, channel)
            if session_id is not None:
                await self._processes.ended(session_id, channel, kind, facts=facts, message=error.get("message") or said.get("message"))
            end.link.send(control("session.forget", computer=seat.computer_id, channel=channel))

        self.dispatcher.exited(seat, channel, work)

    def _log(self, end: WorkerEnd, said: Mapping[str, Any]) -> None:
        seat = end.seat_of(said["computer"])
        guest = seat.guests.get(int(said["channel"])) if seat is not None else None
        if guest is not None and self._on_log is not None:
            self._on_log(guest.session_id, said["stream"], said["text"])

    # --- placing ------------------------------------------------------------------------------------------------------------

    async def _session_of(self, computer_id: str, channel: int) -> str | None:
        async with self._core.database.connection() as connection:
            alive = await processes.alive_on(connection, computer_id=computer_id)
        return next((str(row["id"]) for row in alive if row["channel"] == channel), None)

    async def _place_on(self, computer_id: str) -> None:
        async with self._core.database.connection() as connection:
            rows = await processes.wanting_on(connection, computer_id=computer_id)
        for row in rows:
            self.dispatcher.place(str(row["id"]))

    def _send_start(self, end: WorkerEnd, row: Any) -> None:
        identity = (str(row["id"]), row["fence"])
        if identity in end.started:
            return
        end.started.add(identity)
        end.link.send(
            control(
                "computer.start",
                computer=identity[0],
                fence=row["fence"],
                environment=str(row["environment_id"]),
                template=jsontext.loads(row["template"]),
            )
        )

    async def _look(self, worker_id: str) -> None:
        end = self._ends.get(worker_id)
        if end is None:
            return
        async with self._core.database.connection() as connection:
            rows = await computers.computers_of(connection, worker_id=worker_id)
        for row in rows:
            if row["residency"] == "starting" and end.seat_of(str(row["id"])) is None:
                self._send_start(end, row)
        for seat in list(end.seats.values()):
            await self.dispatcher.telling.look(seat)
