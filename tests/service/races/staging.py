"""A Session in the middle of everything, and everything that can be done to it: what the races are made of.

A staged Session has a running Turn that takes messages (one admitted, one started), asks a question, and has one more Turn queued. Every
operation here is a coroutine function of the stage; those of the guest end when their frame was acknowledged or its process is gone.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.service.races.forcing import until
from tests.service.scripted import House, Process
from tests.service.trees import as_session

from helmr.control.service.plane import ControlPlane

TEXT = [{"type": "text", "text": "hello"}]
QUESTION = {"prompt": TEXT, "answer": {"type": "text"}}


@dataclass(kw_only=True)
class Stage:
    """One Session and what the test knows of it."""

    h: House
    plane: ControlPlane
    """Through which clients ask; the process is attached to that of `h`."""
    session: str
    process: Process
    turn: str
    queued: str
    hold: str | None = None
    started: str = ""
    """The message that its handler has begun."""
    admitted: str = ""
    ask: int = 0
    question: str = ""
    """The pending question, and the operation that asked it."""

    # --- clients ------------------------------------------------------------------------------------------------------------

    async def interrupt_turn(self, key: str | None = None) -> Any:
        return await self.plane.turns.interrupt(self.h.principal, self.session, self.turn, key)

    async def interrupt_session(self, key: str | None = None) -> Any:
        return await self.plane.controls.interrupt(self.h.principal, self.session, key)

    async def resume(self, key: str | None = None) -> Any:
        return await self.plane.controls.resume(self.h.principal, self.session, self.hold or self.session, key)

    async def close(self, key: str | None = None) -> Any:
        return await self.plane.controls.close(self.h.principal, self.session, key)

    async def cancel(self, key: str | None = None) -> Any:
        return await self.plane.controls.cancel(self.h.principal, self.session, key)

    async def send(self, key: str | None = None) -> Any:
        return await self.plane.turns.send(self.h.principal, self.session, self.turn, TEXT, key)

    async def enqueue(self, key: str | None = None) -> Any:
        return await self.plane.turns.enqueue(self.h.principal, self.session, TEXT, key)

    async def answer(self, key: str | None = None) -> Any:
        return await self.plane.questions.respond(
            self.h.principal, self.session, self.turn, self.question, {"type": "text", "text": "yes"}, "r1", key
        )

    async def spawn(self, key: str | None = None) -> Any:
        return await self.plane.sessions.spawn(as_session(self.h, self.session), agent="talker", input=TEXT, idempotency_key=key)

    # --- the system ---------------------------------------------------------------------------------------------------------

    async def deadline(self) -> Any:
        """The stage makes the Turn's deadline pass before; here it is noticed."""
        await self.plane.processes.deadline(self.session)

    async def idle_close(self) -> Any:
        return await self.plane.controls.close_idle(self.session)

    # --- the guest ----------------------------------------------------------------------------------------------------------

    async def settle(self, status: str = "completed", **members: Any) -> None:
        await self._said(self.process.settle(self.turn, status, **members))

    async def complete(self) -> None:
        await self.settle(result=7, response=TEXT)

    async def fail(self) -> None:
        await self.settle("failed", error={"code": "handler_failed", "message": "boom"})

    async def stop(self) -> None:
        await self.settle("stopped")

    async def output(self) -> None:
        await self._said(self.process.output(self.turn, "an output"))

    async def asks(self) -> None:
        await self._said(self.process.say("question.ask", turn=self.turn, question=QUESTION))

    async def withdraws(self) -> None:
        await self._said(self.process.say("question.withdraw", turn=self.turn, ask=self.ask))

    async def opens(self) -> None:
        await self._said(self.process.say("messages.open", turn=self.turn))

    async def shuts(self) -> None:
        await self._said(self.process.say("messages.closed", turn=self.turn))

    async def begins(self) -> None:
        await self._said(self.process.say("message.started", turn=self.turn, id=self.admitted))

    async def delivers(self) -> None:
        await self._said(self.process.say("message.delivered", turn=self.turn, id=self.started))

    async def rejects(self) -> None:
        await self._said(self.process.say("message.rejected", turn=self.turn, id=self.started, reason="message_rejected"))

    async def marks(self) -> None:
        error = {"code": "handler_failed", "message": "boom"}
        await self._said(self.process.say("turn.stopping", turn=self.turn, cause="handler_failed", error=error))

    async def undrained(self) -> None:
        await self._said(self.process.say("turn.undrained", turn=self.turn, detail="a callback raised"))

    async def dies(self) -> None:
        """The process is gone; ends once the host may forget it."""
        process = self.process
        process.die("killed", signal=9)
        await until(lambda: (process.computer, process.channel) not in self.h.host.exits)

    async def _said(self, op: int) -> None:
        """The frame was stored, or refused for good: an acknowledgement may come 20 ms later."""
        guest = self.h.plane.dispatcher.roster.guest_of(self.session)
        await until(lambda: guest is None or guest.lost or guest.stored >= op)


