"""Commands through a whole installation: a real sandbox, real programs, and parts that are killed meanwhile. [C8], [C3], [C6]"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.scenarios.watching import outcome, probe

from helmr.client import HelmrClient
from helmr.testing.installation import Installation

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture
async def computer(client: HelmrClient) -> str:
    """The Computer of a Session that has done its work."""
    session, turn = await probe(client, "echo:there")
    assert (await outcome(turn)).status == "completed"
    return (await session.get()).computer_id


async def run(client: HelmrClient, computer: str, *argv: str, **options: Any) -> Any:
    return await client.computers.exec(computer, argv, **options)


async def ended(command: Any) -> Any:
    async with asyncio.timeout(60):
        return await command.wait()


async def said(command: Any, stream: str = "stdout") -> bytes:
    async with asyncio.timeout(60):
        return b"".join([piece.data async for piece in command.output() if piece.stream == stream])


async def until_said(command: Any, text: bytes) -> None:
    """Wait until the Command has written `text`, as a follower hears it."""
    heard_ = b""
    async with asyncio.timeout(60):
        async for piece in command.output():
            heard_ += piece.data
            if text in heard_:
                return
    raise AssertionError(f"never said {text!r}, but {heard_!r}")


async def test_programs_run_with_their_input_and_end_with_their_code_or_signal(client: HelmrClient, computer: str) -> None:
    data = bytes(range(256)) * 4096  # the whole MiB
    script = "cat; echo $COLOUR $PWD >&2; exit 7"
    command = await run(client, computer, "sh", "-c", script, stdin=data, env={"COLOUR": "grün"}, cwd="/tmp")
    found = await ended(command)
    assert (found.status, found.exit_code, found.stdout_bytes) == ("exited", 7, len(data))
    assert await said(command) == data and await said(command, "stderr") == "grün /tmp\n".encode()
    killed = await ended(await run(client, computer, "sh", "-c", "kill -9 $$"))
    assert (killed.status, killed.signal, killed.exit_code) == ("exited", 9, 137)
    missing = await run(client, computer, "no-such-program")
    assert (await ended(missing)).exit_code == 127 and b"no-such-program" in await said(missing, "stderr")
    listed = await client.commands.list(computer, limit=2)
    assert [item.id for item in listed.items] == [missing.id, killed.id]


async def test_much_output_of_two_commands_at_once_arrives_whole_and_apart(client: HelmrClient, computer: str) -> None:
    script = "import sys; [print(sys.argv[1], n) for n in range(150000)]"
    both = [await run(client, computer, "python3", "-c", script, name) for name in ("left", "right")]
    outputs = await asyncio.gather(*(said(command) for command in both))
    for name, output in zip(("left", "right"), outputs, strict=True):
        assert output.decode().splitlines() == [f"{name} {number}" for number in range(150000)]
    assert [(await ended(command)).exit_code for command in both] == [0, 0]


async def test_cancel_and_timeout_end_a_program_with_all_its_children(client: HelmrClient, computer: str) -> None:
    """[C3]: cancel is idempotent; what catches the signal has ten seconds; a session of its own saves no daemon."""
    script = "setsid sleep 1000 & trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    polite = await run(client, computer, "sh", "-c", script)
    await until_said(polite, b"ready")
    await polite.cancel()
    await polite.cancel()
    found = await ended(polite)
    assert (found.status, found.exit_code, await said(polite)) == ("cancelled", 3, b"ready\nbye\n")
    assert (await polite.cancel()).status == "accepted" and (await polite.get()).status == "cancelled"
    late = await ended(await run(client, computer, "sleep", "1000", timeout="100ms"))
    assert (late.status, late.signal) == ("timed_out", 15)
    left = await run(client, computer, "sh", "-c", "grep -l 'sleep' /proc/[0-9]*/comm; true")
    await ended(left)
    assert b"/proc" not in await said(left)


async def test_a_command_outlives_the_control_plane_and_the_worker_and_is_run_once(
    client: HelmrClient, computer: str, installation: Installation
) -> None:
    """[C3], I5, I6: both are killed in the middle; what was said meanwhile is there."""
    script = "echo begun >> count; echo begun; for n in $(seq 200); do echo $n; sleep 0.02; done; cat count"
    command = await run(client, computer, "sh", "-c", script)
    await until_said(command, b"\n20\n")
    installation.kill_server()
    await installation.start_server()
    installation.kill_worker()
    installation.start_worker()
    assert (await ended(command)).exit_code == 0
    assert (await said(command)).decode().split() == ["begun", *map(str, range(1, 201)), "begun"]


@pytest.mark.parametrize("fault", ["after_commit:exec_command", "after_commit:place_command", "before_commit:command_ended"])
async def test_a_control_plane_that_dies_at_any_step_runs_a_command_once(
    client: HelmrClient, computer: str, installation: Installation, fault: str
) -> None:
    installation.kill_server()
    await installation.start_server(fault=f"{fault}=kill@1")
    running = asyncio.create_task(run(client, computer, "sh", "-c", "echo run >> once; cat once"))
    await installation.server_died()
    await installation.start_server()
    command = await running
    assert ((await ended(command)).exit_code, await said(command)) == (0, b"run\n")


async def test_a_computer_that_is_lost_fails_its_commands_and_reruns_none(
    client: HelmrClient, computer: str, installation: Installation
) -> None:
    command = await run(client, computer, "sh", "-c", "echo run >> once; echo begun; sleep 1000")
    await until_said(command, b"begun")
    tree = await installation.computer(computer)
    os.kill(tree.processes[0].pid, signal.SIGKILL)  # its supervisor, and with it all
    found = await ended(command)
    assert found.status == "system_failed" and found.error.code
    again = await run(client, computer, "cat", "once")
    assert await said(again) == b"run\n"
    assert (await ended(again)).exit_code == 0
