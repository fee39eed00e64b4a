"""What Session processes are told. DESIGN 2, I5, I6.

The hot path tells the next Turn from a flush's outcome, without reading. All else is told by one idempotent routine, `sync_session`, which
reads what the process should know; guests ignore what they have.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from helmr.control.domain.turns import ABORT_REASONS
from helmr.control.service import render
from helmr.control.service.background import Background, Coalesced
from helmr.control.service.core import Core
from helmr.control.service.guests import Guest, Seat
from helmr.control.service.launching import session_start
from helmr.control.service.manifests import Manifests
from helmr.control.service.processes import Processes
from helmr.control.service.roster import Roster
from helmr.control.store.flush import Claim, Flushed, NextTurn
from helmr.control.store.pool import Connection
from helmr.control.store.queries import messages, processes, questions, sessions, turns
from helmr.protocol import jsontext
from helmr.protocol.limits import CLEANUP_SECONDS

_GRACE: Final = 0.5


class Telling:
    def __init__(self, core: Core, roster: Roster, manifests: Manifests, work: Processes, background: Background) -> None:
        self._core = core
        self._roster = roster
        self._manifests = manifests
        self._processes = work
        self._background = background
        self._syncing = Coalesced(background, "sync_session")

    def sync_session(self, session_id: str) -> None:
        """Tell the Session's process, if its Computer is attached here, what it should know."""
        self._syncing.ask(session_id, self._sync)

    def claim(self, session_id: str) -> None:
        """Start the Session's next Turn, if it may run."""
        self._core.batcher.add(Claim(session_id=session_id), lambda flushed: self._claimed(session_id, flushed))

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
                or (guest is not None and guest.asking)
                or (guest is not None and _may_claim(row))
            ):
                self.sync_session(str(row["id"]))

    def start(self, session_id: str, turn: NextTurn) -> None:
        """Tell a Turn that was made running; once."""
        guest = self._roster.guest_of(session_id)
        if guest is None or guest.lost or turn.id in (guest.turn_id, guest.last_turn):
            return
        guest.begin_turn(turn.id, turn.started_at)
        created = render.time_text(turn.created_at)
        head = f'{{"t":"turn.start","turn":{{"id":"{turn.id}","sequence":{turn.sequence},"created_at":"{created}","source":'
        guest.send(b"".join((head.encode(), turn.source or b"{}", b'},"input":', turn.input or b"null", b"}")))

    async def init_overdue(self, session_id: str) -> None:
        """`init` ran beyond its limit: a failed start, unless it ended just now [S9]."""
        guest = self._roster.guest_of(session_id)
        if guest is None:
            return
        message = "`init` did not end within its time limit."
        if await self._processes.ended(session_id, guest.number, "init_timeout", message=message):
            self._roster.kill(guest.seat.computer_id, guest.number, "init_overdue")

    async def force_stop(self, session_id: str, turn_id: str) -> None:
        """The cleanup time of the Turn's stop mark is over, or its cleanup failed: settle and end the process tree [S13]."""
        found = await self._processes.force_stop(session_id, turn_id)
        if found is not None:
            self._roster.kill(*found, "cleanup_failed")

    def _force_later(self, session_id: str, turn_id: str) -> None:
        guest = self._roster.guest_of(session_id)
        if guest is not None and guest.turn_id == turn_id:
            self._background.start(self.force_stop(session_id, turn_id), "force_stop")

    def _kill_unless_gone(self, session_id: str, computer_id: str, channel: int) -> None:
        guest = self._roster.guest_of(session_id)
        if guest is not None and guest.number == channel:
            self._roster.kill(computer_id, channel, "end_overdue")

    def _claimed(self, session_id: str, flushed: Flushed) -> None:
        if flushed.outcome == "ok" and flushed.next_turn is not None:
            turn = flushed.next_turn
            self._core.hub.push(session_id, (render.event(session_id, turn.id, flushed.sequence, flushed.at, "turn.running", b"{}"),))
            self.start(session_id, turn)

    async def _sync(self, session_id: str) -> None:
        async with self._core.database.connection() as connection:
            row = await processes.alive_session(connection, id=session_id)
            if row is None:
                return
            seat = self._roster.seat_of(str(row["computer_id"]))
            if seat is None or not seat.attached:
                return
            guest = seat.guests.get(row["channel"])
            if row["process"] == "starting" and row["channel"] not in seat.starting:
                guest = self._roster.meet(seat, row)
                seat.starting.add(guest.number)
                seat.link.send(session_start(seat, row, await self._manifests.load(connection, row["deployment_id"])))
            if guest is None or guest.lost:
                return
            now = await sessions.now(connection)
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
            self.start(guest.session_id, following)
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
        for question in await questions.questions_of_turn(connection, turn_id=turn_id):
            if question["status"] == "pending":
                guest.asks(question["op"])
            else:
                guest.tell_end(question["op"], _end_of(question))

    def _tell_end(self, guest: Guest, row: Any, now: Any) -> None:
        guest.ended = True
        left = max(0.0, (row["end_deadline_at"] - now).total_seconds()) if row["end_deadline_at"] is not None else 0.0
        reason = "cancelled" if row["close_reason"] == "cancel" else "shutdown"
        guest.send(jsontext.dumps({"t": "session.end", "reason": reason, "seconds": min(left, CLEANUP_SECONDS)}))
        computer_id, number = guest.seat.computer_id, guest.number
        asyncio.get_running_loop().call_later(left + _GRACE, self._kill_unless_gone, guest.session_id, computer_id, number)


def _may_claim(row: Any) -> bool:
    """Whether the next Turn could run, as far as the Session's row tells; the flush decides."""
    return bool(
        row["process"] == "ready" and row["running_turn"] is None and not row["held"] and row["claimed_turn"] + 1 < row["next_turn"]
    )


def cleanup_left(stop_at: Any, now: Any) -> float:
    """Seconds of the cleanup time that are left [S13]."""
    return max(0.0, CLEANUP_SECONDS - (now - stop_at).total_seconds())


def _end_of(question: Any) -> bytes:
    if question["status"] == "cancelled":
        return jsontext.dumps({"t": "question.cancelled", "ask": question["op"], "reason": question["reason"]})
    head = f'{{"t":"question.answer","ask":{question["op"]},"answer":'.encode()
    return b"".join((head, question["answer"], b',"responded_by":', question["responded_by"], b"}"))
