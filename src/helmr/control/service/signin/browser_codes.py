"""Codes that sign a browser in once, within a minute: `helmr dev` opens an address that has one. SPEC 14."""

from __future__ import annotations

from helmr.control.domain.signin import BROWSER_CODE_SECONDS, OF_ADDRESS
from helmr.control.service.signin.attempts import Attempts
from helmr.control.service.signin.people import Person, person_now
from helmr.control.service.signin.sign_ins import SignedIn, make_sign_in
from helmr.control.service.signin.tokens import digest, new_token
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import CodeInvalid


class BrowserCodes:
    def __init__(self, database: Database, attempts: Attempts) -> None:
        self._database = database
        self._attempts = attempts

    async def make(self, person: Person) -> str:
        """A code of one's own. It is for whoever has it: show it to that person only."""

        async def work(connection: Connection) -> str:
            code = new_token()
            await signin.insert_code(
                connection, code_hash=digest(code), purpose="browser", user_id=person.id, lives_seconds=BROWSER_CODE_SECONDS
            )
            return code

        return await self._database.run(work)

    async def use(self, code: str, *, label: str, address: str) -> SignedIn:
        """Sign a browser in. Of two at once one does. Raises `CodeInvalid`, `TooManyAttempts`."""
        await self._attempts.take_of("code", address, OF_ADDRESS)

        async def work(connection: Connection) -> SignedIn:
            used = await signin.use_code(connection, code_hash=digest(code), purpose="browser")
            person = None if used is None else await person_now(connection, used["user_id"])
            if person is None:
                raise CodeInvalid()
            return await make_sign_in(connection, person, "browser", label=label, address=address, by="one-time code")

        return await self._database.run(work)
