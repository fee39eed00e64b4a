"""What the scenarios look at from outside: timelines, outcomes, marks on disks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from helmr.client import HelmrClient
from helmr.testing.installation import Installation, Mark

TERMINAL = {"turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"}
SETTLE_SECONDS = 30.0


def words(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


async def probe(client: HelmrClient, text: str, **options: Any) -> tuple[Any, Any]:
    """A new Session of the probe with its first Turn."""
    made = await client.sessions.create(agent="probe", input=words(text), **options)
    return made.session, made.turn


async def outcome(turn: Any, seconds: float = SETTLE_SECONDS) -> Any:
    async with asyncio.timeout(seconds):
        return await turn.wait()


async def heard(session: Any, kind: str, *, turn: str | None = None, after: int = 0, seconds: float = SETTLE_SECONDS) -> Any:
    """The first event of a kind, as the stream brings it."""
    async with asyncio.timeout(seconds):
        stream = session.events.stream(after=after)
        try:
            async for event in stream:
                if event.kind == kind and (turn is None or event.turn_id == turn):
                    return event
        finally:
            await stream.aclose()
    raise AssertionError(f"the timeline ended without {kind}")


async def timeline(session: Any) -> list[Any]:
    """All events of a Session; their sequences have no gap and every Turn has one terminal event at most, its last [E1], [S11]."""
    found: list[Any] = []
    after = 0
    while True:
        page = await session.events.list(after=after, limit=1000)
        found += page.records
        after = page.next_after
        if not page.has_more:
            break
    assert [event.sequence for event in found] == list(range(1, len(found) + 1))
    ended: set[str] = set()
    for event in found:
        if event.turn_id is not None and event.kind.startswith("turn."):
            assert event.turn_id not in ended, f"{event.kind} after the end of its Turn"
        if event.kind in TERMINAL:
            ended.add(event.turn_id)
    return found


async def settled_once(session: Any) -> dict[str, str]:
    """Status of each Turn, in admission order; each is terminal and told by exactly one event, in the order of admission [S8], [S11]."""
    events = await timeline(session)
    ends = {event.turn_id: event.kind.removeprefix("turn.") for event in events if event.kind in TERMINAL}
    admitted = [event.turn_id for event in events if event.kind == "turn.queued"]
    running = [event.turn_id for event in events if event.kind == "turn.running"]
    turns = await _turns(session)
    assert {turn.id: turn.status for turn in turns} == ends
    assert [turn.id for turn in turns] == admitted
    assert running == [turn for turn in admitted if turn in set(running)]
    assert max(Counter(running).values(), default=1) == 1
    return {turn: ends[turn] for turn in admitted}


async def _turns(session: Any) -> list[Any]:
    """All Turns of a Session, over the pages of their listing."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page = await session.turns.list(limit=100, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def handled_once(installation: Installation, statuses: dict[str, str]) -> None:
    """By the Agents' own marks: no handler started twice, each completed one started and ended, and they didn't overlap (I5), [S8]."""
    marks = [mark for mark in installation.marks() if mark.name in statuses]
    starts = Counter(mark.name for mark in marks if mark.kind == "start")
    ends = Counter(mark.name for mark in marks if mark.kind == "end")
    assert max(starts.values(), default=1) == 1, starts
    completed = [turn for turn, status in statuses.items() if status == "completed"]
    assert all(starts[turn] == 1 and ends[turn] == 1 for turn in completed)
    order = [mark.name for mark in sorted(marks, key=lambda mark: mark.at) if mark.kind == "start"]
    assert order == [turn for turn in statuses if turn in starts]


async def marked(installation: Installation, wanted: Callable[[list[Mark]], bool], seconds: float = 15.0) -> list[Mark]:
    """The marks, once they are as wanted. Files of a Computer give the host no event, so they are read again."""
    async with asyncio.timeout(seconds):
        while True:
            found = installation.marks()
            if wanted(found):
                return found
            await asyncio.sleep(0.02)


def count(marks: list[Mark], kind: str, name: str) -> int:
    return sum(mark.kind == kind and mark.name == name for mark in marks)


async def more_starts(installation: Installation, known: int, wanted: int) -> None:
    """Wait until so many handlers more than `known` have started, by their marks."""
    await marked(installation, lambda marks: sum(mark.kind == "start" for mark in marks) >= known + wanted, SETTLE_SECONDS)


def starts(installation: Installation) -> int:
    return sum(mark.kind == "start" for mark in installation.marks())


async def session_pids(installation: Installation, session: Any) -> set[int]:
    """Host pids of the Session processes of its Computer."""
    tree = await installation.computer((await session.get()).computer_id)
    return {process.pid for process in tree.named("helmr-session") if process.is_alive()}


async def pid_of(installation: Installation, session: Any, *, besides: set[int] = frozenset()) -> int:  # pyright: ignore[reportArgumentType]
    """Host pid of the one Session process of its Computer, waited for; `besides` those of others."""
    async with asyncio.timeout(10):
        while True:
            if (await session.get()).computer_id is not None:
                found = await session_pids(installation, session) - besides
                if found:
                    (pid,) = found
                    return pid
            await asyncio.sleep(0.02)
