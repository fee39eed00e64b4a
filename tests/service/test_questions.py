"""Questions from asking to the end, on a real database with a scripted host. SPEC [Q1]-[Q5], [S11], [S18], [E1], [E2], UD-61..64."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.service.scripted import house

from helmr.control.service.plane import ControlPlane, PlaneConfig
from helmr.control.service.principals import Principal
from helmr.objects.folder import FolderStore
from helmr.protocol.errors import (
    AnswerInvalid,
    Forbidden,
    HelmrError,
    IdempotencyConflict,
    InvalidCursor,
    InvalidValue,
    QuestionAlreadyResponded,
    QuestionCancelled,
    QuestionNotFound,
    SessionNotFound,
    TurnNotFound,
)
from helmr.protocol.ids import new_id
from helmr.protocol.limits import EVENTS_PAGE_BYTES

pytestmark = pytest.mark.anyio

TEXT = {"prompt": [{"type": "text", "text": "Which branch?"}], "answer": {"type": "text"}}
CHOICE = {
    "prompt": [{"type": "text", "text": "Merge?"}],
    "answer": {"type": "choice", "options": [{"id": "y", "label": "Yes", "value": {"go": 1}}, {"id": "n", "label": "No", "value": None}]},
}
MAIN = {"type": "text", "text": "main"}
YES = {"type": "choice", "selections": [{"id": "y", "value": {"go": 1}}]}


@asynccontextmanager
async def asking(database, tmp_path, question=TEXT):
    """A house where one Turn asks: the house, the ids of Session, Turn and question, the process, and the op of the frame."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        op = process.say("question.ask", turn=turn, question=question)
        asked = await h.until(session, "question.asked")
        yield h, Asked(h, session, turn, asked["data"]["question_id"], process, op)


@dataclasses.dataclass
class Asked:
    """One question and who may say something about it."""

    h: Any
    session: str
    turn: str
    id: str
    process: Any
    op: int

    async def answer(self, answer=MAIN, response="r1", key=None, **changes: Any) -> dict[str, Any]:
        place = {"session": self.session, "turn": self.turn, "id": self.id, "principal": self.h.principal} | changes
        reply = await self.h.plane.questions.respond(
            place["principal"], place["session"], place["turn"], place["id"], answer, response, key
        )
        return json.loads(reply.body) | {"replayed": reply.replayed}

    async def state(self) -> dict[str, Any]:
        return json.loads(await self.h.plane.questions.get(self.h.principal, self.session, self.turn, self.id))

    async def kinds(self, prefix: str = "question.") -> list[str]:
        return [kind for kind in await self.h.kinds(self.session) if kind.startswith(prefix)]


async def test_an_answer_is_stored_with_who_gave_it_and_reaches_the_process_at_once(database, tmp_path):
    """[Q3], [Q5], [E1]."""
    async with asking(database, tmp_path) as (h, asked):
        assert await asked.state() == {
            "id": asked.id,
            "session_id": asked.session,
            "turn_id": asked.turn,
            "status": "pending",
            "created_at": (await asked.state())["created_at"],
            "question": TEXT,
        }
        receipt = await asked.answer()
        by = {"kind": "api_key", "id": h.principal.id}
        told = await asked.process.heard("question.answer")
        assert (told["ask"], told["answer"], told["responded_by"]) == (asked.op, MAIN, by)
        event = await h.until(asked.session, "question.responded")
        assert event["turn_id"] == asked.turn
        assert event["data"] == {"question_id": asked.id, "answer": MAIN, "responded_by": by}
        state = await asked.state()
        assert (state["status"], state["answer"], state["responded_by"]) == ("responded", MAIN, by)
        assert receipt == {
            "id": asked.id,
            "session_id": asked.session,
            "turn_id": asked.turn,
            "status": "responded",
            "response_id": "r1",
            "responded_by": by,
            "responded_at": state["settled_at"],
            "replayed": False,
        }
        asked.process.settle(asked.turn, result="main")
        assert (await h.turn(asked.session, asked.turn))["status"] == "completed"


