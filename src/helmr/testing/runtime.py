"""A runtime for tests: the real control plane, the real guest, and Agents that run in the test's own process.

```
 test --HelmrClient, HTTP on loopback--> control plane (helmr.server.Server; a thread) --> PostgreSQL: a clone of a template database
                                              ^                                                      (its time moves: clock.py)
                                              | /v1/workers/link, WebSocket
                                         host (a thread: host.py; keeps what isn't stored, as a supervisor does)
                                              ^
                                              | socketpair, frames
                                         Session processes (guest.session; a thread and an event loop each: process.py)
                                              |
 person (person.py) <-- question stored       +--> handlers of the Agents given
     |
     +--answers, HTTP--> control plane
```

What is real: admission, idempotency, ordering, timelines, holds, controls, questions, schemas, limits, strikes, cancellation, recovery.
What is not: there is no isolation, no image and no egress rule; one interpreter for all; a process that is killed leaves its thread behind
until the test ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from helmr import sync
from helmr.client.client import HelmrClient
from helmr.client.retry import RetryPolicy
from helmr.protocol.duration import Duration
from helmr.protocol.shapes import Event
from helmr.testing.clock import Clock
from helmr.testing.database import DatabaseServer
from helmr.testing.deployment import Source
from helmr.testing.engine import Engine
from helmr.testing.faults import Faults
from helmr.testing.person import Person
from helmr.testing.plane import API_KEY

PATIENT = RetryPolicy(attempts=1000, first=0.01, longest=0.1)
"""A runtime's client outlasts the restarts of its control plane."""

PATIENCE_SECONDS: Final = 10.0
"""How long `event` waits: what doesn't come by then never comes."""

Loss = Literal["process_lost", "out_of_memory"]


class RuntimeProblem(AssertionError):
    """What a runtime says at its end of a test that would have passed."""


class _Runtime:
    """The half that both forms share."""

    def __init__(self, databases: DatabaseServer, sources: Sequence[Source]) -> None:
        self._engine = Engine(databases)
        self._sources = sources

    @property
    def person(self) -> Person:
        """Who answers questions."""
        return self._engine.person

    @property
    def faults(self) -> Faults:
        return self._engine.faults

    @property
    def url(self) -> str:
        """Where the control plane listens; with `api_key`, the way in for programs under test."""
        return self._engine.url

    @property
    def api_key(self) -> str:
        return API_KEY

    def workspace(self, session: Any) -> Path:
        """The working directory of a Session, given by its ref or id. Raises `LookupError` before its first process."""
        return self._engine.workspace(id_of(session))

    def _finish(self, error: BaseException | None) -> None:
        timelines = self._engine.timelines() if error is not None else []
        problems = self._engine.stop()
        if error is not None:
            for note in problems + timelines:
                error.add_note(f"helmr.testing: {note}")
        elif problems:
            raise RuntimeProblem("\n".join(problems))


class Runtime(_Runtime):
    """For `async` tests: `async with`."""

    client: HelmrClient
    clock: AsyncClock

    async def __aenter__(self) -> Self:
        self._engine.start(self._sources)
        self.client = HelmrClient(self.url, API_KEY, retry=PATIENT)
        self.clock = AsyncClock(self._engine.clock)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.client.close()
        finally:
            self._finish(error)

    async def event(self, session: Any, kind: str, count: int = 1, *, seconds: float = PATIENCE_SECONDS) -> Event:
        """The `count`-th event of that kind in a Session's timeline, waited for. Raises `TimeoutError` telling what came instead."""
        __tracebackhide__ = True
        return await found_event(self.client, id_of(session), kind, count, seconds)

    async def deploy(self, *sources: Source) -> str:
        """Make another Deployment current, and give its id; Sessions that are open keep theirs."""
        return await asyncio.to_thread(self._engine.deploy, sources)

    async def restart(self) -> None:
        """End the control plane in an orderly way and start the next. Sessions go on."""
        await asyncio.to_thread(self._engine.restart)

    async def kill(self) -> None:
        """Kill the control plane and start the next. Sessions go on."""
        await asyncio.to_thread(self._engine.kill)

    async def lose(self, session: Any, cause: Loss = "process_lost") -> None:
        """End a Session's process as a crash does [S14]. Raises `LookupError` when it has none."""
        await asyncio.to_thread(self._engine.lose, id_of(session), **facts_of(cause))


class SyncRuntime(_Runtime):
    """For plain tests: `with`. The same, blocking."""

    client: sync.HelmrClient

    def __enter__(self) -> Self:
        self._engine.start(self._sources)
        self.client = sync.HelmrClient(self.url, API_KEY, retry=PATIENT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.client.close()
        finally:
            self._finish(error)

    @property
    def clock(self) -> Clock:
        """Time, to be moved."""
        return self._engine.clock

    def event(self, session: Any, kind: str, count: int = 1, *, seconds: float = PATIENCE_SECONDS) -> Event:
        """The `count`-th event of that kind in a Session's timeline, waited for. Raises `TimeoutError` telling what came instead."""
        __tracebackhide__ = True
        return asyncio.run(self._event(id_of(session), kind, count, seconds))

    async def _event(self, session_id: str, kind: str, count: int, seconds: float) -> Event:
        async with HelmrClient(self.url, API_KEY, retry=PATIENT) as client:
            return await found_event(client, session_id, kind, count, seconds)

    def deploy(self, *sources: Source) -> str:
        """Make another Deployment current, and give its id; Sessions that are open keep theirs."""
        return self._engine.deploy(sources)

    def restart(self) -> None:
        """End the control plane in an orderly way and start the next. Sessions go on."""
        self._engine.restart()

    def kill(self) -> None:
        """Kill the control plane and start the next. Sessions go on."""
        self._engine.kill()

    def lose(self, session: Any, cause: Loss = "process_lost") -> None:
        """End a Session's process as a crash does [S14]. Raises `LookupError` when it has none."""
        self._engine.lose(id_of(session), **facts_of(cause))


class AsyncClock:
    """`Clock` for `async` tests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def ahead(self) -> float:
        """By how many seconds the runtime's time is ahead of the machine's."""
        return self._clock.ahead

    async def advance(self, by: Duration) -> None:
        """Move time forward: `"8d"`, `"30s"`, or a timedelta. Returns once everything that is due has been looked at."""
        await asyncio.to_thread(self._clock.advance, by)


RuntimeFactory = Callable[..., Runtime]
SyncRuntimeFactory = Callable[..., SyncRuntime]


async def found_event(client: HelmrClient, session_id: str, kind: str, count: int, seconds: float) -> Event:
    """What `event` gives. Raises `LookupError` when the timeline ends without it."""
    __tracebackhide__ = True
    seen: list[str] = []
    missed = f"The Session {session_id} has no {kind} number {count}; its timeline is "
    try:
        async with asyncio.timeout(seconds), client.sessions.ref(session_id).events.stream() as stream:
            async for event in stream:
                seen.append(event.kind)
                if seen.count(kind) == count:
                    return event
    except TimeoutError:
        raise TimeoutError(missed + " ".join(seen)) from None
    raise LookupError(missed + " ".join(seen))


def id_of(session: Any) -> str:
    """The id of a Session: of its ref, its receipt, or itself."""
    if isinstance(session, str):
        return session
    found = getattr(session, "session", session)
    return str(found.id)


def facts_of(cause: Loss) -> dict[str, Any]:
    """What a host reports of such a loss."""
    if cause == "out_of_memory":
        return {"cause": "out_of_memory", "limit": 1 << 30, "peak": 1 << 30}
    return {}
