"""Commands in the control plane: from the queue to the end, whatever is lost on the way. SPEC [C8], [C6], [O1], [S4]; DESIGN I4, I5, I6."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from tests.service.scripted import house
from tests.service.test_sleeping import asleep, computer_of, residency, until_residency

from helmr.control.service import command_runs
from helmr.control.upkeep.command_ends import CommandEnds
from helmr.control.upkeep.hibernation import Hibernation
from helmr.control.upkeep.overdue import Overdue
from helmr.protocol import frames
from helmr.protocol.errors import (
    CommandNotFound,
    ComputerDeleting,
    ComputerNotFound,
    Forbidden,
    IdempotencyConflict,
    InvalidValue,
)
from helmr.protocol.ids import new_id
from helmr.protocol.limits import COMMAND_LOG_BYTES
from helmr.protocol.link import control

pytestmark = pytest.mark.anyio


async def execute(h, computer, *argv, **options):
    reply = await h.plane.commands.execute(h.principal, computer, argv=argv or ("true",), **options)
    return json.loads(reply.body)["id"]


async def command(h, id, wait=0.0):
    return await h.plane.commands.get(h.principal, id, wait)


async def until_status(h, id, status):
    async with asyncio.timeout(5):
        while (await command(h, id)).status != status:
            await asyncio.sleep(0.005)  # only its end is waited for by others


async def text(h, id):
    """Both streams as they are stored, gaps as numbers."""
    found: list[object] = []
    after = 0
    while True:
        page = await h.plane.commands.logs(h.principal, id, after)
        for item in page.items:
            found += [item.lost] if item.lost else []
            found.append(base64.b64decode(item.data))
        after = page.next
        if page.complete or not page.items:
            return found


def output(program, data, stream="stdout", **members):
    return program.say("command.output", stream=stream, data=base64.b64encode(data).decode(), **members)


async def running(h, *argv, **options):
    """A Command that runs on the Computer of a warm Session."""
    session, _ = await h.warm()
    computer = await computer_of(h, session)
    id = await execute(h, computer, *argv, **options)
    program = await h.host.next_program()
    await until_status(h, id, "running")
    return id, program, computer


async def test_a_command_is_started_with_what_was_asked_and_ends_with_what_was_reported(database, tmp_path):
    """[C8]"""
    async with house(database, tmp_path) as h:
        stdin = base64.b64encode(b"\0\xff").decode()
        id, program, computer = await running(h, "cat", "-", cwd="/tmp", env={"A": "1"}, stdin=stdin, timeout="90s")
        asked = {name: program.opened[name] for name in ("computer", "argv", "cwd", "env", "stdin", "timeout_ms")}
        assert asked == {
            "computer": computer, "argv": ["cat", "-"], "cwd": "/tmp", "env": {"A": "1"}, "stdin": stdin, "timeout_ms": 90_000,
        }  # fmt: skip
        output(program, b"out\xff")
        output(program, b"err", "stderr")
        output(program, b"more", lost=5)
        program.die("exited", code=3)
        found = await command(h, id, 5.0)
        assert (found.status, found.exit_code, found.stdout_bytes, found.stderr_bytes) == ("exited", 3, 13, 3)
        assert await text(h, id) == [b"out\xff", b"err", 5, b"more"]
        async with h.database.connection() as connection:
            assert await connection.fetchrow("SELECT env, stdin FROM commands") == (None, None), "what it was started with is forgotten"
        async with asyncio.timeout(5):
            while h.host.exits:
                h.host.changed.clear()
                await h.host.changed.wait()


async def test_frames_that_come_again_after_a_lost_link_are_stored_once(database, tmp_path):
    """I6: nothing is acknowledged before it is stored; a Command goes on without its control plane."""
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        await program.acknowledged(output(program, b"one"))
        h.host.disconnect()
        output(program, b"two")
        h.host.connect()
        await program.acknowledged(output(program, b"three"))
        program.kept = [(1, b"never again"), *program.kept]
        program.die("exited", code=0)
        assert (await command(h, id, 5.0)).status == "exited"
        assert await text(h, id) == [b"one", b"two", b"three"]
        assert h.host.programs.empty()


async def test_a_process_that_its_computer_does_not_know_any_more_has_failed_and_is_not_run_again(database, tmp_path):
    """I5"""
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        h.host.disconnect()
        program.alive = False
        h.host.connect()
        found = await command(h, id, 5.0)
        assert (found.status, found.error.code) == ("system_failed", "process_lost")
        assert h.host.programs.empty()


async def test_a_lost_computer_fails_what_runs_and_is_started_anew_for_what_waits(database, tmp_path):
    async with house(database, tmp_path) as h:
        id, program, computer = await running(h)
        program.alive = False
        h.host.computers.pop(computer)
        fence = 1
        h.host.link.send(control("computer.state", computer=computer, fence=fence, state="gone", reason="exited"))
        assert (await command(h, id, 5.0)).status == "system_failed"
        again = await execute(h, computer)
        other = await h.host.next_program()
        assert other.channel > program.channel, "no channel is used twice"
        other.die("exited", code=0)
        assert (await command(h, again, 5.0)).status == "exited"


async def test_a_computer_that_can_not_be_started_fails_what_waits_for_it_with_its_reason(database, tmp_path):
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        h.host.computers.pop(computer)
        h.host.refuse_computers = {"code": "image_failed", "message": "no such image"}
        h.host.link.send(control("computer.state", computer=computer, fence=1, state="gone", reason="exited"))
        await until_residency(h, computer, "cold")
        found = await command(h, await execute(h, computer), 5.0)
        assert (found.status, found.error.code, found.error.message) == ("system_failed", "image_failed", "no such image")


async def test_a_command_wakes_a_sleeping_computer_and_keeps_it_awake(database, tmp_path):
    """[C6]"""
    async with house(database, tmp_path) as h:
        _, _, computer = await asleep(h)
        id = await execute(h, computer)
        program = await h.host.next_program()
        assert await residency(h, computer) == "running"
        assert not await h.plane.sleeping.begin(computer)
        assert await h.plane.sleeping.make_room() == 0
        await Hibernation(h.plane).run()
        assert await residency(h, computer) == "running"
        program.die("exited", code=0)
        await command(h, id, 5.0)
        assert await h.plane.sleeping.begin(computer)


async def test_a_command_that_comes_while_its_computer_falls_asleep_wakes_it_again(database, tmp_path):
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        h.host.hesitant = True
        assert await h.plane.sleeping.begin(computer)
        id = await execute(h, computer)
        assert (await command(h, id)).status == "queued"
        h.host.fall_asleep(computer)
        (await h.host.next_program()).die("exited", code=0)
        assert (await command(h, id, 5.0)).status == "exited"


@pytest.mark.ud("UD-46")
@pytest.mark.parametrize("state", ["cold", "starting", "running", "hibernating", "hibernated", "waking"])
async def test_a_command_in_whatever_state_its_computer_is_runs_once_it_runs(database, tmp_path, state):
    """[C6], [C8], UD-46: it wakes or starts the Computer, or waits for what is on its way; nothing is sent into one that is not there."""
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        go_on = []
        if state in ("cold", "starting"):
            h.host.computers.pop(computer)
            h.host.link.send(control("computer.state", computer=computer, fence=1, state="gone", reason="exited"))
            await until_residency(h, computer, "cold")
        elif state != "running":
            h.host.hesitant = state == "hibernating"
            assert await h.plane.sleeping.begin(computer)
            if state != "hibernating":
                await until_residency(h, computer, "hibernated")
        if state in ("starting", "waking"):
            name = "_computer_start" if state == "starting" else "_computer_wake"
            done = getattr(h.host, name)
            setattr(h.host, name, go_on.append)
            await h.plane.computers.wake(h.principal, computer, None)
            await until_residency(h, computer, state)
        id = await execute(h, computer)
        if state in ("starting", "waking"):
            assert (await command(h, id)).status == "queued" and h.host.programs.empty()
            async with asyncio.timeout(5):
                while not go_on:
                    h.host.changed.clear()
                    await h.host.changed.wait()
            done(go_on[0])
        elif state == "hibernating":
            assert (await command(h, id)).status == "queued" and h.host.programs.empty()
            h.host.fall_asleep(computer)
        (await h.host.next_program()).die("exited", code=0)
        assert (await command(h, id, 5.0)).status == "exited"
        assert h.host.programs.empty()


async def test_cancel_is_told_once_and_counts_whatever_the_program_makes_of_it(database, tmp_path):
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        for _ in range(2):
            assert json.loads((await h.plane.commands.cancel(h.principal, id)).body) == {"id": id, "status": "accepted"}
        said = await program.heard("command.stop")
        assert 0 <= said["seconds"] <= 10
        assert (await command(h, id)).stopping == "cancelled"
        program.die("exited", code=0)
        found = await command(h, id, 5.0)
        assert (found.status, found.exit_code) == ("cancelled", 0)
        await h.plane.commands.cancel(h.principal, id)
        assert [said["t"] for said in program.received].count("command.stop") == 1


async def test_a_queued_command_is_cancelled_at_once_and_never_started(database, tmp_path):
    async with house(database, tmp_path) as h:
        session, _ = await h.warm()
        computer = await computer_of(h, session)
        h.host.disconnect()
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET residency = 'starting'")  # so that it waits
        id = await execute(h, computer)
        await h.plane.commands.cancel(h.principal, id)
        assert (await command(h, id)).status == "cancelled"
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET residency = 'running'")
        h.host.connect()
        other = await execute(h, computer, "other")
        assert (await h.host.next_program()).opened["argv"] == ["other"]
        assert (await command(h, other)).status in ("starting", "running")


async def test_a_time_that_is_over_is_told_by_the_supervisor_or_else_by_the_database(database, tmp_path):
    async with house(database, tmp_path) as h:
        id, program, computer = await running(h)
        program.say("command.timed_out")
        program.die("exited", signal=15)
        found = await command(h, id, 5.0)
        assert (found.status, found.signal, found.exit_code) == ("timed_out", 15, 143)
        second = await execute(h, computer)
        program = await h.host.next_program()
        await until_status(h, second, "running")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE commands SET deadline_at = now() WHERE id = $1", second)
        await CommandEnds(h.plane).run()
        await program.heard("command.stop")
        async with h.database.connection() as connection:
            await connection.execute("UPDATE commands SET stop_at = now() - interval '13 seconds' WHERE id = $1", second)
        await Overdue(h.plane).run()  # its supervisor does nothing: its scope is ended from outside
        assert (await command(h, second, 5.0)).status == "timed_out"


async def test_running_out_of_memory_is_said_with_its_limit(database, tmp_path):
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        program.die("out_of_memory", signal=9, limit=100, peak=100)
        found = await command(h, id, 5.0)
        assert (found.status, found.error.code, found.error.details) == ("system_failed", "out_of_memory", {"limit": 100, "peak": 100})


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b'{"t":"turn.output"}',
        b'{"t":"command.output","stream":"stdin","data":""}',
        b'{"t":"command.output","data":"%"}',
        b'{"t":"command.output","data":"","lost":-1}',
    ],
)
async def test_a_scope_that_breaks_the_protocol_is_ended(database, tmp_path, payload):
    """I4"""
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        h.host.up(program.slot, frames.encode(program.channel, 1, payload))
        assert (await command(h, id, 5.0)).status == "system_failed"


async def test_the_newest_output_is_kept_and_what_goes_leaves_a_gap_in_its_stream(database, tmp_path, monkeypatch):
    monkeypatch.setattr(command_runs, "COMMAND_LOG_BYTES", 100)
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        await program.acknowledged(output(program, b"e" * 7, "stderr"))
        for number in range(30):
            await program.acknowledged(output(program, b"%010d" % number))
        program.die("exited", code=0)
        await command(h, id, 5.0)
        page = await h.plane.commands.logs(h.principal, id, 0, 1000)
        ends = {"stdout": 0, "stderr": 0}
        kept = {"stdout": b"", "stderr": b""}
        for item in page.items:
            assert item.at - item.lost == ends[item.stream], "what is missing is counted"
            data = base64.b64decode(item.data)
            ends[item.stream] = item.at + len(data)
            kept[item.stream] += data
        assert ends == {"stdout": 300, "stderr": 7} and page.complete
        assert 100 <= len(kept["stdout"]) <= 113 and kept["stdout"].endswith(b"0000000029") and kept["stderr"] == b""
    assert COMMAND_LOG_BYTES == 16 * 1024 * 1024


async def test_pages_go_on_from_their_cursor_and_wait_for_more(database, tmp_path):
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        waiting = asyncio.create_task(h.plane.commands.logs(h.principal, id, 0, 100, 5.0))
        await program.acknowledged(output(program, b"one"))
        first = await waiting
        assert [base64.b64decode(item.data) for item in first.items] == [b"one"] and not first.complete
        assert (await h.plane.commands.logs(h.principal, id, first.next)).items == ()
        waiting = asyncio.create_task(h.plane.commands.logs(h.principal, id, first.next, 100, 5.0))
        program.die("exited", code=0)
        assert (await waiting).complete


async def test_an_exact_retry_runs_nothing_again_and_another_request_with_the_key_is_refused(database, tmp_path):
    """[S4]"""
    async with house(database, tmp_path) as h:
        id, program, computer = await running(h, "one", idempotency_key="k")
        assert await execute(h, computer, "one", idempotency_key="k") == id
        with pytest.raises(IdempotencyConflict):
            await execute(h, computer, "two", idempotency_key="k")
        assert h.host.programs.empty()
        program.die("exited", code=0)
        await command(h, id, 5.0)
        assert await execute(h, computer, "one", idempotency_key="k") == id


@pytest.mark.parametrize(
    "options",
    [
        {"argv": ()},
        {"argv": ("",)},
        {"argv": ("a\0",)},
        {"argv": ("a",) * 129},
        {"argv": ("a" * 64 * 1024,)},
        {"env": {"A": "a" * 256 * 1024}},
        {"env": {"A=": ""}},
        {"env": {"": ""}},
        {"env": {"HELMR_SCOPE": "x"}},
        {"cwd": "relative"},
        {"stdin": "no base64"},
        {"stdin": base64.b64encode(bytes(1024 * 1024 + 1)).decode()},
        {"timeout": "25h"},
    ],
)
async def test_what_is_over_a_limit_is_refused(database, tmp_path, options):
    async with house(database, tmp_path) as h:
        with pytest.raises(InvalidValue):
            await h.plane.commands.execute(h.principal, new_id(), **{"argv": ("true",), **options})


async def test_foreign_and_unknown_ids_are_alike_and_sessions_run_no_commands(database, tmp_path):
    """[O1], section 14"""
    async with house(database, tmp_path) as h:
        id, _, computer = await running(h)
        foreign = type(h.principal)(id=new_id(), environment_id=new_id(), kind="api_key", permissions=h.principal.permissions)
        for who, where, which in ((foreign, computer, id), (h.principal, new_id(), new_id()), (h.principal, "x", "x")):
            with pytest.raises(ComputerNotFound):
                await h.plane.commands.execute(who, where, argv=("true",))
            with pytest.raises(ComputerNotFound):
                await h.plane.commands.list(who, where)
            for work in (h.plane.commands.get(who, which), h.plane.commands.logs(who, which), h.plane.commands.cancel(who, which)):
                with pytest.raises(CommandNotFound):
                    await work
        session = type(h.principal)(
            id=new_id(), environment_id=h.principal.environment_id, kind="session", permissions=h.principal.permissions
        )
        with pytest.raises(Forbidden):
            await h.plane.commands.execute(session, computer, argv=("true",))
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET status = 'deleting'")
        with pytest.raises(ComputerDeleting):
            await execute(h, computer)
        async with h.database.connection() as connection:
            await connection.execute("UPDATE computers SET status = 'available'")  # as it is while a Session of it is open


async def test_commands_that_ended_long_ago_go_with_their_output(database, tmp_path):
    async with house(database, tmp_path) as h:
        id, program, computer = await running(h)
        output(program, b"old")
        program.die("exited", code=0)
        await command(h, id, 5.0)
        await CommandEnds(h.plane).run()
        assert [item.id for item in (await h.plane.commands.list(h.principal, computer)).items] == [id]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE commands SET ended_at = now() - interval '31 days'")
        await CommandEnds(h.plane).run()
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT (SELECT count(*) FROM commands) + (SELECT count(*) FROM command_logs)") == 0
