"""Why a Session does what it does: the facts from the database, the sentence from the rules. SPEC [S23]."""

from __future__ import annotations

from typing import Any

from helmr.control.domain.explain import Facts, explain
from helmr.control.service.authority import session_of
from helmr.control.service.core import Core
from helmr.control.service.manifests import Manifests, template_of
from helmr.control.service.principals import Principal
from helmr.control.service.sessions import row_id
from helmr.control.service.starting import base_of
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, identity, questions, secrets, sessions, turns
from helmr.protocol import jsontext
from helmr.protocol.shapes import Explanation


class Explanations:
    def __init__(self, core: Core, manifests: Manifests) -> None:
        self._core = core
        self._manifests = manifests

    async def explain(self, principal: Principal, session_id: str) -> Explanation:
        """What the Session waits for, in one sentence and its facts [S23]."""
        principal.require("sessions.read")
        async with self._core.database.connection() as connection:
            row = await session_of(connection, principal, session_id)
            now = await sessions.now(connection)
            in_force = await sessions.holds_on(connection, ids=[session_id])
            below = await sessions.latest_idle_below(connection, ids=[session_id])
            facts: dict[str, Any] = {
                "status": row["status"],
                "queued": row["next_turn"] - 1 - row["claimed_turn"],
                "process": row["process"],
                "attempt": row["attempt"],
                "holds": [_hold(hold) for hold in in_force],
                "workers_alive": await computers.workers_alive(connection),
                "workers_serving": await computers.workers_serving(connection, environment_id=row["environment_id"]),
                "workers_pressed": await computers.workers_pressed(connection),
                "unclosed_children": below[0]["unclosed"] if below else 0,
            }
            if row["retry_at"] is not None:
                facts["retry_in"] = max(0.0, (row["retry_at"] - now).total_seconds())
            if row["running_turn"] is not None:
                turn = await turns.turn_row(connection, id=row["running_turn"])
                facts["running_sequence"] = turn["sequence"]
                facts["running_for"] = (now - turn["started_at"]).total_seconds()
                facts["pending_questions"] = await questions.count_pending(connection, turn_id=row["running_turn"])
            if row["stop_cause"] is not None:
                facts["stop_cause"] = row["stop_cause"]
                facts["stopping_for"] = (now - row["stop_at"]).total_seconds()
            if row["init_deadline_at"] is not None:
                environment = await identity.environment_row(connection, id=row["environment_id"])
                started = row["init_deadline_at"].timestamp() - environment["max_init_ms"] / 1000
                facts["starting_for"] = max(0.0, now.timestamp() - started)
            facts |= await self._computer_facts(connection, row)
        state, sentence = explain(Facts(**facts))
        return Explanation(session_id=row_id(row), state=state, sentence=sentence, facts=facts)

    async def _computer_facts(self, connection: Connection, row: Any) -> dict[str, Any]:
        if row["computer_id"] is None:
            template = template_of(await self._manifests.load(connection, row["deployment_id"]), row["template"])
            return {"wants_cpu": template.cpu, "wants_memory": template.memory}
        computer = await computers.computer_row(connection, id=row["computer_id"])
        worker = await computers.worker_row(connection, id=computer["worker_id"]) if computer["worker_id"] else None
        facts: dict[str, Any] = {
            "has_computer": True,
            "residency": computer["residency"],
            "computer_status": computer["status"],
            "wants_cpu": computer["cpu"],
            "wants_memory": computer["memory"],
            "computer_worker_alive": computer["worker_id"] is None or (worker is not None and worker["alive"]),
        }
        facts["computer_worker_drains"] = worker is not None and worker["draining"]
        if worker is not None and worker["drain_asked_at"] is not None:
            facts["computer_worker_drained_by_hand"] = worker["removed_name"] or worker["name"]
            facts["computer_worker_removed"] = worker["remove_asked_at"] is not None
        facts["restorable"] = computer["save_id"] is not None
        if computer["waits_secret"] is not None:
            facts |= {"secret_missing": computer["waits_secret"], "secret_reason": computer["waits_reason"]}
        if computer["residency"] not in ("cold", "unavailable"):
            facts["secret_revoked"] = await secrets.revoked_on(connection, computer_id=computer["id"])
        base = base_of(computer)
        if base is not None and not facts["computer_worker_alive"]:
            facts["base_mismatch"] = all(room["base"] != base for room in await computers.rooms(connection, soon=False))
        if computer["error"] is not None:
            error = jsontext.loads(computer["error"])
            facts["computer_silence" if error["code"] == "computer_silent" else "computer_error"] = error.get("message") or error["code"]
        return facts


def _hold(row: Any) -> dict[str, Any]:
    told = {"id": str(row["id"]), "kind": row["kind"], "session_id": str(row["session_id"])}
    return told if row["recovery_gap"] is None else told | {"recovery_gap": jsontext.loads(row["recovery_gap"])}
