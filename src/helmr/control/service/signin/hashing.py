"""Hashes of passwords: argon2id with the low-memory profile of RFC 9106 (64 MiB, 3 passes, 4 lanes), a few at a time.

Each takes about a tenth of a second of a core. So they are made in threads, two at once, and who would wait too long is told to come again:
people who sign in can neither stop the event loop nor fill the memory.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from argon2 import Parameters, PasswordHasher, profiles
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from helmr.protocol.errors import SignInBusy

RFC_9106_LOW_MEMORY: Final[Parameters] = profiles.RFC_9106_LOW_MEMORY
T = TypeVar("T")

AT_ONCE: Final = 2
WAITING: Final = 32


class PasswordHashes:
    def __init__(self, cost: Parameters = RFC_9106_LOW_MEMORY) -> None:
        self._hasher = PasswordHasher.from_parameters(cost)
        self._limit: anyio.CapacityLimiter | None = None
        self._begun = 0
        self._dummy: str | None = None
        """What is compared for an account that isn't there or has no password: the same work, and never right."""

    async def make(self, password: str) -> str:
        """Raises `SignInBusy`."""
        return await self._run(partial(self._hasher.hash, password.encode()))

    async def fits(self, password: str, hash_: str | None) -> bool:
        """Whether it is the password of the hash; the same work for None, which nothing fits. Raises `SignInBusy`."""
        dummy = self._dummy
        if dummy is None:
            # Whoever is the first waits for it, known or not.
            dummy = await self._run(partial(self._hasher.hash, secrets.token_bytes(16)))
            self._dummy = dummy
        against = dummy if hash_ is None else hash_
        fits = await self._run(partial(self._verify, against, password.encode("utf-8", "surrogatepass")))
        return fits and hash_ is not None

    def is_old(self, hash_: str) -> bool:
        """Whether it was made at another cost than is used now."""
        return self._hasher.check_needs_rehash(hash_)

    def _verify(self, hash_: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(hash_, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError) as error:
            raise ValueError("a stored hash of a password is none of argon2") from error

    async def _run(self, work: partial[T]) -> T:
        limit = self._limit = self._limit or anyio.CapacityLimiter(AT_ONCE)
        if self._begun >= AT_ONCE + WAITING:
            raise SignInBusy()
        self._begun += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=limit)
        finally:
            self._begun -= 1
