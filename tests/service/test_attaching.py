"""What a Computer says while its stream is joined to a new link is heard whole and in its order. DESIGN I5, I6, [E1], [C8]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.service.scripted import House, Process, house
from tests.service.test_commands import command, output, running, text

pytestmark = pytest.mark.anyio


async def say_at_every_moment(h: House, process: Process, say: Callable[[int], int]) -> int:
    """Join the Computer to a new link, and say something at each turn of the loop from before that to after it; how often."""
    before = process.op
    h.host.disconnect()
    h.host.connect()
    said = 0
    async with asyncio.timeout(5):
        while process.acked <= before:
            if h.host.slots:
                said += 1
                say(said)
            await asyncio.sleep(0)
    return said


async def test_what_a_process_says_at_each_moment_of_an_attach_is_stored_in_order(database, tmp_path):
    """[E1]: what came before its Computer was looked up is heard before what came after, and none of it is taken for a repeat."""
    async with house(database, tmp_path) as h:
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        said = await say_at_every_moment(h, process, lambda n: process.output(turn, str(n)))
        process.settle(turn)
        assert (await h.turn(session, turn))["status"] == "completed"
        outputs = [event["data"][0]["text"] for event in await h.events(session) if event["kind"] == "turn.output"]
        assert outputs == [str(n) for n in range(1, said + 1)]


async def test_what_a_command_says_at_each_moment_of_an_attach_is_its_log(database, tmp_path):
    """[C8]: nothing of a log is missing that is not said to be."""
    async with house(database, tmp_path) as h:
        id, program, _ = await running(h)
        said = await say_at_every_moment(h, program, lambda n: output(program, f"{n} ".encode()))
        program.die("exited", code=0)
        assert (await command(h, id, 5.0)).status == "exited"
        assert b"".join(await text(h, id)).split() == [str(n).encode() for n in range(1, said + 1)]
