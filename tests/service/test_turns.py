"""Turns from admission to settlement, on a real database with a scripted host. SPEC [S2]-[S10], [E1], [E2]."""

from __future__ import annotations

import asyncio

import pytest
from tests.service.scripted import house

from helmr.protocol.errors import IdempotencyConflict, InputEmpty, SessionKeyConflict, SessionNotFound, SessionNotOpen

pytestmark = pytest.mark.anyio


async def test_a_first_turn_gets_a_computer_a_process_and_its_result(database, tmp_path):
    """[S2], [S9], [C1]: admitted with the Session, runs once init is done, completes with result and response."""
    async with house(database, tmp_path) as h:
        made = await h.create("review it")
        session, turn = made["session"]["id"], made["turn"]["id"]
        process = await h.host.next_process()
        assert process.opened["recovery"] == {"kind": "initial"}
        start = await process.heard("turn.start")
        assert start["turn"]["id"] == turn
        assert start["input"] == [{"type": "text", "text": "review it"}]
        process.output(turn, "looking")
        process.settle(turn, result={"reviewed": True}, response=[{"type": "text", "text": "done"}])
        state = await h.turn(session, turn)
        assert state["status"] == "completed"
        assert state["result"] == {"reviewed": True}
        assert state["response"] == [{"type": "text", "text": "done"}]
        assert await h.kinds(session) == [
            "turn.queued",
            "computer.assigned",
            "session.process_started",
            "turn.running",
            "turn.output",
            "turn.completed",
        ]


async def test_turns_run_one_at_a_time_in_admission_order_and_a_failed_one_blocks_nobody(database, tmp_path):
    """[S8]."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turns = [(await h.enqueue(session, str(n)))["id"] for n in range(5)]
        for n, turn in enumerate(turns):
            start = await process.heard("turn.start", n + 2)
            assert start["turn"]["id"] == turn
            assert len(process.started) == n + 2, "a second Turn started before the first settled"
            if n == 1:
                process.settle(turn, "failed", error={"code": "handler_failed", "message": "boom"})
            else:
                process.settle(turn, result=n)
        states = [await h.turn(session, turn) for turn in turns]
        assert [state["status"] for state in states] == ["completed", "failed", "completed", "completed", "completed"]
        assert states[1]["error"] == {"code": "handler_failed", "message": "boom"}
        assert "result" not in states[1]


async def test_a_warm_turn_without_output_takes_two_commits(database, tmp_path):
    """DESIGN 2: admit and claim, settle and claim the next."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        before = h.plane._batcher.flushes
        turn = (await h.enqueue(session))["id"]
        await process.heard("turn.start", 2)
        process.settle(turn, result=None)
        assert (await h.turn(session, turn))["result"] is None
        assert h.plane._batcher.flushes - before == 2


async def test_an_exact_retry_gives_the_first_receipt_and_another_request_conflicts(database, tmp_path):
    """[S4], also after the Session closed; a refusal leaves nothing."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        first = await h.enqueue(session, "same", key="k")
        assert await h.enqueue(session, "same", key="k") == first
        with pytest.raises(IdempotencyConflict):
            await h.enqueue(session, "other", key="k")
        await process.heard("turn.start", 2)
        process.settle(first["id"])
        await h.turn(session, first["id"])
        await h.plane.controls.close(h.principal, session, None)
        assert await h.enqueue(session, "same", key="k") == first
        with pytest.raises(SessionNotOpen):
            await h.enqueue(session, "same", key="unused")


async def test_identical_creations_at_once_make_one_session(database, tmp_path):
    """[S4]: the same key and request, many at a time."""
    async with house(database, tmp_path) as h:
        made = await asyncio.gather(*[h.create("x", idempotency_key="one") for _ in range(8)])
        assert len({m["session"]["id"] for m in made}) == 1
        with pytest.raises(IdempotencyConflict):
            await h.create("y", idempotency_key="one")


async def test_an_occupied_session_key_names_its_occupant(database, tmp_path):
    """[S3]."""
    async with house(database, tmp_path) as h:
        made = await h.create(None, key="pr-7")
        assert made["turn"] is None
        results = await asyncio.gather(*[h.create(None, key="pr-7") for _ in range(4)], return_exceptions=True)
        assert all(isinstance(r, SessionKeyConflict) and r.facts["session_id"] == made["session"]["id"] for r in results)
        page = await h.plane.sessions.list(h.principal, agent="talker", key="pr-7")
        assert [s.id for s in page.items] == [made["session"]["id"]]


async def test_empty_input_is_refused_and_no_input_makes_no_turn(database, tmp_path):
    """[S1]."""
    async with house(database, tmp_path) as h:
        for empty in ([], [{"type": "text", "text": ""}], None):
            with pytest.raises(InputEmpty):
                await h.plane.sessions.create(h.principal, agent="talker", input=empty)
        made = await h.create(None)
        session = await h.session(made["session"]["id"])
        assert session["computer_id"] is None
        assert session["initial_turn"] is None
        assert session["idle_since"] is not None


async def test_a_session_of_another_environment_is_as_unknown_as_none(database, tmp_path):
    """[O1]."""
    async with house(database, tmp_path) as h:
        made = await h.create(None)
        stranger = type(h.principal)(
            id=h.principal.id, environment_id="00000000-0000-7000-8000-000000000000", kind="api_key", permissions=h.principal.permissions
        )
        texts = set()
        for principal, session in (
            (stranger, made["session"]["id"]),
            (h.principal, "00000000-0000-7000-8000-00000000dead"),
            (h.principal, "no-id"),
        ):
            with pytest.raises(SessionNotFound) as refused:
                await h.plane.turns.enqueue(principal, session, [{"type": "text", "text": "x"}], None)
            texts.add(str(refused.value))
        assert len(texts) == 1


async def test_outputs_are_stored_once_however_often_they_are_sent(database, tmp_path):
    """[E5], I4: the operation number decides, also after the link broke."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.heard("turn.start", 2)
        last = 0
        for n in range(20):
            last = process.output(turn, str(n))
        for op, payload in list(process.kept):
            from helmr.protocol import frames

            h.host.up(process.slot, frames.encode(process.channel, op, payload))
        await process.acknowledged(last)
        h.host.disconnect()
        for n in range(20, 25):
            process.output(turn, str(n))
        h.host.connect()
        process.settle(turn)
        await h.turn(session, turn)
        texts = [e["data"][0]["text"] for e in await h.events(session) if e["kind"] == "turn.output"]
        assert texts == [str(n) for n in range(25)]


