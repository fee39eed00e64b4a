"""Services of one small world: one Environment that the key sees, another that it does not, and a record of what was asked."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tests.unit.api.signin_fakes import SignInOperations

from helmr.control.service.health import Vitals
from helmr.protocol import errors
from helmr.protocol.audit_shapes import Actor, AuditEntry, AuditPage, InstallationEntry, InstallationLogPage
from helmr.protocol.commands import Command, CommandChunk, CommandLogs, CommandPage
from helmr.protocol.environment_shapes import Environment, EnvironmentPage, Project, ProjectPage
from helmr.protocol.environment_shapes import Limits as EnvironmentLimits
from helmr.protocol.ids import ApiKeyId, ComputerId, SaveId, SecretId, WorkerId, is_definition_id, is_id, new_id
from helmr.protocol.key_shapes import ApiKey, ApiKeyPage, NewApiKey
from helmr.protocol.member_shapes import Member, MemberPage, NewMember
from helmr.protocol.saves import Save
from helmr.protocol.secret_shapes import Secret, SecretDetails, SecretHolder, SecretVersion
from helmr.protocol.shapes import (
    AgentInfo,
    AgentPage,
    Changes,
    Computer,
    Deployment,
    DeploymentDiff,
    Explanation,
    InputSource,
    Page,
    QuestionState,
    Session,
    TurnState,
)
from helmr.protocol.signin_shapes import PasswordLink
from helmr.protocol.triggers import Firing, TriggerInfo, TriggerPage
from helmr.protocol.unset import UNSET
from helmr.protocol.wire import to_wire
from helmr.protocol.worker_shapes import (
    EnrolledWorker,
    NewWorkerEnrolment,
    Worker,
    WorkerCapacity,
    WorkerComputers,
    WorkerDetails,
    WorkerEnrolment,
    WorkerEnrolmentPage,
    WorkerPage,
    WorkerStorage,
)

KEY = "hlmr_sk_test"
READER_KEY = "hlmr_sk_nothing"
WORKER_KEY = "hlmr_wk_test"
SHARED_KEY = "hlmr_wk_shared"
SESSION, TURN, QUESTION, DEPLOYMENT, HOLD, ENVIRONMENT, COMPUTER, COMMAND, WORKER, API_KEY, MEMBER = (new_id() for _ in range(11))
FOREIGN_SESSION, FOREIGN_TURN, FOREIGN_QUESTION, FOREIGN_DEPLOYMENT, FOREIGN_COMPUTER, FOREIGN_COMMAND = (new_id() for _ in range(6))
BLOB = b"print('hello')\n"
DIGEST = hashlib.sha256(BLOB).hexdigest()
FOREIGN_DIGEST = "f" * 64
TIME = "2026-01-02T03:04:05.000006Z"

ALL = frozenset(f"sessions.{name}" for name in ("read", "create", "send", "interrupt", "resume", "close", "cancel")) | {
    "questions.respond",
    "computers.read",
    "computers.write",
    "computers.exec",
    "deployments.read",
    "deployments.write",
    "secrets.read",
    "secrets.write",
    "keys.read",
    "keys.manage",
    "workers.read",
    "workers.manage",
    "audit.read",
}


class Caller(NamedTuple):
    id: str
    permissions: frozenset[str]


class Reply(NamedTuple):
    body: bytes
    replayed: bool = False


class Stored(NamedTuple):
    sequence: int
    kind: str
    body: bytes


def receipt(**members: Any) -> Reply:
    return Reply(json.dumps(members).encode())


def stored(sequence: int, text: str = "x") -> Stored:
    event = {
        "session_id": SESSION,
        "turn_id": TURN,
        "sequence": sequence,
        "created_at": TIME,
        "kind": "turn.output",
        "data": [{"type": "text", "text": text}],
    }
    return Stored(sequence, "turn.output", json.dumps(event, ensure_ascii=False).encode())


def session() -> Session:
    return Session(
        id=SESSION,
        deployment_id=DEPLOYMENT,
        root_session_id=SESSION,
        agent="echo",
        template="tiny",
        computer_id=None,
        parent_session_id=None,
        requester_session_id=None,
        status="open",
        close_after_idle="7d",
        idle_since=None,
        initial_turn=None,
        holds=(),
        labels={"team": "blue"},
        created_at=TIME,
    )


def turn_state(status: str = "completed") -> TurnState:
    return TurnState(
        id=TURN,
        session_id=SESSION,
        sequence=1,
        status=status,
        source=InputSource(kind="api_key"),
        created_at=TIME,
        input=None,
        result={"big": 2**70},
    )


def question_state() -> QuestionState:
    return QuestionState(
        id=QUESTION,
        session_id=SESSION,
        turn_id=TURN,
        status="pending",
        created_at=TIME,
        question={"prompt": [{"type": "text", "text": "Which?"}], "answer": {"type": "text"}},
    )


def known_question(question_id: str) -> None:
    assert is_id(question_id)
    if question_id != QUESTION:
        raise errors.QuestionNotFound()


def computer() -> Computer:
    return Computer(
        id=COMPUTER,
        deployment_id=DEPLOYMENT,
        template="tiny",
        status="available",
        residency="cold",
        explicit=True,
        cpu=1.0,
        memory=1 << 30,
        open_sessions=0,
        created_at=TIME,
        key="k",
    )


def secret(name: str = "TOKEN") -> Secret:
    return Secret(id=SecretId(HOLD), name=name, version=1, created_at=TIME, created_by={"kind": "api_key", "id": SESSION})


def member() -> Member:
    return Member(id=MEMBER, email="ada@example.com", name="Ada", role="developer", created_at=TIME, ways=("password",))


def environment() -> Environment:
    kept = dict.fromkeys(("payload_retention", "computer_retention", "trigger_computer_retention"), "never")
    limits = EnvironmentLimits(admission_rate="unlimited", trigger_grace="1h", max_init_duration="10m", **kept)
    return Environment(id=ENVIRONMENT, path="a/b", project="a", name="b", created_at=TIME, limits=limits)


def known_environment(environment_id: str) -> None:
    if environment_id != ENVIRONMENT:
        raise errors.EnvironmentNotFound()


PROJECT = Project(id=HOLD, name="a", environments=("b",), created_at=TIME)


def known_member(member_id: str) -> None:
    if member_id != MEMBER:
        raise errors.MemberNotFound()


def api_key() -> ApiKey:
    return ApiKey(id=ApiKeyId(API_KEY), name="ci", permissions=("sessions.read",), status="active", ends="abcd", created_at=TIME)


def known_api_key(key_id: str) -> None:
    if key_id != API_KEY:
        raise errors.ApiKeyNotFound()


def worker(kind: type[Worker] = WorkerDetails) -> Any:
    return kind(
        id=WorkerId(WORKER),
        name="build-1",
        state="connected",
        driver="bubblewrap",
        credential="own",
        rotating=False,
        capacity=WorkerCapacity(cpu=64.0, memory=1 << 34, cpu_used=1.0, memory_used=1 << 30),
        computers=WorkerComputers(running=1, sleeping=0, stopped=0),
        storage=WorkerStorage(total=100, free=50),
        silent_seconds=1.5,
        lease_until=TIME,
        created_at=TIME,
    )


def enrolment() -> WorkerEnrolment:
    by = {"kind": "api_key", "id": SESSION}
    return WorkerEnrolment(
        id=HOLD, status="used", created_at=TIME, expires_at=TIME, created_by=by, worker_id=WorkerId(WORKER), used_at=TIME
    )


def known_worker(name: str) -> None:
    if name not in ("build-1", WORKER):
        raise errors.WorkerNotFound()


def known_secret(name: str) -> None:
    if name not in ("TOKEN", HOLD):
        raise errors.SecretNotFound()


def known_part(worker_id: str, computer_id: str, name: str) -> None:
    """A part of a save is its worker's alone."""
    known_computer(computer_id)
    if worker_id != WORKER or name != DIGEST:
        raise errors.ObjectNotFound()


