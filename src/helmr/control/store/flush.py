"""The flush: hot operations of many Sessions, one commit. The port that the batcher calls, and its one implementation.

The rules are in `flush_v2` (migrations) and in `control/domain`. DESIGN 7; SPEC [S4]-[S6], [S8], [S10], [S11], [E1].
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

import asyncpg

from helmr.control.store.pool import Database, database_errors
from helmr.protocol.errors import DatabaseUnavailable

Outcome = Literal["ok", "busy", "missing", "stale", "loose", "replay", "conflict", "closed", "short"]


@dataclass(slots=True, kw_only=True)
class Append:
    """One output of the running Turn. `data` is the stored encoding of a normalized Content list."""

    session_id: str
    channel: int
    op: int
    turn_id: str
    data: bytes


@dataclass(slots=True, kw_only=True)
class Settle:
    """A drained handler. `event` is the terminal event's data where the Turn failed by itself."""

    session_id: str
    channel: int
    op: int
    turn_id: str
    status: Literal["completed", "failed", "stopped"]
    result: bytes | None = None
    response: bytes | None = None
    error: bytes | None = None
    event: bytes | None = None


@dataclass(slots=True, kw_only=True)
class Admit:
    """A Turn for the end of the queue. With a key, `fingerprint` tells exact retries from conflicts [S4]."""

    session_id: str
    environment_id: str
    turn_id: str
    input: bytes
    source: bytes
    principal_id: str
    by: str
    """What kind of principal asks, for the audit log."""
    key: str | None
    fingerprint: bytes


@dataclass(slots=True, kw_only=True)
class Claim:
    """Start the next queued Turn of a Session, if it may run."""

    session_id: str


class NextTurn(NamedTuple):
    """A Turn that a flush made running."""

    id: str
    sequence: int
    input: bytes | None
    source: bytes | None
    created_at: datetime
    started_at: datetime
    deadline_at: datetime | None


class Flushed(NamedTuple):
    """What became of one item."""

    outcome: Outcome
    sequence: int
    at: datetime
    status: str | None
    data: bytes | None
    next_turn: NextTurn | None
    turn_sequence: int
    hint: str | None
    """What is to be done; of a `short` admission: after how many seconds there is a token for it [S5]."""


@dataclass(slots=True)
class Batch:
    """Items in arrival order, by kind."""

    appends: list[Append] = field(default_factory=list[Append])
    settles: list[Settle] = field(default_factory=list[Settle])
    admits: list[Admit] = field(default_factory=list[Admit])
    claims: list[Claim] = field(default_factory=list[Claim])

    def kinds(self) -> Iterator[str]:
        """What is in it: `append`, `settle`, `admit`, `claim`."""
        named = {"append": self.appends, "settle": self.settles, "admit": self.admits, "claim": self.claims}
        return (kind for kind, items in named.items() if items)


class Flushes(Protocol):
    """Writes one batch in one commit."""

    async def flush(self, batch: Batch, *, wait: bool, origin: str | None) -> dict[str, list[Flushed]]:
        """What became of each item, per kind (append, settle, admit, claim), in the batch's order.

        Raises `DatabaseUnavailable` when the outcome is unknown, other asyncpg errors when the whole batch was rolled back.
        """
        ...


_SECONDS = 30.0
"""After so long the connection counts as broken; what guests said is kept and written again."""

_PLAN_SECONDS = 5.0
"""How long plans are kept: one made for small tables reads all of what they have grown to. Planning anew costs a few ms."""

_PLANNING = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_mergejoin": "off"}
"""Every statement of a flush finds a few rows by their keys, whatever the size of the tables: plans are kept from thinking otherwise
while the tables are small. Measured: without this, plans made before 10,000 Sessions came were ten times slower after."""

_FLUSH: Final = "SELECT * FROM flush_v2($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24,$25)"


