"""The members of the installation: added, changed, removed. SPEC 14, [S4].

All changes of members wait for each other, so that the last owner stays whatever is asked at once. Who asks is looked at again in the
transaction: who was demoted or disabled a moment before changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from helmr.control.domain.members import refusal
from helmr.control.domain.signin import LINK_SECONDS
from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core, Effects, retry_of_person
from helmr.control.service.principals import Principals
from helmr.control.service.reply import Reply
from helmr.control.service.signin.passwords import new_link
from helmr.control.service.signin.people import Person, add_person, check_name, checked_email, note, person_now
from helmr.control.store.pool import Connection
from helmr.control.store.queries import members, signin
from helmr.protocol import jsontext
from helmr.protocol.errors import Forbidden, LastOwner, MemberExists, MemberNotFound
from helmr.protocol.ids import is_id
from helmr.protocol.member_shapes import Member, MemberPage, NewMember
from helmr.protocol.signin_shapes import PasswordLink, Role
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire

Change = Callable[[Connection, Person, Any], Awaitable[None]]


class Members:
    def __init__(self, core: Core, principals: Principals) -> None:
        self._core = core
        self._principals = principals

    async def list(self, person: Person, cursor: str | None, limit: int) -> MemberPage:
        """Newest first; for every member."""
        before = decode_cursor(cursor) if cursor is not None else None
        async with self._core.database.connection() as connection:
            rows = await members.seen(connection, id=None, before=before, count=limit + 1)
        following = encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None
        return MemberPage(items=tuple(_shape(row) for row in rows[:limit]), next_cursor=following)

    async def get(self, person: Person, member_id: str) -> Member:
        """For every member. Raises `MemberNotFound`."""
        async with self._core.database.connection() as connection:
            return _shape(await _found(connection, member_id))

    async def add(
        self,
        person: Person,
        *,
        email: str,
        name: str,
        role: Role,
        link_at: Callable[[str], str],
        address: str,
        idempotency_key: str | None,
    ) -> Reply:
        """A new member, and a link with which they set a password once, within 24 hours; `link_at` makes its address of its code.

        Raises `Forbidden`, `MemberExists`, `InvalidValue`.
        """
        email = checked_email(email)
        check_name(name)
        retry = retry_of_person(person.id, "members.add", "", idempotency_key, {"email": email, "name": name, "role": role})

        async def work(connection: Connection, effects: Effects) -> Reply:
            manager = await _manager(connection, person)
            _check(manager, role)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            if await signin.user_by_email(connection, email=email) is not None:
                raise MemberExists()
            added = await add_person(connection, email=email, name=name, role=role)
            link = PasswordLink(url=link_at(await new_link(connection, added.id)), expires_in=LINK_SECONDS)
            await note(connection, "member_added", user_id=manager.id, address=address, about=f"{email} as {role}")
            made = NewMember(member=_shape(await _found(connection, added.id)), password_link=link)
            await retry.remember(connection, jsontext.dumps(to_wire(replace(made, password_link=UNSET))), None)
            return Reply(jsontext.dumps(to_wire(made)))

        return await self._core.write("add_member", work)

    async def change(
        self,
        person: Person,
        member_id: str,
        *,
        name: str | None,
        role: Role | None,
        disabled: bool | None,
        address: str,
        idempotency_key: str | None,
    ) -> Reply:
        """Another name or role, or whether the member can come in; None leaves a thing as it is. All sign-ins of a disabled one end.

        Raises `Forbidden`, `MemberNotFound`, `LastOwner`, `InvalidValue`.
        """
        if name is not None:
            check_name(name)
        asked = {"name": name, "role": role, "disabled": disabled}

        async def change(connection: Connection, manager: Person, row: Any) -> None:
            if role is not None:
                _check(manager, role)
            if disabled:
                await members.void_codes(connection, id=row["id"])  # Before the person: codes are locked first (I3).
            await signin.lock_user(connection, id=row["id"])
            await members.change(connection, id=row["id"], **asked)
            if disabled:
                await signin.end_sign_ins_of(connection, user_id=row["id"], but=None)
            told = ", ".join(f"{key} {value}" for key, value in asked.items() if value is not None) or "nothing"
            await note(connection, "member_changed", user_id=manager.id, address=address, about=f"{row['email']}: {told}")

        return await self._change(person, member_id, "change", asked, idempotency_key, change)

    async def remove(self, person: Person, member_id: str, *, address: str, idempotency_key: str | None) -> Reply:
        """Take a member's way in and name from the installation; what they did stays, under their id. Raises as `change`."""

        async def change(connection: Connection, manager: Person, row: Any) -> None:
            await members.void_codes(connection, id=row["id"])
            await signin.lock_user(connection, id=row["id"])
            await members.remove(connection, id=row["id"])
            await note(connection, "member_removed", user_id=manager.id, address=address, about=row["email"])

        return await self._change(person, member_id, "remove", {}, idempotency_key, change)

    async def _change(self, person: Person, member_id: str, verb: str, asked: dict[str, Any], key: str | None, change: Change) -> Reply:
        retry = retry_of_person(person.id, f"members.{verb}", member_id, key, asked)

        async def work(connection: Connection, effects: Effects) -> Reply:
            manager = await _manager(connection, person)
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            row = await _found(connection, member_id)
            _check(manager, row["role"])
            await change(connection, manager, row)
            if not await members.owned(connection):
                raise LastOwner()
            rows = await members.seen(connection, id=row["id"], before=None, count=1)
            return await retry.remember(connection, jsontext.dumps(to_wire(_shape(rows[0] if rows else row))), None)

        reply = await self._core.write(f"{verb}_member", work)
        self._principals.forget()
        return reply


async def _manager(connection: Connection, person: Person) -> Person:
    """Who asks, as they are now, with the lock that all who change members take. Raises `Forbidden`."""
    await signin.lock_setup(connection)
    manager = await person_now(connection, person.id)
    if manager is None:
        raise Forbidden("This person is no member any more.", permission="members.manage")
    return manager


def _check(manager: Person, *roles: Role) -> None:
    if (why := refusal(manager.role, *roles)) is not None:
        raise Forbidden(why, permission="members.manage")


async def _found(connection: Connection, member_id: str) -> Any:
    if is_id(member_id):
        for row in await members.seen(connection, id=member_id, before=None, count=1):
            return row
    raise MemberNotFound()


def _shape(row: Any) -> Member:
    ways = tuple(way for way, has in (("password", row["by_password"]), ("provider", row["by_provider"])) if has)
    return Member(
        id=str(row["id"]),
        email=row["email"],
        name=row["name"],
        role=row["role"],
        created_at=render.time_text(row["created_at"]),
        ways=ways,
        keys=row["keys"],
        disabled_at=UNSET if row["disabled_at"] is None else render.time_text(row["disabled_at"]),
        last_seen_at=UNSET if row["seen_at"] is None else render.time_text(row["seen_at"]),
    )