def known_computer(computer_id: str) -> None:
    assert is_id(computer_id)
    if computer_id != COMPUTER:
        raise errors.ComputerNotFound()


def command() -> Command:
    return Command(
        id=COMMAND,
        computer_id=COMPUTER,
        status="exited",
        argv=("true",),
        timeout="5m",
        created_at=TIME,
        stdout_bytes=2,
        stderr_bytes=0,
        exit_code=0,
    )


def known_command(command_id: str) -> None:
    assert is_id(command_id)
    if command_id != COMMAND:
        raise errors.CommandNotFound()


def deployment() -> Deployment:
    return Deployment(id=DEPLOYMENT, status="deployed", current=True, digest=DIGEST, created_at=TIME, agents=("echo",))


def known(session_id: str, turn_id: str | None = None) -> None:
    """Texts that are no ids are a fault here, as they are to a database: the API must not let them through."""
    assert is_id(session_id) and (turn_id is None or is_id(turn_id))
    if session_id != SESSION:
        raise errors.SessionNotFound()
    if turn_id is not None and turn_id != TURN:
        raise errors.TurnNotFound()


@dataclass
class World:
    """All services in one. `calls` has each call's name and arguments; `fails` may make the next one raise."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    replay: bool = False
    batches: Callable[[int], AsyncIterator[Sequence[Stored]]] | None = None
    followers: int = 0
    follower_left: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    wait_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    ready_error: Exception | None = None
    blob_path: Path = Path("missing")
    uploads: dict[str, bytes] = field(default_factory=dict)
    open_link: Callable[[str, Any], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        nouns = (
            "principals sessions explanations turns questions computers commands streams controls events retention agents deployments links"
            " sign_ins set_up members environments audit"
            " passwords devices browser_codes provider triggers blobs save_objects secrets api_keys workers enrolments health"
        )
        if name in nouns.split():
            return _Service(self, name)
        raise AttributeError(name)

    def asked(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the one call of `name`, without the principal."""
        (found,) = [(arguments[1:], named) for called, arguments, named in self.calls if called == name]
        return found