async def test_the_same_response_gets_the_same_receipt_and_any_other_comes_too_late(database, tmp_path):
    """[Q3]: while the Turn runs, after it ended, and after the Session closed; nothing more is told or recorded."""
    async with asking(database, tmp_path, CHOICE) as (h, asked):
        first = await asked.answer(YES)

        async def again() -> None:
            assert await asked.answer(YES) == first | {"replayed": True}
            assert await asked.answer(YES, key=new_id()) == first | {"replayed": True}
            for answer, response in (
                (YES, "r2"),
                ({"type": "choice", "selections": [{"id": "n", "value": None}]}, "r1"),
                ({"type": "text", "text": "misfit"}, "r1"),
                ("misfit", "r2"),
            ):
                with pytest.raises(QuestionAlreadyResponded):
                    await asked.answer(answer, response)

        await again()
        asked.process.settle(asked.turn)
        await h.turn(asked.session, asked.turn)
        await again()
        await h.plane.controls.close(h.principal, asked.session, None)
        await again()
        assert await asked.kinds() == ["question.asked", "question.responded"]
        assert len([said for said in asked.process.received if said["t"] == "question.answer"]) == 1


async def test_a_retry_with_its_key_is_answered_before_any_other_look(database, tmp_path):
    """[S4]: the same key with the same request replays; with another answer it conflicts; a refused one leaves its key free."""
    async with asking(database, tmp_path) as (_, asked):
        with pytest.raises(AnswerInvalid):
            await asked.answer({"type": "text", "text": ""}, key="k")
        first = await asked.answer(key="k")
        assert first["replayed"] is False
        assert await asked.answer(key="k") == first | {"replayed": True}
        for changed in ({"answer": {"type": "text", "text": "dev"}}, {"response": "r2"}):
            with pytest.raises(IdempotencyConflict):
                await asked.answer(key="k", **changed)


async def test_a_misfit_is_refused_and_the_question_stays_open(database, tmp_path):
    """[Q2], [Q3]."""
    async with asking(database, tmp_path, CHOICE) as (_, asked):
        for misfit in (
            MAIN,
            None,
            "yes",
            [],
            {"type": "choice"},
            {"type": "choice", "selections": []},
            {"type": "choice", "selections": [{"id": "y", "value": {"go": 1.0}}]},
            {"type": "choice", "selections": [{"id": "maybe", "value": 1}]},
            {"type": "choice", "selections": [{"id": "y", "value": {"go": 1}}, {"id": "n", "value": None}]},
            YES | {"text": "and more"},
            YES | {"surprise": 1},
        ):
            with pytest.raises(AnswerInvalid):
                await asked.answer(misfit)
        assert (await asked.state())["status"] == "pending"
        await asked.answer(YES)
        assert await asked.kinds() == ["question.asked", "question.responded"]


@pytest.mark.parametrize("response", ["", "x" * 513, "é" * 257, "a\0b"])
async def test_a_response_id_has_a_size(database, tmp_path, response):
    """[Q3]: 1 to 512 bytes; one that fits exactly is taken."""
    async with asking(database, tmp_path) as (_, asked):
        with pytest.raises(InvalidValue):
            await asked.answer(response=response)
        assert (await asked.answer(response="é" * 256))["response_id"] == "é" * 256


async def test_whoever_may_not_answer_changes_nothing(database, tmp_path):
    """[Q4], 14: a key needs `questions.respond`; a Session never answers, whatever it may."""
    async with asking(database, tmp_path) as (h, asked):
        reader = dataclasses.replace(h.principal, permissions=h.principal.permissions - {"questions.respond"})
        agent = dataclasses.replace(h.principal, kind="session")
        blind = dataclasses.replace(h.principal, permissions=frozenset({"questions.respond"}))
        for principal in (reader, agent):
            with pytest.raises(Forbidden):
                await asked.answer(principal=principal)
        service = h.plane.questions
        for principal in (blind, agent):
            for read in (
                service.get(principal, asked.session, asked.turn, asked.id),
                service.find(principal, asked.id),
                service.list(principal, asked.session, asked.turn, (), None, 50),
                service.of_environment(principal, (), None, 50),
            ):
                with pytest.raises(Forbidden):
                    await read
        assert (await asked.state())["status"] == "pending"
        person = Principal(
            id=new_id(),
            environment_id=h.principal.environment_id,
            kind="user",
            permissions=frozenset({"sessions.read", "questions.respond"}),
        )
        assert (await asked.answer(principal=person))["responded_by"] == {"kind": "user", "id": person.id}


