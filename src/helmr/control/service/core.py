"""What every use case needs: one transaction with its effects, run after the commit.

A transaction collects what should follow in an `Effects`; nothing of it happens unless the commit did, and all of it may be lost with
the process: polling and attaching do it again (I6).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from helmr.control.service.batcher import Batcher
from helmr.control.service.faults import fault_point
from helmr.control.service.hub import Hub
from helmr.control.service.principals import Principal
from helmr.control.service.recent import Recent
from helmr.control.service.reply import Reply
from helmr.control.store.flush import Admit, Flushed
from helmr.control.store.pool import Connection, Database
from helmr.control.store.queries import audit, computers, events, identity
from helmr.protocol import jsontext
from helmr.protocol.errors import IdempotencyConflict, InvalidRequest
from helmr.protocol.ids import new_id
from helmr.protocol.limits import IDEMPOTENCY_KEY_BYTES

T = TypeVar("T")


@dataclass(slots=True)
class Effects:
    """What follows a commit."""

    touched: set[str] = field(default_factory=set[str])
    """Sessions whose timeline grew."""
    guests: set[str] = field(default_factory=set[str])
    """Sessions whose process should know something new."""
    places: set[str] = field(default_factory=set[str])
    """Sessions that may need a process."""
    claims: set[str] = field(default_factory=set[str])
    """Sessions that may start their next Turn."""
    finishes: set[str] = field(default_factory=set[str])
    """Trees (by root) in which a closing Session may have nothing left."""
    computers: set[str] = field(default_factory=set[str])
    """Computers whose worker is to be told where they should go."""
    commands: set[str] = field(default_factory=set[str])
    """Commands that changed."""
    command_places: set[str] = field(default_factory=set[str])
    """Commands that wait for their Computer."""
    command_computers: set[str] = field(default_factory=set[str])
    """Computers whose worker is to be told which Commands to start and to stop."""


class Reactor(Protocol):
    """Who carries effects out: the dispatcher. Its methods return at once."""

    def sync_session(self, session_id: str) -> None: ...
    def place(self, session_id: str) -> None: ...
    def claim(self, session_id: str) -> None: ...
    def finish(self, root_session_id: str) -> None: ...
    def move(self, computer_id: str) -> None: ...
    def place_command(self, command_id: str) -> None: ...
    def sync_commands(self, computer_id: str) -> None: ...
    def admitted(self, item: Admit, flushed: Flushed) -> None: ...


class Core:
    """The shared parts of the services of one control plane."""

    def __init__(self, database: Database, batcher: Batcher, hub: Hub, *, origin: Callable[[], str | None]) -> None:
        self.database = database
        self.batcher = batcher
        self.hub = hub
        self.origin = origin
        self.recent = Recent()
        self.reactor: Reactor | None = None

    async def write(self, name: str, work: Callable[[Connection, Effects], Awaitable[T]]) -> T:
        """Run `work` in one transaction, then its effects. `name` names its fault points."""

        async def once(connection: Connection) -> tuple[T, Effects]:
            effects = Effects()
            value = await work(connection, effects)
            origin = self.origin()
            ids = sorted(effects.touched | effects.guests | effects.places | effects.claims | effects.commands)
            if origin is not None and ids:
                for start in range(0, len(ids), 200):
                    payload = f"{origin} {','.join(ids[start : start + 200])}"
                    await connection.execute("SELECT pg_notify('helmr_session', $1)", payload)
            fault_point(f"before_commit:{name}")
            return value, effects

        value, effects = await self.database.run(once)
        fault_point(f"after_commit:{name}")
        self.follow_up(effects)
        return value

    def changed(self, session_id: str) -> None:
        """The Session changed by another way than a flush here: what is remembered of it is forgotten, readers look again."""
        self.recent.forget_session(session_id)
        self.hub.touch(session_id)

    def follow_up(self, effects: Effects) -> None:
        """Carry effects out."""
        for session_id in effects.touched:
            self.changed(session_id)
        for command_id in effects.commands:
            self.hub.wake(command_id)
        reactor = self.reactor
        if reactor is None:
            return
        for session_id in effects.guests:
            reactor.sync_session(session_id)
        for session_id in effects.places:
            reactor.place(session_id)
        for session_id in effects.claims:
            reactor.claim(session_id)
        for root_session_id in effects.finishes:
            reactor.finish(root_session_id)
        for computer_id in effects.computers:
            reactor.move(computer_id)
        for command_id in effects.command_places:
            reactor.place_command(command_id)
        for computer_id in effects.command_computers:
            reactor.sync_commands(computer_id)


async def notify_worker(connection: Connection, effects: Effects, computer_id: Any) -> None:
    """Notice of a Computer's change for the control plane that has its worker, which may be another one: by one of its Sessions."""
    member = await computers.some_member(connection, computer_id=computer_id)
    if member is not None:
        effects.guests.add(str(member))