@pytest.mark.parametrize(
    ("kind", "members", "said"),
    [
        ("turn.settled", {"status": "completed"}, "has a result"),
        ("turn.settled", {"status": "cancelled"}, "settles as"),
        ("turn.nonsense", {}, "no frame is called"),
    ],
)
async def test_a_process_that_breaks_the_protocol_ends_and_its_turn_says_how(database, tmp_path, kind, members, said):
    """I4, [S10], [S14]: also a completion without a result, which no client could read."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.heard("turn.start", 2)
        process.say(kind, turn=turn, **members)
        state = await h.turn(session, turn)
        assert (state["status"], state["error"]["code"]) == ("interrupted", "process_lost")
        assert said in state["error"]["details"]["offence"]
        failed = next(e for e in await h.events(session) if e["kind"] == "session.process_failed")
        assert failed["data"]["offence"] == state["error"]["details"]["offence"]


async def test_a_turn_goes_on_while_no_control_plane_holds_its_link(database, tmp_path):
    """[C3]: what a guest said meanwhile is stored at the next attach."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.heard("turn.start", 2)
        h.host.disconnect()
        process.output(turn, "alone")
        process.settle(turn, result=1)
        queued = await h.enqueue(session, "next")
        assert (await h.turn(session, turn, 0))["status"] == "running"
        h.host.connect()
        assert (await h.turn(session, turn))["result"] == 1
        await process.began(queued["id"])


async def test_a_new_deployment_is_taken_by_the_next_session_and_pinned_by_older_ones(database, tmp_path):
    """[S2], UD-93: also when the Agent was unknown before, and when the kind of its input changed."""
    from tests.service.scripted import agent, deploy, manifest

    from helmr.protocol.errors import AgentNotFound

    async with house(database, tmp_path) as h:
        old = await h.create(None)
        with pytest.raises(AgentNotFound):
            await h.create(None, agent="later")
        published = manifest(agent("talker", input_kind="json"), agent("later"), bundle="1" * 64)
        deployment = await deploy(h.database, h.principal.environment_id, published)
        assert (await h.create(None, agent="later"))["session"]["deployment_id"] == deployment
        made = await h.plane.sessions.create(h.principal, agent="talker", input={"issue": 42})
        assert deployment.encode() in made.body
        assert (await h.session(old["session"]["id"]))["deployment_id"] != deployment


async def test_a_claim_that_died_with_its_control_plane_is_asked_again(database, tmp_path, monkeypatch):
    """I6, [S8]: `init.done` committed, the claim after it never came: the safety poll starts the Turn all the same."""
    async with house(database, tmp_path) as h:
        lost = asyncio.Event()
        with monkeypatch.context() as dying:
            dying.setattr(h.plane.dispatcher, "claim", lambda session_id: lost.set())
            turn = (await h.create("first"))["turn"]["id"]
            process = await h.host.next_process()
            async with asyncio.timeout(5):
                await lost.wait()
        h.plane.links.poke()
        await process.began(turn)