async def test_a_question_is_found_only_where_it_is(database, tmp_path):
    """[O1]: a wrong Session, Turn or question is unknown, and one of another Environment the same."""
    async with asking(database, tmp_path) as (h, asked):
        other, process = await h.warm()
        earlier = (await h.plane.turns.list(h.principal, asked.session, None, 1)).items[0].id
        turn = (await h.enqueue(other))["id"]
        await process.began(turn)
        stranger = dataclasses.replace(h.principal, environment_id=new_id())
        refusals = [
            (SessionNotFound, {"session": new_id()}),
            (SessionNotFound, {"session": "none"}),
            (SessionNotFound, {"principal": stranger}),
            (TurnNotFound, {"session": other}),
            (TurnNotFound, {"turn": new_id()}),
            (TurnNotFound, {"turn": turn}),
            (QuestionNotFound, {"turn": earlier}),
            (QuestionNotFound, {"session": other, "turn": turn}),
            (QuestionNotFound, {"id": new_id()}),
            (QuestionNotFound, {"id": "none"}),
        ]
        texts: dict[type, set[str]] = {}
        for kind, changes in refusals:
            with pytest.raises(kind) as refused:
                await asked.answer(**changes)
            place = {"principal": h.principal, "session": asked.session, "turn": asked.turn, "id": asked.id} | changes
            with pytest.raises(kind):
                await h.plane.questions.get(place["principal"], place["session"], place["turn"], place["id"])
            texts.setdefault(kind, set()).add(str(refused.value))
        assert all(len(said) == 1 for said in texts.values())
        with pytest.raises(QuestionNotFound) as foreign:
            await h.plane.questions.find(stranger, asked.id)
        with pytest.raises(QuestionNotFound) as unknown:
            await h.plane.questions.find(h.principal, new_id())
        assert str(foreign.value) == str(unknown.value)
        assert json.loads(await h.plane.questions.of_environment(stranger, (), None, 50))["items"] == []
        assert json.loads(await h.plane.questions.find(h.principal, asked.id)) == await asked.state()


async def test_listings_page_in_the_order_of_asking_and_filter_by_status(database, tmp_path):
    """[Q5]."""
    async with asking(database, tmp_path) as (h, asked):
        ops = [asked.op] + [asked.process.say("question.ask", turn=asked.turn, question=TEXT) for _ in range(4)]
        await h.until(asked.session, "question.asked", 5)
        service = h.plane.questions

        async def walk(listing, status, limit=2):
            found, cursor = [], None
            while True:
                page = json.loads(await listing(status, cursor, limit))
                found += page["items"]
                cursor = page["next_cursor"]
                assert len(page["items"]) == limit or cursor is None
                if cursor is None:
                    return [item["id"] for item in found]

        def of_turn(status, cursor, limit):
            return service.list(h.principal, asked.session, asked.turn, status, cursor, limit)

        def of_all(status, cursor, limit):
            return service.of_environment(h.principal, status, cursor, limit)

        ids = await walk(of_turn, ())
        assert len(ids) == len(ops) and ids[0] == asked.id and ids == sorted(ids)
        await asked.answer(id=ids[1])
        asked.process.say("question.withdraw", ask=ops[3])
        await h.until(asked.session, "question.cancelled")
        for listing in (of_turn, of_all):
            assert await walk(listing, ()) == ids
            assert await walk(listing, ("pending",)) == [ids[0], ids[2], ids[4]]
            assert await walk(listing, ("responded",)) == [ids[1]]
            assert await walk(listing, ("cancelled", "responded")) == [ids[1], ids[3]]
            assert await walk(listing, (), limit=5) == ids
            with pytest.raises(InvalidCursor):
                await listing((), "nonsense", 5)


