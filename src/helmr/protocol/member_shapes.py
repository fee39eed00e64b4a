"""Members of the installation as they stand on the wire. SPEC 14."""

from __future__ import annotations

from dataclasses import dataclass

from helmr.protocol.shapes import Page
from helmr.protocol.signin_shapes import PasswordLink, Role
from helmr.protocol.unset import UNSET, UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Somebody with a role in all of the installation. With `disabled_at` they can't come in. `last_seen_at` is of a sign-in that still
    stands, and a minute exact; `ways` says how they can sign in: "password", "provider", or neither yet;
    `keys` how many API keys that still stand they made, which may at most what they may now."""

    id: str
    email: str
    name: str
    role: Role
    created_at: str
    ways: tuple[str, ...]
    keys: int = 0
    disabled_at: str | UnsetType = UNSET
    last_seen_at: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMember:
    """A member who was just added. `password_link` is for them alone: there they set a password, once, within a day. It stands in the
    first answer only: a repetition of the request gets the rest."""

    member: Member
    password_link: PasswordLink | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPage(Page[Member]):
    items: tuple[Member, ...]
