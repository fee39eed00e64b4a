"""Signing in with a password, changing it, and setting one by a link. SPEC 14.

A wrong password, an unknown account, one without a password and a disabled one have one answer, after the same work.
"""

from __future__ import annotations

from typing import Any

from helmr.control.domain.members import MANAGES
from helmr.control.domain.signin import LINK_SECONDS, OF_ADDRESS, normal_email
from helmr.control.service.signin.attempts import Attempts, address_hash, give_back
from helmr.control.service.signin.hashing import PasswordHashes
from helmr.control.service.signin.people import Person, check_password, note, person_of
from helmr.control.service.signin.sign_ins import SignedIn, make_sign_in
from helmr.control.service.signin.tokens import digest, new_token
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import signin
from helmr.protocol.errors import CodeInvalid, Forbidden, MemberNotFound, SignInRefused


class Passwords:
    def __init__(self, database: Database, hashes: PasswordHashes, attempts: Attempts) -> None:
        self._database = database
        self._hashes = hashes
        self._attempts = attempts

    async def sign_in(self, email: str, password: str, *, label: str, address: str) -> SignedIn:
        """A browser's sign-in. Raises `SignInRefused`, `TooManyAttempts`, `SignInBusy`."""
        email = normal_email(email)
        row, taken = await self._checked(email, password, address)
        renewed = await self._hashes.make(password) if self._hashes.is_old(row["hash"]) else None

        async def work(connection: Connection) -> SignedIn:
            # Between the look and now the password may have been changed, or the person disabled.
            locked = await signin.lock_user(connection, id=row["id"])
            now = await signin.user_by_id(connection, id=row["id"])
            if locked is None or now["hash"] != row["hash"] or now["disabled_at"] is not None:
                raise SignInRefused()
            await give_back(connection, taken)
            await signin.know_address(connection, user_id=now["id"], address_hash=address_hash(address))
            if renewed is not None:
                await signin.replace_password(connection, user_id=now["id"], old_hash=row["hash"], hash=renewed)
            return await make_sign_in(connection, person_of(now), "browser", label=label, address=address, by="password")

        return await self._database.run(work)

    async def change(self, person: Person, old: str, new: str, *, address: str) -> int:
        """Another password, for who knows the old one; ends the person's other sign-ins, and says how many.

        Raises `SignInRefused` for a wrong old one, `InvalidValue`, `TooManyAttempts`, `SignInBusy`.
        """
        check_password(new, email=person.email)
        row, taken = await self._checked(person.email, old, address)
        hash_ = await self._hashes.make(new)

        async def work(connection: Connection) -> int:
            await signin.forget_codes(connection, purpose="password", user_id=person.id)  # Before the person: codes are locked first (I3).
            await signin.lock_user(connection, id=person.id)
            if not await signin.replace_password(connection, user_id=person.id, old_hash=row["hash"], hash=hash_):
                raise SignInRefused()
            await give_back(connection, taken)
            ended: int = await signin.end_sign_ins_of(connection, user_id=person.id, but=person.sign_in_id)
            await note(connection, "password_changed", user_id=person.id, address=address, about=f"{ended} sign-ins ended")
            return ended

        return await self._database.run(work)

    async def make_link(self, maker: Person, email: str, *, address: str) -> str:
        """A code with which somebody sets a password once, within 24 hours; an earlier one is void. For invitations and resets.

        Raises `Forbidden` for who may not, `MemberNotFound`.
        """
        if not MANAGES[maker.role]:
            raise Forbidden("Only admins and owners make links for passwords.", permission="members.manage")

        async def work(connection: Connection) -> str:
            row = await signin.user_by_email(connection, email=normal_email(email))
            if row is None:
                raise MemberNotFound()
            if row["role"] not in MANAGES[maker.role]:  # Whoever has a link can become that person.
                raise Forbidden("Only owners make links for owners.", permission="members.manage")
            await note(connection, "password_link_made", user_id=maker.id, address=address, about=row["email"])
            return await new_link(connection, str(row["id"]))

        return await self._database.run(work)

    async def set_by_link(self, code: str, password: str, *, label: str, address: str) -> SignedIn:
        """Set a password by a link, end all sign-ins, sign in. Raises `CodeInvalid`, `InvalidValue`, `TooManyAttempts`, `SignInBusy`."""
        await self._attempts.take_of("code", address, OF_ADDRESS)
        check_password(password, email="")
        hash_ = await self._hashes.make(password)  # Before the transaction, so that none waits for it.

        async def work(connection: Connection) -> SignedIn:
            row = await self._of_link(connection, code)
            check_password(password, email=row["email"])
            await signin.set_password(connection, user_id=row["id"], hash=hash_)
            ended: int = await signin.end_sign_ins_of(connection, user_id=row["id"], but=None)
            await note(connection, "password_set", user_id=str(row["id"]), address=address, about=f"{ended} sign-ins ended")
            return await make_sign_in(connection, person_of(row), "browser", label=label, address=address, by="link")

        return await self._database.run(work)

    async def _of_link(self, connection: Connection, code: str) -> Any:
        used = await signin.use_code(connection, code_hash=digest(code), purpose="password")
        row = None
        if used is not None:
            await signin.lock_user(connection, id=used["user_id"])
            row = await signin.user_by_id(connection, id=used["user_id"])
        if row is None or row["disabled_at"] is not None:
            raise CodeInvalid()
        return row

    async def _checked(self, email: str, password: str, address: str) -> tuple[Any, tuple[bytes, ...]]:
        """The account of a right password, and the attempt that was counted. Raises `SignInRefused`."""
        taken = await self._attempts.take(email, address)
        async with self._database.connection() as connection:
            row = await signin.user_by_email(connection, email=email)
        fits = await self._hashes.fits(password, None if row is None else row["hash"])
        if not fits or row is None or row["disabled_at"] is not None:
            await self._database.run(lambda connection: _note_failure(connection, row, email, address))
            raise SignInRefused()
        return row, taken


async def new_link(connection: Connection, user_id: str) -> str:
    """A code for a person, in the caller's transaction. Who calls has checked that the caller may."""
    code = new_token()
    await signin.forget_codes(connection, purpose="password", user_id=user_id)
    await signin.insert_code(connection, code_hash=digest(code), purpose="password", user_id=user_id, lives_seconds=LINK_SECONDS)
    return code


async def _note_failure(connection: Connection, row: Any, email: str, address: str) -> None:
    # What was typed as an address may be a password that went into the wrong field: of unknown ones nothing is written down.
    known = row is not None
    await note(
        connection,
        "sign_in_failed",
        user_id=str(row["id"]) if known else None,
        address=address,
        about=email if known else "unknown account",
    )