class _Service:
    def __init__(self, world: World, noun: str) -> None:
        self._world = world
        self._noun = noun

    def __getattr__(self, verb: str) -> Any:
        name = f"{self._noun}_{verb}"
        if name == "provider_name":
            return "the provider"
        operation = getattr(Operations, name)
        world = self._world

        def call(*arguments: Any, **named: Any) -> Any:
            world.calls.append((name, arguments, named))
            if name in world.fails:
                failure = world.fails[name]

                async def fail() -> Any:
                    raise failure

                return fail()
            return operation(world, *arguments, **named)

        return call


class FakeStream:
    """A stream to a file of two bytes, or one that takes what comes."""

    error = None
    room = 1 << 18

    def __init__(self, kind: str) -> None:
        self.closed = False
        self._said: list[Any] = [b"hi"] if kind == "read" else []
        self._said.append({"t": "done", "bytes": 2, "entries": 1})

    async def begin(self) -> Any:
        return {"t": "ready"}

    async def receive(self) -> Any:
        return self._said.pop(0)

    async def until_room(self) -> bool:
        return True

    def send(self, data: bytes) -> None:
        assert len(data) <= self.room

    def say(self, kind: str, **members: Any) -> None:
        assert kind == "eof"

    def taken(self, size: int) -> None:
        assert size == 2


