"""How often may be tried to sign in, counted in the database: it holds over several control planes. SPEC 14.

An attempt is counted before anything is looked at, so that many at once are no way around it, and given back when it was right. What is
refused for being one too many is not counted: whoever waits as told gets through.
"""

from __future__ import annotations

import hashlib

from helmr.control.domain.signin import OF_ACCOUNT, OF_ADDRESS, Bucket
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import TooManyAttempts


def address_hash(address: str) -> bytes:
    return _name("address", address)


class Attempts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, email: str, address: str) -> tuple[bytes, ...]:
        """Count one for an account from an address; what it was counted in, for `give_back`. Raises `TooManyAttempts`.

        An address that the account's person came from before has a bucket of its own for it. That there is no such account changes nothing.
        """

        async def work(connection: Connection) -> tuple[bytes, ...]:
            known = await signin.knows_address(connection, email=email, address_hash=address_hash(address))
            account = _name("known", email, address) if known else _name("account", email)
            return await _count(connection, ((_name("address", address), OF_ADDRESS), (account, OF_ACCOUNT)))

        return await self._database.run(work)

    async def take_of(self, what: str, address: str, bucket: Bucket) -> None:
        """Count one of another kind from an address. Raises `TooManyAttempts`."""

        async def work(connection: Connection) -> None:
            await _count(connection, ((_name(what, address), bucket),))

        await self._database.run(work)


async def give_back(connection: Connection, taken: tuple[bytes, ...]) -> None:
    """It was no failure."""
    for bucket in sorted(taken):  # In an order, so that two transactions don't wait for one another (I3).
        await signin.give_back(connection, buckets=[bucket])


async def _count(connection: Connection, buckets: tuple[tuple[bytes, Bucket], ...]) -> tuple[bytes, ...]:
    """Raising takes all of it back with the transaction."""
    wait = 0.0
    for name, bucket in sorted(buckets, key=lambda pair: pair[0]):
        level: float = await signin.take_attempt(connection, bucket=name, per_second=bucket.per_second)
        wait = max(wait, bucket.wait(level))
    if wait > 0:
        raise TooManyAttempts(retry_after=wait)
    return tuple(name for name, _ in buckets)


def _name(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
