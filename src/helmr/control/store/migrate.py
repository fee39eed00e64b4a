"""Bring a database to this version: plain SQL files, forward only, in two phases (STYLE 19, ADR 3).

`NNNN_name.pre.sql` runs before code of that version starts, and must leave older code working. `NNNN_name.post.sql` runs once no older code
is connected. Each file is one transaction together with its row in `helmr_migrations`; one advisory lock is held from the first look to the
last commit, so of several starts one migrates and the others wait, and a start that is killed leaves whole steps only. UD-87.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import asyncpg
import structlog

from helmr.control.store.locks import CODE_VERSION, MIGRATION
from helmr.protocol.errors import MigrationFailed

Phase = Literal["pre", "post"]

VERSIONS: Final = Path(__file__).parent / "migrations" / "versions"
_NAME: Final = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.(?P<phase>pre|post)\.sql")
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS helmr_migrations (
    number integer NOT NULL,
    phase text NOT NULL CHECK (phase IN ('pre', 'post')),
    name text NOT NULL,
    digest text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (number, phase)
)"""
_OLDER_CODE: Final = """
SELECT min(objid::bigint) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE locktype = 'advisory' AND datname = current_database() AND classid = $1 AND objsubid = 2"""

log = structlog.get_logger("helmr.migrate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file."""

    number: int
    phase: Phase
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}.{self.phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run did: `applied` now, and `waiting` for the end of older code."""

    applied: tuple[Migration, ...]
    waiting: tuple[Migration, ...]


def load(folder: Path = VERSIONS) -> tuple[Migration, ...]:
    """The files of `folder` in the order in which they run: by number, pre before post. Raises `MigrationFailed` on a bad name."""
    found: dict[tuple[int, Phase], Migration] = {}
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise MigrationFailed(f"{path.name} is not named NNNN_name.pre.sql or NNNN_name.post.sql.")
        number, phase = int(match["number"]), "pre" if match["phase"] == "pre" else "post"
        migration = Migration(number=number, phase=phase, name=match["name"], sql=path.read_text(encoding="utf-8"))
        if (number, phase) in found:
            raise MigrationFailed(f"{migration} and {found[number, phase]} have the same number.")
        found[number, phase] = migration
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0], key[1] == "post")))


def code_version(migrations: Sequence[Migration]) -> int:
    """The number that code with these files announces while it is connected (`locks.CODE_VERSION`)."""
    return max((migration.number for migration in migrations), default=0)


async def migrate(dsn: str, migrations: Sequence[Migration] | None = None) -> Outcome:
    """Apply what `dsn` lacks. Waits while another start migrates. Raises `MigrationFailed` or the driver's errors."""
    wanted = load() if migrations is None else tuple(migrations)
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "helmr-migrate"})
    try:
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1, 0)", MIGRATION):
            log.info("waiting for another start to migrate the database")
            await connection.execute(f"SELECT pg_advisory_lock({MIGRATION}, 0)")
        await connection.execute(_TABLE)
        return await _apply(connection, wanted)
    finally:
        await connection.close()


async def _apply(connection: asyncpg.Connection[asyncpg.Record], wanted: Sequence[Migration]) -> Outcome:
    rows = await connection.fetch("SELECT number, phase, name, digest FROM helmr_migrations ORDER BY number")
    done = {(row["number"], row["phase"]): row["digest"] for row in rows}
    _refuse_newer(wanted, done)
    oldest = await connection.fetchval(_OLDER_CODE, CODE_VERSION)
    applied: list[Migration] = []
    waiting: list[Migration] = []
    for migration in wanted:
        digest = done.get((migration.number, migration.phase))
        if digest is None and migration.phase == "post" and oldest is not None and oldest < migration.number:
            waiting.append(migration)
        elif digest is None:
            await _run(connection, migration)
            applied.append(migration)
        elif digest != migration.digest:
            raise MigrationFailed(
                f"{migration} was edited after it was applied to this database.",
                hint="Restore the file and put the change into a new one; a development database can be thrown away instead.",
            )
    if applied:
        log.info("migrated the database", applied=[str(migration) for migration in applied])
    return Outcome(applied=tuple(applied), waiting=tuple(waiting))


def _refuse_newer(wanted: Sequence[Migration], done: dict[tuple[int, str], str]) -> None:
    """A later `pre` leaves this code working, a later `post` does not."""
    newest = code_version(wanted)
    beyond = [number for number, phase in done if phase == "post" and number > newest]
    if beyond:
        raise MigrationFailed(
            f"This database was migrated to {max(beyond):04}; this version of Helmr knows {newest:04}.",
            hint="Start the newer version of Helmr.",
        )


async def _run(connection: asyncpg.Connection[asyncpg.Record], migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO helmr_migrations (number, phase, name, digest) VALUES ($1, $2, $3, $4)",
                migration.number,
                migration.phase,
                migration.name,
                migration.digest,
            )
    except asyncpg.PostgresConnectionError:
        raise
    except asyncpg.PostgresError as error:
        position = int(getattr(error, "position", None) or 0)
        line = f", line {migration.sql.count(chr(10), 0, position - 1) + 1}" if position else ""
        raise MigrationFailed(f"{migration}.sql{line}: {error}") from error
