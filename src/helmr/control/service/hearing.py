"""What Session processes say, on its way into the database. DESIGN 2, I4, I5.

Hot frames (outputs, settlements) go to the batcher; all else is handled one by one per process, in order, each in a transaction of its own.
What is stored is acknowledged; what breaks the protocol ends its process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from helmr.control.service import frames_up, guest_ops, render, stops
from helmr.control.service.background import Background, until_stored
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.frames_up import FrameRefused, Up
from helmr.control.service.guests import Guest, Seat
from helmr.control.service.processes import Processes
from helmr.control.service.roster import Roster
from helmr.control.service.telling import Telling
from helmr.control.store.flush import Append, Flushed, Settle
from helmr.control.store.pool import Connection
from helmr.control.store.queries import events, sessions
from helmr.protocol import frames, jsontext
from helmr.protocol.ids import is_id
from helmr.protocol.limits import TURN_OUTPUT_BYTES

_HOT: Final = frozenset({"turn.output", "turn.settled"})
_MOST_OPS: Final = (1 << 53) - 1

log = structlog.get_logger("helmr.hearing")


class Hearing:
    """`on_drained(root_session_id)` is told that a closing Session may have nothing left."""

    def __init__(
        self,
        core: Core,
        roster: Roster,
        telling: Telling,
        work: Processes,
        background: Background,
        *,
        on_drained: Callable[[str], None],
    ) -> None:
        self._core = core
        self._roster = roster
        self._telling = telling
        self._processes = work
        self._background = background
        self._on_drained = on_drained
        self.on_command: Callable[[Seat, frames.Frame], None] = lambda seat, frame: None
        """Takes the frames of Commands."""
        self.on_stream: Callable[[Seat, frames.Frame], None] = lambda seat, frame: None
        """Takes the frames of streams."""

    def on_frames(self, seat: Seat, body: bytes) -> None:
        """Whole frames of one Computer, in order. A process that breaks the protocol is ended (I4)."""
        for frame in frames.FrameReader().feed(body):
            guest = seat.guests.get(frame.channel)
            if guest is None and frame.channel in seat.commands:
                self.on_command(seat, frame)
                continue
            if guest is None and frame.channel in seat.streams:
                self.on_stream(seat, frame)
                continue
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
                self._background.start(self._locate(guest, frame), "locate")
            return
        if op <= guest.received:
            # A repeat after an attach. Ops at most `stored` are acknowledged; the others are still on their way.
            guest.ack()
            return
        guest.received = op
        frame = frames_up.decode(payload)
        if frame.t in _HOT and not guest.queue and guest.task is None and not guest.settling:
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
        failure = frames_up.error(frame.error, guest.seat.handed.redactor)
        result = frames_up.result(frame.result)
        if result is None and frame.status == "completed":
            raise FrameRefused("a completed Turn has a result, if only null")
        settle = Settle(
            session_id=guest.session_id,
            channel=guest.number,
            op=op,
            turn_id=frame.turn,
            status=frame.status,
            result=result,
            response=frames_up.response(frame.response),
            error=failure[0] if failure else None,
            event=failure[1] if failure else None,
        )
        self._begin(guest)
        guest.settling = True
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
            guest.ack_soon()

    def _settled(self, guest: Guest, item: Settle, flushed: Flushed) -> None:
        if flushed.outcome == "loose":
            # Messages or questions are open: they end first, in a transaction of their own; then it settles [E2].
            self._background.start(self._tie_up(guest, item), "tie_up")
            return
        guest.settling = False
        self._end(guest, item.op)
        if flushed.outcome != "ok":
            guest.ack_now()
            self._telling.sync_session(guest.session_id)
            return
        following = flushed.next_turn
        hub = self._core.hub
        if hub.followed(item.session_id):
            assert flushed.data is not None
            events = [render.event(item.session_id, item.turn_id, flushed.sequence, flushed.at, f"turn.{flushed.status}", flushed.data)]
            if following is not None:
                events.append(render.event(item.session_id, following.id, flushed.sequence + 1, flushed.at, "turn.running", b"{}"))
            hub.push(item.session_id, events)
        members = _members(guest, item, flushed)
        self._core.recent.change(item.turn_id, members)
        hub.settled(item.session_id, item.turn_id, members)
        guest.last_turn = item.turn_id
        if guest.turn_id == item.turn_id:
            guest.turn_id = None
        if following is not None:
            self._telling.start(item.session_id, following)
        if flushed.hint == "drained":
            self._on_drained(guest.root_session_id)
        if not guest.lost:
            guest.ack()

    async def _tie_up(self, guest: Guest, item: Settle) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            session = await sessions.lock_session(connection, id=item.session_id)
            if session is None or session["channel"] != item.channel or str(session["running_turn"]) != item.turn_id:
                return
            entries = await stops.tie_up(connection, session, by_itself=True)
            if entries:
                await record(connection, effects, item.session_id, entries)
            # It settles: a message that came before the settlement would only be rejected by it [S7].
            await sessions.set_accepting(connection, id=item.session_id, accepting=False, last_op=0)

        await until_stored(lambda: self._core.write("tie_up", work))  # the settlement is said once: until it is stored nobody repeats it
        self._core.batcher.add(item, lambda flushed: self._settled(guest, item, flushed))

    def after_all(self, guest: Guest, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` once all that the process said before is stored."""
        guest.queue.append((0, work))
        self._drain(guest)

    # --- the slow lane: one operation after another, in order -------------------------------------------------------------

    def _drain(self, guest: Guest) -> None:
        if guest.task is None:
            guest.task = self._background.start(self._run_queue(guest), "guest_queue")

    async def _run_queue(self, guest: Guest) -> None:
        try:
            while guest.queue:
                op, entry = guest.queue.popleft()
                if isinstance(entry, Up) and entry.t in _HOT:
                    if guest.settling:
                        await guest.idle.wait()
                    self._hot(guest, op, entry)
                else:
                    await guest.idle.wait()
                    if isinstance(entry, Up):
                        await self._apply(guest, op, entry)
                    else:
                        await until_stored(entry)
        except FrameRefused as error:
            self._refuse(guest, str(error))
        except Exception:
            log.exception("an operation of a Session process failed", session=guest.session_id)
            self._refuse(guest, "the host failed to store an operation")
        finally:
            guest.task = None
        if guest.queue:  # what comes after an offence: that the process ended
            self._drain(guest)

    async def _apply(self, guest: Guest, op: int, frame: Up) -> None:
        verdict = await until_stored(lambda: guest_ops.apply(self._core, guest, op, frame))
        if verdict == "init_failed":
            failure = frames_up.error(frame.error, guest.seat.handed.redactor)
            message = jsontext.loads(failure[0]).get("message") if failure else None
            await until_stored(lambda: self._processes.ended(guest.session_id, guest.number, "init_failed", message=message))
        elif verdict == "undrained":
            await until_stored(lambda: self._telling.force_stop(guest.session_id, frame.turn or guest.turn_id or ""))
        guest.stored = max(guest.stored, op)
        guest.ack_now()
        if verdict == "init_failed":
            self._roster.kill(guest.seat.computer_id, guest.number, "init_failed")

    def _refuse(self, guest: Guest, reason: str) -> None:
        """End a process that broke the protocol; its end is reported like any loss."""
        log.warning("a Session process is ended", session=guest.session_id, reason=reason)
        ends = [entry for entry in guest.queue if not isinstance(entry[1], Up)]
        guest.queue.clear()
        guest.queue.extend(ends)
        guest.offence = reason
        guest.forget()
        self._roster.kill(guest.seat.computer_id, guest.number, "protocol")

    async def _locate(self, guest: Guest, frame: Up) -> None:
        """Outputs whose sequence the guest lost with a connection: found by their place in the Turn."""
        if not is_id(frame.turn):
            return
        async with self._core.database.connection() as connection:
            for op, nth in frame.outputs[:1024]:
                sequence = await events.nth_output(connection, session_id=guest.session_id, turn_id=frame.turn, skipped=max(0, nth - 1))
                if sequence is not None and not guest.lost:
                    guest.stored_events.append([op, sequence])
        guest.ack()


def _members(guest: Guest, item: Settle, flushed: Flushed) -> dict[str, Any]:
    """The columns of the Turn's row as the flush wrote them: under a stop mark the error is the mark's, not the guest's [S11]."""
    completed = flushed.status == "completed"
    error = item.error if item.error is not None and flushed.data == item.event else flushed.data
    members: dict[str, Any] = {
        "status": flushed.status,
        "terminal_at": flushed.at,
        "result": item.result if completed else None,
        "response": item.response if completed else None,
        "error": error if flushed.status == "failed" else None,
    }
    if guest.turn_id == item.turn_id and guest.started_at is not None:
        members["started_at"] = guest.started_at
    return members
