"""A database that was restored from a copy never starts a Turn again, and says what it has lost. DESIGN I5, I11; SPEC [S14]."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.service.races.forcing import quiet
from tests.service.races.planes import beside, successor
from tests.service.restoring import Copy, RememberingHost, remembering, starts
from tests.service.scripted import House, house
from tests.service.test_computers import get, told, until

from helmr.host.worker.link_local import local_pair
from helmr.protocol import jsontext
from helmr.protocol.link import control, split

pytestmark = pytest.mark.anyio

LOST = {"reason": "history_lost", "code": "history_lost"}


async def restored(h: House, copy: Copy, tmp_path: Path) -> None:
    """The control plane ends, the copy is put back, another control plane starts on it, and the host says hello."""
    host = h.host
    assert isinstance(host, RememberingHost)
    await h.plane.stop()
    await copy.restore(h)
    h.plane = host.plane = await successor(h, tmp_path)
    host.connect()


async def until_entered(host: RememberingHost, incarnation: str | None) -> None:
    """The host follows another history than that one."""
    async with asyncio.timeout(5):
        while host.current == incarnation:
            host.changed.clear()
            await host.changed.wait()


def start_server_anew(h: House) -> None:
    """What the host has started was weighed under another start of the database's server than the present one."""
    end = h.plane.links.any_end(h.principal.environment_id)
    assert end is not None
    end.weighed_under = datetime(2000, 1, 1, tzinfo=UTC)


async def ends(h: House, session: str) -> dict[str, Any]:
    """By Turn, the data of its terminal event."""
    return {
        event["turn_id"]: event["data"]
        for event in await h.events(session)
        if event["kind"] in ("turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled")
    }


async def two_turns(h: House) -> tuple[str, Any, str, str]:
    """A Session with a running Turn and a queued one: session, process, both Turns."""
    made = await h.create("one")
    session, first = made["session"]["id"], made["turn"]["id"]
    second = (await h.enqueue(session, "two"))["id"]
    process = await h.host.next_process()
    await process.began(first)
    return session, process, first, second


async def test_turns_that_ran_after_the_copy_are_interrupted_and_never_started_again(database, tmp_path):
    """I5, I11: what the copy has as running or queued ran to its end; both are told as lost, and the next Turn has a new process."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process, first, second = await two_turns(h)
        copy, history = await Copy.of(h), host.current
        process.settle(first)
        await process.began(second)
        process.output(second, "said in a history that is lost")
        process.settle(second)
        assert (await h.turn(session, second))["status"] == "completed"
        await restored(h, copy, tmp_path)
        await until_entered(host, history)
        for turn in (first, second):
            assert (await h.turn(session, turn))["error"]["code"] == "history_lost"
        assert await ends(h, session) == {first: LOST, second: LOST}
        third = (await h.enqueue(session, "three"))["id"]
        following = await host.next_process()
        await following.began(third)
        assert following.channel != process.channel and following.opened["recovery"]["kind"] == "reconstructed"
        following.settle(third)
        assert (await h.turn(session, third))["status"] == "completed"
        assert sorted(starts(host)) == sorted([first, second, third])


async def test_a_turn_that_the_copy_has_as_queued_and_that_still_runs_is_ended_with_its_process(database, tmp_path):
    """I11: nobody can store what it says any more."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process, first, second = await two_turns(h)
        copy, history = await Copy.of(h), host.current
        process.settle(first)
        await process.began(second)
        await restored(h, copy, tmp_path)
        await until_entered(host, history)
        assert (await h.turn(session, second))["status"] == "interrupted"
        async with asyncio.timeout(5):
            while process.alive:
                host.changed.clear()
                await host.changed.wait()
        assert sorted(starts(host)) == sorted([first, second])


