"""The client sends what the API declares: every call has its route, and the API's own readers take its query and body. SPEC 11, 12."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.api_samples import (
    COMPUTER,
    CONTROL,
    DEPLOYMENT,
    END,
    HOLD,
    QUESTION,
    SESSION,
    TIME,
    TURN,
    computer,
    created,
    question,
    responded,
    session,
    turn,
)
from tests.unit.client.scripted_http import Reply, Request, scripted, sse

from helmr.client import Answer, HelmrClient
from helmr.control.api.dispatch import query_values
from helmr.control.api.reading import body_reader, query_reader
from helmr.control.api.route import Route
from helmr.control.api.table import declared_routes
from helmr.protocol.archive import Copied, packed
from helmr.protocol.content import text
from helmr.protocol.manifest import Manifest
from helmr.protocol.unset import UNSET
from helmr.sdk.secret import secret

pytestmark = pytest.mark.anyio

DIGEST = "ab" * 32
CONTROLLED = {"id": CONTROL, "session_id": SESSION, "status": "accepted", "hold_id": HOLD, "turn_id": TURN}
DEPLOYED = {"id": DEPLOYMENT, "status": "deployed", "current": True, "digest": "d", "created_at": TIME}
TRIGGER = {
    "agent": "reviewer",
    "trigger": "nightly",
    "deployment_id": DEPLOYMENT,
    "schedule": "0 1 * * *",
    "timezone": "Europe/Berlin",
    "active_since": TIME,
    "missed": 0,
    "next_fires": [TIME],
    "last_firing": {"planned_at": TIME, "status": "fired", "missed": 0, "recorded_at": TIME, "fired_at": TIME, "session_id": SESSION},
}
AGENT = {"agent": "reviewer", "template": "repo", "deployment_id": DEPLOYMENT, "input_kind": "text", "runtime_mcp": {"allow": []}}
PAGE = {"items": [], "next_cursor": None}

COMMAND = "01980000-0000-7000-8000-00000000000c"
RAN: dict[str, Any] = {
    "id": COMMAND,
    "computer_id": COMPUTER,
    "status": "exited",
    "argv": ["cat"],
    "timeout": "9s",
    "created_at": TIME,
    "stdout_bytes": 0,
    "stderr_bytes": 4,
    "exit_code": 0,
}
SECRET: dict[str, Any] = {
    "id": HOLD,
    "name": "TOKEN",
    "version": 2,
    "created_at": TIME,
    "created_by": {"kind": "api_key", "id": HOLD},
    "rotated_at": TIME,
}
ENVIRONMENT: dict[str, Any] = {
    "id": HOLD,
    "path": "shop/main",
    "project": "shop",
    "name": "main",
    "created_at": TIME,
    "limits": {
        "admission_rate": "0.5",
        "admission_burst": 3,
        "payload_retention": "never",
        "computer_retention": "7d",
        "trigger_computer_retention": "1d",
        "trigger_grace": "1h",
        "max_init_duration": "10m",
    },
}
PROJECT: dict[str, Any] = {"id": HOLD, "name": "shop", "environments": ["main"], "created_at": TIME}
MEMBER: dict[str, Any] = {
    "id": HOLD,
    "email": "ada@example.com",
    "name": "Ada",
    "role": "developer",
    "created_at": TIME,
    "ways": ["password"],
}
API_KEY: dict[str, Any] = {
    "id": HOLD,
    "name": "ci",
    "permissions": ["sessions.read"],
    "status": "active",
    "ends": "abcd",
    "created_at": TIME,
    "expires_at": TIME,
}
ENROLMENT = {
    "id": HOLD,
    "status": "used",
    "created_at": TIME,
    "expires_at": TIME,
    "created_by": {"kind": "api_key", "id": HOLD},
    "worker_id": HOLD,
    "environments": ["shop/main"],
}
WORKER: dict[str, Any] = {
    "id": HOLD,
    "name": "build-1",
    "state": "connected",
    "driver": "bubblewrap",
    "credential": "own",
    "rotating": False,
    "capacity": {"cpu": 8.0, "memory": 16, "cpu_used": 1.0, "memory_used": 4},
    "computers": {"running": 1, "sleeping": 2, "stopped": 3},
    "environments": ["shop/main"],
    "storage": {"total": 10, "free": 2, "pressed_since": TIME},
    "silent_seconds": 1.5,
    "lease_until": TIME,
    "created_at": TIME,
}

ANSWERS: dict[str, Any] = {
    "run_command": {"id": COMMAND, "computer_id": COMPUTER},
    "list_commands": {"items": [RAN], "next_cursor": None},
    "get_command": RAN,
    "get_command_logs": {
        "items": [{"sequence": 2, "stream": "stderr", "at": 3, "lost": 3, "data": "/w=="}],
        "next": 2,
        "complete": True,
    },
    "write_files": {"bytes": 2, "entries": 1},
    "cancel_command": {"id": COMMAND, "status": "accepted"},
    "create_session": created(),
    "list_sessions": PAGE,
    "get_session": session(),
    "explain_session": {"session_id": SESSION, "state": "idle", "sentence": "Nothing to do.", "facts": {}},
    "interrupt_session": CONTROLLED,
    "resume_session": CONTROLLED,
    "close_session": {"session_id": SESSION, "status": "closing"},
    "cancel_session": {"session_id": SESSION, "status": "closed"},
    "delete_session_data": {"session_id": SESSION, "payload_expired_at": TIME},
    "enqueue_turn": {"id": TURN, "session_id": SESSION, "sequence": 1},
    "list_turns": PAGE,
    "get_turn": turn("cancelled"),
    "send_message": {"id": HOLD, "status": "accepted"},
    "interrupt_turn": CONTROLLED,
    "list_turn_questions": {"items": [question()], "next_cursor": "next"},
    "get_turn_question": question("cancelled", reason="withdrawn"),
    "respond_question": responded(),
    "list_questions": PAGE,
    "get_question": question(),
    "create_computer": {"id": COMPUTER, "deployment_id": DEPLOYMENT, "template": "repo"},
    "list_computers": {"items": [computer(key="k", delete_after=TIME)], "next_cursor": "next"},
    "get_computer": computer(status="deleting", error={"code": "refused", "message": "busy"}),
    "list_computer_members": PAGE,
    "hibernate_computer": {"computer_id": COMPUTER, "status": "available", "residency": "hibernating"},
    "wake_computer": {"computer_id": COMPUTER, "status": "available", "residency": "waking"},
    "recover_computer": {"computer_id": COMPUTER, "status": "available", "residency": "starting"},
    "save_computer": {"computer_id": COMPUTER, "save_id": HOLD},
    "list_computer_saves": {
        "items": [{"id": HOLD, "computer_id": COMPUTER, "state": "complete", "cause": "turn", "started_at": TIME, "files": 3}],
        "next_cursor": "next",
    },
    "delete_computer": {"computer_id": COMPUTER, "status": "deleting", "residency": "cold"},
    "create_api_key": {"key": API_KEY, "token": "hlmr_sk_new"},
    "list_api_keys": {"items": [API_KEY], "next_cursor": "next"},
    "get_api_key": API_KEY | {"replaced_by": SESSION},
    "rotate_api_key": {"key": API_KEY},
    "revoke_api_key": API_KEY | {"status": "revoked", "revoked_at": TIME},
    "list_projects": {"items": [PROJECT], "next_cursor": "next"},
    "create_project": PROJECT,
    "list_environments": {"items": [ENVIRONMENT], "next_cursor": "next"},
    "get_environment": ENVIRONMENT | {"current_deployment_id": DEPLOYMENT},
    "create_environment": ENVIRONMENT,
    "limit_environment": ENVIRONMENT,
    "list_audit": {"items": [{"id": HOLD, "at": TIME, "by": {"kind": "user", "id": HOLD}, "operation": "secrets.rotate", "target": HOLD}]},
    "list_installation_log": {"items": [{"id": HOLD, "at": TIME, "what": "signed_in", "address": "::1", "about": ""}]},
    "list_members": {"items": [MEMBER], "next_cursor": "next"},
    "get_member": MEMBER | {"last_seen_at": TIME},
    "add_member": {"member": MEMBER, "password_link": {"url": "https://helmr.example.com/auth/password-link?code=c", "expires_in": 86400}},
    "change_member": MEMBER | {"disabled_at": TIME},
    "remove_member": MEMBER,
    "list_workers": {"items": [WORKER], "next_cursor": "next"},
    "get_worker": WORKER
    | {"waits": {"unsaved": 1}, "held": [{"id": COMPUTER, "template": "repo", "residency": "running", "cpu": 1.0, "memory": 5}]},
    "create_worker_enrolment": {"id": HOLD, "expires_at": TIME, "token": "hlmr_we_new", "environments": ["shop/main"]},
    "list_worker_enrolments": {"items": [ENROLMENT], "next_cursor": "next"},
    "revoke_worker_enrolment": ENROLMENT | {"status": "ended"},
    "rotate_worker_credential": WORKER | {"rotating": True},
    "drain_worker": WORKER | {"state": "draining", "drain": {"reason": "asked", "since": TIME, "by": {"kind": "api_key", "id": HOLD}}},
    "undrain_worker": WORKER,
    "remove_worker": WORKER | {"state": "removed", "removed_at": TIME},
    "create_secret": SECRET,
    "list_secrets": {"items": [SECRET], "next_cursor": "next"},
    "get_secret": SECRET
    | {
        "versions": [{"version": 2, "created_at": TIME, "created_by": {"kind": "api_key", "id": HOLD}, "kept": True}],
        "templates": ["repo"],
        "computers": [{"computer_id": COMPUTER, "residency": "running", "version": 1}],
    },
    "rotate_secret": SECRET | {"version": 3},
    "revoke_secret": SECRET | {"revoked_at": TIME},
    "list_events": {"records": [], "next_after": 0, "has_more": False, "retained_after": 0, "sealed": False},
    "list_agents": PAGE | {"deployment_id": DEPLOYMENT},
    "get_agent": AGENT,
    "list_triggers": {"items": [TRIGGER], "next_cursor": "reviewer:nightly"},
    "get_trigger": TRIGGER,
    "missing_blobs": {"missing": [DIGEST]},
    "publish_deployment": DEPLOYED,
    "list_deployments": {"items": [DEPLOYED], "next_cursor": None},
    "get_current_deployment": DEPLOYED,
    "get_deployment": DEPLOYED,
    "promote_deployment": DEPLOYED,
    "diff_deployments": {"deployment_id": DEPLOYMENT, "since": DEPLOYMENT}
    | {part: {"added": ["x"], "removed": [], "changed": []} for part in ("agents", "policies", "triggers", "templates", "files")},
    "get_capabilities": {"version": "1", "api": "v1", "features": [], "limits": {}},
}
NOT_THE_CLIENTS = {
    "enrol_worker",
    "get_own_worker",
    "get_blob",
    "put_save_object",
    "get_save_object",
    "get_openapi",
    "get_health",
    "get_readiness",
    "get_metrics",
} | {route.name for route in declared_routes() if route.path.startswith("/auth/")}
"""Those of browsers, workers and operators; `helmr login` asks the ones of signing in."""


def route_of(request: Request) -> Route:
    for route in declared_routes():
        pattern = re.sub(r"\{\w+\}", "[^/]+", route.path)
        if route.method == request.method and re.fullmatch(pattern, request.path) and not (route.parameters and "/current" in request.path):
            return route
    raise AssertionError(f"{request.method} {request.path} is no route")


TREE = b"".join(packed(__file__, Copied()))


async def test_every_call_is_a_declared_operation_and_every_operation_has_a_call(tmp_path: Path) -> None:
    used: set[str] = set()

    def answer(request: Request) -> Reply:
        route = route_of(request)
        used.add(route.name)
        query_reader(route.query)(query_values(request.query.encode()))
        if route.takes == "json":
            body_reader(route.body)(request.json(), "body")
        assert ("idempotency-key" in request.headers) == route.write, route.name
        if route.gives == "pieces":
            return Reply(TREE if "form=tree" in request.query else b"file", headers={"Content-Type": "application/octet-stream"})
        return sse(END) if route.gives == "events" else Reply(ANSWERS[route.name], status=route.status)

    async with scripted(answer) as server, HelmrClient(server.url, "key") as client:
        started = await client.sessions.create(
            agent="reviewer", input=[text("go")], key="k", computer={"id": HOLD}, slack={"channel_id": "C1"}, labels={"a": "b"}
        )
        await client.sessions.list(agent="reviewer", key="k")
        await client.sessions.list(parent_session_id=SESSION, requester_session_id=SESSION, status=["open"], labels={"a": "b"}, limit=3)
        ref = client.sessions.ref(SESSION)
        for call in (
            ref.get,
            ref.explain,
            ref.interrupt,
            ref.close,
            ref.cancel,
            ref.delete_data,
            started.turn.get,
            started.turn.wait,
            started.turn.interrupt,
        ):
            await call()  # type: ignore[operator]
        await started.turn.wait(timeout="10s")
        await ref.resume(hold_id=HOLD)
        await ref.enqueue([text("more")])
        await started.turn.send([text("psst")])
        answer: Answer = {"type": "text", "text": "main"}
        assert [item.id for item in (await started.turn.asks.list(status="pending", cursor="c", limit=3)).items] == [QUESTION]
        assert (await started.turn.asks.get(QUESTION)).reason == "withdrawn"
        assert (await started.turn.asks.respond(QUESTION, answer, response_id="r1")).responded_by.kind == "user"
        await client.questions.list(status=["responded", "cancelled"], limit=100)
        assert (await client.questions.get(QUESTION)).status == "pending"
        await client.questions.respond(QUESTION, answer)
        await ref.turns.list(limit=5)
        await ref.events.list(after=4, limit=1000)
        assert [event async for event in ref.events.stream(after=4)] == []
        bound = [secret("TOKEN"), secret("TOKEN", file="/t", protected=True, allowed_origins=["https://api.example.com"])]
        assert (await client.computers.create("repo", key="k", secrets=bound)).id == COMPUTER
        assert (await client.api_keys.create("ci", ["sessions.read"], expires_in="90d")).token == "hlmr_sk_new"
        assert (await client.api_keys.list(cursor="c", limit=3)).items[0].ends == "abcd"
        assert (await client.api_keys.get(HOLD)).replaced_by == SESSION
        assert (await client.api_keys.rotate(HOLD, overlap="1h")).token is UNSET
        assert (await client.api_keys.revoke(HOLD)).status == "revoked"
        assert (await client.projects.list(cursor="c", limit=3)).items[0].environments == ("main",)
        assert (await client.projects.create("shop")).name == "shop"
        assert (await client.environments.list(project="shop", cursor="c", limit=3)).items[0].limits.admission_burst == 3
        assert (await client.environments.get(HOLD)).current_deployment_id == DEPLOYMENT
        assert (await client.environments.create("shop", "main")).path == "shop/main"
        everything = {"computer_retention": "7d", "trigger_computer_retention": "1d", "trigger_grace": "1h", "max_init_duration": "10m"}
        limited = await client.environments.limit(HOLD, admission_rate="0.5", admission_burst=3, payload_retention="never", **everything)
        assert limited.limits.payload_retention == "never"
        span = {"since": "2026-11-30T08:00:00Z", "until": "2026-12-01T08:00:00Z"}
        assert (await client.audit.list(by=HOLD, operation="s", target=HOLD, **span, cursor="c", limit=3)).items[0].by.name is UNSET
        assert (await client.audit.installation(by=HOLD, what="sign", **span, cursor="c", limit=3)).items[0].by is UNSET
        assert (await client.members.list(cursor="c", limit=3)).items[0].ways == ("password",)
        assert (await client.members.get(HOLD)).last_seen_at == TIME
        assert (await client.members.add("ada@example.com", name="Ada", role="developer")).password_link.expires_in == 86400
        assert (await client.members.change(HOLD, name="Ada", role="viewer", disabled=True)).disabled_at == TIME
        assert (await client.members.remove(HOLD)).email == "ada@example.com"
        assert (await client.workers.list(cursor="c", limit=3)).items[0].storage.free == 2
        assert (await client.workers.get("build-1")).held[0].residency == "running"
        made = await client.workers.create_enrolment(name="build-1", driver="gvisor", environments=["shop/main"], expires_in="10m")
        assert made.token == "hlmr_we_new"
        assert (await client.workers.list_enrolments(cursor="c", limit=3)).items[0].worker_id == HOLD
        assert (await client.workers.revoke_enrolment(HOLD)).status == "ended"
        assert (await client.workers.rotate("build-1")).rotating
        assert (await client.workers.drain("build-1")).drain.reason == "asked"
        assert (await client.workers.undrain("build-1")).environments == ("shop/main",)
        assert (await client.workers.remove("build-1", force=True)).state == "removed"
        assert (await client.secrets.create("TOKEN", "value")).rotated_at == TIME
        assert (await client.secrets.list(cursor="c", limit=3)).items[0].name == "TOKEN"
        assert (await client.secrets.get("TOKEN")).computers[0].version == 1
        assert (await client.secrets.rotate("TOKEN", "value")).version == 3
        assert (await client.secrets.revoke("TOKEN")).revoked_at == TIME
        listed = await client.computers.list(status=["available", "deleted"], template="repo", cursor="c", limit=3)
        assert (listed.items[0].delete_after, listed.next_cursor) == (TIME, "next")
        assert (await client.computers.get(COMPUTER)).error.code == "refused"
        await client.computers.members(COMPUTER, cursor="c", limit=3)
        assert (await client.computers.hibernate(COMPUTER)).residency == "hibernating"
        assert (await client.computers.wake(COMPUTER)).residency == "waking"
        assert (await client.computers.recover(COMPUTER)).residency == "starting"
        assert (await client.computers.save(COMPUTER)).save_id == HOLD
        assert (await client.computers.saves(COMPUTER, cursor="c", limit=3)).items[0].files == 3
        assert (await client.computers.delete(COMPUTER)).status == "deleting"
        ran = await client.computers.exec(COMPUTER, ["cat"], cwd="/", env={"A": "b"}, stdin=b"\xff", timeout="9s")
        assert ran.id == COMMAND and (await ran.wait()).exit_code == 0 and (await ran.wait(timeout="1s")).status == "exited"
        assert (await client.commands.get(COMMAND)).argv == ("cat",)
        assert (await client.commands.list(COMPUTER, cursor="c", limit=3)).items[0].id == COMMAND
        assert [(piece.stream, piece.lost, piece.data) async for piece in ran.output(after=1)] == [("stderr", 3, b"\xff")]
        assert (await ran.logs(after=1, limit=2)).next == 2
        assert (await ran.cancel()).status == "accepted"
        assert b"".join([piece async for piece in client.computers.read_file(COMPUTER, "x")]) == b"file"
        assert (await client.computers.write_file(COMPUTER, "/x", b"hi", mode=0o600)).bytes == 2
        assert (await client.computers.upload(COMPUTER, Path(__file__), "/x")).entries == 1
        assert (await client.computers.download(COMPUTER, "/x", tmp_path / "x")).entries == 1
        await client.agents.list(deployment_id=DEPLOYMENT, limit=100)
        await client.agents.get("reviewer", deployment_id=DEPLOYMENT)
        page = await client.triggers.list(cursor="reviewer:a", limit=1)
        assert page.items[0].last_firing.session_id == SESSION and page.next_cursor == "reviewer:nightly"
        assert (await client.triggers.get("reviewer", "nightly")).next_fires == (TIME,)
        assert await client.deployments.missing_blobs([DIGEST]) == [DIGEST]
        await client.deployments.create_deployment(Manifest(protocol=1, bundle=DIGEST, agents=(), templates=()), True)
        await client.deployments.list()
        await client.deployments.current()
        await client.deployments.get(DEPLOYMENT)
        await client.deployments.promote(DEPLOYMENT)
        assert (await client.deployments.diff(DEPLOYMENT, DEPLOYMENT)).agents.added == ("x",)
        assert [piece async for piece in client.deployments.log(DEPLOYMENT)] == []
        await client.capabilities()
    async with scripted([Reply(status=200)]) as server, HelmrClient(server.url, "key") as client:
        await client.deployments.put_blob(DIGEST, b"x")
        used.add(route_of(server.requests[0]).name)
    assert {route.name for route in declared_routes()} - used == NOT_THE_CLIENTS
