"""Command lines that ask to be signed in, and the person who says so in a browser: the device flow of RFC 8628. SPEC 14.

The command line has the device code, which is long and secret; the person sees the user code, which is short, and nothing without a
person's consent. A code that was consented to is taken once.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from helmr.control.domain.signin import (
    DEVICE_INTERVAL,
    DEVICE_SECONDS,
    DEVICES_WAITING,
    OF_DEVICE_REQUESTS,
    OF_USER_CODES,
    SLOW_DOWN_SECONDS,
    USER_CODE_LETTERS,
    normal_user_code,
)
from helmr.control.service.signin.attempts import Attempts
from helmr.control.service.signin.people import Person, note, person_now
from helmr.control.service.signin.sign_ins import LABEL_BYTES, SignedIn, make_sign_in
from helmr.control.service.signin.tokens import digest, new_token
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import (
    AccessDenied,
    AuthorizationPending,
    DeviceCodeExpired,
    HelmrError,
    SignInBusy,
    SlowDown,
    UserCodeUnknown,
)

_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command line gets that asks: RFC 8628, 3.2."""

    device_code: str
    user_code: str
    expires_in: int = DEVICE_SECONDS
    interval: int = DEVICE_INTERVAL

    def __repr__(self) -> str:
        return "Asked(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a person is shown before they decide: what it calls itself, and from where it asked."""

    user_code: str
    client: str
    address: str


class Devices:
    def __init__(self, database: Database, attempts: Attempts) -> None:
        self._database = database
        self._attempts = attempts

    async def ask(self, client: str, address: str) -> Asked:
        """Raises `TooManyAttempts`; `SignInBusy` while too many wait."""
        await self._attempts.take_of("device", address, OF_DEVICE_REQUESTS)
        device_code = new_token()
        shown = (
            "".join(letter for letter in client if letter.isprintable()).encode("utf-8", "replace")[:LABEL_BYTES].decode("utf-8", "ignore")
        )

        async def work(connection: Connection) -> str:
            if await signin.waiting_devices(connection) >= DEVICES_WAITING:
                raise SignInBusy()
            for _ in range(_TRIES):
                user_code = normal_user_code("".join(secrets.choice(USER_CODE_LETTERS) for _ in range(8)))
                if await signin.insert_device(
                    connection,
                    device_hash=digest(device_code),
                    user_code=user_code,
                    client=shown,
                    address=address,
                    interval_seconds=DEVICE_INTERVAL,
                    lives_seconds=DEVICE_SECONDS,
                ):
                    return user_code
            raise SignInBusy()

        return Asked(device_code=device_code, user_code=await self._database.run(work))

    async def show(self, person: Person, user_code: str) -> Asking:
        """Who asks with a code. Raises `UserCodeUnknown`, and `TooManyAttempts` for who guesses."""
        await self._attempts.take_of("user_code", person.id, OF_USER_CODES)
        async with self._database.connection() as connection:
            row = await signin.device_by_user_code(connection, user_code=normal_user_code(user_code))
        if row is None:
            raise UserCodeUnknown()
        return Asking(user_code=row["user_code"], client=row["client"], address=row["address"])

    async def decide(self, person: Person, user_code: str, *, allow: bool, address: str) -> None:
        """The first decision stands. Raises `UserCodeUnknown`, `TooManyAttempts`."""
        await self._attempts.take_of("user_code", person.id, OF_USER_CODES)

        async def work(connection: Connection) -> None:
            row = await signin.decide_device(
                connection, user_code=normal_user_code(user_code), user_id=person.id, status="approved" if allow else "denied"
            )
            if row is None:
                raise UserCodeUnknown()
            what = "device_approved" if allow else "device_denied"
            await note(connection, what, user_id=person.id, address=address, about=f"{row['client']} from {row['address']}")

        await self._database.run(work)

    async def take(self, device_code: str, *, address: str) -> SignedIn:
        """The sign-in, once its person has agreed; of two at once one gets it.

        Raises `AuthorizationPending`; `SlowDown` for who asks before the interval is over, which grows by it; `AccessDenied`;
        `DeviceCodeExpired`, also for one that is unknown or was taken.
        """

        async def work(connection: Connection) -> SignedIn | HelmrError:
            row = await signin.lock_device(connection, device_hash=digest(device_code))
            if row is None or row["expired"]:
                return DeviceCodeExpired()
            if row["status"] == "pending":
                return await _waiting(connection, row)
            await signin.forget_device(connection, device_hash=row["device_hash"])
            if row["status"] == "denied":
                return AccessDenied()
            person = await person_now(connection, row["user_id"])
            if person is None:
                return AccessDenied()
            return await make_sign_in(connection, person, "cli", label=row["client"], address=address, by="device")

        outcome = await self._database.run(work)
        if isinstance(outcome, HelmrError):
            raise outcome
        return outcome


async def _waiting(connection: Connection, row: Any) -> HelmrError:
    """What is told before there is a decision; that it was asked is kept."""
    interval: int = row["interval_seconds"] + (SLOW_DOWN_SECONDS if row["early"] else 0)
    await signin.poll_device(connection, device_hash=row["device_hash"], interval_seconds=interval)
    return SlowDown(interval=interval) if row["early"] else AuthorizationPending(interval=interval)
