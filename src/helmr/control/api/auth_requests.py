"""The bodies, forms and query strings of signing in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from helmr.control.api.constraints import Between, Bytes
from helmr.control.api.requests import PageQuery as Paging
from helmr.protocol.signin_shapes import Role
from helmr.protocol.unset import UNSET, UnsetType

Email = Annotated[str, Bytes(1, 320)]
Password = Annotated[str, Bytes(1, 4096)]
Code = Annotated[str, Bytes(1, 128)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpInstallation:
    """`token` is what `helmr serve` showed its operator."""

    token: Code
    email: Email
    name: Annotated[str, Bytes(1, 128)]
    password: Password


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInWithPassword:
    email: Email
    password: Password


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePassword:
    """A new password has at least 12 characters."""

    old: Password
    new: Password


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPassword:
    """`code` is that of a link which an admin made."""

    code: Code
    password: Password


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePasswordLink:
    email: Email


@dataclass(frozen=True, slots=True, kw_only=True)
class AddMember:
    email: Email
    name: Annotated[str, Bytes(1, 128)]
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMember:
    """What is omitted stays as it is. A `disabled` member can't come in, and all their sign-ins have ended."""

    name: Annotated[str, Bytes(1, 128)] | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateProject:
    name: Annotated[str, Bytes(1, 128)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEnvironment:
    """`project` is the name of one that there is."""

    project: Annotated[str, Bytes(1, 128)]
    name: Annotated[str, Bytes(1, 128)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentsQuery(Paging):
    """Of the `project` with that name, or of all."""

    project: Annotated[str, Bytes(1, 128)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimits:
    """What is omitted stays as it is. An `admission_rate` is a number of Sessions and Turns a second, or "unlimited"; the others are
    durations such as "30d", or "never" for what is kept."""

    admission_rate: Annotated[str, Bytes(1, 32)] | UnsetType = UNSET
    admission_burst: Annotated[int, Between(1, 1_000_000)] | UnsetType = UNSET
    payload_retention: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET
    computer_retention: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET
    trigger_computer_retention: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET
    trigger_grace: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET
    max_init_duration: Annotated[str, Bytes(2, 32)] | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForDevice:
    """`client` is what the person is shown of who asks, such as "helmr on ada's laptop"."""

    client: Annotated[str, Bytes(1, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeDeviceToken:
    device_code: Code


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """`next` is where the browser goes afterwards; `code` is that of a link or of a device."""

    next: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInForm:
    email: str = ""
    password: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpForm:
    token: str = ""
    email: str = ""
    name: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordForm:
    code: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceForm:
    code: str = ""
    decision: Literal["allow", "deny"] = "deny"
