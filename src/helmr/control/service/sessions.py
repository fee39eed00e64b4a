"""Sessions: creation, also by Sessions, reading, listing. SPEC [S1]-[S5], [S25], [M4]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helmr.control.domain.delegation import Standing, may, may_release
from helmr.control.service import render
from helmr.control.service.asked import check_input, check_labels, check_session_key, decode_cursor, encode_cursor
from helmr.control.service.authority import session_of, standing_of
from helmr.control.service.core import Core, check_key
from helmr.control.service.creations import Creations
from helmr.control.service.delegation import Delegated, Delegations
from helmr.control.service.manifests import Manifests, agent_of, made_of, template_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.creation import Created, Creation
from helmr.control.store.pool import Connection
from helmr.control.store.queries import delegation, deployments, identity, sessions
from helmr.protocol import jsontext
from helmr.protocol.duration import format_retention
from helmr.protocol.errors import (
    AdmissionUnavailable,
    ChannelUnavailable,
    ComputerDeleting,
    ComputerMismatch,
    ComputerNotFound,
    Forbidden,
    HelmrError,
    IdempotencyConflict,
    InvalidValue,
    NoCurrentDeployment,
    SessionKeyConflict,
)
from helmr.protocol.ids import SessionId, is_id, new_id
from helmr.protocol.manifest import Manifest
from helmr.protocol.shapes import Hold, Session, SessionPage, TurnSummary
from helmr.protocol.unset import UNSET


class Sessions:
    def __init__(self, core: Core, manifests: Manifests, creations: Creations) -> None:
        self._core = core
        self._manifests = manifests
        self._creations = creations
        self.delegations = Delegations(core, manifests)
        self._deployments: dict[str, tuple[str, Manifest]] = {}
        """The Deployment that was current last, by Environment."""

    async def create(
        self,
        principal: Principal,
        *,
        agent: str,
        input: Any = UNSET,
        key: str | None = None,
        computer_id: str | None = None,
        slack_channel_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        """A new root Session on the current Deployment, with its first Turn when there is input [S1], [S2].

        One transaction. A taken key raises `SessionKeyConflict` with the occupant's `session_id` [S3]; without an admission token it
        raises `AdmissionUnavailable` with the seconds to wait [S5].
        """
        principal.require("sessions.create")
        if principal.kind == "session":
            raise Forbidden("A Session asks for Sessions by `spawn` and `start`.")
        check_session_key(key)
        if idempotency_key is not None:
            check_key(idempotency_key)
        request: dict[str, Any] = {"agent": agent, "key": key, "labels": check_labels(labels or {})}
        if input is not UNSET:
            request["input"] = input
        if computer_id is not None:
            request["computer"] = {"id": computer_id}
        if slack_channel_id is not None:
            request["slack"] = {"channel_id": slack_channel_id}
        fingerprint = jsontext.fingerprint(request) if idempotency_key is not None else b""
        if idempotency_key is not None:
            earlier = await self._earlier(principal, idempotency_key, fingerprint)
            if earlier is not None:
                return earlier
        if slack_channel_id is not None:
            raise ChannelUnavailable("No Slack app is connected to this Agent.", hint="Leave `slack` out.")
        if computer_id is not None and not is_id(computer_id):
            raise ComputerNotFound()
        remembered = principal.environment_id in self._deployments
        while True:
            deployment_id, manifest = await self._current(principal)
            try:
                definition = agent_of(manifest, agent)
                data = None if input is UNSET else check_input(definition.input_kind, input)
            except HelmrError:
                if not remembered:
                    raise
                # Judged by a remembered Deployment, which may not be the current one any more: judge by that.
                remembered = False
                self._deployments.pop(principal.environment_id, None)
                continue
            session_id, turn_id = new_id(), None if input is UNSET else new_id()
            turn = None if turn_id is None else {"id": turn_id, "session_id": session_id, "sequence": 1}
            receipt = {"session": {"id": session_id, "deployment_id": deployment_id, "agent": agent}, "turn": turn}
            item = Creation(
                session_id=session_id,
                environment_id=principal.environment_id,
                deployment_id=deployment_id,
                agent=agent,
                template=definition.template,
                key=key,
                input_kind=definition.input_kind,
                principal_id=principal.id,
                by=principal.kind,
                close_after_idle_ms=definition.close_after_idle_ms,
                max_turn_ms=definition.max_turn_duration_ms,
                computer_id=computer_id,
                made_of=made_of(template_of(manifest, definition.template)) if computer_id is not None else None,
                turn_id=turn_id,
                input=data,
                source=principal.source,
                idempotency_key=idempotency_key,
                fingerprint=fingerprint,
                receipt=jsontext.dumps(receipt),
                labels=request["labels"],
            )
            created = await self._creations.submit(item)
            if created.outcome == "moved":
                self._deployments.pop(principal.environment_id, None)
                continue
            return self._made(item, created)

    async def spawn(
        self,
        principal: Principal,
        *,
        agent: str,
        input: Any = UNSET,
        key: str | None = None,
        computer: str = "new",
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        """A child that the Session which asks owns, on its pinned Deployment [M4]. `computer` is "new", "caller" or an id.

        Raises `SessionNotOpen` when the Session or an owner of it is closing, `DelegationLimit`, and what `create` raises.
        """
        asked = Delegated(agent=agent, input=input, key=key, computer=computer, labels=labels or {})
        return await self.delegations.make(principal, "spawn", asked, idempotency_key)

    async def start(
        self,
        principal: Principal,
        *,
        agent: str,
        input: Any = UNSET,
        key: str | None = None,
        computer: str = "new",
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        """An independent root on the current Deployment, which the Session that asks doesn't own [M4]. Raises what `spawn` raises."""
        asked = Delegated(agent=agent, input=input, key=key, computer=computer, labels=labels or {})
        return await self.delegations.make(principal, "start", asked, idempotency_key)

    def _made(self, item: Creation, created: Created) -> Reply:
        match created.outcome:
            case "replay":
                assert created.data is not None
                return Reply(created.data, replayed=True)
            case "conflict":
                raise IdempotencyConflict()
            case "short":
                assert created.data is not None
                raise AdmissionUnavailable(retry_after=float(created.data))
            case "key_taken":
                raise SessionKeyConflict(session_id=created.occupant)
            case "computer_not_found":
                raise ComputerNotFound()
            case "computer_deleting":
                raise ComputerDeleting()
            case "computer_mismatch":
                raise ComputerMismatch()
            case _:
                if item.turn_id is not None and self._core.reactor is not None:
                    self._core.reactor.place(item.session_id)
                return Reply(item.receipt)

    async def _earlier(self, principal: Principal, key: str, fingerprint: bytes) -> Reply | None:
        """The reply of an exact retry, looked up before any other check, even if the Deployment moved or is gone [S4]."""
        async with self._core.database.connection() as connection:
            row = await identity.known_key(
                connection,
                environment_id=principal.environment_id,
                principal_id=principal.id,
                operation="sessions.create",
                target="",
                key=key,
            )
        if row is None:
            return None
        if row["fingerprint"] != fingerprint:
            raise IdempotencyConflict()
        return Reply(row["receipt"], replayed=True)

    async def _current(self, principal: Principal) -> tuple[str, Manifest]:
        """The current Deployment. Remembered: a creation whose Deployment is no longer current comes back, and it is read again."""
        known = self._deployments.get(principal.environment_id)
        if known is None:
            async with self._core.database.connection() as connection:
                row = await deployments.current_deployment(connection, environment_id=principal.environment_id)
            if row is None:
                raise NoCurrentDeployment()
            known = (str(row["id"]), self._manifests.of(str(row["id"]), row["manifest"]))
            self._deployments[principal.environment_id] = known
        return known

    async def get(self, principal: Principal, session_id: str) -> Session:
        """A Session now. Raises `SessionNotFound`, the same for unknown and foreign ids [O1]."""
        principal.require("sessions.read")
        async with self._core.database.connection() as connection:
            row = await session_of(connection, principal, session_id, "inspect_session")
            return (await self._shapes(connection, principal, [row]))[0]

    async def list(
        self,
        principal: Principal,
        *,
        agent: str | None = None,
        key: str | None = None,
        parent_session_id: str | None = None,
        requester_session_id: str | None = None,
        status: Sequence[str] = (),
        labels: Sequence[tuple[str, str]] = (),
        cursor: str | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """Newest first. With a key: the one Session of that Agent and key, no other filters [S3]."""
        principal.require("sessions.read")
        async with self._core.database.connection() as connection:
            only = await _readable(connection, principal)
            if key is not None:
                if agent is None or parent_session_id or requester_session_id or status or labels or cursor:
                    raise InvalidValue("A look-up by key takes `agent` and `key`, and nothing else.")
                row = await sessions.session_by_key(connection, environment_id=principal.environment_id, agent=agent, key=key)
                found = row is not None and (only is None or str(row["id"]) in only)
                return SessionPage(items=tuple(await self._shapes(connection, principal, [row] if found else [])))
            for given in (parent_session_id, requester_session_id):
                if given is not None and not is_id(given):
                    return SessionPage(items=())
            rows = await sessions.list_sessions(
                connection,
                environment_id=principal.environment_id,
                agent=agent,
                parent_session_id=parent_session_id,
                requester_session_id=requester_session_id,
                statuses=list(status) or None,
                label_names=[name for name, _ in labels],
                label_values=[value for _, value in labels],
                before=decode_cursor(cursor) if cursor else None,
                only=only,
                count=limit + 1,
            )
            items = await self._shapes(connection, principal, rows[:limit])
        following = encode_cursor(items[-1].id) if len(rows) > limit else None
        return SessionPage(items=tuple(items), next_cursor=following)

    async def on_computer(
        self, connection: Connection, principal: Principal, computer_id: str, cursor: str | None, limit: int
    ) -> SessionPage:
        """The Sessions of a Computer of this Environment, closed ones too, newest first."""
        before = decode_cursor(cursor) if cursor else None
        rows = await sessions.list_on_computer(connection, computer_id=computer_id, before=before, count=limit + 1)
        items = await self._shapes(connection, principal, rows[:limit])
        return SessionPage(items=tuple(items), next_cursor=encode_cursor(items[-1].id) if len(rows) > limit else None)

    async def _shapes(self, connection: Connection, principal: Principal, rows: Sequence[Any]) -> list[Session]:
        ids = [row["id"] for row in rows]
        if not ids:
            return []
        labels: dict[Any, dict[str, str]] = {}
        for label in await sessions.labels_of(connection, ids=ids):
            labels.setdefault(label["session_id"], {})[label["name"]] = label["value"]
        held: dict[Any, list[Hold]] = {}
        if any(row["held"] for row in rows):
            in_force = await sessions.holds_on(connection, ids=ids)
            standings = await _standings(connection, principal, in_force)
            for hold in in_force:
                held.setdefault(hold["on_session"], []).append(_hold(principal, standings, hold))
        first = {turn["session_id"]: turn for turn in await sessions.first_turns(connection, ids=ids)}
        below = {row["top"]: row for row in await sessions.latest_idle_below(connection, ids=ids)}
        return [
            _session(row, labels.get(row["id"], {}), held.get(row["id"], []), first.get(row["id"]), below.get(row["id"])) for row in rows
        ]


def row_id(row: Any) -> Any:
    return str(row["id"])


async def _readable(connection: Connection, principal: Principal) -> list[str] | None:
    """The Sessions that the Session which asks may inspect; None: all of its Environment."""
    if principal.kind != "session":
        return None
    agents = None if principal.grants is None else [grant.agent for grant in principal.grants if grant.operation == "inspect_session"]
    return [str(row["id"]) for row in await delegation.readable_by(connection, reader=principal.id, agents=agents)]


async def _standings(connection: Connection, principal: Principal, in_force: Sequence[Any]) -> dict[str, Standing]:
    """How the Session that asks stands to those that have the holds; empty for whoever is no Session."""
    if principal.kind != "session":
        return {}
    return {holder: await standing_of(connection, principal, holder) for holder in {str(hold["session_id"]) for hold in in_force}}


def _hold(principal: Principal, standings: Mapping[str, Standing], row: Any) -> Hold:
    """A hold as its reader sees it: without ids on an owner that it can't read, releasable if it may resume there [S17]."""
    gap = jsontext.loads(row["recovery_gap"]) if row["recovery_gap"] is not None else UNSET
    holder = str(row["session_id"])
    can_release, readable = row["kind"] != "storage_pressure", True
    if principal.kind == "session":
        placed_by_caller = jsontext.loads(row["placed_by"]) == principal.by
        can_release = may_release(row["kind"], parent=standings[holder].parent, placed_by_caller=placed_by_caller)
        readable = may("inspect_session", standings[holder])
    return Hold(
        id=row_id(row) if readable else None,
        session_id=SessionId(holder) if readable else None,
        kind=row["kind"],
        created_at=render.time_text(row["created_at"]),
        can_release=can_release and "sessions.resume" in principal.permissions,
        recovery_gap=gap,
    )


def _session(row: Any, labels: dict[str, str], held: Sequence[Hold], first: Any, below: Any) -> Session:
    idle = row["idle_at"]
    if idle is not None and below is not None:
        idle = None if below["busy"] else max(idle, below["idle_at"])
    return Session(
        id=row_id(row),
        deployment_id=_text(row["deployment_id"]),
        root_session_id=_text(row["root_session_id"]),
        agent=row["agent"],
        template=row["template"],
        computer_id=_text(row["computer_id"]),
        parent_session_id=_text(row["parent_session_id"]),
        requester_session_id=_text(row["requester_session_id"]),
        status=row["status"],
        close_after_idle=format_retention(row["close_after_idle_ms"]),
        idle_since=render.time_text(idle) if idle is not None and row["status"] != "closed" else None,
        initial_turn=TurnSummary(id=_text(first["id"]), status=first["status"]) if first is not None else None,
        holds=tuple(held) if row["status"] != "closed" else (),
        labels=labels,
        created_at=render.time_text(row["created_at"]),
        key=UNSET if row["key"] is None else row["key"],
        closed_at=UNSET if row["closed_at"] is None else render.time_text(row["closed_at"]),
        close_reason=UNSET if row["status"] != "closed" else row["close_reason"],
    )


def _text(value: Any) -> Any:
    return None if value is None else str(value)