@pytest.mark.ud("UD-55")
async def test_a_page_of_large_questions_is_bounded_and_the_next_one_goes_on(database, tmp_path):
    """[Q5], [E6]: a hundred of them may hold 25 MB, and an Environment's are of many Turns: nobody who lists them makes us hold that."""
    large = {"prompt": [{"type": "text", "text": "x" * 250_000}], "answer": {"type": "text"}}
    async with asking(database, tmp_path, large) as (h, asked):
        for _ in range(24):
            asked.process.say("question.ask", turn=asked.turn, question=large)
        await h.until(asked.session, "question.asked", 25)
        service = h.plane.questions
        for listing in (
            lambda cursor: service.list(h.principal, asked.session, asked.turn, (), cursor, 100),
            lambda cursor: service.of_environment(h.principal, (), cursor, 100),
            lambda cursor: service.of_environment(h.principal, ("pending",), cursor, 100),
        ):
            found, cursor, pages = [], None, 0
            while pages == 0 or cursor is not None:
                data = await listing(cursor)
                assert len(data) <= EVENTS_PAGE_BYTES + 1000
                page = json.loads(data)
                found += [item["id"] for item in page["items"]]
                cursor, pages = page["next_cursor"], pages + 1
            assert len(found) == 25 and found == sorted(set(found)) and pages == 2


@pytest.mark.ud("UD-62")
async def test_a_message_never_answers_a_question(database, tmp_path):
    """[Q3], UD-62."""
    async with asking(database, tmp_path) as (h, asked):
        opened = asked.process.say("messages.open", turn=asked.turn)
        await asked.process.acknowledged(opened)
        await h.plane.turns.send(h.principal, asked.session, asked.turn, [{"type": "text", "text": "main"}], None)
        await asked.process.heard("message")
        assert (await asked.state())["status"] == "pending"
        assert not [said for said in asked.process.received if said["t"] == "question.answer"]


ENDS = ("turn_interrupt", "session_interrupt", "deadline", "close", "cancel", "process_loss", "failure", "completion", "withdrawal")
"""Every way in which a question ends without an answer."""

MARKS = ("turn_interrupt", "session_interrupt", "deadline", "failure")
"""Those of them that write a stop mark."""


async def end(asked: Asked, how: str) -> None:
    h, process = asked.h, asked.process
    match how:
        case "turn_interrupt":
            await h.plane.turns.interrupt(h.principal, asked.session, asked.turn, None)
        case "session_interrupt":
            await h.plane.controls.interrupt(h.principal, asked.session, None)
        case "deadline":
            await h.plane.processes.deadline(asked.session)
        case "close":
            await h.plane.controls.close(h.principal, asked.session, None)
        case "cancel":
            await h.plane.controls.cancel(h.principal, asked.session, None)
        case "process_loss":
            process.die()
        case "failure":
            process.say("turn.stopping", turn=asked.turn, cause="handler_failed", error={"code": "handler_failed"})
        case "completion":
            process.settle(asked.turn, result="without an answer")
        case _:
            process.say("question.withdraw", ask=asked.op)


