"""A Computer is saved for what Commands, shells, copies and tunnels did on it, also when no Turn follows. SPEC [C5], [C8]."""

from __future__ import annotations

import pytest
from tests.service.scripted import agent
from tests.service.test_commands import command, execute, until_status
from tests.service.test_computer_streams import opened, until_no_rows
from tests.service.test_computers import ask, make, told, until, warm
from tests.service.test_computers import execute as sql
from tests.service.test_saves import saves, saving_house, until_saved

from helmr.control.upkeep.command_ends import CommandEnds
from helmr.control.upkeep.hibernation import Hibernation
from helmr.control.upkeep.saving import Saving

pytestmark = pytest.mark.anyio


async def saved(h, computer):
    """A warm Session's Computer whose Turn is saved, some time ago."""
    await ask(h, "save", computer)
    await until_saved(h, computer)
    await sql(h, "UPDATE saves SET started_at = now() - interval '2 minutes', completed_at = now() - interval '2 minutes'")
    await sql(h, "UPDATE turns SET terminal_at = now() - interval '3 minutes' WHERE terminal_at IS NOT NULL")


async def run_to_its_end(h, computer):
    id = await execute(h, computer)
    program = await h.host.next_program()
    await until_status(h, id, "running")
    program.die("exited", code=0)
    assert (await command(h, id, 5.0)).status == "exited"
    return id


async def test_a_computer_is_saved_once_some_time_after_a_command_on_it_has_ended(database, tmp_path):
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await saved(h, computer)
        await Saving(h.plane).run()
        assert len(await saves(h, computer)) == 1, "nothing has happened since"
        await run_to_its_end(h, computer)
        await Saving(h.plane).run()
        async with h.database.connection() as connection:
            wait = await connection.fetchval(
                "SELECT save_due_at - (SELECT max(ended_at) FROM commands) FROM computers WHERE id = $1", computer
            )
        assert wait.total_seconds() == 30
        assert len(await saves(h, computer)) == 1
        await sql(h, "UPDATE computers SET save_due_at = NULL")
        await sql(h, "UPDATE commands SET ended_at = now() - interval '31 seconds'")
        await Saving(h.plane).run()
        await until_saved(h, computer, 2)
        await Saving(h.plane).run()
        assert len(await saves(h, computer)) == 2
        assert len(told(h, "computer.save", computer)) == 2


async def test_a_computer_that_never_had_a_session_is_saved_for_its_commands(database, tmp_path):
    async with saving_house(database, tmp_path) as h:
        computer = await make(h)
        await run_to_its_end(h, computer)
        await sql(h, "UPDATE commands SET ended_at = now() - interval '31 seconds'")
        await Saving(h.plane).run()
        await until_saved(h, computer)


async def test_a_command_that_never_began_makes_no_save_due(database, tmp_path):
    """It has ended too, and has done nothing."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await saved(h, computer)
        await sql(h, "UPDATE computers SET residency = 'starting'")  # so that it waits
        id = await execute(h, computer)
        await h.plane.commands.cancel(h.principal, id)
        await sql(h, "UPDATE computers SET residency = 'running'")
        assert (await command(h, id, 5.0)).status == "cancelled"
        await Saving(h.plane).run()
        async with h.database.connection() as connection:
            assert await connection.fetchval("SELECT save_due_at FROM computers WHERE id = $1", computer) is None


@pytest.mark.parametrize("how", ["closed", "its control plane died"])
@pytest.mark.parametrize("kind", ["shell", "write"])
async def test_a_computer_is_saved_once_some_time_after_somebody_wrote_on_it_by_hand(database, tmp_path, kind, how):
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await saved(h, computer)
        stream, end = await opened(
            h, computer, kind, **({"argv": ["sh"]} if kind == "shell" else {"path": "/a", "form": "file", "mode": 420})
        )
        end.word("ready")
        await stream.begin()
        if how == "closed":
            h.plane.streams.close(stream)
            await end.heard("hangup")
            end.die("exited", code=0)
            await until_no_rows(h)
            await sql(h, "UPDATE computers SET used_at = used_at - interval '31 seconds'")
        else:
            await sql(h, "UPDATE computer_streams SET lease_until = now() - interval '90 seconds'")
            await CommandEnds(h.plane).run()
        await Saving(h.plane).run()
        await until_saved(h, computer, 2)
        await Saving(h.plane).run()
        assert len(await saves(h, computer)) == 2
        h.plane.streams.close(stream)


async def test_what_a_command_did_is_saved_before_its_computer_goes_to_sleep_for_idleness(database, tmp_path):
    """[C6]"""
    async with saving_house(database, tmp_path, agent("talker", hibernate_after_idle_ms=1)) as h:
        _, _, computer = await warm(h)
        await saved(h, computer)
        await run_to_its_end(h, computer)
        await sql(h, "UPDATE sessions SET idle_at = idle_at - interval '1 hour'")
        await sql(h, "UPDATE commands SET ended_at = now() - interval '1 minute'")
        await Hibernation(h.plane).run()
        await until_saved(h, computer, 2)
        assert [item.cause for item in await saves(h, computer)] == ["hibernate", "request"]
        await Hibernation(h.plane).run()
        await until(h, computer, residency="hibernated")


async def test_what_a_command_did_on_a_computer_that_stopped_by_itself_is_saved_as_it_is(database, tmp_path):
    """Its files are where they were; the Command is lost with it."""
    async with saving_house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        await saved(h, computer)
        id = await execute(h, computer)
        await h.host.next_program()
        await until_status(h, id, "running")
        async with h.database.connection() as connection:
            fence = await connection.fetchval("SELECT fence FROM computers WHERE id = $1", computer)
        await h.plane.processes.computer_lost(computer, fence, "cold", {"code": "computer_gone", "message": "It stopped."})
        assert (await command(h, id, 5.0)).status == "system_failed"
        await Saving(h.plane).run()
        await until_saved(h, computer, 2)