async def test_a_process_busy_with_a_turn_that_the_copy_never_had_is_ended_and_its_session_goes_on(database, tmp_path):
    """I11: its Turn is not there any more; whoever asked for it finds that out, nobody runs two Turns in one process."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process = await h.warm()
        copy, history = await Copy.of(h), host.current
        unknown = (await h.enqueue(session))["id"]
        await process.began(unknown)
        await restored(h, copy, tmp_path)
        await until_entered(host, history)
        assert (await h.until(session, "session.process_failed"))["data"]["cause"] == "history_lost"
        turn = (await h.enqueue(session, "again"))["id"]
        following = await host.next_process()
        await following.began(turn)
        assert starts(host).count(unknown) == 1 and not process.alive


async def test_a_fail_over_that_lost_nothing_interrupts_nobody(database, tmp_path):
    """I11: another place of the database is another history; a Computer whose fence and Turns it knows is taken over as it is."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process, first, second = await two_turns(h)
        computer, history = process.computer, host.current
        before = host.computers[computer]["fence"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE installation SET place = 'where it lived before'")
        await h.plane.histories.look()
        await until_entered(host, history)
        await until(h, computer, residency="running")
        process.settle(first)
        await process.began(second)
        process.settle(second)
        assert (await h.turn(session, second))["status"] == "completed"
        assert await ends(h, session) == {first: {}, second: {}} and process.alive
        assert host.computers[computer] == {"fence": before + 1, "history": host.current}


async def test_a_sleeping_computer_is_taken_over_asleep(database, tmp_path):
    """[C6], I11"""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process = await h.warm()
        await h.plane.computers.hibernate(h.principal, process.computer, None)
        await until(h, process.computer, residency="hibernated")
        history = host.current
        await h.plane.histories.begin("a test")
        await until_entered(host, history)
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        assert host.entered[-1] == h.plane.histories.incarnation


async def test_a_computer_that_the_copy_does_not_know_is_ended_and_keeps_its_files(database, tmp_path):
    """I11: stopped, never destroyed."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        copy, history = await Copy.of(h), host.current
        _, process = await h.warm()
        await restored(h, copy, tmp_path)
        await until_entered(host, history)
        async with asyncio.timeout(5):
            while process.computer in host.computers:
                host.changed.clear()
                await host.changed.wait()
        assert told(h, "computer.stop", process.computer) and not told(h, "computer.destroy", process.computer)


async def test_a_computer_that_was_placed_anew_after_the_copy_is_stopped_under_the_new_fence(database, tmp_path):
    """I11: its number may be any; the host refuses what is lower than what it was told last."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process = await h.warm()
        computer = process.computer
        copy, history = await Copy.of(h), host.current
        host.computers[computer]["fence"] += 7
        await restored(h, copy, tmp_path)
        await until_entered(host, history)
        await until(h, computer, residency="cold")
        async with h.database.connection() as connection:
            fence = await connection.fetchval("SELECT fence FROM computers WHERE id = $1", computer)
        assert told(h, "computer.stop", computer)[-1]["fence"] == fence
        turn = (await h.enqueue(session))["id"]
        following = await host.next_process()
        await following.began(turn)


async def test_a_process_that_heard_more_acknowledgements_than_the_database_remembers_is_ended(database, tmp_path):
    """I11: seen at every attach, whatever is known of histories; its Turn is told as lost."""
    async with house(database, tmp_path) as h:
        session, process, first, _ = await two_turns(h)
        await process.acknowledged(process.output(first, "stored"))
        h.host.disconnect()
        await quiet(h.plane)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET last_op = 0 WHERE id = $1", session)
        h.host.tells_acked = True
        h.host.connect()
        assert (await h.turn(session, first))["error"]["code"] == "history_lost"
        await process_killed(h, process)


async def process_killed(h: House, process: Any) -> None:
    async with asyncio.timeout(5):
        while process.alive:
            h.host.changed.clear()
            await h.host.changed.wait()


async def test_a_mark_that_the_database_does_not_have_begins_a_new_history_at_the_next_hello(database, tmp_path):
    """I11: the database went back under a living link: the renewal is refused, and the host asked what it has done."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        copy, history = await Copy.of(h), host.current
        for _ in range(9):  # eight marks are kept: what was lost of them is no sign
            host.said.clear()
            host.renew()
            await host.told("renewed")
        await copy.restore(h)
        host.renew()
        await until_entered(host, history)
        assert host.superseded == [history]


async def test_a_renewal_that_a_restored_database_answers_first_does_not_call_it_the_same(database, tmp_path):
    """I11: nothing was marked between the copy and its return, and the renewal comes before anyone has seen that the server was started
    anew: the host is asked what it has started before it gets a mark."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process, first, second = await two_turns(h)
        copy, history = await Copy.of(h), host.current
        process.settle(first)
        await process.began(second)
        await copy.restore(h)
        start_server_anew(h)
        host.renew()
        await until_entered(host, history)
        assert (await h.turn(session, second))["error"]["code"] == "history_lost"
        assert sorted(starts(host)) == sorted([first, second])


async def test_a_database_server_that_was_started_anew_over_the_same_files_changes_no_history(database, tmp_path):
    """I11: the host is asked once, is found to have done nothing else, and gets marks again."""
    async with house(database, tmp_path) as h:
        host = await remembering(h)
        session, process, first, second = await two_turns(h)
        history, marked = host.current, host.mark
        start_server_anew(h)
        host.renew()
        async with asyncio.timeout(5):
            while host.mark == marked:
                host.changed.clear()
                await host.changed.wait()
        assert host.current == history and host.unmarked == len(host.started())
        process.settle(first)
        process.settle(second)
        assert (await h.turn(session, second))["status"] == "completed"


async def test_another_control_plane_learns_of_a_new_history_and_has_its_workers_say_hello_again(database, tmp_path):
    """I11: by its heartbeat."""
    async with house(database, tmp_path) as h, beside(h, tmp_path) as other:
        host = await remembering(h)
        history = host.current
        await other.histories.begin("a test", instead_of=history)
        await other.histories.begin("another", instead_of=history)
        assert h.plane.histories.incarnation == history
        await h.plane.beat()
        await until_entered(host, history)
        assert h.plane.histories.incarnation == other.histories.incarnation and len(host.entered) == 2


async def test_a_worker_of_another_installation_is_taken_in_and_changes_no_history(database, tmp_path):
    """I11, [O1]: what it did elsewhere says nothing of this database; a Turn that only it knows is none of ours."""
    async with house(database, tmp_path) as h:
        await quiet(h.plane)
        history = h.plane.histories.incarnation
        host = await remembering(h)
        host.current = host.mark = "019b0000-0000-7000-8000-000000000000"
        host.link.close("elsewhere")
        host.connect()
        await until_entered(host, host.mark)
        assert h.plane.histories.incarnation == history == host.current
        session, process = await h.warm()
        assert (await get(h, process.computer)).residency == "running" and await h.kinds(session)


async def test_a_worker_of_another_link_protocol_is_refused_in_words(database, tmp_path):
    """[D5]: on both ends; nothing of it is taken in."""
    async with house(database, tmp_path) as h:
        near, far = local_pair(asyncio.get_running_loop())
        near.bind(h.plane.links.open("other", near))
        heard: list[bytes] = []
        closed = asyncio.Event()

        class End:
            on_message = staticmethod(heard.append)
            on_closed = staticmethod(closed.set)

        far.bind(End())
        far.send(control("hello", protocol=99, worker={"id": "", "name": "other"}, computers=[]))
        async with asyncio.timeout(5):
            await closed.wait()
        said = jsontext.loads(split(heard[0])[1])
        assert said["t"] == "refused" and "99" in said["message"] and len(heard) == 1
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM workers WHERE name = 'other'") == 0


async def test_a_worker_of_before_histories_is_taken_in_and_what_it_holds_by_a_void_fence_is_ended(database, tmp_path):
    """[D5], I11: it can't say of which history its fences are, so none of them counts; its Sessions go on with new processes."""
    async with house(database, tmp_path) as h:
        session, process, first, second = await two_turns(h)
        await h.plane.histories.begin("a test")
        h.host.said.clear()
        h.host.connect()
        await h.host.told("welcome")
        assert (await h.turn(session, first))["status"] == "interrupted"
        assert told(h, "computer.stop", process.computer)
        await h.until(session, "session.process_failed")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = NULL")
        h.plane.dispatcher.place(session)
        following = await h.host.next_process()
        await following.began(second)
        following.settle(second)
        assert (await h.turn(session, second))["status"] == "completed"
        assert following.channel > process.channel and second not in process.started
