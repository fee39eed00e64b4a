"""The batcher goes on whatever its driver raises: nothing of a guest is lost, no client waits for ever. DESIGN 7, I6."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from helmr.control.service.batcher import Batcher
from helmr.control.store.flush import Admit, Append, Batch, Flushed
from helmr.control.store.pool import database_errors
from helmr.protocol.errors import DatabaseUnavailable


class Failing:
    """`Flushes` that fail once with `error` and store afterwards."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.stored: list[Append] = []

    async def flush(self, batch: Batch, *, wait: bool, origin: str | None) -> dict[str, list[Flushed]]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.stored += batch.appends
        done = Flushed("ok", 1, datetime.now(UTC), None, None, None, 0, None)
        return {"append": [done] * len(batch.appends), "admit": [done] * len(batch.admits), "settle": [], "claim": []}


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("another operation is in progress"), RuntimeError("the handler is closed")])
async def test_an_odd_error_of_the_driver_refuses_clients_and_keeps_what_guests_said(error: Exception, bounded) -> None:
    flushes = Failing(error)
    batcher = Batcher(flushes, origin=lambda: None)
    stored = asyncio.Event()
    said = Append(session_id="s", channel=1, op=1, turn_id="t", data=b"[]")
    asked = Admit(
        session_id="s", environment_id="e", turn_id="u", input=b"[]", source=b"{}", principal_id="p", by="user", key=None, fingerprint=b""
    )
    await batcher.start()
    try:
        async with bounded():
            batcher.add(said, lambda _: stored.set())
            with pytest.raises(DatabaseUnavailable):
                await batcher.submit(asked)
            await stored.wait()
            assert (await batcher.submit(asked)).outcome == "ok"
    finally:
        await batcher.stop()
    assert flushes.stored == [said]


def test_a_connection_lost_between_two_steps_of_the_driver_is_the_database_being_away() -> None:
    with pytest.raises(DatabaseUnavailable), database_errors():
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
