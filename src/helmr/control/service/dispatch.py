"""The dispatcher: between what is committed and what Session processes are told, and back. DESIGN 2, I4-I6.

Hot frames go to the batcher; the rest is handled one by one per process, in order. Whatever a process should know is told by one
idempotent routine, `sync_session`, from the database; the hot path tells the next Turn from a flush's outcome, without reading.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from helmr.control.domain.turns import ABORT_REASONS
from helmr.control.service import frames_up, guest_ops, render, stops
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.controls import Controls
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.frames_up import FrameRefused, Up
from helmr.control.service.guests import Guest, Seat
from helmr.control.service.launching import session_start
from helmr.control.service.manifests import Manifests
from helmr.control.service.processes import Processes, cleanup_left
from helmr.control.store.flush import Admit, Append, Claim, Flushed, NextTurn, Settle
from helmr.control.store.pool import Connection
from helmr.control.store.queries import messages, processes, sessions, turns
from helmr.protocol import frames, jsontext
from helmr.protocol.errors import DatabaseUnavailable
from helmr.protocol.ids import is_id
from helmr.protocol.limits import CLEANUP_SECONDS, TURN_OUTPUT_BYTES
from helmr.protocol.link import control

_HOT: Final = frozenset({"turn.output", "turn.settled"})
_GRACE: Final = 0.5
_MOST_OPS: Final = (1 << 53) - 1

log = structlog.get_logger("helmr.dispatch")


class Dispatcher:
    """The `Reactor` of a control plane. `seats` are the Computers attached here."""

    def __init__(self, core: Core, manifests: Manifests, controls: Controls, work: Processes) -> None:
        self._core = core
        self._manifests = manifests
        self._controls = controls
        self._processes = work
        self.background = Background()
        self._syncing = Coalesced(self.background, "sync_session")
        self._placing = Coalesced(self.background, "place")
        self._finishing = Coalesced(self.background, "finish_close")
        self._seats: dict[str, Seat] = {}
        self._guests: dict[str, Guest] = {}
        self.start_computer: Any = None
        """Set by the links: asks the Computer's worker to start it."""
        core.reactor = self

    async def stop(self) -> None:
        await self.background.stop()

    # --- Computers come and go ----------------------------------------------------------------------------------------

    def seat_of(self, computer_id: str) -> Seat | None:
        return self._seats.get(computer_id)

    def add_seat(self, seat: Seat) -> None:
        old = self._seats.get(seat.computer_id)
        if old is not None:
            self.remove_seat(old)
        self._seats[seat.computer_id] = seat

    def remove_seat(self, seat: Seat) -> None:
        """Its link is gone; what its processes know is told again when it is back."""
        if self._seats.get(seat.computer_id) is seat:
            del self._seats[seat.computer_id]
        for guest in list(seat.guests.values()):
            self._drop(guest)

    def attached(self, seat: Seat, rows: list[Any], alive: set[int]) -> None:
        """The Computer's stream is there: `rows` are its Sessions with a process, `alive` the channels its supervisor knows."""
        for guest in list(seat.guests.values()):
            self._drop(guest)
        seat.attached = True
        seat.starting.clear()
        for row in rows:
            if row["channel"] in alive:
                guest = self._meet(seat, row)
                seat.starting.add(guest.number)
            elif row["process"] != "starting":
                self.background.start(self._processes.ended(str(row["id"]), row["channel"], "process_lost"), "process_ended")
            self.sync_session(str(row["id"]))

    def exited(self, seat: Seat, channel: int, work: Any) -> None:
        """A process ended: `work` runs after all that it said before is stored."""
        guest = seat.guests.get(channel)
        if guest is None:
            self.background.start(work(), "process_ended")
            return

        async def then() -> None:
            await work()
            self._drop(guest)

        guest.queue.append((0, then))
        self._drain(guest)

    async def look(self, seat: Seat) -> None:
        """Compare what the Computer's processes were told with the database, and tell again what differs (I6)."""
        async with self._core.database.connection() as connection:
            rows = await processes.alive_briefly(connection, computer_id=seat.computer_id)
        for row in rows if seat.attached else ():
            guest = seat.guests.get(row["channel"])
            turn = None if row["running_turn"] is None else str(row["running_turn"])
            if (
                (guest is None and row["process"] == "starting")
                or (guest is not None and turn not in (None, guest.turn_id, guest.last_turn))
                or (guest is not None and row["stop_cause"] is not None and guest.stopped != turn)
                or (guest is not None and row["process"] == "ending" and not guest.ended)
                or row["loose"]
                or (guest is not None and _may_claim(row))
            ):
                self.sync_session(str(row["id"]))

    # --- the Reactor ------------------------------------------------------------------------------------------------------

    def sync_session(self, session_id: str) -> None:
        """Tell the Session's process, if its Computer is attached here, what it should know."""
        self._syncing.ask(session_id, self._sync)

    def place(self, session_id: str) -> None:
        self._placing.ask(session_id, self._place)

    def claim(self, session_id: str) -> None:
        self._core.batcher.add(Claim(session_id=session_id), lambda flushed: self._claimed(session_id, flushed))

    def finish(self, root_session_id: str) -> None:
        self._finishing.ask(root_session_id, self._controls.finish)

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
            self._start(session_id, following)
        elif flushed.hint == "place":
            self.place(session_id)

    # --- frames upwards -----------------------------------------------------------------------------------------------------

    def on_frames(self, seat: Seat, body: bytes) -> None:
        """Whole frames of one Computer, in order. A process that breaks the protocol is ended (I4)."""
        for frame in frames.FrameReader().feed(body):
            guest = seat.guests.get(frame.channel)
            if guest is None or guest.lost or not frame.payload:
                continue
            if frame.op > _MOST_OPS:
                self._refuse(guest, "an operation number is out of range")
                continue
            try:
                self._on_frame(guest, frame.op, frame.payload)
            except FrameRefused as error:
                self._refuse(guest, str(error))

    def _on_frame(self, guest: Guest, op: int, payload: bytes) -> None:
        if op == 0:
            frame = frames_up.decode(payload)
            if frame.t == "output.locate":
                self.background.start(self._locate(guest, frame), "locate")
            return
        if op <= guest.received:
            # A repeat after an attach. Ops at most `stored` are acknowledged; the others are still on their way.
            guest.ack()
            return
        guest.received = op
        frame = frames_up.decode(payload)
        if frame.t in _HOT and not guest.queue and guest.task is None:
            self._hot(guest, op, frame)
        else:
            guest.queue.append((op, frame))
            self._drain(guest)

    def _hot(self, guest: Guest, op: int, frame: Up) -> None:
        if not is_id(frame.turn):
            raise FrameRefused("a frame names no Turn")
        if frame.t == "turn.output":
            data = frames_up.content(frame.content)
            guest.output_bytes += len(data)
            if guest.output_bytes > TURN_OUTPUT_BYTES and frame.turn == guest.turn_id:
                raise FrameRefused("the Turn's output is over 8 MiB")
            item = Append(session_id=guest.session_id, channel=guest.number, op=op, turn_id=frame.turn, data=data)
            self._begin(guest)
            self._core.batcher.add(item, lambda flushed: self._appended(guest, item, frame.r, flushed))
            return
        if frame.status not in ("completed", "failed", "stopped"):
            raise FrameRefused("a Turn settles as completed, failed or stopped")
        failure = frames_up.error(frame.error)
        settle = Settle(
            session_id=guest.session_id,
            channel=guest.number,
            op=op,
            turn_id=frame.turn,
            status=frame.status,
            result=frames_up.result(frame.result),
            response=frames_up.response(frame.response),
            error=failure[0] if failure else None,
            event=failure[1] if failure else None,
        )
        self._begin(guest)
        self._core.batcher.add(settle, lambda flushed: self._settled(guest, settle, flushed))

    def _begin(self, guest: Guest) -> None:
        guest.hot += 1
        guest.idle.clear()

    def _end(self, guest: Guest, op: int) -> None:
        guest.stored = max(guest.stored, op)
        guest.hot -= 1
        if guest.hot == 0:
            guest.idle.set()

    def _appended(self, guest: Guest, item: Append, awaited: int, flushed: Flushed) -> None:
        self._end(guest, item.op)
        if flushed.outcome == "ok":
            if awaited:
                guest.stored_events.append([item.op, flushed.sequence])
            if self._core.hub.followed(item.session_id):
                event = render.event(item.session_id, item.turn_id, flushed.sequence, flushed.at, "turn.output", item.data)
                self._core.hub.push(item.session_id, (event,))
        if not guest.lost:
            asyncio.get_running_loop().call_soon(guest.ack)

    def _settled(self, guest: Guest, item: Settle, flushed: Flushed) -> None:
        if flushed.outcome == "loose":
            # Messages or questions are open: they end first, in a transaction of their own; then it settles [E2].
            self.background.start(self._tie_up(guest, item), "tie_up")
            return
        self._end(guest, item.op)
        if flushed.outcome != "ok":
            guest.ack_now()
            self.sync_session(guest.session_id)
            return
        following = flushed.next_turn
        hub = self._core.hub
        if hub.followed(item.session_id):
            assert flushed.data is not None
            events = [render.event(item.session_id, item.turn_id, flushed.sequence, flushed.at, f"turn.{flushed.status}", flushed.data)]
            if following is not None:
                events.append(render.event(item.session_id, following.id, flushed.sequence + 1, flushed.at, "turn.running", b"{}"))
            hub.push(item.session_id, events)
        hub.settled(item.session_id, item.turn_id, _members(guest, item, flushed))
        guest.last_turn = item.turn_id
        if guest.turn_id == item.turn_id:
            guest.turn_id = None
        if following is not None:
            self._start(item.session_id, following)
        if flushed.hint == "drained":
            self.finish(guest.root_session_id)
        if not guest.lost:
            guest.ack()

    async def _tie_up(self, guest: Guest, item: Settle) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            session = await sessions.lock_session(connection, id=item.session_id)
            if session is None or session["channel"] != item.channel or str(session["running_turn"]) != item.turn_id:
                return
            entries = await stops.tie_up(connection, session)
            if entries:
                await record(connection, effects, item.session_id, entries)

        await self._core.write("tie_up", work)
        self._core.batcher.add(item, lambda flushed: self._settled(guest, item, flushed))

    # --- the slow lane: one operation after another, in order -------------------------------------------------------------

    def _drain(self, guest: Guest) -> None:
        if guest.task is None:
            guest.task = asyncio.create_task(self._run_queue(guest), name="guest_queue")

    async def _run_queue(self, guest: Guest) -> None:
        try:
            while guest.queue:
                op, entry = guest.queue[0]
                if isinstance(entry, Up) and entry.t in _HOT:
                    self._hot(guest, op, entry)
                else:
                    await guest.idle.wait()
                    if isinstance(entry, Up):
                        await self._apply(guest, op, entry)
                    else:
                        await entry()
                guest.queue.popleft()
        except FrameRefused as error:
            self._refuse(guest, str(error))
        except Exception:
            log.exception("an operation of a Session process failed", session=guest.session_id)
            self._refuse(guest, "the host failed to store an operation")
        finally:
            guest.task = None

    async def _apply(self, guest: Guest, op: int, frame: Up) -> None:
        while True:
            try:
                verdict = await guest_ops.apply(self._core, guest, op, frame)
                break
            except frames_up.FrameRefused:
                raise
            except DatabaseUnavailable:
                await asyncio.sleep(0.25)
        guest.stored = max(guest.stored, op)
        guest.ack_now()
        if verdict == "init_failed":
            failure = frames_up.error(frame.error)
            message = jsontext.loads(failure[0]).get("message") if failure else None
            await self._processes.ended(guest.session_id, guest.number, "init_failed", message=message)
            self.kill(guest.seat.computer_id, guest.number, "init_failed")
        elif verdict == "undrained":
            await self._force(guest.session_id)

    def _refuse(self, guest: Guest, reason: str) -> None:
        """End a process that broke the protocol; its end is reported like any loss."""
        log.warning("a Session process is ended", session=guest.session_id, reason=reason)
        guest.queue.clear()
        guest.forget()
        self.kill(guest.seat.computer_id, guest.number, "protocol")

    # --- telling ------------------------------------------------------------------------------------------------------------

    def _start(self, session_id: str, turn: NextTurn) -> None:
        guest = self._guests.get(session_id)
        if guest is None or guest.lost or turn.id in (guest.turn_id, guest.last_turn):
            return
        guest.begin_turn(turn.id, turn.started_at)
        created = render.time_text(turn.created_at)
        head = f'{{"t":"turn.start","turn":{{"id":"{turn.id}","sequence":{turn.sequence},"created_at":"{created}","source":'
        guest.send(b"".join((head.encode(), turn.source or b"{}", b'},"input":', turn.input or b"null", b"}")))

    def _claimed(self, session_id: str, flushed: Flushed) -> None:
        if flushed.outcome == "ok" and flushed.next_turn is not None:
            turn = flushed.next_turn
            self._core.hub.push(session_id, (render.event(session_id, turn.id, flushed.sequence, flushed.at, "turn.running", b"{}"),))
            self._start(session_id, turn)

    async def _sync(self, session_id: str) -> None:
        async with self._core.database.connection() as connection:
            row = await processes.alive_session(connection, id=session_id)
            if row is None:
                return
            seat = self._seats.get(str(row["computer_id"]))
            if seat is None or not seat.attached:
                return
            guest = seat.guests.get(row["channel"])
            if row["process"] == "starting" and row["channel"] not in seat.starting:
                guest = self._meet(seat, row)
                seat.starting.add(guest.number)
                seat.link.send(session_start(seat, row, await self._manifests.load(connection, row["deployment_id"])))
            if guest is None or guest.lost:
                return
            now = await connection.fetchval("SELECT clock_timestamp()")
            if row["running_turn"] is not None:
                await self._sync_turn(connection, guest, row, now)
            elif _may_claim(row):
                self.claim(session_id)  # whoever made it possible died before it asked (I6)
        if row["process"] == "ending" and not guest.ended:
            self._tell_end(guest, row, now)

    async def _sync_turn(self, connection: Connection, guest: Guest, row: Any, now: Any) -> None:
        turn = await turns.turn_row(connection, id=row["running_turn"])
        turn_id = str(turn["id"])
        if guest.last_turn == turn_id:
            return
        if guest.turn_id != turn_id:
            following = NextTurn(
                turn_id, turn["sequence"], turn["input"], turn["source"], turn["created_at"], turn["started_at"], row["deadline_at"]
            )
            self._start(guest.session_id, following)
            guest.output_bytes = row["output_bytes"]
        if row["stop_cause"] is not None and guest.stopped != turn_id:
            guest.stopped = turn_id
            left = cleanup_left(row["stop_at"], now)
            reason = ABORT_REASONS[row["stop_cause"]]
            guest.send(jsontext.dumps({"t": "turn.stop", "turn": turn_id, "reason": reason, "seconds": left}))
            asyncio.get_running_loop().call_later(left + _GRACE, self._force_later, guest.session_id, turn_id)
        if row["loose"]:
            for message in await messages.messages_open(connection, turn_id=turn_id):
                message_id = str(message["id"])
                if message["status"] == "admitted" and message_id not in guest.sent_messages:
                    guest.sent_messages.add(message_id)
                    head = f'{{"t":"message","id":"{message_id}","turn":"{turn_id}","content":'
                    guest.send(b"".join((head.encode(), message["content"], b',"source":', message["source"], b"}")))
        for question in await messages.questions_settled(connection, turn_id=turn_id):
            if question["op"] not in guest.answered:
                guest.answered.add(question["op"])
                guest.send(_answer(question))

    def _tell_end(self, guest: Guest, row: Any, now: Any) -> None:
        guest.ended = True
        left = max(0.0, (row["end_deadline_at"] - now).total_seconds()) if row["end_deadline_at"] is not None else 0.0
        reason = "cancelled" if row["close_reason"] == "cancel" else "shutdown"
        guest.send(jsontext.dumps({"t": "session.end", "reason": reason, "seconds": min(left, CLEANUP_SECONDS)}))
        computer_id, number = guest.seat.computer_id, guest.number
        asyncio.get_running_loop().call_later(left + _GRACE, self._kill_unless_gone, guest.session_id, computer_id, number)

    def kill(self, computer_id: str, channel: int, reason: str) -> None:
        """End a process and all that descends from it; its exit is reported by the worker."""
        seat = self._seats.get(computer_id)
        if seat is not None:
            seat.link.send(control("session.kill", computer=computer_id, channel=channel, reason=reason))

    async def init_overdue(self, session_id: str) -> None:
        """`init` ran beyond its limit: a failed start [S9]."""
        guest = self._guests.get(session_id)
        if guest is not None:
            self.kill(guest.seat.computer_id, guest.number, "init_overdue")
            await self._processes.ended(session_id, guest.number, "init_timeout", message="`init` did not end within its time limit.")

    async def force_stop(self, session_id: str) -> None:
        """The cleanup time of a stop mark is over [S13]."""
        await self._force(session_id)

    def _force_later(self, session_id: str, turn_id: str) -> None:
        guest = self._guests.get(session_id)
        if guest is not None and guest.turn_id == turn_id:
            self.background.start(self._force(session_id), "force_stop")

    async def _force(self, session_id: str) -> None:
        found = await self._processes.force_stop(session_id)
        if found is not None:
            self.kill(*found, "cleanup_failed")

    def _kill_unless_gone(self, session_id: str, computer_id: str, channel: int) -> None:
        guest = self._guests.get(session_id)
        if guest is not None and guest.number == channel:
            self.kill(computer_id, channel, "end_overdue")

    async def _place(self, session_id: str) -> None:
        placed, computer_id = await self._processes.place(session_id)
        if placed == "computer" and computer_id is not None and self.start_computer is not None:
            await self.start_computer(computer_id)

    async def _locate(self, guest: Guest, frame: Up) -> None:
        """Outputs whose sequence the guest lost with a connection: found by their place in the Turn."""
        if not is_id(frame.turn):
            return
        async with self._core.database.connection() as connection:
            for op, nth in frame.outputs[:1024]:
                sequence = await events_nth(connection, guest.session_id, frame.turn, nth)
                if sequence is not None and not guest.lost:
                    guest.stored_events.append([op, sequence])
        guest.ack()

    # --- guests -------------------------------------------------------------------------------------------------------------

    def _meet(self, seat: Seat, row: Any) -> Guest:
        guest = Guest(seat, str(row["id"]), str(row["root_session_id"]), row["channel"], row["last_op"])
        seat.guests[guest.number] = guest
        self._guests[guest.session_id] = guest
        return guest

    def _drop(self, guest: Guest) -> None:
        guest.forget()
        guest.seat.guests.pop(guest.number, None)
        if self._guests.get(guest.session_id) is guest:
            del self._guests[guest.session_id]


