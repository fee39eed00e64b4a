"""The real control plane as the state machine drives and sees it: names instead of ids, waiting until nothing is under way."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.model.host import Host
from tests.model.invariants import check
from tests.model.operations import Answer, Cancel, Close, Create, Cut, Enqueue, Interrupt, Operation, Resume, Send, Spawn, StopTurn
from tests.model.values import Frame, Outcome
from tests.service.scripted import Process, agent, deploy, manifest

from helmr.control.service import faults
from helmr.control.service.plane import ControlPlane
from helmr.control.service.principals import PERMISSIONS, Principal, ensure_environment, session_principal
from helmr.control.store.flush import Claim
from helmr.control.store.pool import Database
from helmr.control.store.queries import identity
from helmr.control.upkeep.closings import Closings
from helmr.control.upkeep.deadlines import Deadlines
from helmr.control.upkeep.idle_close import IdleClose
from helmr.control.upkeep.linked import Linked
from helmr.control.upkeep.lost_workers import LostWorkers
from helmr.control.upkeep.overdue import Overdue
from helmr.control.upkeep.placement import Placement
from helmr.objects.folder import FolderStore
from helmr.protocol.errors import DatabaseUnavailable, HelmrError
from helmr.protocol.ids import new_id
from helmr.protocol.link import control

UNKNOWN: Outcome = ("unknown",)
"""The reply was lost."""

_STANDING = {"worker_link", "batcher"}
_DUTIES = (Deadlines, Closings, Overdue, Placement, IdleClose, Linked, LostWorkers)
_FILLED = ("sessions", "session_labels", "turns", "events", "messages", "questions", "holds", "idempotency", "computers", "workers",
           "control_planes", "commands", "command_logs", "computer_streams", "saves", "save_marks", "audit")  # fmt: skip
_PRINT = """
SELECT md5(string_agg(s::text, '' ORDER BY id)), (SELECT md5(string_agg(c::text, '' ORDER BY id)) FROM computers c) FROM sessions s"""
_SEEN = """
SELECT s.*, coalesce(s.retry_at > clock_timestamp(), false) AS waits, l.value AS name
FROM sessions s JOIN session_labels l ON l.session_id = s.id ORDER BY s.id"""
_FREEZE_BACK_OFFS = "UPDATE sessions SET retry_at = clock_timestamp() + interval '1 hour' WHERE retry_at > clock_timestamp()"
"""Real time ends no back-off."""
_HOUR_MS = 3_600_000
_PATIENCE_SECONDS = 30.0
"""What is still busy then never ends."""
_INSTANTS = {
    "retry": "retry_at = retry_at - interval '2 hours'",
    "cleanup": "stop_at = stop_at - interval '1 minute'",
    "turn": "deadline_at = deadline_at - interval '2 hours'",
    "idle": "idle_at = idle_at - interval '2 hours'",
    "end": "end_deadline_at = end_deadline_at - interval '1 minute'",
    "init": "init_deadline_at = init_deadline_at - interval '1 hour'",
}


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


class House:
    """One database for many runs: `begin` empties it and starts a control plane and a host."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._database = Database(dsn, size=12)
        self._folder = folder
        self.performed: Counter[str] = Counter()

    async def start(self) -> None:
        await self._database.start()
        async with self._database.connection() as connection:
            environment_id = await ensure_environment(connection, "test", "main")
            principal_id = new_id()
            await identity.insert_principal(
                connection, id=principal_id, environment_id=environment_id, kind="api_key", name="tester", permissions=list(PERMISSIONS)
            )
        self.principal = Principal(id=principal_id, environment_id=environment_id, kind="api_key", permissions=frozenset(PERMISSIONS))
        talker = agent("talker", close_after_idle_ms=_HOUR_MS, max_turn_duration_ms=_HOUR_MS)
        await deploy(self._database, environment_id, manifest(talker))

    async def stop(self) -> None:
        await self._database.stop()

    async def begin(self, *, auto_init: bool, auto_exit: bool, planes: int) -> None:
        """`planes` control planes on one database; the host is linked to the first, and nobody brings notices to the others (I6)."""
        async with self._database.connection() as connection:
            await connection.execute(f"TRUNCATE {', '.join(_FILLED)} CASCADE")
        self.ids: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.asks: dict[str, tuple[Process, int]] = {}
        """Which process asked, and its operation."""
        self.linked = True
        self.dice = random.Random(0)
        """Which control plane is asked."""
        self.plane = await self._open()
        self.others = [await self._open() for _ in range(planes - 1)]
        await self.plane.beat()
        self.host = Host(self.plane, auto_init=auto_init)
        self.host.auto_exit = auto_exit
        await self.link()

    async def end(self) -> None:
        for plane in (self.plane, *self.others):
            await plane.stop()
        assert self._database.deadlocks == 0, "a transaction was run again after a deadlock (I3)"

    async def _open(self) -> ControlPlane:
        plane = ControlPlane(self._database, FolderStore(self._folder / "blobs"))
        await plane.start()
        return plane

    # --- what happens -------------------------------------------------------------------------------------------------------------------

    async def ask(self, operation: Operation, pause: int = 0) -> Outcome:
        """Perform it after `pause` turns of the loop."""
        for _ in range(pause):
            await asyncio.sleep(0)
        try:
            outcome = await self._perform(operation)
        except DatabaseUnavailable:
            outcome = UNKNOWN
        except HelmrError as error:
            outcome = ("refused", error.code)
        self.performed[f"{type(operation).__name__}: {' '.join(map(str, outcome if outcome[0] != 'ok' else ['ok']))}"] += 1
        return outcome

    async def _perform(self, operation: Operation) -> Outcome:
        plane, who, idem = self.dice.choice([self.plane, *self.others]), self.principal, operation.idem
        session = self.ids.get(operation.session, "")
        match operation:
            case Create(session=name, turn=turn, key=key):
                more = {} if turn is None else {"input": text(turn)}
                reply = await plane.sessions.create(who, agent="talker", key=key, labels={"m": name}, idempotency_key=idem, **more)
                return self._made(reply, name, turn)
            case Spawn(name=name, turn=turn):
                more = {} if turn is None else {"input": text(turn)}
                parent = session_principal(session, who.environment_id)
                reply = await plane.sessions.spawn(parent, agent="talker", labels={"m": name}, idempotency_key=idem, **more)
                return self._made(reply, name, turn)
            case Enqueue(turn=turn):
                reply = await plane.turns.enqueue(who, session, text(turn), idem)
                self._know(turn, json.loads(reply.body)["id"])
                return ("ok", turn)
            case Send(turn=turn, message=message):
                await plane.turns.send(who, session, self.ids[turn], text(message), idem)
                return ("ok",)
            case StopTurn(turn=turn):
                await plane.turns.interrupt(who, session, self.ids[turn], idem)
                return ("ok",)
            case Interrupt():
                await plane.controls.interrupt(who, session, idem)
                return ("ok",)
            case Resume(hold=hold):
                await plane.controls.resume(who, session, hold, idem)
                return ("ok",)
            case Close():
                return ("ok", json.loads((await plane.controls.close(who, session, idem)).body)["status"])
            case Cancel():
                return ("ok", json.loads((await plane.controls.cancel(who, session, idem)).body)["status"])
            case Answer(turn=turn, question=question, answer=answer, response=response):
                await plane.questions.respond(
                    who, session, self.ids[turn], self.ids[question], {"type": "text", "text": answer}, response, idem
                )
                return ("ok",)
            case Cut():
                await self.cut()
                return ("ok",)
            case _:
                raise AssertionError(operation)

    def _made(self, reply: Any, name: str, turn: str | None) -> Outcome:
        made = json.loads(reply.body)
        self._know(name, made["session"]["id"])
        assert (made["turn"] is None) == (turn is None)
        if turn is not None:
            self._know(turn, made["turn"]["id"])
        return ("ok", name, turn)

    def _know(self, name: str, id_: str) -> None:
        """The same name always gets the same id: an exact retry gives the first receipt [S4]."""
        assert self.ids.setdefault(name, id_) == id_, f"{name} is {self.ids[name]} and {id_}"
        self.names[id_] = name

    def process_of(self, session: str) -> Process | None:
        """The Session's process as the host knows it."""
        found = [p for p in self.host.processes.values() if p.session_id == self.ids[session]]
        return found[-1] if found and found[-1].alive else None

    def say(self, session: str, frame: Frame) -> None:
        process = self.process_of(session)
        assert process is not None
        kind, *rest = frame
        self.performed[f"said {kind}" + (f" {rest[-1]}" if kind == "exit" else "")] += 1
        match frame:
            case ("exit", cause):
                error = {"error": {"code": "worker_draining"}} if cause == "drained" else {}
                process.die("out_of_memory" if cause == "out_of_memory" else "killed", **error)
            case ("nonsense",):
                process.say("turn.output", turn=new_id(), content=[{"type": "image"}])
            case ("init_done",):
                process.say("init.done")
            case ("init_failed",):
                process.say("init.failed", error={"code": "init_failed"})
            case ("output", turn, said):
                process.output(self.ids[turn], said)
            case ("open", turn):
                process.say("messages.open", turn=self.ids[turn])
            case ("shut", turn):
                process.say("messages.closed", turn=self.ids[turn])
            case ("ask", turn, name):
                question = {"prompt": text(name), "answer": {"type": "text"}}
                self.asks[name] = process, process.say("question.ask", turn=self.ids[turn], question=question)
            case ("withdraw", turn, name):
                process.say("question.withdraw", turn=self.ids[turn], ask=self.asks[name][1])
            case ("message", name, status, reason):
                process.say("message." + status, id=self.ids[name], **({"reason": reason} if reason else {}))
            case ("stopping", turn, cause):
                process.say("turn.stopping", turn=self.ids[turn], cause=cause, error={"code": cause})
            case ("undrained", turn):
                process.say("turn.undrained", turn=self.ids[turn], detail="a callback raised")
            case ("settled", turn, said, value):
                members = {"result": value, "response": text(value)} if said == "completed" else {}
                if said == "failed":
                    members = {"error": {"code": "handler_failed"}}
                process.settle(self.ids[turn], said, **members)
            case _:
                raise AssertionError(frame)

    async def pass_time(self, what: str) -> None:
        async with self._database.connection() as connection:
            await connection.execute(f"UPDATE sessions SET {_INSTANTS[what]}")

    async def link(self) -> None:
        self.linked = True
        self.host.said.clear()
        self.host.connect()
        await self.host.told("welcome")

    async def cut(self) -> None:
        self.linked = False
        self.host.disconnect()

    async def restart(self) -> None:
        """A new control plane on the same database; the host finds it."""
        if self.linked:
            self.host.disconnect()
        await self.plane.stop()
        self.plane = self.host.plane = await self._open()
        if self.linked:
            await self.link()

    async def lose_worker(self) -> None:
        """The cut link stays silent beyond lease and grace (I8)."""
        async with self._database.connection() as connection:
            worker = await connection.fetchval("UPDATE workers SET lease_until = clock_timestamp() - interval '31 s' RETURNING id")
        with suppress(DatabaseUnavailable):  # a reply that is being lost
            await self.plane.processes.worker_lost(str(worker))

    async def lose_computer(self, session: str) -> None:
        """The Session's Computer stops by itself."""
        process = self.process_of(session)
        assert process is not None
        computer, fence = process.computer, self.host.computers[process.computer]["fence"]
        self.host.link.send(control("computer.state", computer=computer, fence=fence, state="exited"))
        self.host.forget_computer(computer)

    # --- waiting ------------------------------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Until nothing is under way and no duty finds anything to do."""
        await self._calm()
        before = None
        while (now := await self._print()) != before:
            before = now
            for duty in _DUTIES:
                try:
                    await duty(self.plane).run()
                except DatabaseUnavailable:
                    before = None  # it will be run again
            await self._calm()

    async def _calm(self) -> None:
        calm = 0
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while calm < 2:
                me = asyncio.current_task()
                busy = [task for task in asyncio.all_tasks() if task is not me and task.get_name() not in _STANDING]
                if busy:
                    calm = 0
                    await asyncio.wait(busy)
                    continue
                calm += 1
                # What came before these over the link and in the batcher has been handled when they are answered.
                if self.linked:
                    answered = sum(said["t"] == "renewed" for said in self.host.said)
                    self.host.link.send(control("renew"))
                    while sum(said["t"] == "renewed" for said in self.host.said) == answered:
                        self.host.changed.clear()
                        await self.host.changed.wait()
                for plane in (self.plane, *self.others):
                    with suppress(DatabaseUnavailable):  # a reply that is being lost
                        await plane._batcher.submit(Claim(session_id=new_id()))  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0)

    async def _print(self) -> Any:
        async with self._database.connection() as connection:
            return await connection.fetchrow(_PRINT)

    async def armed(self, point: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`work`, during which the first pass of a fault point loses the database's reply."""
        left = [True]

        def lose() -> None:
            if left[0]:
                left[0] = False
                self.performed[f"lost at {point}"] += 1
                raise DatabaseUnavailable(f"The reply was lost at {point}.")

        faults.arm(point, lose)
        try:
            await work()
        finally:
            faults.disarm(point)

    # --- seeing -------------------------------------------------------------------------------------------------------------------------

    async def observe(self) -> tuple[dict[str, tuple[Any, ...]], dict[str, dict[str, str]]]:
        """What the model calls its view, of the real Sessions; and the holds of each by id."""
        async with self._database.connection() as connection:
            await check(connection.fetch)
            await connection.execute(_FREEZE_BACK_OFFS)
            rows = await connection.fetch(_SEEN)
            turns = await connection.fetch("SELECT * FROM turns ORDER BY session_id, sequence")
            messages = await connection.fetch("SELECT * FROM messages")
            questions = await connection.fetch("SELECT * FROM questions")
            holds = await connection.fetch("SELECT * FROM holds WHERE released_at IS NULL")
            events = await connection.fetch("SELECT * FROM events ORDER BY session_id, sequence")
        for row in rows:
            self._know(row["name"], str(row["id"]))
        for turn in turns:
            self._know(json.loads(turn["input"])[0]["text"], str(turn["id"]))
        for message in messages:
            self._know(json.loads(message["content"])[0]["text"], str(message["id"]))
        for question in questions:
            self._know(json.loads(question["question"])["prompt"][0]["text"], str(question["id"]))
        shapes = {str(shape.id): shape for shape in (await self.plane.sessions.list(self.principal, limit=100)).items}
        seen = [
            await asyncio.gather(*(plane.turns.get(self.principal, str(turn["session_id"]), str(turn["id"]), 0) for turn in turns))
            for plane in (self.plane, *self.others)
        ]
        states = seen[0]
        assert all(other == states for other in seen), "two control planes tell the same Turn differently"
        of = {str(turn["id"]): json.loads(state) for turn, state in zip(turns, states, strict=True)}
        views: dict[str, tuple[Any, ...]] = {}
        for row in rows:
            id_, shape = row["id"], shapes[str(row["id"])]
            logged = Counter(
                filter(None, (self._event(event) for event in events if event["session_id"] == id_)),
            )
            own = [hold["kind"] for hold in holds if hold["session_id"] == id_]
            status = (shape.status, shape.close_reason if shape.status == "closed" else row["close_reason"])
            views[row["name"]] = (
                ("status", *status),
                ("turns", tuple(_turn_view(of[str(turn["id"])]) for turn in turns if turn["session_id"] == id_)),
                ("running", self._name(row["running_turn"]), row["stop_cause"], row["accepting"]),
                ("messages", self._things(messages, id_)[0]),
                ("questions", tuple(sorted((*self._question(q),) for q in questions if q["session_id"] == id_))),
                ("holds", tuple(sorted(own)), len(shape.holds)),
                ("idle", shape.idle_since is not None),
                ("process", row["process"], row["strikes"], row["waits"]),
                ("openings", self._openings(str(id_))),
                ("events", tuple(sorted(logged.items(), key=repr))),
            )
        held: dict[str, dict[str, str]] = {name: {} for name in views}
        for hold in holds:
            held[self.names[str(hold["session_id"])]][str(hold["id"])] = hold["kind"]
        return views, held

    def _things(self, rows: Any, session_id: Any) -> tuple[tuple[Any, ...], ...]:
        return (tuple(sorted((self._name(row["id"]), row["status"]) for row in rows if row["session_id"] == session_id)),)

    def _question(self, row: Any) -> tuple[Any, ...]:
        more = None if row["answer"] is None else (row["response_id"], json.loads(row["answer"])["text"])
        return (self._name(row["id"]), row["status"], more)

    def _name(self, id_: Any) -> str | None:
        return None if id_ is None else self.names[str(id_)]

    def _openings(self, session_id: str) -> tuple[tuple[str, str | None], ...]:
        found = [p.opened["recovery"] for p in self.host.processes.values() if p.session_id == session_id]
        return tuple((opened["kind"], opened.get("reason")) for opened in found)

    def _event(self, event: Any) -> tuple[Any, ...] | None:
        kind, data, turn = event["kind"], json.loads(event["data"]), self._name(event["turn_id"])
        more: tuple[Any, ...] = ()
        match kind:
            case "turn.failed":
                more = (data["code"],)
            case "turn.interrupted":
                more = (data["reason"], data.get("code"))
            case "turn.stopping":
                more = (data["cause"],)
            case "turn.output":
                more = (data[0]["text"],)
            case "message.rejected":
                more = (self._name(data["message_id"]), data["reason"], data["delivery"])
            case "message.admitted" | "message.started" | "message.delivered":
                more = (self._name(data["message_id"]),)
            case "question.responded":
                more = (self._name(data["question_id"]), data["answer"]["text"])
            case "question.asked" | "question.cancelled":
                more = (self._name(data["question_id"]),)
            case "session.held":
                if data.get("inherited"):
                    return None
                more = (data["kind"],)
            case "session.closed":
                more = (data["reason"],)
            case "session.process_started":
                more = (data["recovery_kind"],)
            case _:
                pass
        return (kind, turn, *more)

    def check_told(self, views: dict[str, tuple[Any, ...]]) -> None:
        """Processes were told all that they should know, and each Turn was started in one process only (I5)."""
        started = Counter(turn for process in self.host.processes.values() for turn in process.started)
        assert all(count == 1 for count in started.values()), "a Turn was started in two processes (I5)"
        if not self.linked:
            return
        for name, view in views.items():
            seen = {part[0]: part[1:] for part in view}
            process, (running, mark, _) = self.process_of(name), seen["running"]
            if process is None:
                continue
            said = process.received
            if running is not None:
                turn = self.ids[running]
                assert turn in process.started, f"{running} runs, but its process was not told"
                stops = [frame["reason"] for frame in said if frame["t"] == "turn.stop" and frame["turn"] == turn]
                assert bool(stops) == (mark is not None), f"{running} is marked {mark}, its process was told {stops}"
                known = {frame["id"] for frame in said if frame["t"] == "message"}
                answered = {frame["ask"]: frame["t"] for frame in said if frame["t"] in ("question.answer", "question.cancelled")}
                for message, status in seen["messages"][0]:
                    assert status != "admitted" or self.ids[message] in known, f"{message} was not told"
                for question, status, _ in seen["questions"][0]:
                    asked_by, op = self.asks[question]
                    if asked_by is process and question.startswith(running):
                        expected = {"responded": "question.answer", "cancelled": "question.cancelled"}.get(status)
                        assert answered.get(op) == expected, f"{question} is {status}, its process was told {answered.get(op)}"
            if seen["process"][0] == "ending":
                assert any(frame["t"] == "session.end" for frame in said), f"{name} ends, but its process was not told"


def _turn_view(state: dict[str, Any]) -> tuple[Any, ...]:
    response = state["response"][0]["text"] if "response" in state else None
    return (state["input"][0]["text"], state["status"], state.get("error", {}).get("code"), state.get("result"), response)