_AUDITED: Final = f"""
WITH done AS MATERIALIZED ({_FLUSH}),
    audited AS (
        INSERT INTO audit (id, environment_id, principal_id, kind, operation, target, at)
        SELECT m.turn_id, m.environment_id, m.principal_id, m.by, 'turns.enqueue', m.session_id::text, done.at
        FROM unnest($19::uuid[], $18::uuid[], $22::uuid[], $26::text[], $17::uuid[]) WITH ORDINALITY
            AS m (turn_id, environment_id, principal_id, by, session_id, ord)
        JOIN done ON done.op = 'admit' AND done.ord = m.ord AND done.outcome = 'ok'
    )
SELECT * FROM done"""
"""A flush with admissions: what was admitted stands in the audit log by the same commit, under the Turn's id."""


class PostgresFlush:
    """`Flushes` on a connection of its own, taken from the database when first needed and again after a loss."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._statements: dict[str, Any] = {}
        self._planned_at = time.monotonic()

    async def flush(self, batch: Batch, *, wait: bool, origin: str | None) -> dict[str, list[Flushed]]:
        try:
            with database_errors():
                parameters = _parameters(batch, wait, origin)
                statement = await self._prepared(_FLUSH)
                if batch.admits:
                    parameters.append([item.by for item in batch.admits])
                    statement = await self._prepared(_AUDITED)
                await self._replan()
                rows = await statement.fetch(*parameters, timeout=_SECONDS)
        except DatabaseUnavailable:
            await self.close()  # it may be open and of no use
            raise
        except BaseException:
            await self._check()
            raise
        return _outcomes(rows)

    async def _replan(self) -> None:
        """Have plans that are old made anew."""
        now = time.monotonic()
        if now - self._planned_at > _PLAN_SECONDS and self._connection is not None:
            self._planned_at = now
            await self._connection.execute("DISCARD PLANS")

    async def close(self) -> None:
        connection, self._connection, self._statements = self._connection, None, {}
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def _prepared(self, text: str) -> Any:
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = self._connection = await self._database.dedicated(**_PLANNING)
            self._statements = {}
        statement = self._statements.get(text)
        if statement is None:
            statement = self._statements[text] = await connection.prepare(text)
        return statement

    async def _check(self) -> None:
        """Drop a connection that is closed, or in an unknown state after a cancellation."""
        if self._connection is not None and (self._connection.is_closed() or self._connection.is_in_transaction()):
            await self.close()


def _parameters(batch: Batch, wait: bool, origin: str | None) -> list[Any]:
    a, s, m = batch.appends, batch.settles, batch.admits
    return [
        wait,
        origin,
        [i.session_id for i in a],
        [i.channel for i in a],
        [i.op for i in a],
        [i.turn_id for i in a],
        [i.data for i in a],
        [i.session_id for i in s],
        [i.channel for i in s],
        [i.op for i in s],
        [i.turn_id for i in s],
        [i.status for i in s],
        [i.result for i in s],
        [i.response for i in s],
        [i.error for i in s],
        [i.event for i in s],
        [i.session_id for i in m],
        [i.environment_id for i in m],
        [i.turn_id for i in m],
        [i.input for i in m],
        [i.source for i in m],
        [i.principal_id for i in m],
        [i.key for i in m],
        [i.fingerprint for i in m],
        [i.session_id for i in batch.claims],
    ]


def _outcomes(rows: Sequence[asyncpg.Record]) -> dict[str, list[Flushed]]:
    found: dict[str, list[tuple[int, Flushed]]] = {"append": [], "settle": [], "admit": [], "claim": []}
    for row in rows:
        op, ord_, outcome, seq, at, status, data, nid, nseq, ninput, nsource, ncreated, ndeadline, tseq, hint = row
        following = None
        if nid is not None:
            following = NextTurn(str(nid), nseq, ninput, nsource, ncreated, at, ndeadline)
        found[op].append((ord_, Flushed(cast("Outcome", outcome), seq or 0, at, status, data, following, tseq or 0, hint)))
    for items in found.values():
        items.sort(key=_first)
    return {op: [item for _, item in items] for op, items in found.items()}


def _first(pair: tuple[int, Flushed]) -> int:
    return pair[0]
