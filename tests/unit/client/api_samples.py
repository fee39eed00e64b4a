"""Answers as the API gives them."""

from __future__ import annotations

import json
from typing import Any

SESSION = "01900000-0000-7000-8000-000000000001"
TURN = "01900000-0000-7000-8000-000000000002"
DEPLOYMENT = "01900000-0000-7000-8000-000000000003"
HOLD = "01900000-0000-7000-8000-000000000004"
CONTROL = "01900000-0000-7000-8000-000000000005"
QUESTION = "01900000-0000-7000-8000-000000000006"
COMPUTER = "01900000-0000-7000-8000-000000000007"
TIME = "2026-11-30T12:00:00.000000Z"


def session(**changes: Any) -> dict[str, Any]:
    return {
        "id": SESSION,
        "deployment_id": DEPLOYMENT,
        "root_session_id": SESSION,
        "agent": "reviewer",
        "template": "repo",
        "computer_id": None,
        "parent_session_id": None,
        "requester_session_id": None,
        "status": "open",
        "close_after_idle": "7d",
        "idle_since": None,
        "initial_turn": {"id": TURN, "status": "running"},
        "holds": [],
        "labels": {},
        "created_at": TIME,
    } | changes


def turn(status: str = "running", **changes: Any) -> dict[str, Any]:
    return {
        "id": TURN,
        "session_id": SESSION,
        "sequence": 1,
        "status": status,
        "source": {"kind": "api_key"},
        "created_at": TIME,
    } | changes


def completed(result: Any = None, **changes: Any) -> dict[str, Any]:
    return turn("completed", result=result, **changes)


def question(status: str = "pending", **changes: Any) -> dict[str, Any]:
    asked = {"prompt": [{"type": "text", "text": "Which branch?"}], "answer": {"type": "text"}}
    return {"id": QUESTION, "session_id": SESSION, "turn_id": TURN, "status": status, "created_at": TIME, "question": asked} | changes


def responded(**changes: Any) -> dict[str, Any]:
    members = {"id": QUESTION, "session_id": SESSION, "turn_id": TURN, "status": "responded", "response_id": "r1"}
    return members | {"responded_by": {"kind": "user", "id": HOLD}, "responded_at": TIME} | changes


def computer(**changes: Any) -> dict[str, Any]:
    return {
        "id": COMPUTER,
        "deployment_id": DEPLOYMENT,
        "template": "repo",
        "status": "available",
        "residency": "hibernated",
        "explicit": False,
        "cpu": 1.5,
        "memory": 1 << 30,
        "open_sessions": 0,
        "created_at": TIME,
    } | changes


def created(with_turn: bool = True) -> dict[str, Any]:
    receipt = {"id": TURN, "session_id": SESSION, "sequence": 1}
    return {"session": {"id": SESSION, "deployment_id": DEPLOYMENT, "agent": "reviewer"}, "turn": receipt if with_turn else None}


def event(sequence: int, kind: str = "turn.output", data: Any = None, turn_id: str | None = TURN) -> dict[str, Any]:
    content = [{"type": "text", "text": f"{sequence} é\n"}] if data is None else data
    return {"session_id": SESSION, "turn_id": turn_id, "sequence": sequence, "created_at": TIME, "kind": kind, "data": content}


def sse_event(sequence: int, kind: str = "turn.output", data: Any = None) -> bytes:
    body = json.dumps(event(sequence, kind, data), ensure_ascii=False)
    return f"id: {sequence}\nevent: {kind}\ndata: {body}\n\n".encode()


END = b"event: end\ndata: {}\n\n"