def _members(guest: Guest, item: Settle, flushed: Flushed) -> dict[str, Any]:
    completed = flushed.status == "completed"
    members: dict[str, Any] = {
        "status": flushed.status,
        "terminal_at": flushed.at,
        "result": item.result if completed else None,
        "response": item.response if completed else None,
        "error": None if completed or flushed.status == "interrupted" else (item.error or flushed.data),
    }
    if guest.turn_id == item.turn_id and guest.started_at is not None:
        members["started_at"] = guest.started_at
    return members


def _may_claim(row: Any) -> bool:
    """Whether the next Turn could run, as far as the Session's row tells; the flush decides."""
    return bool(
        row["process"] == "ready" and row["running_turn"] is None and not row["held"] and row["claimed_turn"] + 1 < row["next_turn"]
    )


def _answer(question: Any) -> bytes:
    if question["status"] == "cancelled":
        return jsontext.dumps({"t": "question.cancelled", "ask": question["op"], "reason": question["reason"]})
    head = f'{{"t":"question.answer","ask":{question["op"]},"answer":'.encode()
    return b"".join((head, question["answer"], b',"responded_by":', question["responded_by"], b"}"))


async def events_nth(connection: Connection, session_id: str, turn_id: str, nth: int) -> int | None:
    return await connection.fetchval(
        "SELECT sequence FROM events WHERE session_id = $1 AND turn_id = $2 AND kind = 'turn.output' ORDER BY sequence OFFSET $3 LIMIT 1",
        session_id,
        turn_id,
        max(0, nth - 1),
    )
