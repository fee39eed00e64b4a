"""Computers that failed are tried again by hand, with the files that they have. SPEC [C1], [S14]; UD-39."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.service.scripted import House, house
from tests.service.test_computers import ask, get, told, until, warm

from helmr.protocol.errors import CapacityUnavailable

pytestmark = pytest.mark.anyio

CAUSE = {"code": "layers_missing", "message": "This host lacks a layer."}


async def failed(h: House, times: int) -> tuple[str, str, dict[str, Any]]:
    """A Session whose Computer could not be started so often: session, Computer, turn. No back-off is waited for."""
    h.host.refuse_computers = CAUSE
    made = await h.create("go")
    session = made["session"]["id"]
    for count in range(1, times + 1):
        await h.until(session, "session.process_failed", count)
        if count < times:
            async with h.database.connection() as connection:
                await connection.execute("UPDATE sessions SET retry_at = now() WHERE id = $1", session)
            h.plane.dispatcher.place(session)
    return session, (await h.session(session))["computer_id"], made["turn"]


@pytest.mark.ud("UD-39")
async def test_a_computer_that_cannot_be_started_says_why_and_a_recover_starts_it_without_waiting_for_the_back_off(database, tmp_path):
    """[S14]: the error is shown on the Computer and in the explanation; a second recover changes nothing; no file is touched."""
    async with house(database, tmp_path) as h:
        session, computer, turn = await failed(h, 2)
        shown = await get(h, computer)
        assert (shown.residency, shown.error.code, shown.error.message) == ("cold", CAUSE["code"], CAUSE["message"])
        async with h.database.connection() as connection:
            await connection.execute("UPDATE sessions SET retry_at = now() + interval '1 day' WHERE id = $1", session)
        h.host.refuse_computers = None
        assert (await ask(h, "recover", computer, "r"))["residency"] == "starting"
        process = await h.host.next_process()
        await process.began(turn["id"])
        assert (await ask(h, "recover", computer))["residency"] == "running"
        assert (await ask(h, "recover", computer, "r"))["residency"] == "starting", "the first receipt"
        process.settle(turn["id"])
        assert (await h.turn(session, turn["id"]))["status"] == "completed"
        assert not told(h, "computer.destroy", computer) and not told(h, "computer.stop", computer)


async def test_a_recover_leaves_holds_to_those_who_look_at_them(database, tmp_path):
    """[S13], [S17]: after the third strike the Session is held; the Computer runs again, the Turn only after the release."""
    async with house(database, tmp_path) as h:
        session, computer, turn = await failed(h, 3)
        hold = await h.until(session, "session.held")
        h.host.refuse_computers = None
        assert (await ask(h, "recover", computer))["residency"] == "starting"
        await until(h, computer, residency="running")
        assert json.loads(await h.plane.turns.get(h.principal, session, turn["id"], 0))["status"] == "queued"
        await h.plane.controls.resume(h.principal, session, hold["data"]["hold_id"], None)
        process = await h.host.next_process()
        await process.began(turn["id"])


async def test_a_recover_changes_nothing_where_nothing_failed_and_says_when_the_host_is_away(database, tmp_path):
    """[C10], UD-40: a Computer whose host is away is not made anew."""
    async with house(database, tmp_path) as h:
        _, _, computer = await warm(h)
        assert (await ask(h, "recover", computer))["residency"] == "running"
        await ask(h, "hibernate", computer)
        await until(h, computer, residency="hibernated")
        assert (await ask(h, "recover", computer))["residency"] == "hibernated"
        await ask(h, "wake", computer)
        await until(h, computer, residency="running")
        h.host.disconnect()
        async with h.database.connection() as connection:
            await connection.execute("UPDATE workers SET lease_until = now() - interval '1 hour'")
            worker = await connection.fetchval("SELECT id FROM workers")
        await h.plane.processes.worker_lost(str(worker))
        assert (await get(h, computer)).residency == "unavailable"
        with pytest.raises(CapacityUnavailable):
            await ask(h, "recover", computer)
        assert (await get(h, computer)).error.code == "worker_lost"
