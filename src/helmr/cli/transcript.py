"""A Turn, or a whole Session, followed live: the agent's text on standard output, what happens around it on standard error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from helmr.cli.exits import DONE, NOT_COMPLETED, TIMED_OUT
from helmr.cli.prompting import people
from helmr.cli.terminal import Output, indented
from helmr.protocol.content import Content, as_text
from helmr.protocol.duration import duration_ms
from helmr.protocol.unset import UNSET

if TYPE_CHECKING:
    from helmr.client import SessionRef, TurnRef
    from helmr.protocol.shapes import Event, TurnState

ENDS = frozenset({"turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"})


async def follow_turn(
    session: SessionRef[Any, Any], turn: TurnRef[Any], output: Output, *, jsonl: bool = False, timeout: str | None = None
) -> int:
    """Show a Turn from its beginning until it ends: 0 if it completed, 5 if not, 124 when `timeout` is over first (it then goes on).

    With `--json` the one object is the Turn as it ended, or `{"status": "timeout"}`.
    """
    seconds = None if timeout is None else duration_ms(timeout) / 1000
    try:
        async with asyncio.timeout(seconds):
            await _show(session, output, turn_id=turn.id, jsonl=jsonl)
            outcome = await turn.wait()
    except TimeoutError:
        if output.as_json:
            output.object({"status": "timeout", "session_id": session.id, "turn_id": turn.id})
        output.note(f"Still going after {timeout}. The Turn goes on: helmr session watch {session.id}")
        return TIMED_OUT
    except asyncio.CancelledError:
        output.note(f"The Turn goes on: helmr session watch {session.id}")
        raise
    if output.as_json:
        output.object(outcome.turn)
    elif not jsonl:
        show_end(outcome.turn, output)
    return DONE if outcome.status == "completed" else NOT_COMPLETED


async def follow_session(session: SessionRef[Any, Any], output: Output, *, after: int, jsonl: bool) -> int:
    """Show a Session until it is closed and sealed."""
    await _show(session, output, turn_id=None, jsonl=jsonl, after=after)
    output.fresh_line()
    return DONE


def show_end(turn: TurnState, output: Output) -> None:
    """The response of a Turn, and how it ended."""
    if turn.response is not UNSET:
        output.fresh_line()
        output.content(turn.response)
    output.fresh_line()
    text = f"Turn {turn.sequence} {turn.status}"
    if turn.error is not UNSET:
        text += f": {turn.error.code}" + (f": {indented(turn.error.message)}" if turn.error.message is not UNSET else "")
    if turn.payload_expired_at is not UNSET:
        text += f" (its payload expired {turn.payload_expired_at})"
    output.note(text + ".")


def show_event(event: Event, output: Output) -> None:
    """One Event as it happens: output as text, anything else as a note; what the ids before and the end after say is left out."""
    if event.kind == "turn.output" and not isinstance(event.data, Mapping):
        output.content(event.data)
    elif event.kind not in ENDS and event.kind != "turn.queued":
        output.note(f"- {event.kind.replace('.', ' ').replace('_', ' ')}{_facts(event, skip_ids=True)}")


def describe(event: Event) -> str:
    """An Event in one line, for a list."""
    if isinstance(event.data, Mapping):
        return f"[{event.sequence}] {event.kind}{_facts(event, skip_ids=False)}"
    return f"[{event.sequence}] {event.kind} {_brief(event.data)}"


def _facts(event: Event, *, skip_ids: bool) -> str:
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    facts = [f"{name}: {_brief(value)}" for name, value in data.items() if value is not None and not (skip_ids and name.endswith("_id"))]
    return f" ({', '.join(facts)})" if facts else ""


def _brief(value: Any) -> str:
    """A value in at most 200 characters of one line; of Content, its text."""
    if isinstance(value, (list, tuple)) and all(_is_text(part) for part in cast("list[object]", value)):
        value = as_text(cast("Content", value))
    text = value if isinstance(value, str) and "\n" not in value else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else text[:199] + "…"


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and cast("dict[str, object]", part).get("type") == "text"


async def _show(session: SessionRef[Any, Any], output: Output, *, turn_id: str | None, jsonl: bool, after: int = 0) -> None:
    async with people(session, output) as asker, session.events.stream(after=after) as events:
        async for event in events:
            if turn_id is not None and event.turn_id != turn_id and not _concerns_all(event):
                continue
            if jsonl:
                output.object(event)
            elif event.kind.startswith("question."):
                asker.saw(event)
            elif not output.as_json:
                with asker.aside():
                    show_event(event, output)
            if event.turn_id == turn_id and event.kind in ENDS:
                return


def _concerns_all(event: Event) -> bool:
    """Whether someone who watches one Turn wants to know it: holds, losses, the end of the Session."""
    return event.turn_id is None and event.kind in ("session.held", "session.process_failed", "session.closed", "computer.restored")
