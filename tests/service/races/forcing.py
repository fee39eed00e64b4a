"""Forced orders: operations that wait for one Session's row lock, let in by us in the order in which they asked.

    async with referee(h) as r, r.queue(session) as q:
        first = await q.first(lambda: h.plane.turns.interrupt(...))
        second = await q.then(lambda: process.settle(turn))
    assert (first.code, second.code) == ("ok", "ok")

A connection of the test holds the lock. `first` returns once its operation waits for it, `then` once its own stands behind that; leaving
the block gives the lock away. PostgreSQL grants a row in the order in which it was asked for, so the order is certain, and each operation
began before the other ended. An operation of the batcher or of a guest may wait in memory, behind the one of its lane that waits in the
database: it stands in the queue too. Only what *follows* from the first (the claim after a resume, say) asks anew when it has committed,
and may come before or after the second.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.effort import SOAKING
from tests.service.scripted import House

from helmr.control.service import faults
from helmr.control.service.plane import ControlPlane
from helmr.protocol.errors import DatabaseUnavailable, HelmrError

PATIENCE = 300.0 if SOAKING else 5.0
"""Seconds until what does not come never comes. A thousand rounds leave much to tidy, beside whatever else a machine does meanwhile."""

Work = Callable[[], Any]
"""Starts an operation: gives an awaitable of its receipt, or does all by being called."""


class Entrant:
    """One operation in a queue, and what became of it once the queue is left."""

    def __init__(self, work: Work) -> None:
        self._task: asyncio.Future[Any] | None = None
        self.value: Any = None
        """What it gave; the error when it was refused."""
        self.code = "ok"
        """`ok`, or the code of its refusal."""
        begun = work()
        if inspect.isawaitable(begun):
            self._task = asyncio.ensure_future(begun)
        else:
            self.value = begun

    async def end(self) -> None:
        if self._task is None:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                self.value = await self._task
        except HelmrError as error:
            self.code, self.value = error.code, error


class Queue:
    """Who waits for the row of one Session."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._entrants: list[Entrant] = []

    async def first(self, work: Work) -> Entrant:
        """Start `work`; it waits for the lock when this returns."""
        assert not self._entrants, "somebody is first already"
        return await self._enter(work)

    async def then(self, work: Work) -> Entrant:
        """Start `work`; it stands behind the others when this returns."""
        assert self._entrants, "nobody is before it"
        return await self._enter(work)

    async def _enter(self, work: Work) -> Entrant:
        entrant = Entrant(work)
        self._entrants.append(entrant)
        await self._referee.standing(len(self._entrants))
        return entrant

    async def _end(self) -> None:
        for entrant in self._entrants:
            await entrant.end()


class Referee:
    """Holds row locks, and sees who waits for them."""

    def __init__(self, planes: tuple[ControlPlane, ...], holder: Any, watcher: Any) -> None:
        self._planes, self._holder, self._watcher = planes, holder, watcher

    @asynccontextmanager
    async def queue(self, session_id: str) -> AsyncIterator[Queue]:
        """Hold the Session's row; on leaving let in who waits, and wait until all of them have ended."""
        made = Queue(self)
        transaction = self._holder.transaction()
        await transaction.start()
        try:
            await self._holder.execute("SELECT FROM sessions WHERE id = $1 FOR UPDATE", session_id)
            yield made
        finally:
            await transaction.rollback()
        await made._end()

    async def standing(self, count: int) -> None:
        """Return once `count` operations wait, in the database or in a lane behind one that does."""
        async with asyncio.timeout(PATIENCE):
            while await self.waiting() < count:
                await asyncio.sleep(0)  # the database tells nobody that somebody waits

    async def waiting(self) -> int:
        """How many operations wait now."""
        rows = await self._watcher.fetch(_WAITING)
        blockers = {row["pid"]: row["blockers"] for row in rows}
        waiting = {self._holder.get_server_pid()}
        while more := {pid for pid, by in blockers.items() if pid not in waiting and waiting.intersection(by)}:
            waiting |= more
        waiting.remove(self._holder.get_server_pid())
        return len(waiting) + sum(_behind(plane, waiting) for plane in self._planes)


_WAITING = """SELECT pid, pg_blocking_pids(pid) AS blockers FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')"""
"""Who waits for a row, and for whom: others may wait for something else, a moment long."""


def _behind(plane: ControlPlane, waiting: set[int]) -> int:
    """What waits in this control plane's memory behind something that waits in the database."""
    count = 0
    connection = plane._flushes._connection
    blocked = connection is not None and not connection.is_closed() and connection.get_server_pid() in waiting
    if blocked:
        count += len(plane._batcher._waiting)
    for guest in plane.dispatcher.roster._guests.values():
        count += len(guest.queue) if guest.task is not None and waiting else 0
        count += guest.task is not None and not guest.idle.is_set() and blocked
    return count


@asynccontextmanager
async def referee(h: House, *others: ControlPlane) -> AsyncIterator[Referee]:
    """A referee for the control plane of `h` and others on its database."""
    holder, watcher = await h.database.dedicated(), await h.database.dedicated()
    try:
        yield Referee((h.plane, *others), holder, watcher)
    finally:
        await holder.close()
        await watcher.close()


@contextmanager
def away_at(point: str) -> Iterator[list[str]]:
    """At this fault point the database is away: each pass fails, and is counted in the list."""
    passes: list[str] = []

    def fail() -> None:
        passes.append(point)
        raise DatabaseUnavailable("It is away here.")

    faults.arm(point, fail)
    try:
        yield passes
    finally:
        faults.disarm(point)


async def until(condition: Callable[[], Any]) -> None:
    """Return once `condition()` is true: for states of memory that nobody signals."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.0005)


async def quiet(*planes: ControlPlane) -> None:
    """Return once everything that followed from what was done is done: no task, no item, no frame is under way."""
    still = 0
    async with asyncio.timeout(PATIENCE):
        while still < 8:  # a frame takes a few passes of the loop from its writer to who hears it
            busy = any(
                plane._batcher._waiting
                or plane._batcher._wake.is_set()
                or plane.dispatcher.background._tasks
                or len(plane.links.background._tasks) > len(plane.links._ends)
                or any(not end._queue._getters for end in plane.links._ends.values())
                or any(guest.task is not None or guest.hot for guest in plane.dispatcher.roster._guests.values())
                for plane in planes
            )
            still = 0 if busy else still + 1
            await asyncio.sleep(0.0005 if busy else 0)


def told_once(h: House) -> bool:
    """Whether no Turn was started by two processes (I5)."""
    started = [turn for process in h.host.processes.values() for turn in process.started]
    return len(started) == len(set(started))
