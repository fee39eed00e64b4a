"""What a worker gets to start a Session's process. SPEC [S9], [A5], [S14]."""

from __future__ import annotations

from typing import Any

from helmr.control.service.guests import Seat
from helmr.control.service.manifests import agent_of
from helmr.protocol.link import control
from helmr.protocol.manifest import Manifest


def session_start(seat: Seat, row: Any, manifest: Manifest) -> bytes:
    """The `session.start` message for a row of `alive_session`."""
    agent = agent_of(manifest, row["agent"])
    session: dict[str, Any] = {"id": str(row["id"])}
    if row["key"] is not None:
        session["key"] = row["key"]
    if row["parent_session_id"] is not None:
        session["parent"] = {"id": str(row["parent_session_id"])}
    recovery: dict[str, Any] = {"kind": "reconstructed" if row["initialised"] else "initial"}
    if row["initialised"] and row["recovery_reason"] is not None:
        recovery["reason"] = row["recovery_reason"]
    return control(
        "session.start",
        computer=seat.computer_id,
        channel=row["channel"],
        bundle=manifest.bundle,
        preload=list(agent.preload),
        environment=seat.handed.variables,
        open={
            "t": "session.open",
            "session": session,
            "agent": agent.id,
            "computer": {"id": seat.computer_id},
            "deployment": {"id": str(row["deployment_id"])},
            "recovery": recovery,
            "file": agent.file,
            "attribute": agent.attribute,
        },
    )