@pytest.mark.ud("UD-61")
@pytest.mark.parametrize("how", ENDS)
async def test_a_question_ends_with_its_turn_whatever_way_that_ends(database, tmp_path, how):
    """[Q4], [S11], [S18], [E2]: cancelled before the Turn's terminal event; answers are refused from then on, and nothing is pending."""
    async with asking(database, tmp_path) as (h, asked):
        await _due(h)
        await end(asked, how)
        cancelled = await h.until(asked.session, "question.cancelled")
        assert cancelled["data"]["question_id"] == asked.id and cancelled["data"]["reason"]
        for response in ("r1", "r2"):
            with pytest.raises(QuestionCancelled):
                await asked.answer(response=response)
        state = await asked.state()
        assert (state["status"], state["reason"]) == ("cancelled", cancelled["data"]["reason"])
        assert "answer" not in state and "responded_by" not in state
        assert json.loads(await h.plane.questions.of_environment(h.principal, ("pending",), None, 50))["items"] == []
        if how in (*MARKS, "close"):
            told = await asked.process.heard("question.cancelled")
            assert told["ask"] == asked.op
        if how in MARKS:
            asked.process.settle(asked.turn, "stopped")
        elif how in ("close", "withdrawal"):
            asked.process.settle(asked.turn)
        await h.turn(asked.session, asked.turn)
        kinds = await h.kinds(asked.session)
        terminal = [kind for kind in kinds if kind in ("turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled")]
        assert len(terminal) == 2
        assert kinds.index("question.cancelled") < len(kinds) - 1 - kinds[::-1].index(terminal[1])


async def _due(h) -> None:
    """The running Turn has a deadline, which is over."""
    async with h.database.connection() as connection:
        await connection.execute("UPDATE sessions SET deadline_at = now() WHERE running_turn IS NOT NULL")


@asynccontextmanager
async def queued_for(h, session):
    """Hold the Session's row. Gives a function that starts work and returns once the database has it waiting for the row: what was started
    first is first when the row is free again, at the end of the block."""
    started: list[asyncio.Task[Any]] = []

    async def start(work) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        started.append(task)
        async with h.database.connection() as watcher, asyncio.timeout(5):
            while True:
                waiting = await watcher.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
                if waiting >= len(started):
                    return task
                await asyncio.sleep(0.001)  # the database tells nobody that somebody waits

    async with h.database.connection() as holder, holder.transaction():
        await holder.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", session)
        yield start


async def test_of_two_answers_at_once_the_first_stands(database, tmp_path):
    """[Q3]: forced to wait for one row together."""
    async with asking(database, tmp_path) as (h, asked):
        async with queued_for(h, asked.session) as start:
            first = await start(asked.answer({"type": "text", "text": "one"}, "r1"))
            second = await start(asked.answer({"type": "text", "text": "two"}, "r2"))
            twin = await start(asked.answer({"type": "text", "text": "one"}, "r1"))
        receipt = await first
        assert receipt["replayed"] is False
        with pytest.raises(QuestionAlreadyResponded):
            await second
        assert await twin == receipt | {"replayed": True}
        assert (await asked.state())["answer"]["text"] == "one"
        assert await asked.kinds() == ["question.asked", "question.responded"]


LOCKING = ("turn_interrupt", "session_interrupt", "deadline", "close", "cancel", "withdrawal", "failure", "process_loss")


@pytest.mark.parametrize("how", LOCKING)
@pytest.mark.parametrize("order", ["answer first", "end first"])
async def test_an_answer_against_the_end_of_its_question_is_one_or_the_other(database, tmp_path, how, order):
    """[Q3], [Q4], [S11]: both wait for the Session's row; whoever is first decides, and the other is told so."""
    async with asking(database, tmp_path) as (h, asked):
        await _due(h)
        async with queued_for(h, asked.session) as start:
            if order == "answer first":
                answered = await start(asked.answer())
                ended = await start(end(asked, how))
            else:
                ended = await start(end(asked, how))
                answered = await start(asked.answer())
        await ended
        if order == "answer first":
            receipt = await answered
            assert await asked.answer() == receipt | {"replayed": True}
            assert await asked.kinds() == ["question.asked", "question.responded"]
        else:
            with pytest.raises(QuestionCancelled):
                await answered
            assert await asked.kinds() == ["question.asked", "question.cancelled"]
        if how in MARKS:
            asked.process.settle(asked.turn, "stopped")
        elif how in ("close", "withdrawal"):
            asked.process.settle(asked.turn, result=None)
        state = await h.turn(asked.session, asked.turn)
        expected = {"deadline": "failed", "failure": "failed", "cancel": "cancelled", "close": "completed", "withdrawal": "completed"}
        assert state["status"] == expected.get(how, "interrupted")
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT loose FROM sessions WHERE id = $1", asked.session) == 0