async def record(connection: Connection, effects: Effects, session_id: str, entries: Sequence[tuple[str | None, str, bytes]]) -> int:
    """Append events (turn, kind, data) to a locked Session; gives the first sequence [E1]."""
    effects.touched.add(session_id)
    first: int = await events.append_events(
        connection,
        session_id=session_id,
        turn_ids=[turn for turn, _, _ in entries],
        kinds=[kind for _, kind, _ in entries],
        datas=[data for _, _, data in entries],
    )
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The retry identity of a write [S4]: (environment, principal, operation, target, key), and what was asked."""

    environment_id: str
    principal_id: str
    kind: str
    operation: str
    target: str
    key: str | None
    request: Any
    audited_in: str
    """The Environment in whose audit log it stands; empty where the log of the installation has it [SPEC 14]."""

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)

    def _identity(self) -> dict[str, Any]:
        return {
            "environment_id": self.environment_id,
            "principal_id": self.principal_id,
            "operation": self.operation,
            "target": self.target,
            "key": self.key,
        }

    async def claim(self, connection: Connection) -> Reply | None:
        """Claim the key in this transaction: None when the request is new, the earlier reply when it is an exact retry.

        Raises `IdempotencyConflict` when the key was used for another request. Nothing stays claimed when the transaction rolls back.
        """
        if self.key is None:
            return None
        print_ = jsontext.fingerprint(self.request)
        row = await identity.claim_key(connection, fingerprint=print_, **self._identity())
        if row is None:
            row = await identity.known_key(connection, **self._identity())
        elif row["fresh"]:
            return None
        if row is None or row["fingerprint"] != print_:
            raise IdempotencyConflict()
        return Reply(row["receipt"], replayed=True)

    async def remember(self, connection: Connection, receipt: bytes, session_id: str | None, *, made: str = "", done: bool = True) -> Reply:
        """Store the receipt of a request that was accepted, and that it was `done`: of `made`, where there was no target before."""
        if done and self.audited_in:
            await audit.note(
                connection,
                id=new_id(),
                environment_id=self.audited_in,
                principal_id=self.principal_id,
                kind=self.kind,
                operation=self.operation,
                target=self.target or made,
            )
        if self.key is not None:
            await identity.remember_receipt(connection, receipt=receipt, session_id=session_id, **self._identity())
        return Reply(receipt)


INSTALLATION: Final = "00000000-0000-0000-0000-000000000000"
"""Stands for the Environment in the retry identity of what is done to the whole installation [S4]."""


def retry_of(principal: Principal, operation: str, target: str, key: str | None, request: Any) -> Retry:
    """The retry identity of a write by `principal`."""
    return Retry(
        environment_id=principal.environment_id,
        audited_in=principal.environment_id,
        principal_id=principal.id,
        kind=principal.kind,
        operation=operation,
        target=target,
        key=key,
        request=request,
    )


def retry_of_person(person_id: str, operation: str, target: str, key: str | None, request: Any) -> Retry:
    """The same of a person's write to the installation as a whole, which notes itself in the installation's log (`people.note`)."""
    return Retry(
        environment_id=INSTALLATION,
        audited_in="",
        principal_id=person_id,
        kind="user",
        operation=operation,
        target=target,
        key=key,
        request=request,
    )


def check_key(key: str) -> None:
    """Raise `InvalidRequest` unless `key` can be an idempotency key."""
    if not 1 <= len(key.encode("utf-8", "surrogatepass")) <= IDEMPOTENCY_KEY_BYTES or not key.isprintable():
        raise InvalidRequest(f"An idempotency key is 1 to {IDEMPOTENCY_KEY_BYTES} bytes of printable text.")
