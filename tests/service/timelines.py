"""Every event that a test made says what its kind is declared to say [E1]."""

from __future__ import annotations

from tests.model.invariants import Fetch

from helmr.protocol import jsontext
from helmr.protocol.timeline import misfits


async def check_events(fetch: Fetch) -> None:
    rows = await fetch("SELECT DISTINCT ON (kind, data) kind, data FROM events")
    found = misfits([(row["kind"], jsontext.loads(row["data"])) for row in rows])
    assert not found, found
