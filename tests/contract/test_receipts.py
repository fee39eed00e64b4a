"""contract, receipts of controls and messages: exactly these members; none confirms that execution has stopped."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.contract.stage import play

from helmr import text
from helmr.protocol.ids import is_id
from helmr.testing import Gate

pytestmark = pytest.mark.anyio


@pytest.fixture
async def post(stage):
    """POST as another client does it: status and body."""
    headers = {"Authorization": f"Bearer {stage.runtime.api_key}"}
    async with aiohttp.ClientSession(stage.runtime.url, headers=headers) as http:

        async def ask(path, **body):
            async with http.post(f"/v1/sessions{path}", json=body) as reply:
                return reply.status, await reply.json()

        yield ask


@pytest.fixture
async def stuck(stage):
    """A running Turn that takes messages and whose cleanup goes on until the end of the test."""
    finish = Gate()

    async def handler(turn, ctx):
        await turn.on_message(lambda message: None)
        turn.on_cancel(lambda reason: finish.wait())
        await turn.output.write("here")
        await asyncio.sleep(3600)

    made = await stage.begin(handler)
    await stage.until(made.session, "turn.output")
    yield made
    finish.open()


async def nothing(turn, ctx):
    return None


async def test_creation(post):
    status, receipt = await post("", agent="actor", input=play(nothing))
    assert status == 201 and set(receipt) == {"session", "turn"}
    assert set(receipt["session"]) == {"id", "deployment_id", "agent"} and set(receipt["turn"]) == {"id", "session_id", "sequence"}
    assert (await post("", agent="actor"))[1]["turn"] is None


async def test_enqueue(post, stuck):
    status, receipt = await post(f"/{stuck.session.id}/turns", input=play(nothing))
    assert status == 201 and (set(receipt), receipt["sequence"]) == ({"id", "session_id", "sequence"}, 2)


async def test_message(post, stuck):
    status, receipt = await post(f"/{stuck.session.id}/turns/{stuck.turn.id}/messages", content=[text("hello")])
    assert status in (200, 201, 202) and is_id(receipt.pop("id")) and receipt == {"status": "accepted"}


async def test_turn_interrupt(post, stuck):
    _, receipt = await post(f"/{stuck.session.id}/turns/{stuck.turn.id}/interrupt")
    assert is_id(receipt.pop("id"))
    assert receipt == {"session_id": stuck.session.id, "turn_id": stuck.turn.id, "status": "accepted"}
    assert (await stuck.turn.get()).status == "running", "accepted is not stopped"


async def test_session_interrupt_and_resume(post, stuck):
    _, receipt = await post(f"/{stuck.session.id}/interrupt")
    hold = receipt.pop("hold_id")
    assert is_id(hold) and is_id(receipt.pop("id")) and receipt == {"session_id": stuck.session.id, "status": "accepted"}
    assert (await stuck.turn.get()).status == "running", "accepted is not stopped"
    _, receipt = await post(f"/{stuck.session.id}/resume", hold_id=hold)
    assert is_id(receipt.pop("id")) and receipt == {"session_id": stuck.session.id, "status": "accepted", "hold_id": hold}


async def test_close_says_closing_or_closed(post, stuck):
    assert (await post(f"/{stuck.session.id}/close"))[1] == {"session_id": stuck.session.id, "status": "closing"}
    _, made = await post("", agent="actor")
    session = made["session"]["id"]
    for _ in ("at once", "again"):
        assert (await post(f"/{session}/close"))[1] == {"session_id": session, "status": "closed"}


async def test_cancel_says_closed_while_processes_may_still_be_ending(stage, post, stuck):
    assert (await post(f"/{stuck.session.id}/cancel"))[1] == {"session_id": stuck.session.id, "status": "closed"}
    assert not (await stuck.session.events.list(limit=1000)).sealed, "its process still cleans up"
    assert (await post(f"/{stuck.session.id}/close"))[1] == {"session_id": stuck.session.id, "status": "closed"}
