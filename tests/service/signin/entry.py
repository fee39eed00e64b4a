"""A small installation for tests of signing in: a database, the ways in, cheap hashes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from argon2 import Parameters, Type

from helmr.control.service.signin.people import Person, add_person
from helmr.control.service.signin.sign_ins import SignedIn
from helmr.control.service.signin.ways import Ways
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin

CHEAP = Parameters(type=Type.ID, version=19, salt_len=16, hash_len=16, time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "correct horse battery"
HOME = "192.0.2.1"
ELSEWHERE = "198.51.100.7"


@dataclass
class Entry:
    database: Database
    ways: Ways
    connection: Any
    """Beside the pool, to look and to turn the clock."""

    async def set_up(self, email: str = "ada@example.com", name: str = "Ada") -> SignedIn:
        token = await self.ways.set_up.token()
        assert token is not None
        return await self.ways.set_up.begin(token, email=email, name=name, password=PASSWORD, label="test", address=HOME)

    async def person(self, email: str, role: str = "viewer") -> Person:
        async def work(connection: Connection) -> Person:
            return await add_person(connection, email=email, name=email, role=role)

        return await self.database.run(work)

    async def sign_in(self, email: str = "ada@example.com", password: str = PASSWORD, address: str = HOME) -> SignedIn:
        return await self.ways.passwords.sign_in(email, password, label="test", address=address)

    async def log(self) -> list[str]:
        return [row["what"] for row in await self.connection.fetch("SELECT what FROM sign_in_log ORDER BY id")]

    async def later(self, seconds: float) -> None:
        """Time goes by for all that signing in remembers."""
        for table, columns in {
            "sign_ins": ("created_at", "seen_at", "expires_at"),
            "one_time_codes": ("expires_at",),
            "device_codes": ("created_at", "polled_at", "expires_at"),
            "sign_in_attempts": ("at",),
            "known_addresses": ("seen_at",),
        }.items():
            moves = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in columns)
            await self.connection.execute(f"UPDATE {table} SET {moves}", seconds)

    async def everything(self) -> str:
        """All rows of all tables as text."""
        tables = await self.connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = [row for (name,) in tables for row in await self.connection.fetch(f"SELECT t::text FROM {name} t")]
        return "\n".join(row[0] for row in rows)


@asynccontextmanager
async def entry(dsn: str, *, size: int = 6) -> AsyncIterator[Entry]:
    database = Database(dsn, size=size)
    await database.start()
    connection = await asyncpg.connect(dsn)
    made = Entry(database, Ways(database, cost=CHEAP), connection)
    try:
        await signin.anybody(connection)
        yield made
        assert database.deadlocks == 0, "a transaction was run again after a deadlock (I3)"
    finally:
        await connection.close()
        await database.stop()
