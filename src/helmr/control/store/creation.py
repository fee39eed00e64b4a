"""Creation of Sessions, many in one commit: the statement `create_v2` and its values. SPEC [S1]-[S5]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from helmr.control.store.pool import Database

CreateOutcome = Literal[
    "ok", "moved", "replay", "conflict", "key_taken", "short", "computer_not_found", "computer_deleting", "computer_mismatch"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """One Session to be made, as it was checked against `deployment_id`; `turn_id` and `input` are None without a first Turn."""

    session_id: str
    environment_id: str
    deployment_id: str
    agent: str
    template: str
    key: str | None
    input_kind: str
    principal_id: str
    by: str
    """What kind of principal asks, for the audit log."""
    close_after_idle_ms: int | None
    max_turn_ms: int | None
    computer_id: str | None
    made_of: bytes | None
    turn_id: str | None
    input: bytes | None
    source: bytes
    idempotency_key: str | None
    fingerprint: bytes
    receipt: bytes
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Created(NamedTuple):
    outcome: CreateOutcome
    data: bytes | None
    """`replay`: the receipt. `short`: after how many seconds there is a token for it, as text [S5]."""
    occupant: str | None
    """`key_taken`: the Session that has the key."""


_PARAMETERS: Final = 22
_CREATE: Final = f"""
WITH done AS MATERIALIZED (SELECT * FROM create_v2({", ".join(f"${number}" for number in range(1, _PARAMETERS + 1))})),
    audited AS (
        INSERT INTO audit (id, environment_id, principal_id, kind, operation, target)
        SELECT i.id, i.environment_id, i.principal_id, i.by, 'sessions.create', i.id::text
        FROM unnest($2::uuid[], $3::uuid[], $9::uuid[], ${_PARAMETERS + 1}::text[]) WITH ORDINALITY
            AS i (id, environment_id, principal_id, by, ord)
        JOIN done ON done.ord = i.ord AND done.outcome = 'ok'
    )
SELECT * FROM done ORDER BY ord"""
"""What was made stands in the audit log by the same commit, under the Session's id."""


async def create(database: Database, items: Sequence[Creation], origin: str | None) -> list[Created]:
    """Make all of `items` in one commit; what became of each, in order. Raises `DatabaseUnavailable` when that is unknown."""
    labels = [(item.session_id, name, value) for item in items for name, value in item.labels.items()]
    async with database.connection() as connection:
        rows: list[Any] = await connection.fetch(
            _CREATE,
            origin,
            [item.session_id for item in items],
            [item.environment_id for item in items],
            [item.deployment_id for item in items],
            [item.agent for item in items],
            [item.template for item in items],
            [item.key for item in items],
            [item.input_kind for item in items],
            [item.principal_id for item in items],
            [item.close_after_idle_ms for item in items],
            [item.max_turn_ms for item in items],
            [item.computer_id for item in items],
            [item.made_of for item in items],
            [item.turn_id for item in items],
            [item.input for item in items],
            [item.source for item in items],
            [item.idempotency_key for item in items],
            [item.fingerprint for item in items],
            [item.receipt for item in items],
            [session for session, _, _ in labels],
            [name for _, name, _ in labels],
            [value for _, _, value in labels],
            [item.by for item in items],
        )
    return [Created(row["outcome"], row["data"], None if row["occupant"] is None else str(row["occupant"])) for row in rows]
