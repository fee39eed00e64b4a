"""What the API asks of who asks and of how they sign in: small ports, one a noun, as in `services`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from helmr.control.service.principals import Principal
    from helmr.control.service.reply import Reply
    from helmr.control.service.signin.devices import Asked, Asking
    from helmr.control.service.signin.people import Person
    from helmr.control.service.signin.provider_sign_ins import Begun
    from helmr.control.service.signin.sign_ins import SignedIn
    from helmr.protocol.audit_shapes import AuditPage, InstallationLogPage
    from helmr.protocol.environment_shapes import Environment, EnvironmentPage, ProjectPage
    from helmr.protocol.member_shapes import Member, MemberPage
    from helmr.protocol.signin_shapes import Role


class Principals(Protocol):
    async def of_person(self, user_id: str, environment: str | None) -> Principal:
        """A person in the Environment that a request names (`project/environment`). Raises `EnvironmentRequired`, `EnvironmentNotFound`."""
        ...

    async def check_environment(self, principal: Principal, environment: str) -> None:
        """Raises `EnvironmentNotFound` unless it is the principal's own."""
        ...

    async def authenticate(self, token: str) -> Principal:
        """The principal of an API key. Raises `Unauthenticated`."""
        ...

    async def authenticate_worker(self, token: str) -> str:
        """The worker whose credential this is. Raises `Unauthenticated`."""
        ...


class SignIns(Protocol):
    async def authenticate(self, token: str, kind: Literal["browser", "cli"]) -> Person:
        """Raises `Unauthenticated`."""
        ...

    async def end(self, person: Person, address: str) -> None: ...
    async def end_all(self, person: Person, address: str) -> int: ...


class SetUp(Protocol):
    async def begin(self, token: str, *, email: str, name: str, password: str, label: str, address: str) -> SignedIn:
        """Of two at once one makes the first owner."""
        ...


class Passwords(Protocol):
    async def sign_in(self, email: str, password: str, *, label: str, address: str) -> SignedIn: ...
    async def change(self, person: Person, old: str, new: str, *, address: str) -> int: ...
    async def make_link(self, maker: Person, email: str, *, address: str) -> str: ...
    async def set_by_link(self, code: str, password: str, *, label: str, address: str) -> SignedIn: ...


class BrowserCodes(Protocol):
    async def make(self, person: Person) -> str: ...
    async def use(self, code: str, *, label: str, address: str) -> SignedIn: ...


class Devices(Protocol):
    async def ask(self, client: str, address: str) -> Asked: ...
    async def show(self, person: Person, user_code: str) -> Asking: ...
    async def decide(self, person: Person, user_code: str, *, allow: bool, address: str) -> None: ...
    async def take(self, device_code: str, *, address: str) -> SignedIn: ...


class Members(Protocol):
    async def list(self, person: Person, cursor: str | None, limit: int) -> MemberPage: ...
    async def get(self, person: Person, member_id: str) -> Member: ...
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
    ) -> Reply: ...
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
    ) -> Reply: ...
    async def remove(self, person: Person, member_id: str, *, address: str, idempotency_key: str | None) -> Reply: ...


class ProviderSignIns(Protocol):
    @property
    def name(self) -> str | None:
        """What people are shown of the provider; None when there is none."""
        ...

    async def begin(self, *, redirect_uri: str, address: str) -> Begun: ...

    async def finish(
        self, secret: str, *, state: str, code: str, told_issuer: str | None, redirect_uri: str, label: str, address: str
    ) -> SignedIn: ...


class Environments(Protocol):
    async def projects(self, person: Person, cursor: str | None, limit: int) -> ProjectPage: ...
    async def create_project(self, person: Person, *, name: str, address: str, idempotency_key: str | None) -> Reply: ...
    async def list(self, person: Person, project: str | None, cursor: str | None, limit: int) -> EnvironmentPage: ...
    async def get(self, person: Person, environment_id: str) -> Environment: ...
    async def create(self, person: Person, *, project: str, name: str, address: str, idempotency_key: str | None) -> Reply: ...
    async def limit(
        self, person: Person, environment_id: str, asked: Mapping[str, Any], *, address: str, idempotency_key: str | None
    ) -> Reply: ...


class Audit(Protocol):
    async def list(
        self,
        principal: Principal,
        *,
        by: str | None,
        operation: str | None,
        target: str | None,
        since: datetime | None,
        until: datetime | None,
        cursor: str | None,
        limit: int,
    ) -> AuditPage: ...
    async def of_installation(
        self,
        person: Person,
        *,
        by: str | None,
        what: str | None,
        since: datetime | None,
        until: datetime | None,
        cursor: str | None,
        limit: int,
    ) -> InstallationLogPage: ...


class SignInServices(Protocol):
    """The ports above, as the API has them."""

    @property
    def principals(self) -> Principals: ...
    @property
    def sign_ins(self) -> SignIns: ...
    @property
    def passwords(self) -> Passwords: ...
    @property
    def set_up(self) -> SetUp: ...
    @property
    def devices(self) -> Devices: ...
    @property
    def browser_codes(self) -> BrowserCodes: ...
    @property
    def members(self) -> Members: ...
    @property
    def provider(self) -> ProviderSignIns: ...
    @property
    def environments(self) -> Environments: ...
    @property
    def audit(self) -> Audit: ...
