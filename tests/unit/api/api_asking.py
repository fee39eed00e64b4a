"""Requests that the routes accept, and what a refusal must look like."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.unit.api.api_fakes import (
    API_KEY,
    BLOB,
    COMMAND,
    COMPUTER,
    DEPLOYMENT,
    DIGEST,
    ENVIRONMENT,
    HOLD,
    MEMBER,
    QUESTION,
    SESSION,
    TURN,
    WORKER,
    WORKER_KEY,
)
from tests.unit.api.signin_fakes import CLI_TOKEN, COOKIE

from helmr.control.api.route import Route
from helmr.control.api.table import declared_routes

ROUTES = {route.name: route for route in declared_routes()}
VALUES = {
    "session_id": SESSION,
    "turn_id": TURN,
    "question_id": QUESTION,
    "computer_id": COMPUTER,
    "command_id": COMMAND,
    "deployment_id": DEPLOYMENT,
    "agent": "echo",
    "secret": "TOKEN",
    "api_key_id": API_KEY,
    "member_id": MEMBER,
    "environment_id": ENVIRONMENT,
    "worker": "build-1",
    "enrolment_id": HOLD,
    "trigger": "nightly",
    "code": "code",
    "digest": DIGEST,
    "worker_id": WORKER,
    "object": DIGEST,
}


@dataclass(frozen=True)
class Sample:
    """A request that a route accepts."""

    json: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    query: dict[str, str] = field(default_factory=dict)


SAMPLES: dict[str, Sample] = {
    "create_session": Sample(json={"agent": "echo", "input": [{"type": "text", "text": "hi"}]}),
    "create_computer": Sample(json={"template": "tiny", "key": "k", "secrets": [{"name": "A", "env": "B"}]}),
    "create_api_key": Sample(json={"name": "ci", "permissions": ["sessions.read"], "expires_in": "90d"}),
    "rotate_api_key": Sample(json={"overlap": "1h"}),
    "revoke_api_key": Sample(json={}),
    "set_up": Sample(json={"token": "t", "email": "a@example.com", "name": "A", "password": "right"}),
    "sign_in": Sample(json={"email": "a@example.com", "password": "right"}),
    "sign_out": Sample(json={}),
    "sign_out_everywhere": Sample(json={}),
    "change_password": Sample(json={"old": "right", "new": "another"}),
    "make_password_link": Sample(json={"email": "a@example.com"}),
    "set_password": Sample(json={"code": "code", "password": "right"}),
    "make_browser_link": Sample(json={}),
    "ask_for_device": Sample(json={"client": "laptop"}),
    "take_device_token": Sample(json={"device_code": "device"}),
    "finish_provider_sign_in": Sample(headers={"Cookie": "__Host-helmr_flow=secret.L2F1dGgvYWNjb3VudA"}),
    "sign_in_form": Sample(content=b"email=a&password=right", headers=COOKIE),
    "set_up_form": Sample(content=b"token=t&email=a&name=n&password=right", headers=COOKIE),
    "password_form": Sample(content=b"code=code&password=right", headers=COOKIE),
    "device_form": Sample(content=b"code=BCDF-GHJK&decision=allow", headers=COOKIE),
    "sign_out_form": Sample(content=b"", headers=COOKIE),
    "create_worker_enrolment": Sample(json={"name": "build-1", "driver": "bubblewrap", "environments": ["a/b"], "expires_in": "1h"}),
    "enrol_worker": Sample(json={"token": "hlmr_we_x", "credential_hash": DIGEST, "name": "build-1", "driver": "bubblewrap"}),
    "create_project": Sample(json={"name": "a"}),
    "create_environment": Sample(json={"project": "a", "name": "b"}),
    "limit_environment": Sample(json={"admission_rate": "0.5", "admission_burst": 3, "payload_retention": "30d"}),
    "add_member": Sample(json={"email": "a@example.com", "name": "A", "role": "viewer"}),
    "change_member": Sample(json={"role": "viewer", "disabled": True}),
    "remove_member": Sample(json={}),
    "remove_worker": Sample(json={"force": True}),
    "create_secret": Sample(json={"name": "TOKEN", "value": "x"}),
    "rotate_secret": Sample(json={"value": "x"}),
    "revoke_secret": Sample(json={}),
    "enqueue_turn": Sample(json={"input": {"n": 1}}),
    "send_message": Sample(json={"content": [{"type": "text", "text": "hi"}]}),
    "read_files": Sample(query={"path": "/workspace/x"}),
    "write_files": Sample(query={"path": "/workspace/x"}, content=b"hi"),
    "run_command": Sample(json={"argv": ["true"]}),
    "respond_question": Sample(json={"answer": {"type": "text", "text": "main"}, "response_id": "r1"}),
    "resume_session": Sample(json={"hold_id": HOLD}),
    "missing_blobs": Sample(json={"digests": [DIGEST]}),
    "put_blob": Sample(content=BLOB),
    "put_save_object": Sample(content=BLOB),
    "get_blob": Sample(query={"environment": ENVIRONMENT}),
    "publish_deployment": Sample(json={"manifest": {"agents": []}}),
    "diff_deployments": Sample(query={"since": DEPLOYMENT}),
}


def path_of(route: Route, **values: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: {**VALUES, **values}[match[1]], route.path)


async def ask(client: httpx.AsyncClient, route: Route, path: str | None = None, **options: Any) -> httpx.Response:
    sample = SAMPLES.get(route.name, Sample())
    token = {"worker": WORKER_KEY, "person": CLI_TOKEN}.get(route.access)
    headers = {**sample.headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    headers.update(options.pop("headers", {}))
    query = {**sample.query, **options.pop("query", {})}
    return await client.request(
        options.pop("method", route.method),
        path or path_of(route),
        json=sample.json,
        content=sample.content,
        params=query,
        headers=headers,
        **options,
    )


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document, checked for all that SPEC 11 promises."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert found["code"] == code
    assert found["status"] == status
    assert found["request_id"] == response.headers["x-request-id"]
    assert isinstance(found["detail"], str) and found["detail"]
    assert isinstance(found["hint"], str)
    assert isinstance(found["retryable"], bool)
    assert found["title"]
    return found


async def raw(api: Any, path: bytes, query: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> httpx.Response:
    """A GET below any client, which would mend what is broken here."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": headers or [(b"authorization", b"Bearer hlmr_sk_test")],
    }
    await api(scope, receive, send)
    return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=b"".join(message["body"] for message in sent[1:]))
