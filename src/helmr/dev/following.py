"""Live output of Sessions in the terminal of `helmr dev`, each line behind the name of its Session. [D4]"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import structlog

from helmr.cli.wording import asked_lines, how_to_answer
from helmr.dev.screen import Screen
from helmr.protocol import jsontext
from helmr.protocol.errors import HelmrError

MOST: Final = 50
"""Sessions followed at once; more than that nobody reads."""

_ENDS: Final = frozenset({"turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"})

log = structlog.get_logger("helmr.dev")


class Record(Protocol):
    @property
    def sequence(self) -> int: ...
    @property
    def body(self) -> bytes: ...


Follow = Callable[[str, int], AsyncIterator[Sequence[Record]]]
"""A Session's events after a sequence, until it is sealed."""

Describe = Callable[[str], Awaitable[tuple[str, int]]]
"""A Session's Agent, and the sequence after which its events are worth showing."""


class LiveOutput:
    """A Service. `saw` tells it that something happened in a Session; it follows that one from then on."""

    def __init__(self, follow: Follow, describe: Describe, screen: Screen) -> None:
        self._follow = follow
        self._describe = describe
        self._screen = screen
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def saw(self, session_id: str) -> None:
        """Follow the Session unless it is followed already. Never blocks."""
        if session_id in self._tasks or len(self._tasks) >= MOST:
            return
        task = asyncio.create_task(self._show(session_id), name=f"output of {session_id}")
        self._tasks[session_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(session_id, None))

    async def stop(self) -> None:
        """Show no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _show(self, session_id: str) -> None:
        try:
            agent, after = await self._describe(session_id)
            lines = Lines(agent, session_id, self._screen)
            async for records in self._follow(session_id, after):
                for record in records:
                    lines.add(cast("Mapping[str, Any]", jsontext.loads(record.body)))
        except HelmrError as error:
            log.warning("output of a Session is not shown", session=session_id, error=str(error))


class Lines:
    """Whole lines out of the pieces that an Agent writes."""

    def __init__(self, agent: str, session_id: str, screen: Screen) -> None:
        self._agent = agent
        self._session_id = session_id
        self._screen = screen
        self._rest = ""

    def add(self, event: Mapping[str, Any]) -> None:
        kind, data = str(event["kind"]), event["data"]
        if kind == "turn.output":
            for part in data:
                self._part(part)
        elif kind == "question.asked":
            self._flush()
            for line in (*asked_lines(data["question"], numbered=False), how_to_answer(data["question_id"], data["question"])):
                self._line(f"[{kind}] {line}")
        elif kind in _ENDS or kind in ("session.held", "session.closed", "session.process_failed", "question.cancelled"):
            self._flush()
            self._line(f"[{kind}]{_facts(data)}")

    def _part(self, part: Mapping[str, Any]) -> None:
        if part.get("type") != "text":
            self._flush()
            self._line(json.dumps(part.get("value"), ensure_ascii=False))
            return
        *whole, self._rest = (self._rest + str(part["text"])).split("\n")
        for line in whole:
            self._line(line)

    def _flush(self) -> None:
        if self._rest:
            self._line(self._rest)
            self._rest = ""

    def _line(self, text: str) -> None:
        self._screen.session(self._agent, self._session_id, text)


def _facts(data: object) -> str:
    if not isinstance(data, Mapping):
        return ""
    members = cast("Mapping[str, Any]", data)
    told = {name: str(members[name]).strip().splitlines()[-1] for name in ("reason", "cause", "code", "message") if members.get(name)}
    return "".join(f" {name}={text}" for name, text in told.items())