async def test_an_answer_against_the_turns_completion_is_one_or_the_other(database, tmp_path):
    """[Q4], [E2]: the handler returned without its answer while the answer waits for the Session's row."""
    async with asking(database, tmp_path) as (h, asked):
        async with queued_for(h, asked.session) as start:
            answered = await start(asked.answer())
            asked.process.settle(asked.turn, result=None)
        (outcome,) = await asyncio.gather(answered, return_exceptions=True)
        assert (await h.turn(asked.session, asked.turn))["status"] == "completed"
        ends = await asked.kinds()
        if isinstance(outcome, HelmrError):
            assert isinstance(outcome, QuestionCancelled) and ends == ["question.asked", "question.cancelled"]
        else:
            assert ends == ["question.asked", "question.responded"]
        assert (await h.kinds(asked.session))[-1] == "turn.completed"


@pytest.mark.parametrize("stop", ["turn_interrupt", "close"])
async def test_a_question_of_a_stopping_or_closing_turn_is_cancelled_as_it_comes(database, tmp_path, stop):
    """[S11], [S18]: asked before the process heard of it; recorded, never shown as pending, and told."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        await end(Asked(h, session, turn, "", process, 0), stop)
        op = process.say("question.ask", turn=turn, question=TEXT)
        told = await process.heard("question.cancelled")
        assert told["ask"] == op
        kinds = [kind for kind in await h.kinds(session) if kind.startswith("question.")]
        assert kinds == ["question.asked", "question.cancelled"]
        process.settle(turn, "stopped" if stop == "turn_interrupt" else "completed")
        await h.turn(session, turn)


@pytest.mark.ud("UD-64")
async def test_an_answer_that_the_process_could_not_hear_is_told_at_each_attach(database, tmp_path):
    """[Q3], I6: given while no link was there; told again when the link breaks before the Turn ended."""
    async with asking(database, tmp_path) as (h, asked):
        h.host.disconnect()
        await asked.answer()
        h.host.connect()
        told = await asked.process.heard("question.answer")
        assert (told["ask"], told["answer"]) == (asked.op, MAIN)
        h.host.disconnect()
        h.host.connect()
        assert await asked.process.heard("question.answer", 2) == told
        asked.process.settle(asked.turn)
        assert (await h.turn(asked.session, asked.turn))["status"] == "completed"


@pytest.mark.parametrize("how", ["answer", "close"])
async def test_an_end_whose_notice_was_lost_is_told_by_the_safety_poll(database, tmp_path, monkeypatch, how):
    """I6: the transaction that ended the last question took the Session's `loose` with it, and its process must hear of it all the same."""
    async with asking(database, tmp_path) as (h, asked):
        with monkeypatch.context() as lost:
            lost.setattr(h.plane.dispatcher, "sync_session", lambda session_id: None)
            await (asked.answer() if how == "answer" else end(asked, "close"))
        h.plane.links.poke()
        told = await asked.process.heard("question.answer" if how == "answer" else "question.cancelled")
        assert told["ask"] == asked.op


async def test_an_answer_given_to_another_control_plane_reaches_the_process(database, tmp_path):
    """DESIGN 3, I6: without any notice between the two; the same answer at both is one."""
    async with asking(database, tmp_path) as (h, asked):
        other = ControlPlane(h.database, FolderStore(tmp_path / "other"), PlaneConfig())
        await other.start()
        try:
            place = (asked.session, asked.turn, asked.id)
            first = await other.questions.respond(h.principal, *place, MAIN, "r1", None)
            assert json.loads(first.body) | {"replayed": True} == await asked.answer()
            h.plane.links.poke()
            assert (await asked.process.heard("question.answer"))["answer"] == MAIN
        finally:
            await other.stop()


