"""Time that a test moves.

All of Helmr's times belong to its database (DESIGN 3), so a test's database has a clock of its own: functions `now()`, `clock_timestamp()`,
`statement_timestamp()` and `transaction_timestamp()` that come before PostgreSQL's on the search path and add what the test has
advanced. No statement of the product knows of it, and every instant that is stored is consistent with every other.

`Clock.advance` moves, in this order:

1. the database's time: deadlines, idle close, back-off, cleanup limits, retention, expiry of keys; `created_at` and the like of
   what comes later. Leases of workers and control planes move along: the machinery stays alive.
2. the duties of the control plane, once each: what is due now happens now.
3. the event loops of all Sessions: `asyncio.sleep`, `asyncio.timeout`, `loop.call_later` of handlers, and the limit of their cleanup.

It doesn't move `time.time()`, `datetime.now()`, `time.monotonic()` and `time.sleep()` of handlers (patch them as in any test), nor the
event loop of the test itself.

A jump makes everything due at once. Where the order of what happens in between matters, advance in steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmr.protocol.duration import Duration, duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA: Final = "helmr_clock"

INSTALL: Final = """
CREATE SCHEMA helmr_clock;
CREATE TABLE helmr_clock.ahead (seconds double precision NOT NULL);
INSERT INTO helmr_clock.ahead VALUES (0);
CREATE FUNCTION helmr_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$ SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM helmr_clock.ahead)) $$;
CREATE FUNCTION helmr_clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT pg_catalog.now() + make_interval(secs => (SELECT seconds FROM helmr_clock.ahead)) $$;
CREATE FUNCTION helmr_clock.transaction_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT pg_catalog.now() + make_interval(secs => (SELECT seconds FROM helmr_clock.ahead)) $$;
CREATE FUNCTION helmr_clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT pg_catalog.statement_timestamp() + make_interval(secs => (SELECT seconds FROM helmr_clock.ahead)) $$;
DO $$
DECLARE found record;
BEGIN
    -- Defaults name the function that was found when they were declared.
    FOR found IN
        SELECT adrelid::regclass AS tab, attname FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
        WHERE pg_get_expr(adbin, adrelid) = 'now()'
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT helmr_clock.now()', found.tab, found.attname);
    END LOOP;
END $$;
"""
"""What makes a database's time movable."""

RESET: Final = "UPDATE helmr_clock.ahead SET seconds = 0"

SEARCH_PATH: Final = "public, helmr_clock, pg_catalog"

MOVE: Final = """
WITH moved AS (UPDATE helmr_clock.ahead SET seconds = seconds + $1),
    kept AS (UPDATE workers SET lease_until = lease_until + make_interval(secs => $1), seen_at = seen_at + make_interval(secs => $1))
UPDATE control_planes SET seen_at = seen_at + make_interval(secs => $1)
"""


class Clock:
    """`runtime.clock`. `move` does what `advance` says, with seconds."""

    def __init__(self, move: Callable[[float], None]) -> None:
        self._move = move
        self.ahead = 0.0
        """By how many seconds the runtime's time is ahead of the machine's."""

    def advance(self, by: Duration) -> None:
        """Move time forward: `"8d"`, `"30s"`, or a timedelta. Returns once everything that is due has been looked at."""
        self._move(duration_ms(by, "advance") / 1000)


async def move(connection: Any, seconds: float) -> None:
    """Move the time of the database, and keep the leases."""
    await connection.execute(MOVE, seconds)
