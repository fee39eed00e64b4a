"""Rows to JSON, with stored payloads spliced in as they are: no payload is decoded to be sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from helmr.control.service.reply import StoredEvent
from helmr.protocol import jsontext


def time_text(at: datetime) -> str:
    """RFC 3339 UTC with microseconds. The database's times are UTC."""
    # Twice as fast as `isoformat` of an aware time.
    return "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ" % (  # noqa: UP031
        at.year,
        at.month,
        at.day,
        at.hour,
        at.minute,
        at.second,
        at.microsecond,
    )


def event(session_id: str, turn_id: str | None, sequence: int, at: datetime, kind: str, data: bytes) -> StoredEvent:
    """An event's JSON [E1]."""
    turn = f'"{turn_id}"' if turn_id is not None else "null"
    head = f'{{"session_id":"{session_id}","turn_id":{turn},"sequence":{sequence},"created_at":"{time_text(at)}","kind":"{kind}","data":'
    return StoredEvent(sequence, kind, b"".join((head.encode(), data, b"}")))


def turn_state(row: Any) -> bytes:
    """A TurnState's JSON: absent members are left out, a null result stays [S10]."""
    parts = [
        f'{{"id":"{row["id"]}","session_id":"{row["session_id"]}","sequence":{row["sequence"]},"status":"{row["status"]}",'
        f'"created_at":"{time_text(row["created_at"])}","source":'.encode(),
        row["source"],
    ]
    for name in ("input", "result", "response", "error"):
        if row[name] is not None:
            parts += (f',"{name}":'.encode(), row[name])
    for name in ("started_at", "terminal_at", "payload_expired_at"):
        if row[name] is not None:
            parts.append(f',"{name}":"{time_text(row[name])}"'.encode())
    parts.append(b"}")
    return b"".join(parts)


def question_state(row: Any) -> bytes:
    """A QuestionState's JSON [Q5]. What was asked and answered is left out once it has expired [S22]."""
    parts = [
        f'{{"id":"{row["id"]}","session_id":"{row["session_id"]}","turn_id":"{row["turn_id"]}","status":"{row["status"]}",'
        f'"created_at":"{time_text(row["created_at"])}"'.encode()
    ]
    for name in ("question", "answer", "responded_by"):
        if row[name] is not None:
            parts += (f',"{name}":'.encode(), row[name])
    if row["reason"] is not None:
        parts += (b',"reason":', jsontext.dumps(row["reason"]))
    for name in ("settled_at", "payload_expired_at"):
        if row[name] is not None:
            parts.append(f',"{name}":"{time_text(row[name])}"'.encode())
    parts.append(b"}")
    return b"".join(parts)


def error(code: str, message: str | None = None, details: dict[str, Any] | None = None) -> bytes:
    """An error's stored JSON [S14]."""
    found: dict[str, Any] = {"code": code}
    if message:
        found["message"] = message[:4000]
    if details:
        found["details"] = details
    return jsontext.dumps(found)


def data(**members: Any) -> bytes:
    """An event's data; members that are None are left out."""
    return jsontext.dumps({name: member for name, member in members.items() if member is not None})
