"""`client.members`: the people of the installation, for a client of a person (`helmr login`). SPEC 12, 14."""

from __future__ import annotations

from typing import Any

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.member_shapes import Member, MemberPage, NewMember
from helmr.protocol.signin_shapes import PasswordLink, Role


class Members:
    """Members by their ids. Every member sees them; admins manage all but owners, owners everybody."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> MemberPage:
        """A page of members, the newest first. `limit` 1-100, 50 when omitted."""
        return read(MemberPage, await self._transport.call("GET", "/v1/members", query={"cursor": cursor, "limit": limit}))

    async def get(self, member_id: str) -> Member:
        """Raises `MemberNotFound`."""
        return read(Member, await self._transport.call("GET", f"/v1/members/{segment(member_id)}"))

    async def add(self, email: str, *, name: str, role: Role, idempotency_key: str | None = None) -> NewMember:
        """A new member. Give them `password_link`, which is told in this answer only and lasts a day.

        Raises `Forbidden`, `MemberExists`, `InvalidValue`.
        """
        return read(NewMember, await self._transport.write("/v1/members", {"email": email, "name": name, "role": role}, idempotency_key))

    async def password_link(self, email: str) -> PasswordLink:
        """An address at which a member sets a new password, once, within a day; one that was made before is void. For them alone.

        Raises `MemberNotFound`, and `Forbidden` for a member of a higher role.
        """
        return read(PasswordLink, await self._transport.call("POST", "/auth/password-links", json={"email": email}))

    async def change(
        self,
        member_id: str,
        *,
        name: str | None = None,
        role: Role | None = None,
        disabled: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Member:
        """Another name or role; `disabled` shuts a member out, and ends all their sign-ins. It acts at once.

        Raises `MemberNotFound`, `Forbidden`, and `LastOwner` where nobody would own the installation.
        """
        asked: dict[str, Any] = {"name": name, "role": role, "disabled": disabled}
        body = {key: value for key, value in asked.items() if value is not None}
        return read(Member, await self._transport.write(f"/v1/members/{segment(member_id)}/change", body, idempotency_key))

    async def remove(self, member_id: str, *, idempotency_key: str | None = None) -> Member:
        """Remove a member; what they did stays, under their id. Raises as `change`."""
        return read(Member, await self._transport.write(f"/v1/members/{segment(member_id)}/remove", {}, idempotency_key))
