"""Who asks: API keys and Sessions, their principals and permissions. SPEC 14, [M4].

Tokens have 32 random bytes, so a plain SHA-256 is stored; it is looked up at each request, so that a revocation acts at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from helmr.control.domain.roles import BY_ROLE, PERMISSIONS
from helmr.control.service.worker_credentials import SHARED, WorkerCredentials
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import identity
from helmr.protocol.errors import EnvironmentNotFound, EnvironmentRequired, Forbidden, HelmrError, Unauthenticated
from helmr.protocol.ids import new_id
from helmr.protocol.policy import Grants
from helmr.protocol.signin_shapes import Role

KEY_PREFIX: Final = "hlmr_sk_"
ADOPT: Final = "Have somebody who may make keys replace it, which makes it theirs: helmr key rotate."

_PERMISSION_OF: Final = MappingProxyType(
    {
        "spawn": "sessions.create",
        "start": "sessions.create",
        "enqueue": "sessions.send",
        "send_turn": "sessions.send",
        "inspect_session": "sessions.read",
        "inspect_turn": "sessions.read",
        "interrupt_turn": "sessions.interrupt",
        "interrupt_session": "sessions.interrupt",
        "resume_session": "sessions.resume",
        "close_session": "sessions.close",
        "cancel_session": "sessions.cancel",
    }
)
"""What a Session needs for each operation of its policy. It never answers questions [Q4]."""

_CACHE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, in one Environment. `id` is the retry identity's part [S4]."""

    id: str
    environment_id: str
    kind: Literal["api_key", "user", "session"]
    permissions: frozenset[str]
    name: str = ""
    grants: Grants | None = None
    """Of a Session: what its Runtime MCP policy permits; None permits every operation on every Agent [M1]."""
    turn_id: str | None = None
    """Of a Session: the Turn during which it asks."""

    def require(self, permission: str) -> None:
        """Raise `Forbidden` naming the permission that is missing."""
        if permission not in self.permissions:
            raise Forbidden(f"This needs the permission {permission}.", permission=permission)

    @property
    def source(self) -> bytes:
        """The InputSource of what it admits."""
        if self.kind == "session":
            origin = f',"origin_turn_id":"{self.turn_id}"' if self.turn_id is not None else ""
            return f'{{"kind":"session","requester_session_id":"{self.id}"{origin}}}'.encode()
        return b'{"kind":"user"}' if self.kind == "user" else b'{"kind":"api_key"}'

    @property
    def by(self) -> dict[str, str]:
        """How events name it."""
        return {"kind": self.kind, "id": self.id}


def session_principal(session_id: str, environment_id: str, *, grants: Grants | None = None, turn_id: str | None = None) -> Principal:
    """A Session as the one who asks, within the grants of its policy (None: all) and during `turn_id`, if any.

    What it may do to which Session is decided operation by operation (`authority`), never by its permissions alone.
    """
    operations = _PERMISSION_OF if grants is None else {grant.operation for grant in grants} & _PERMISSION_OF.keys()
    return Principal(
        id=session_id,
        environment_id=environment_id,
        kind="session",
        permissions=frozenset(_PERMISSION_OF[operation] for operation in operations),
        grants=grants,
        turn_id=turn_id,
    )


class _LookUp:
    """One question to the database, whose answer all get who ask the same meanwhile."""

    __slots__ = ("began", "done", "ended", "error", "principal")

    def __init__(self, began: float) -> None:
        self.began = began
        self.done = asyncio.Event()
        self.ended = False
        """Whether there is an answer; a look-up that was cancelled has none."""
        self.principal: Principal | None = None
        self.error: HelmrError | None = None