class Operations(SignInOperations):
    """What each service does in this world."""

    @staticmethod
    async def principals_authenticate(world: World, token: str) -> Caller:
        if token == KEY:
            return Caller("all", ALL)
        if token == READER_KEY:
            return Caller("none", frozenset())
        raise errors.Unauthenticated()

    @staticmethod
    async def principals_of_person(world: World, user_id: str, environment: str | None) -> Caller:
        return await Operations.principals_authenticate(world, KEY)

    @staticmethod
    async def principals_check_environment(world: World, principal: Any, environment: str) -> None:
        if environment != "default/main":
            raise errors.EnvironmentNotFound()

    @staticmethod
    async def principals_authenticate_worker(world: World, token: str) -> str:
        if token == WORKER_KEY:
            return WORKER
        if token == SHARED_KEY:
            return "shared"
        raise errors.Unauthenticated()

    @staticmethod
    async def sessions_create(world: World, principal: Any, *, agent: str, **named: Any) -> Reply:
        if agent != "echo":
            raise errors.AgentNotFound()
        turn = {"id": TURN, "session_id": SESSION, "sequence": 1}
        body = {"session": {"id": SESSION, "deployment_id": DEPLOYMENT, "agent": agent}, "turn": turn}
        return Reply(json.dumps(body).encode(), world.replay)

    @staticmethod
    async def sessions_get(world: World, principal: Any, session_id: str) -> Session:
        known(session_id)
        return session()

    @staticmethod
    async def sessions_list(world: World, principal: Any, **named: Any) -> Page[Session]:
        return Page(items=(session(),), next_cursor="next")

    @staticmethod
    async def explanations_explain(world: World, principal: Any, session_id: str) -> Explanation:
        known(session_id)
        return Explanation(session_id=session_id, state="idle", sentence="There is nothing to do.", facts={})

    @staticmethod
    async def turns_enqueue(world: World, principal: Any, session_id: str, input: Any, key: str | None) -> Reply:
        known(session_id)
        return Reply(json.dumps({"id": TURN, "session_id": session_id, "sequence": 2}).encode(), world.replay)

    @staticmethod
    async def turns_get(world: World, principal: Any, session_id: str, turn_id: str, wait_seconds: float) -> bytes:
        known(session_id, turn_id)
        if wait_seconds and not world.settled.is_set():
            world.waiting.set()
            try:
                async with asyncio.timeout(wait_seconds):
                    await world.settled.wait()
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                world.wait_cancelled.set()
                raise
        from helmr.control.api.answers import encoded

        return encoded(turn_state("completed" if world.settled.is_set() else "running"))

    @staticmethod
    async def turns_list(world: World, principal: Any, session_id: str, cursor: str | None, limit: int) -> Page[TurnState]:
        known(session_id)
        return Page(items=(turn_state(),))

    @staticmethod
    async def turns_send(world: World, principal: Any, session_id: str, turn_id: str, content: Any, key: str | None) -> Reply:
        known(session_id, turn_id)
        return receipt(id=new_id(), status="accepted")

    @staticmethod
    async def turns_interrupt(world: World, principal: Any, session_id: str, turn_id: str, key: str | None) -> Reply:
        known(session_id, turn_id)
        return receipt(id=new_id(), session_id=session_id, turn_id=turn_id, status="accepted")

    @staticmethod
    async def questions_get(world: World, principal: Any, session_id: str, turn_id: str, question_id: str) -> bytes:
        from helmr.control.api.answers import encoded

        known(session_id, turn_id)
        known_question(question_id)
        return encoded(question_state())

    @staticmethod
    async def questions_find(world: World, principal: Any, question_id: str) -> bytes:
        return await Operations.questions_get(world, principal, SESSION, TURN, question_id)

    @staticmethod
    async def questions_of_environment(world: World, principal: Any, status: Any, cursor: str | None, limit: int) -> bytes:
        from helmr.control.api.answers import encoded

        return encoded(Page(items=(question_state(),), next_cursor="next"))

    @staticmethod
    async def questions_list(
        world: World, principal: Any, session_id: str, turn_id: str, status: Any, cursor: str | None, limit: int
    ) -> bytes:
        known(session_id, turn_id)
        return await Operations.questions_of_environment(world, principal, status, cursor, limit)

    @staticmethod
    async def questions_respond(
        world: World, principal: Any, session_id: str, turn_id: str, question_id: str, answer: Any, response_id: str, key: str | None
    ) -> Reply:
        known(session_id, turn_id)
        known_question(question_id)
        members = {"id": question_id, "session_id": session_id, "turn_id": turn_id, "status": "responded", "response_id": response_id}
        by = {"kind": "api_key", "id": SESSION}
        return Reply(json.dumps(members | {"responded_by": by, "responded_at": TIME}).encode(), world.replay)

    @staticmethod
    async def computers_create(
        world: World, principal: Any, *, template: str, key: str | None, secrets: Sequence[Any], idempotency_key: str | None
    ) -> Reply:
        if key == "taken":
            raise errors.ComputerKeyConflict(computer_id=COMPUTER)
        return Reply(json.dumps({"id": COMPUTER, "deployment_id": DEPLOYMENT, "template": template}).encode(), world.replay)

    @staticmethod
    async def secrets_create(world: World, principal: Any, *, name: str, value: str, idempotency_key: str | None) -> Reply:
        return Reply(json.dumps(to_wire(secret(name))).encode(), world.replay)

    @staticmethod
    async def secrets_list(world: World, principal: Any, cursor: str | None, limit: int) -> Page[Secret]:
        return Page(items=(secret(),), next_cursor="next")

    @staticmethod
    async def secrets_get(world: World, principal: Any, name: str) -> SecretDetails:
        known_secret(name)
        made = SecretVersion(version=1, created_at=TIME, created_by={"kind": "api_key", "id": SESSION}, kept=True)
        holder = SecretHolder(computer_id=ComputerId(COMPUTER), residency="running", version=1)
        return SecretDetails(**to_wire(secret()), versions=(made,), templates=("tiny",), computers=(holder,))

    @staticmethod
    async def secrets_rotate(world: World, principal: Any, name: str, *, value: str, idempotency_key: str | None) -> Reply:
        known_secret(name)
        return Reply(json.dumps(to_wire(secret())).encode(), world.replay)

    @staticmethod
    async def secrets_revoke(world: World, principal: Any, name: str, key: str | None) -> Reply:
        known_secret(name)
        return Reply(json.dumps(to_wire(secret())).encode(), world.replay)

    @staticmethod
    async def environments_projects(world: World, person: Any, cursor: str | None, limit: int) -> ProjectPage:
        return ProjectPage(items=(PROJECT,), next_cursor="next")

    @staticmethod
    async def environments_create_project(world: World, person: Any, **asked: Any) -> Reply:
        return Reply(json.dumps(to_wire(PROJECT)).encode(), world.replay)

    @staticmethod
    async def environments_list(world: World, person: Any, project: str | None, cursor: str | None, limit: int) -> EnvironmentPage:
        return EnvironmentPage(items=(environment(),), next_cursor="next")

    @staticmethod
    async def environments_get(world: World, person: Any, environment_id: str) -> Environment:
        known_environment(environment_id)
        return environment()

    @staticmethod
    async def environments_create(world: World, person: Any, **asked: Any) -> Reply:
        return Reply(json.dumps(to_wire(environment())).encode(), world.replay)

    @staticmethod
    async def environments_limit(world: World, person: Any, environment_id: str, asked: Any, **named: Any) -> Reply:
        known_environment(environment_id)
        return Reply(json.dumps(to_wire(environment())).encode(), world.replay)

    @staticmethod
    async def members_list(world: World, person: Any, cursor: str | None, limit: int) -> MemberPage:
        return MemberPage(items=(member(),), next_cursor="next")

    @staticmethod
    async def members_get(world: World, person: Any, member_id: str) -> Member:
        known_member(member_id)
        return member()

    @staticmethod
    async def members_add(world: World, person: Any, *, link_at: Any, **asked: Any) -> Reply:
        link = UNSET if world.replay else PasswordLink(url=link_at("a code"), expires_in=86400)
        return Reply(json.dumps(to_wire(NewMember(member=member(), password_link=link))).encode(), world.replay)

    @staticmethod
    async def members_change(world: World, person: Any, member_id: str, **asked: Any) -> Reply:
        known_member(member_id)
        return Reply(json.dumps(to_wire(member())).encode(), world.replay)

    @staticmethod
    async def members_remove(world: World, person: Any, member_id: str, **asked: Any) -> Reply:
        known_member(member_id)
        return Reply(json.dumps(to_wire(member())).encode(), world.replay)

    @staticmethod
    async def audit_list(world: World, principal: Any, **asked: Any) -> AuditPage:
        entry = AuditEntry(id=HOLD, at=TIME, by=Actor(kind="api_key", id=HOLD, name="ci"), operation="secrets.rotate", target=HOLD)
        return AuditPage(items=(entry,), next_cursor="next")

    @staticmethod
    async def audit_of_installation(world: World, person: Any, **asked: Any) -> InstallationLogPage:
        entry = InstallationEntry(id=HOLD, at=TIME, what="sign_in_failed", address="203.0.113.9", about="ada@example.com")
        return InstallationLogPage(items=(entry,), next_cursor="next")

    @staticmethod
    async def api_keys_create(world: World, principal: Any, **asked: Any) -> Reply:
        made = NewApiKey(key=api_key()) if world.replay else NewApiKey(key=api_key(), token="hlmr_sk_new")
        return Reply(json.dumps(to_wire(made)).encode(), world.replay)

    @staticmethod
    async def api_keys_list(world: World, principal: Any, cursor: str | None, limit: int) -> ApiKeyPage:
        return ApiKeyPage(items=(api_key(),), next_cursor="next")

    @staticmethod
    async def api_keys_get(world: World, principal: Any, key_id: str) -> ApiKey:
        known_api_key(key_id)
        return api_key()

    @staticmethod
    async def api_keys_rotate(world: World, principal: Any, key_id: str, *, overlap: str | None, idempotency_key: str | None) -> Reply:
        known_api_key(key_id)
        return Reply(json.dumps(to_wire(NewApiKey(key=api_key(), token="hlmr_sk_new"))).encode(), world.replay)

    @staticmethod
    async def api_keys_revoke(world: World, principal: Any, key_id: str, key: str | None) -> Reply:
        known_api_key(key_id)
        return Reply(json.dumps(to_wire(api_key())).encode(), world.replay)

    @staticmethod
    async def workers_list(world: World, principal: Any, cursor: str | None, limit: int) -> WorkerPage:
        return WorkerPage(items=(worker(Worker),), next_cursor="next")

    @staticmethod
    async def workers_get(world: World, principal: Any, name: str) -> WorkerDetails:
        known_worker(name)
        return worker()

    @staticmethod
    async def workers_drain(world: World, principal: Any, name: str, key: str | None) -> Reply:
        known_worker(name)
        return Reply(json.dumps(to_wire(worker())).encode(), world.replay)

    workers_undrain = workers_rotate = workers_drain

    @staticmethod
    async def enrolments_create(world: World, principal: Any, **asked: Any) -> Reply:
        made = NewWorkerEnrolment(id=HOLD, expires_at=TIME, environments=("a/b",), token=UNSET if world.replay else "hlmr_we_new")
        return Reply(json.dumps(to_wire(made)).encode(), world.replay)

    @staticmethod
    async def enrolments_list(world: World, principal: Any, cursor: str | None, limit: int) -> WorkerEnrolmentPage:
        return WorkerEnrolmentPage(items=(enrolment(),), next_cursor="next")

    @staticmethod
    async def enrolments_revoke(world: World, principal: Any, enrolment_id: str, key: str | None) -> Reply:
        if enrolment_id != HOLD:
            raise errors.EnrolmentNotFound()
        return Reply(json.dumps(to_wire(enrolment())).encode(), world.replay)

    @staticmethod
    async def enrolments_enrol(world: World, token: str, **asked: Any) -> EnrolledWorker:
        return EnrolledWorker(worker_id=WorkerId(WORKER), name="build-1")

    @staticmethod
    async def enrolments_own(world: World, worker_id: str) -> EnrolledWorker:
        assert worker_id == WORKER
        return EnrolledWorker(worker_id=WorkerId(WORKER), name="build-1", environments=("a/b",))

    @staticmethod
    async def workers_remove(world: World, principal: Any, name: str, *, force: bool, idempotency_key: str | None) -> Reply:
        return await Operations.workers_drain(world, principal, name, idempotency_key)

    @staticmethod
    async def commands_execute(world: World, principal: Any, computer_id: str, **named: Any) -> Reply:
        known_computer(computer_id)
        return Reply(json.dumps({"id": COMMAND, "computer_id": computer_id}).encode(), world.replay)

    @staticmethod
    async def commands_get(world: World, principal: Any, command_id: str, wait_seconds: float) -> Command:
        known_command(command_id)
        return command()

    @staticmethod
    async def commands_list(world: World, principal: Any, computer_id: str, cursor: str | None, limit: int) -> CommandPage:
        known_computer(computer_id)
        return CommandPage(items=(command(),), next_cursor="next")

    @staticmethod
    async def commands_logs(world: World, principal: Any, command_id: str, after: int, limit: int, wait_seconds: float) -> CommandLogs:
        known_command(command_id)
        chunk = CommandChunk(sequence=after + 1, stream="stdout", at=0, lost=0, data="aGk=")
        return CommandLogs(items=(chunk,), next=after + 1, complete=True)

    @staticmethod
    async def commands_cancel(world: World, principal: Any, command_id: str, key: str | None) -> Reply:
        known_command(command_id)
        return Reply(json.dumps({"id": command_id, "status": "accepted"}).encode(), world.replay)

    @staticmethod
    async def streams_open(world: World, principal: Any, computer_id: str, kind: str, opening: Any) -> Any:
        known_computer(computer_id)
        return FakeStream(kind)

    @staticmethod
    def streams_close(world: World, stream: Any) -> None:
        stream.closed = True

    @staticmethod
    async def computers_get(world: World, principal: Any, computer_id: str) -> Computer:
        known_computer(computer_id)
        return computer()

    @staticmethod
    async def computers_list(world: World, principal: Any, **named: Any) -> Page[Computer]:
        return Page(items=(computer(),), next_cursor="next")

    @staticmethod
    async def computers_members(world: World, principal: Any, computer_id: str, cursor: str | None, limit: int) -> Page[Session]:
        known_computer(computer_id)
        return Page(items=(session(),))

    @staticmethod
    async def computers_hibernate(world: World, principal: Any, computer_id: str, key: str | None) -> Reply:
        known_computer(computer_id)
        return Reply(json.dumps({"computer_id": computer_id, "status": "available", "residency": "cold"}).encode(), world.replay)

    @staticmethod
    async def computers_save(world: World, principal: Any, computer_id: str, key: str | None) -> Reply:
        known_computer(computer_id)
        return Reply(json.dumps({"computer_id": computer_id, "save_id": HOLD}).encode(), world.replay)

    @staticmethod
    async def computers_saves(world: World, principal: Any, computer_id: str, cursor: str | None, limit: int) -> Page[Save]:
        known_computer(computer_id)
        made = Save(id=SaveId(HOLD), computer_id=ComputerId(computer_id), state="complete", cause="turn", started_at=TIME, files=3, bytes=9)
        return Page(items=(made,), next_cursor="next")

    @staticmethod
    async def save_objects_put(world: World, worker_id: str, computer_id: str, name: str, stream: AsyncIterator[bytes]) -> None:
        known_part(worker_id, computer_id, name)
        world.uploads[name] = b"".join([chunk async for chunk in stream])

    @staticmethod
    async def save_objects_get(world: World, worker_id: str, computer_id: str, name: str) -> BinaryIO:
        known_part(worker_id, computer_id, name)
        return world.blob_path.open("rb")

    computers_wake = computers_recover = computers_delete = computers_hibernate

    @staticmethod
    async def controls_interrupt(world: World, principal: Any, session_id: str, key: str | None) -> Reply:
        known(session_id)
        return receipt(id=new_id(), session_id=session_id, hold_id=HOLD, status="accepted")

    @staticmethod
    async def controls_resume(world: World, principal: Any, session_id: str, hold_id: str, key: str | None) -> Reply:
        known(session_id)
        if hold_id != HOLD:
            raise errors.HoldNotFound()
        return receipt(id=new_id(), session_id=session_id, hold_id=hold_id, status="accepted")

    @staticmethod
    async def controls_close(world: World, principal: Any, session_id: str, key: str | None) -> Reply:
        known(session_id)
        return receipt(session_id=session_id, status="closing")

    @staticmethod
    async def controls_cancel(world: World, principal: Any, session_id: str, key: str | None) -> Reply:
        known(session_id)
        return receipt(session_id=session_id, status="closed")

    @staticmethod
    async def retention_delete_data(world: World, principal: Any, session_id: str, key: str | None) -> Reply:
        known(session_id)
        return receipt(session_id=session_id, payload_expired_at=TIME)

    @staticmethod
    async def events_page(world: World, principal: Any, session_id: str, after: int, limit: int) -> bytes:
        known(session_id)
        records = [json.loads(stored(1).body)]
        return json.dumps({"records": records, "next_after": 1, "has_more": False, "retained_after": 0, "sealed": False}).encode()

    @staticmethod
    async def events_follow(world: World, principal: Any, session_id: str, after: int) -> AsyncIterator[Sequence[Stored]]:
        known(session_id)
        world.followers += 1
        try:
            if world.batches is None:
                yield [stored(sequence) for sequence in range(after + 1, 4)]
            else:
                async for batch in world.batches(after):
                    yield batch
        finally:
            world.followers -= 1
            world.follower_left.set()

    @staticmethod
    async def agents_get(world: World, principal: Any, agent: str, deployment_id: str | None) -> AgentInfo:
        if deployment_id not in (None, DEPLOYMENT):
            raise errors.DeploymentNotFound()
        if agent != "echo":
            raise errors.AgentNotFound()
        return AgentInfo(agent="echo", template="tiny", deployment_id=DEPLOYMENT, input_kind="text", runtime_mcp={"allow": []})

    @staticmethod
    async def agents_list(world: World, principal: Any, deployment_id: str | None, cursor: str | None, limit: int) -> AgentPage:
        found = await Operations.agents_get(world, principal, "echo", deployment_id)
        return AgentPage(deployment_id=DEPLOYMENT, items=(found,))

    @staticmethod
    async def triggers_get(world: World, principal: Any, agent: str, trigger: str) -> TriggerInfo:
        assert is_definition_id(agent) and is_definition_id(trigger)
        if agent != "echo":
            raise errors.AgentNotFound()
        if trigger != "nightly":
            raise errors.TriggerNotFound()
        return TriggerInfo(
            agent="echo",
            trigger="nightly",
            deployment_id=DEPLOYMENT,
            schedule="0 1 * * *",
            timezone="UTC",
            active_since=TIME,
            missed=2,
            next_fires=(TIME,) * 5,
            last_firing=Firing(planned_at=TIME, status="fired", missed=1, recorded_at=TIME, fired_at=TIME, session_id=SESSION),
        )

    @staticmethod
    async def triggers_list(world: World, principal: Any, cursor: str | None, limit: int) -> TriggerPage:
        return TriggerPage(items=(await Operations.triggers_get(world, principal, "echo", "nightly"),))

    @staticmethod
    async def deployments_missing(world: World, principal: Any, digests: Sequence[str]) -> list[str]:
        return [digest for digest in digests if digest not in world.uploads]

    @staticmethod
    async def deployments_put_blob(world: World, principal: Any, digest: str, stream: AsyncIterator[bytes]) -> bool:
        data = b"".join([chunk async for chunk in stream])
        if hashlib.sha256(data).hexdigest() != digest:
            raise errors.DigestMismatch()
        created = digest not in world.uploads
        world.uploads[digest] = data
        return created

    @staticmethod
    async def deployments_publish(world: World, principal: Any, manifest: Any, promote: bool, pull: bool, key: str | None) -> Reply:
        from helmr.control.api.answers import encoded

        return Reply(encoded(deployment()), world.replay)

    @staticmethod
    async def deployments_get(world: World, principal: Any, deployment_id: str) -> Deployment:
        assert is_id(deployment_id)
        if deployment_id != DEPLOYMENT:
            raise errors.DeploymentNotFound()
        return deployment()

    @staticmethod
    async def deployments_current(world: World, principal: Any) -> Deployment:
        return deployment()

    @staticmethod
    async def deployments_list(world: World, principal: Any, cursor: str | None, limit: int) -> Page[Deployment]:
        return Page(items=(deployment(),))

    @staticmethod
    async def deployments_diff(world: World, principal: Any, deployment_id: str, since: str) -> DeploymentDiff:
        found, other = [await Operations.deployments_get(world, principal, one) for one in (deployment_id, since)]
        none = Changes(added=(), removed=(), changed=())
        return DeploymentDiff(deployment_id=found.id, since=other.id, agents=none, policies=none, triggers=none, templates=none)

    @staticmethod
    async def deployments_promote(world: World, principal: Any, deployment_id: str, key: str | None) -> Reply:
        from helmr.control.api.answers import encoded

        return Reply(encoded(await Operations.deployments_get(world, principal, deployment_id)))

    @staticmethod
    async def deployments_log(world: World, principal: Any, deployment_id: str) -> AsyncIterator[str]:
        await Operations.deployments_get(world, principal, deployment_id)
        yield "Step 1: one\ntwo"
        yield "done\n"

    @staticmethod
    def links_open(world: World, worker: str, link: Any) -> Any:
        assert world.open_link is not None
        return world.open_link(worker, link)

    @staticmethod
    async def blobs_path(world: World, worker: str, environment_id: str, digest: str) -> Path:
        if digest != DIGEST:
            raise errors.BlobNotFound()
        return world.blob_path

    @staticmethod
    async def health_vitals(world: World) -> Vitals:
        return Vitals(running_without_lease=2, oldest_waiting_seconds=1.5, workers_pressed=3)

    @staticmethod
    async def health_ready(world: World) -> None:
        if world.ready_error is not None:
            raise world.ready_error
