"""What a creation refuses, and what ends by its time: sentences of SPEC [S2], [S9], [S12] that no other test holds."""

from __future__ import annotations

import json

import pytest
from tests.service.scripted import agent, deploy, house, manifest
from tests.service.trees import GO, as_session, root

from helmr.control.service.principals import Principal, ensure_environment
from helmr.control.upkeep.deadlines import Deadlines
from helmr.control.upkeep.overdue import Overdue
from helmr.protocol.errors import ComputerDeleting, ComputerMismatch, ComputerNotFound, NoCurrentDeployment, SessionNotOpen

pytestmark = pytest.mark.anyio


async def count(h, table):
    async with h.database.connection() as connection:
        return await connection.fetchval(f"SELECT count(*) FROM {table}")


async def test_without_a_current_deployment_nothing_is_created_and_a_child_needs_none(database, tmp_path):
    """[S2], [M4]: a creation and an independent start take the current one; a child is on its parent's."""
    async with house(database, tmp_path) as h:
        parent = await root(h)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE environments SET current_deployment_id = NULL")
        for text in ("go", None):
            with pytest.raises(NoCurrentDeployment):
                await h.create(text)
        with pytest.raises(NoCurrentDeployment):
            await h.plane.sessions.start(as_session(h, parent), agent="talker", input=GO)
        assert await count(h, "sessions") == 1 and await count(h, "turns") == 0
        made = json.loads((await h.plane.sessions.spawn(as_session(h, parent), agent="talker")).body)
        assert made["session"]["deployment_id"] == (await h.session(parent))["deployment_id"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("status = 'deleting'", ComputerDeleting),
        ("status = 'deleted'", ComputerNotFound),
        ("made_of = 'another'", ComputerMismatch),
        ("environment_id = $1", ComputerNotFound),
    ],
)
@pytest.mark.parametrize("how", ["create", "spawn", "start"])
async def test_a_given_computer_must_be_there_of_the_environment_and_of_the_template(database, tmp_path, change, error, how):
    """[S2], [O1]: for whoever asks; nothing of a refused creation is left."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        computer = (await h.session(session))["computer_id"]
        async with h.database.connection() as connection:
            other = await ensure_environment(connection, "test", "other")
            await connection.execute(f"UPDATE computers SET {change}", *([other] if "$1" in change else []))
        before = [await count(h, table) for table in ("sessions", "turns", "computers")]
        with pytest.raises(error):
            if how == "create":
                await h.create("go", computer_id=computer)
            else:
                await getattr(h.plane.sessions, how)(as_session(h, session), agent="talker", computer=computer, input=GO)
        assert [await count(h, table) for table in ("sessions", "turns", "computers")] == before
        async with h.database.connection() as connection:  # no other way leads an open Session's Computer there ([C9])
            await connection.execute("UPDATE computers SET status = 'available'")


async def test_an_init_is_bounded_by_what_the_environment_says(database, tmp_path):
    """[S9], [S14]: beyond it the process is ended, the Turn stays queued, and another one is tried."""
    async with house(database, tmp_path) as h:
        h.host.auto_init = False
        async with h.database.connection() as connection:
            await connection.execute("UPDATE environments SET max_init_ms = 90000")
        made = await h.create()
        process = await h.host.next_process()
        async with h.database.connection() as connection:
            left = await connection.fetchval("SELECT extract(epoch FROM init_deadline_at - now()) FROM sessions")
            assert 0 < left <= 90
            await Overdue(h.plane).run()
            assert process.alive
            await connection.execute("UPDATE sessions SET init_deadline_at = now()")
        await Overdue(h.plane).run()
        failed = await h.until(made["session"]["id"], "session.process_failed")
        assert failed["data"]["cause"] == "init_timeout" and not process.alive
        assert (await h.turn(made["session"]["id"], made["turn"]["id"], 0))["status"] == "queued"
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = now()")
        h.plane.dispatcher.place(made["session"]["id"])
        again = await h.host.next_process()
        again.say("init.done")
        await again.began(made["turn"]["id"])
        assert again.opened["recovery"] == {"kind": "initial"}


async def test_the_time_of_a_turn_runs_on_while_a_person_is_asked(database, tmp_path):
    """[S12], [S11], [Q4]: the deadline cancels the question, and nobody can answer it any more."""
    async with house(database, tmp_path, agent("talker", max_turn_duration_ms=60_000)) as h:
        made = await h.create()
        session, turn = made["session"]["id"], made["turn"]["id"]
        process = await h.host.next_process()
        await process.began(turn)
        process.say("question.ask", turn=turn, question={"prompt": GO, "answer": {"type": "text"}})
        await h.until(session, "question.asked")
        async with h.database.connection() as connection:
            left = await connection.fetchval("SELECT extract(epoch FROM deadline_at - now()) FROM sessions")
            assert 0 < left <= 60, "asking moves no deadline"
            await connection.execute("UPDATE sessions SET deadline_at = now()")
        await Deadlines(h.plane).run()
        assert (await process.heard("turn.stop"))["reason"] == "deadline"
        process.settle(turn, "stopped")
        state = await h.turn(session, turn)
        assert (state["status"], state["error"]["code"]) == ("failed", "deadline_exceeded")
        kinds = await h.kinds(session)
        assert kinds[-3:] == ["turn.stopping", "question.cancelled", "turn.failed"]


async def test_a_session_that_was_asked_to_close_takes_no_children_and_its_queue_still_runs(database, tmp_path):
    """[S18], [M4]: a spawn is refused from the close on; an independent start of the closing Session is not its child."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        following = (await h.enqueue(session))["id"]
        await process.began(turn)
        await h.plane.controls.close(h.principal, session, None)
        with pytest.raises(SessionNotOpen):
            await h.plane.sessions.spawn(as_session(h, session), agent="talker")
        started = json.loads((await h.plane.sessions.start(as_session(h, session), agent="talker")).body)
        process.settle(turn)
        await process.began(following)
        process.settle(following)
        await h.until(session, "session.closed")
        assert (await h.session(started["session"]["id"]))["status"] == "open"


async def test_a_deployment_of_another_environment_serves_nobody_here(database, tmp_path):
    """[S2], [O1]."""
    async with house(database, tmp_path) as h:
        async with h.database.connection() as connection:
            other = await ensure_environment(connection, "test", "other")
        await deploy(h.database, other, manifest())
        stranger = Principal(id=h.principal.id, environment_id=other, kind="api_key", permissions=h.principal.permissions)
        here, there = (
            (await h.create(None))["session"],
            json.loads((await h.plane.sessions.create(stranger, agent="talker")).body)["session"],
        )
        assert here["deployment_id"] != there["deployment_id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE environments SET current_deployment_id = NULL WHERE id = $1", other)
        with pytest.raises(NoCurrentDeployment):
            await h.plane.sessions.create(stranger, agent="talker")
        assert (await h.create(None))["session"]["deployment_id"] == here["deployment_id"]
