"""The first owner: made by whoever has the set-up token that `helmr serve` showed its operator. SPEC 14."""

from __future__ import annotations

from helmr.control.domain.signin import OF_ADDRESS, SETUP_SECONDS
from helmr.control.service.signin.attempts import Attempts
from helmr.control.service.signin.hashing import PasswordHashes
from helmr.control.service.signin.people import add_person, check_name, check_password, checked_email, note
from helmr.control.service.signin.sign_ins import SignedIn, make_sign_in
from helmr.control.service.signin.tokens import digest, new_token
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import CodeInvalid, SetUpAlready


class SetUp:
    def __init__(self, database: Database, hashes: PasswordHashes, attempts: Attempts) -> None:
        self._database = database
        self._hashes = hashes
        self._attempts = attempts

    async def token(self) -> str | None:
        """A token for an installation that has nobody yet, good for 24 hours; None for another. Each start of a control plane shows one of
        its own, and any of them works: the first use ends all."""

        async def work(connection: Connection) -> str | None:
            await signin.lock_setup(connection)
            if await signin.anybody(connection):
                return None
            token = new_token()
            await signin.insert_code(connection, code_hash=digest(token), purpose="setup", user_id=None, lives_seconds=SETUP_SECONDS)
            return token

        return await self._database.run(work)

    async def begin(self, token: str, *, email: str, name: str, password: str, label: str, address: str) -> SignedIn:
        """Make the first owner and sign them in. Of two at once one does.

        Raises `SetUpAlready` once there is anybody, `CodeInvalid`, `InvalidValue`, `TooManyAttempts`, `SignInBusy`.
        """
        email = checked_email(email)
        check_name(name)
        check_password(password, email=email)
        await self._attempts.take_of("setup", address, OF_ADDRESS)
        hash_ = await self._hashes.make(password)

        async def work(connection: Connection) -> SignedIn:
            await signin.lock_setup(connection)
            if await signin.anybody(connection):
                raise SetUpAlready()
            if await signin.use_code(connection, code_hash=digest(token), purpose="setup") is None:
                raise CodeInvalid()
            await signin.forget_codes(connection, purpose="setup", user_id=None)
            person = await add_person(connection, email=email, name=name.strip(), role="owner")
            await signin.set_password(connection, user_id=person.id, hash=hash_)
            await note(connection, "set_up", user_id=person.id, address=address)
            return await make_sign_in(connection, person, "browser", label=label, address=address, by="set-up")

        return await self._database.run(work)