class Principals:
    """Authentication. What is known of a key is at most one second old: from memory, or from a look-up that is under way.

    Without the latter, all who wait when that second is over would ask the database at once for the same row.
    """

    def __init__(self, database: Database, *, worker_token: str | None, workers: WorkerCredentials | None = None) -> None:
        self._database = database
        self._workers = workers or WorkerCredentials(database)
        self._worker_token = worker_token
        self._seen: dict[bytes, tuple[float, Principal]] = {}
        self._looking: dict[bytes, _LookUp] = {}

    async def authenticate(self, token: str) -> Principal:
        """The principal of an API key, with what it may and its maker may now. Raises `Unauthenticated`, and `DatabaseUnavailable`."""
        digest = hashlib.sha256(token.encode()).digest()
        now = time.monotonic()
        cached = self._seen.get(digest)
        if cached is not None and now - cached[0] < _CACHE_SECONDS:
            return cached[1]
        if not token.startswith(KEY_PREFIX):
            raise Unauthenticated("The credential is no API key of Helmr.")
        looking = self._looking.get(digest)
        if looking is not None and now - looking.began < _CACHE_SECONDS:
            await looking.done.wait()
            if not looking.ended:
                return await self.authenticate(token)
        else:
            looking = await self._look_up(digest, now)
        if looking.error is not None:
            raise looking.error
        if looking.principal is None:
            raise Unauthenticated("The API key is unknown, expired or revoked.")
        return looking.principal

    async def _look_up(self, digest: bytes, now: float) -> _LookUp:
        looking = self._looking[digest] = _LookUp(now)
        try:
            looking.principal = await self._read(digest)
            looking.ended = True
        except HelmrError as error:
            looking.error = error
            looking.ended = True
        finally:
            looking.done.set()
            if self._looking.get(digest) is looking:
                del self._looking[digest]
        if looking.principal is not None:
            if len(self._seen) > 10_000:
                self._seen.clear()
            self._seen[digest] = (now, looking.principal)
        elif looking.error is None:
            self._seen.pop(digest, None)
        return looking

    async def _read(self, digest: bytes) -> Principal | None:
        async with self._database.connection() as connection:
            row = await identity.principal_by_token(connection, token_hash=digest)
        if row is None:
            return None
        permissions = frozenset(row["permissions"])
        if row["made_by_user"] is not None:
            if row["maker_role"] is None:
                raise Unauthenticated("Whoever made this API key can't come in any more.", hint=ADOPT)
            permissions &= BY_ROLE[row["maker_role"]]
        return Principal(
            id=str(row["id"]),
            environment_id=str(row["environment_id"]),
            kind=row["kind"],
            permissions=permissions,
            name=row["name"],
        )

    async def of_person(self, user_id: str, environment: str | None) -> Principal:
        """A person in the Environment that a request names, as `project/environment`, with the role of now.

        Raises `EnvironmentRequired`, `EnvironmentNotFound` and `Unauthenticated`.
        """
        if environment is None:
            raise EnvironmentRequired()

        async with self._database.connection() as connection:
            return await principal_of_user(connection, user_id, await _environment_id(connection, environment))

    async def check_environment(self, principal: Principal, environment: str) -> None:
        """Raises `EnvironmentNotFound` unless what a request names is the principal's own: a key implies its Environment [O1]."""
        async with self._database.connection() as connection:
            if await _environment_id(connection, environment) != principal.environment_id:
                raise EnvironmentNotFound()

    def forget(self) -> None:
        """Ask the database anew for whoever comes: a key was changed here."""
        self._seen.clear()

    async def authenticate_worker(self, token: str) -> str:
        """The id of the worker whose credential this is, or `SHARED`. Raises `Unauthenticated`, and `DatabaseUnavailable`."""
        expected = self._worker_token
        if expected is not None and hmac.compare_digest(token.encode(), expected.encode()):
            return SHARED
        return await self._workers.worker_of(token)


def person_may(role: Role, permission: str) -> bool:
    """Whether a person with this role has a permission, of an Environment or of the installation."""
    return permission in BY_ROLE[role]


async def principal_of_user(connection: Connection, user_id: str, environment_id: str) -> Principal:
    """A person as the one who asks, in an Environment. Raises `Unauthenticated` for one who is disabled or gone."""
    row = await identity.enabled_user(connection, id=user_id)
    if row is None:
        raise Unauthenticated("This person may not sign in any more.", hint="Ask an admin.")
    return Principal(id=str(row["id"]), environment_id=environment_id, kind="user", permissions=BY_ROLE[row["role"]], name=row["name"])


async def _environment_id(connection: Connection, path: str) -> str:
    project, slash, name = path.strip().partition("/")
    row = await identity.environment_named(connection, project=project, name=name) if slash and path.isprintable() else None
    if row is None:
        raise EnvironmentNotFound()
    return str(row["id"])


async def ensure_environment(connection: Connection, project: str, name: str) -> str:
    """The id of a project's Environment, made when missing."""
    await identity.ensure_project(connection, id=new_id(), name=project)
    await identity.ensure_environment(connection, id=new_id(), project=project, name=name)
    row = await identity.environment_named(connection, project=project, name=name)
    return str(row["id"])


async def create_key(connection: Connection, environment_id: str, name: str, permissions: tuple[str, ...] = PERMISSIONS) -> str:
    """A new API key, shown this once."""
    token = KEY_PREFIX + secrets.token_urlsafe(32)
    await store_key(connection, environment_id, name, token, permissions)
    return token


async def store_key(connection: Connection, environment_id: str, name: str, token: str, permissions: tuple[str, ...] = PERMISSIONS) -> None:
    """Store a key's hash under a new principal. One that is there keeps its principal, and may what `permissions` says now: what an
    operator configured gets what a newer version adds. One that was revoked stays so."""
    digest = hashlib.sha256(token.encode()).digest()
    known = await identity.principal_of_token(connection, token_hash=digest)
    if known is not None:
        await identity.set_permissions(connection, id=known, permissions=list(permissions))
        return
    principal_id = new_id()
    await identity.insert_principal(
        connection, id=principal_id, environment_id=environment_id, kind="api_key", name=name, permissions=list(permissions)
    )
    await identity.insert_key(connection, id=new_id(), principal_id=principal_id, token_hash=digest)
