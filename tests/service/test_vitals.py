"""What whoever watches an installation is told of it. SPEC 11 (`/metrics`)."""

from __future__ import annotations

import math

import pytest
from tests.service.scripted import house

from helmr.control.service.health import Health
from helmr.control.store.pool import Database
from helmr.protocol.errors import DatabaseUnavailable

pytestmark = pytest.mark.anyio


@pytest.mark.ud("UD-02")
async def test_running_without_a_lease_and_the_age_of_what_waits_are_counted(database, tmp_path):
    """Both are 0 while all goes well; what runs on a worker without a lease, or whose row is gone, is counted; what can't run yet isn't."""
    async with house(database, tmp_path) as h:

        async def vitals():
            found = await Health(h.database).vitals()
            return found.running_without_lease, found.oldest_waiting_seconds

        assert await vitals() == (0, 0)
        session, process = await h.warm()
        turn = (await h.enqueue(session))["id"]
        await process.began(turn)
        await h.enqueue(session)
        assert await vitals() == (0, 0), "what queues behind a running Turn waits for no process"
        h.host.disconnect()
        async with h.database.connection() as connection:
            await connection.execute("UPDATE workers SET lease_until = now()")
            assert (await vitals())[0] == 1
            await connection.execute("DELETE FROM workers")
            assert (await vitals())[0] == 1
        waiting = (await h.create())["turn"]["id"]
        async with h.database.connection() as connection:
            await connection.execute("UPDATE turns SET created_at = now() - interval '1 hour' WHERE id = $1", waiting)
        assert 3600 <= (await vitals())[1] < 3700
        h.host.connect()
        process.settle(turn)
        await h.turn(session, turn)
        await (await h.host.next_process()).began(waiting)
        assert await vitals() == (0, 0)


async def test_vitals_are_looked_up_once_in_five_seconds_and_unknown_while_the_database_is_away(database, monkeypatch):
    """Anybody may ask, as often as they like; a metric that is not known says so, and is no failure."""
    now, looks, away = 100.0, 0, False
    monkeypatch.setattr("helmr.control.service.health.time.monotonic", lambda: now)
    pool = Database(database)
    await pool.start()
    connect = pool.connection

    def connection():
        nonlocal looks
        looks += 1
        if away:
            raise DatabaseUnavailable("It is away here.")
        return connect()

    monkeypatch.setattr(pool, "connection", connection)
    try:
        health = Health(pool)
        first = await health.vitals()
        assert (first.running_without_lease, first.oldest_waiting_seconds) == (0, 0)
        now += 4.9
        assert await health.vitals() == first and looks == 1
        now, away = now + 0.2, True
        assert math.isnan((await health.vitals()).running_without_lease) and looks == 2
    finally:
        await pool.stop()
