"""People, and what they are signed in with, as they stand on the wire. SPEC 14; the device flow's names are those of RFC 8628."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["viewer", "developer", "admin", "owner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonInfo:
    """A member of the installation. `role` is that of now."""

    id: str
    email: str
    name: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Myself:
    """Who is asking, by what they are signed in, and when that ends if it isn't used before."""

    person: PersonInfo
    signed_in_by: Literal["browser", "cli"]
    ends_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInResult:
    """The browser that asked is signed in: its cookie came with this answer."""

    person: PersonInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSignIns:
    """How many sign-ins of the person have ended."""

    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordLink:
    """An address at which a person sets a password, once. It is shown in this answer only; `expires_in` is in seconds."""

    url: str
    expires_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLink:
    """An address that signs a browser in, once. `expires_in` is in seconds."""

    url: str
    expires_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAuthorization:
    """What waits for a person. They open `verification_uri` and compare `user_code`; times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceToken:
    """A command line's token, shown in this answer only. `expires_in` is in seconds."""

    access_token: str
    token_type: Literal["Bearer"]
    expires_in: int
    person: PersonInfo