Operation = Callable[[Stage], Awaitable[Any]]


async def stage(
    h: House, *, plane: ControlPlane | None = None, held: bool = False, overdue: bool = False, loose: bool = True, queued: bool = True
) -> Stage:
    """A Session with a running Turn. `held`: under the hold of an interrupt that came before it could start anything more; `overdue`: its
    deadline has passed, and nobody has noticed; `loose`: messages and a question are open; `queued`: another Turn waits."""
    plane = plane or h.plane
    made = await h.create("one")
    session, turn = made["session"]["id"], made["turn"]["id"]
    process = await process_of(h, session)
    await process.began(turn)
    s = Stage(h=h, plane=plane, session=session, process=process, turn=turn, queued="")
    if queued:
        s.queued = (await h.enqueue(session, "two"))["id"]
    await s.opens()
    if loose:
        s.started = json.loads((await s.send()).body)["id"]
        s.admitted = json.loads((await s.send()).body)["id"]
        process.say("message.started", turn=turn, id=s.started)
        s.ask = process.say("question.ask", turn=turn, question=QUESTION)
        await s._said(s.ask)
        s.question = (await h.events(session))[-1]["data"]["question_id"]
    if held:
        s.hold = await place_hold(h, session)
    if overdue:
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET deadline_at = now() WHERE id = $1", session)
    return s


async def process_of(h: House, session: str) -> Process:
    """The live process of that Session."""

    def find() -> Process | None:
        return next((p for p in h.host.processes.values() if p.session_id == session and p.alive), None)

    await until(find)
    found = find()
    assert found is not None
    return found


async def place_hold(h: House, session: str) -> str:
    """A hold of kind `process_failed`, as three failures place it; what runs goes on."""
    from helmr.control.service.core import Core, Effects

    core: Core = h.plane._core

    async def work(connection: Any, effects: Effects) -> None:
        row = await connection.fetchrow("SELECT id, root_session_id FROM sessions WHERE id = $1", session)
        await h.plane.processes._hold(connection, effects, row["root_session_id"], row["id"])

    await core.write("hold", work)
    async with h.database.connection() as connection:
        return str(await connection.fetchval("SELECT id FROM holds WHERE session_id = $1 AND released_at IS NULL", session))


async def idle(h: House, *, plane: ControlPlane | None = None) -> Stage:
    """A Session whose process is ready and that has nothing to do; `turn` is what it has done."""
    s = await stage(h, plane=plane, loose=False, queued=False)
    await s.complete()
    await h.turn(s.session, s.turn)
    return s


async def starting(h: House, *, plane: ControlPlane | None = None) -> Stage:
    """A Session whose process runs `init`; its first Turn is queued. The host must not answer by itself (`auto_init`)."""
    made = await h.create("one")
    session, turn = made["session"]["id"], made["turn"]["id"]
    return Stage(h=h, plane=plane or h.plane, session=session, process=await process_of(h, session), turn=turn, queued="")