@pytest.mark.parametrize(
    "question",
    [
        {"prompt": [], "answer": {"type": "maybe"}},
        {"prompt": [{"type": "file"}], "answer": {"type": "text"}},
        {"answer": {"type": "text"}},
        {"prompt": "x", "answer": {"type": "choice", "options": [{"id": "a", "label": "A", "value": 1}] * 2}},
        {"prompt": "x" * (256 * 1024), "answer": {"type": "text"}},
        "what?",
        None,
    ],
)
async def test_a_process_that_asks_what_no_question_is_ends(database, tmp_path, question):
    """I4, [Q2]: the guest's own check is not trusted; an answer could not be checked against such a thing."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        process.say("question.ask", turn=turn, question=question)
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "process_lost"
        assert not [kind for kind in await h.kinds(session) if kind.startswith("question.")]


EMPTY_QUESTION = {"prompt": [{"type": "text", "text": ""}], "answer": {"type": "text"}}


def question_of(size: int) -> dict[str, Any]:
    """A question whose stored form has so many bytes."""
    bare = len(json.dumps(EMPTY_QUESTION, separators=(",", ":")))
    return EMPTY_QUESTION | {"prompt": [{"type": "text", "text": "q" * (size - bare)}]}


@pytest.mark.parametrize("last", ["question", "output"])
async def test_output_and_questions_of_a_turn_share_eight_mebibytes(database, tmp_path, last):
    """[E6], I4: exactly as much is stored; a byte more ends the process that said it."""
    part, bare_output = 256 * 1024, len('[{"type":"text","text":""}]')
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        for number in range(32):
            if (last == "question") == bool(number % 2):
                stored = process.say("question.ask", turn=turn, question=question_of(part))
            else:
                stored = process.output(turn, "o" * (part - bare_output))
        await process.acknowledged(stored)
        assert (await h.turn(session, turn, 0))["status"] == "running"
        if last == "question":
            process.say("question.ask", turn=turn, question=EMPTY_QUESTION)
        else:
            process.output(turn, "x")
        state = await h.turn(session, turn)
        assert state["status"] == "interrupted" and state["error"]["code"] == "process_lost"
        async with h.database.connection() as connection:
            asked = await connection.fetchval("SELECT sum(length(question)) FROM questions WHERE turn_id = $1", turn)
            written = await connection.fetchval("SELECT sum(length(data)) FROM events WHERE turn_id = $1 AND kind = 'turn.output'", turn)
        assert asked + written == 32 * part


async def test_an_expired_payload_leaves_who_answered_and_when(database, tmp_path):
    """[S22]: what was asked and answered is gone, and nothing is left to compare another answer with; a key's receipt is kept."""
    async with asking(database, tmp_path) as (h, asked):
        first = await asked.answer(key="k")
        op = asked.process.say("question.ask", turn=asked.turn, question=TEXT)
        await asked.process.acknowledged(op)
        asked.process.settle(asked.turn)
        await h.turn(asked.session, asked.turn)
        await h.plane.controls.close(h.principal, asked.session, None)
        await h.plane.retention.delete_data(h.principal, asked.session, None)
        answered, cancelled = json.loads(await h.plane.questions.list(h.principal, asked.session, asked.turn, (), None, 50))["items"]
        for state in (answered, cancelled):
            assert not {"question", "answer"} & state.keys() and state["payload_expired_at"]
        assert answered["responded_by"] == first["responded_by"] and answered["settled_at"] == first["responded_at"]
        assert cancelled["reason"] == "turn_terminated"
        assert await asked.answer(key="k") == first | {"replayed": True}
        with pytest.raises(QuestionAlreadyResponded):
            await asked.answer()
        with pytest.raises(QuestionCancelled):
            await asked.answer(id=cancelled["id"])


async def test_what_a_session_waits_for_names_its_questions(database, tmp_path):
    """[S23]."""
    async with asking(database, tmp_path) as (h, asked):
        found = await h.plane.explanations.explain(h.principal, asked.session)
        assert found.state == "asking" and "1 question" in found.sentence and "`helmr question list`" in found.sentence
        await asked.answer()
        assert (await h.plane.explanations.explain(h.principal, asked.session)).state == "running"
