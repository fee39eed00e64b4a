"""Sessions that Sessions ask for: owned children (spawn) and independent roots (start). SPEC [M4], [S2]-[S4], [S16], [S19].

One transaction each. The Session that asks is locked first, as every control of its tree does: a spawn that races a close or a cancel of
any owner is refused, or the child is there for the control to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from helmr.control.domain.delegation import DelegationLimits, refuse_delegation
from helmr.control.service import render
from helmr.control.service.asked import check_input, check_labels, check_session_key
from helmr.control.service.authority import find_session, require_grant
from helmr.control.service.core import Core, Effects, record, retry_of
from helmr.control.service.limits import take_token
from helmr.control.service.manifests import Manifests, agent_of, made_of, template_of
from helmr.control.service.principals import Principal
from helmr.control.service.reply import Reply
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, delegation, deployments, sessions
from helmr.protocol import jsontext
from helmr.protocol.errors import (
    ComputerDeleting,
    ComputerMismatch,
    ComputerNotFound,
    DelegationLimit,
    Forbidden,
    NoCurrentDeployment,
    SessionKeyConflict,
    SessionNotOpen,
)
from helmr.protocol.ids import is_id, new_id
from helmr.protocol.manifest import Manifest, TemplateManifest
from helmr.protocol.unset import UNSET

How = Literal["spawn", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegated:
    """What is asked for. `computer` is "new" (assigned on the first input), "caller" (the one that the caller runs on), or an id."""

    agent: str
    input: Any = UNSET
    key: str | None = None
    computer: str = "new"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def request(self) -> dict[str, Any]:
        """What makes two requests the same [S4]."""
        asked = {"agent": self.agent, "key": self.key, "computer": self.computer, "labels": dict(self.labels)}
        return asked if self.input is UNSET else {**asked, "input": self.input}


class Delegations:
    def __init__(self, core: Core, manifests: Manifests, limits: DelegationLimits | None = None) -> None:
        self._core = core
        self._manifests = manifests
        self.limits = limits or DelegationLimits()

    async def make(self, principal: Principal, how: How, asked: Delegated, idempotency_key: str | None) -> Reply:
        """A Session for the Session that asks: its child on its pinned Deployment, or a root on the current one.

        Raises `Forbidden`, `SessionNotOpen`, `DelegationLimit`, `AdmissionUnavailable`, and what a creation raises.
        """
        principal.require("sessions.create")
        if principal.kind != "session":
            raise Forbidden("Only a Session asks for Sessions in this way.")
        check_session_key(asked.key)
        check_labels(asked.labels)
        _check_placement(principal, how, asked)
        retry = retry_of(principal, f"sessions.{how}", "", idempotency_key, asked.request())

        async def work(connection: Connection, effects: Effects) -> Reply:
            earlier = await retry.claim(connection)
            if earlier is not None:
                return earlier
            await take_token(connection, principal.environment_id)  # before any Session is locked (I3); a refusal gives it back
            caller = await self._caller(connection, principal, how)
            deployment_id, manifest = await self._deployment(connection, principal, how, caller)
            receipt = await self._insert(connection, effects, principal, how, asked, caller, deployment_id, manifest)
            made = receipt["session"]["id"]
            return await retry.remember(connection, jsontext.dumps(receipt), made, made=made)

        return await self._core.write(how, work)

    async def _caller(self, connection: Connection, principal: Principal, how: How) -> Any:
        """The Session that asks, locked together with the root of its causal chain, and within the limits."""
        await find_session(connection, principal.environment_id, principal.id)
        chain = [str(row["id"]) for row in await delegation.causes(connection, id=principal.id)]
        locked = {str(row["id"]): row for row in await delegation.lock_causes(connection, caller=principal.id, origin=chain[-1])}
        caller = locked[principal.id]
        if caller["status"] == "closed" or (how == "spawn" and caller["status"] != "open"):
            raise SessionNotOpen(f"The Session that asks is {caller['status']}.")
        refusal = refuse_delegation(
            self.limits,
            owned_depth=caller["depth"] + 1 if how == "spawn" else 0,
            causal_depth=len(chain),
            open_sessions=await delegation.open_of(connection, origin=chain[-1]),
        )
        if refusal is not None:
            raise DelegationLimit(refusal)
        return caller

    async def _deployment(self, connection: Connection, principal: Principal, how: How, caller: Any) -> tuple[str, Manifest]:
        if how == "spawn":
            return str(caller["deployment_id"]), await self._manifests.load(connection, caller["deployment_id"])
        row = await deployments.current_deployment(connection, environment_id=principal.environment_id)
        if row is None:
            raise NoCurrentDeployment()
        return str(row["id"]), self._manifests.of(str(row["id"]), row["manifest"])

    async def _insert(
        self,
        connection: Connection,
        effects: Effects,
        principal: Principal,
        how: How,
        asked: Delegated,
        caller: Any,
        deployment_id: str,
        manifest: Manifest,
    ) -> dict[str, Any]:
        definition = agent_of(manifest, asked.agent)
        data = None if asked.input is UNSET else check_input(definition.input_kind, asked.input)
        computer_id = await _computer(connection, principal, asked, caller, template_of(manifest, definition.template))
        owned = how == "spawn"
        held = await delegation.inherited_holds(connection, caller=principal.id) if owned else 0
        session_id = new_id()
        made = await delegation.insert_delegated(
            connection,
            id=session_id,
            environment_id=principal.environment_id,
            deployment_id=deployment_id,
            agent=asked.agent,
            template=definition.template,
            key=asked.key,
            input_kind=definition.input_kind,
            root_session_id=caller["root_session_id"] if owned else session_id,
            parent_session_id=principal.id if owned else None,
            requester_session_id=principal.id,
            depth=caller["depth"] + 1 if owned else 0,
            computer_id=computer_id,
            close_after_idle_ms=definition.close_after_idle_ms,
            max_turn_ms=definition.max_turn_duration_ms,
            held=held,
            queued=0 if data is None else 1,
        )
        if made is None:
            occupant = await sessions.session_by_key(connection, environment_id=principal.environment_id, agent=asked.agent, key=asked.key)
            raise SessionKeyConflict(session_id=str(occupant["id"]))
        if asked.labels:
            await delegation.insert_labels(
                connection,
                session_id=session_id,
                environment_id=principal.environment_id,
                names=list(asked.labels),
                vals=list(asked.labels.values()),
            )
        entries: list[tuple[str | None, str, bytes]] = []
        if computer_id is not None:
            entries.append((None, "computer.assigned", render.data(computer_id=computer_id)))
        entries += [(None, "session.held", render.data(kind="interrupt", inherited=True))] * held
        turn = None
        if data is not None:
            during = principal if caller["running_turn"] is None else replace(principal, turn_id=str(caller["running_turn"]))
            turn_id = new_id()
            turn = {"id": turn_id, "session_id": session_id, "sequence": 1}
            await delegation.insert_first_turn(connection, session_id=session_id, id=turn_id, source=during.source, input=data)
            entries.append((turn_id, "turn.queued", b'{"sequence":1,"source":' + during.source + b"}"))
            if not held:
                effects.places.add(session_id)
        if entries:
            await record(connection, effects, session_id, entries)
        return {"session": {"id": session_id, "deployment_id": deployment_id, "agent": asked.agent}, "turn": turn}


def _check_placement(principal: Principal, how: How, asked: Delegated) -> None:
    """Raise `Forbidden` unless the policy grants this creation with this placement: a finite one grants no other Computer [M1]."""
    if asked.computer in ("new", "caller"):
        require_grant(principal, how, asked.agent, asked.computer)
    elif principal.grants is not None:
        raise Forbidden("This Session's policy places Sessions on a new Computer or on its own one only.")
    elif not is_id(asked.computer):
        raise ComputerNotFound()


async def _computer(connection: Connection, principal: Principal, asked: Delegated, caller: Any, template: TemplateManifest) -> str | None:
    """The given Computer, locked, if it can carry the Template [S2]; None when one is to be assigned on the first input."""
    if asked.computer == "new":
        return None
    computer_id = caller["computer_id"] if asked.computer == "caller" else asked.computer
    computer = await computers.lock_computer(connection, id=computer_id) if computer_id is not None else None
    if computer is None or str(computer["environment_id"]) != principal.environment_id or computer["status"] == "deleted":
        raise ComputerNotFound()
    if computer["status"] == "deleting":
        raise ComputerDeleting()
    if computer["made_of"] != made_of(template):
        raise ComputerMismatch()
    return str(computer["id"])
