"""Which Session a principal reaches, and what it may do there. SPEC [O1], [M4], [S17].

Keys and people need a permission alone. A Session needs three things on its every target: the permission, the grant of its policy for
the target's Agent, and a standing that permits the operation. An operation that no Session may do names none.
"""

from __future__ import annotations

from typing import Any

from helmr.control.domain.delegation import Standing, may
from helmr.control.service.principals import Principal
from helmr.control.store.pool import Connection
from helmr.control.store.queries import delegation, sessions
from helmr.protocol import jsontext
from helmr.protocol.errors import Forbidden, SessionNotFound
from helmr.protocol.ids import is_id
from helmr.protocol.policy import Grant, TargetOperation


async def find_session(connection: Connection, environment_id: str, session_id: str) -> Any:
    """The row of a Session, whoever asks. Raises `SessionNotFound`, the same for unknown and foreign ids [O1]."""
    row = None
    if is_id(session_id):
        row = await sessions.session_in_environment(connection, id=session_id, environment_id=environment_id)
    if row is None:
        raise SessionNotFound()
    return row


async def session_of(connection: Connection, principal: Principal, session_id: str, operation: TargetOperation | None = None) -> Any:
    """The row of a Session on which the principal may do `operation`. Raises `SessionNotFound`, `Forbidden`.

    Whoever is no Session has shown its permission already.
    """
    row = await find_session(connection, principal.environment_id, session_id)
    if principal.kind == "session":
        if operation is None:
            raise Forbidden("A Session may not do this.")
        require_grant(principal, operation, row["agent"])
        if not may(operation, await standing_of(connection, principal, session_id)):
            raise Forbidden(f"This Session's standing to that one does not permit {operation}.")
    return row


async def turn_readable(connection: Connection, principal: Principal, session_id: str, turn: Any) -> None:
    """Raise `Forbidden` unless the Session that asks may read this Turn: who enqueued it is its requester [M4]."""
    row = await find_session(connection, principal.environment_id, session_id)
    require_grant(principal, "inspect_turn", row["agent"])
    if turn is not None and jsontext.loads(turn["source"]).get("requester_session_id") == principal.id:
        return
    await session_of(connection, principal, session_id, "inspect_turn")


def require_grant(principal: Principal, operation: str, agent: str, placement: str = "") -> None:
    """Raise `Forbidden` when the policy of the Session that asks doesn't grant the operation on Sessions of this Agent [M1]."""
    if principal.grants is None or Grant(operation, agent, placement) in principal.grants:
        return
    where = f" with computer {placement!r}" if placement else ""
    raise Forbidden(f"This Session's policy does not grant {operation} on {agent!r}{where}.")


async def standing_of(connection: Connection, principal: Principal, session_id: str) -> Standing:
    """How the Session that asks stands to another one."""
    row = await delegation.standing(connection, id=session_id, caller=principal.id)
    return Standing(owner=row["owner"], parent=row["parent"], requester=row["requester"], origin=row["origin"])
