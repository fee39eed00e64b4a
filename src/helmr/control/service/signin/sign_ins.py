"""What people are signed in with: a browser's cookie, a command line's token. SPEC 14.

Each request of a person asks the database: who is disabled or was signed out is out with the next request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from helmr.control.domain.signin import BROWSER, CLI
from helmr.control.service.signin.people import Person, note
from helmr.control.service.signin.tokens import CLI_PREFIX, digest, new_token
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import Unauthenticated
from helmr.protocol.ids import new_id

Kind = Literal["browser", "cli"]
LABEL_BYTES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A sign-in that was just made. `token` is in nobody's hands but the caller's."""

    person: Person
    token: str
    seconds: int
    """How long it lasts at most."""

    def __repr__(self) -> str:
        return f"SignedIn({self.person!r})"


class SignIns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def authenticate(self, token: str, kind: Kind) -> Person:
        """Whose it is. Raises `Unauthenticated`: unknown, ended, too long unused, of somebody who is disabled."""

        async def work(connection: Connection) -> Any:
            row = await signin.sign_in(connection, kind=kind, token_hash=digest(token))
            if row is not None and row["stale"]:
                await signin.see_sign_in(connection, id=row["sign_in_id"])
            return row

        row = await self._database.run(work)
        if row is None:
            hint = "Sign in again." if kind == "browser" else "Run `helmr login`."
            raise Unauthenticated("This sign-in has ended.", hint=hint)
        return Person(
            id=str(row["id"]),
            email=row["email"],
            name=row["name"],
            role=row["role"],
            sign_in_id=str(row["sign_in_id"]),
            signed_in_by=row["kind"],
            ends_at=row["ends_at"],
        )

    async def end(self, person: Person, address: str) -> None:
        """Sign out: the token by which this person came is worth nothing from now on. Again changes nothing."""

        async def work(connection: Connection) -> None:
            if await signin.end_sign_in(connection, id=person.sign_in_id) is not None:
                await note(connection, "signed_out", user_id=person.id, address=address)

        await self._database.run(work)

    async def end_all(self, person: Person, address: str) -> int:
        """Sign out everywhere, here too; how many sign-ins that were."""

        async def work(connection: Connection) -> int:
            count: int = await signin.end_sign_ins_of(connection, user_id=person.id, but=None)
            await note(connection, "signed_out_everywhere", user_id=person.id, address=address, about=str(count))
            return count

        return await self._database.run(work)


async def make_sign_in(connection: Connection, person: Person, kind: Kind, *, label: str, address: str, by: str) -> SignedIn:
    """A new sign-in, in the caller's transaction; `by` says in the log how it came about."""
    token = new_token(CLI_PREFIX if kind == "cli" else "")
    life = CLI if kind == "cli" else BROWSER
    shown = "".join(letter if letter.isprintable() else "?" for letter in label)
    await signin.insert_sign_in(
        connection,
        id=new_id(),
        user_id=person.id,
        kind=kind,
        token_hash=digest(token),
        label=shown.encode("utf-8", "replace")[:LABEL_BYTES].decode("utf-8", "ignore"),
        idle_seconds=life.idle,
        lives_seconds=life.whole,
    )
    await note(connection, "signed_in", user_id=person.id, address=address, about=by)
    return SignedIn(person=person, token=token, seconds=life.whole)
