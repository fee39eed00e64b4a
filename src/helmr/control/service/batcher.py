"""The batcher: takes all that waits, flushes it in one commit, tells each item what became of it, repeats. DESIGN 7.

No timer: a lone item is flushed at once, and under load batches grow by themselves. Items of one Session keep their order. One item's
refusal never fails another; when a whole batch fails, its items are run again singly. While the database is away, what came from
guests waits and is stored later (it carries operation numbers, so it is stored once); what came from clients is refused with
`database_unavailable`, since its caller can retry with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

import asyncpg
import structlog

from helmr.control.service.faults import fault_points
from helmr.control.store.flush import Admit, Append, Batch, Claim, Flushed, Flushes, Settle
from helmr.protocol.errors import DatabaseUnavailable, HelmrError, InternalError

Item: TypeAlias = Append | Settle | Admit | Claim
Done: TypeAlias = Callable[[Flushed], None]

_BUSY_TRIES: Final = 3
_MOST: Final = 512
_AWAY_SECONDS: Final = 0.25
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

log = structlog.get_logger("helmr.batcher")


class _Entry:
    __slots__ = ("busy", "done", "failed", "item")

    def __init__(self, item: Item, done: Done, failed: Callable[[HelmrError], None] | None) -> None:
        self.item = item
        self.done = done
        self.failed = failed
        """Called instead of `done` for what came from a client; None for what must be stored in any case."""
        self.busy = 0


class Batcher:
    """A Service: `start`, `stop`. `add` never blocks."""

    def __init__(self, flushes: Flushes, *, origin: Callable[[], str | None]) -> None:
        self._flushes = flushes
        self._origin = origin
        self._waiting: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.flushes = 0
        self.items = 0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="batcher")

    async def stop(self) -> None:
        """Flush what waits, as long as the database answers, then end."""
        self._stopping = True
        self._wake.set()
        task, self._task = self._task, None
        if task is not None:
            try:
                async with asyncio.timeout(5):
                    await task
            except TimeoutError:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        for entry in self._waiting:
            if entry.failed is not None:
                entry.failed(DatabaseUnavailable("The control plane is stopping."))
        self._waiting.clear()

    def add(self, item: Item, done: Done, failed: Callable[[HelmrError], None] | None = None) -> None:
        """Queue an item. `done` is called in the event loop after the commit that stored or refused it."""
        self._waiting.append(_Entry(item, done, failed))
        self._wake.set()

    async def submit(self, item: Item) -> Flushed:
        """Queue an item and wait for its outcome. Raises `DatabaseUnavailable` when that is unknown."""
        loop = self._task.get_loop() if self._task is not None else asyncio.get_running_loop()
        future: asyncio.Future[Flushed] = loop.create_future()

        def done(flushed: Flushed) -> None:
            if not future.done():
                future.set_result(flushed)

        def failed(error: HelmrError) -> None:
            if not future.done():
                future.set_exception(error)

        self.add(item, done, failed)
        return await future

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._stopping:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            entries = self._take()
            await self._flush(entries)

    def _take(self) -> list[_Entry]:
        """What goes into the next flush: everything, but a second claim of a Session or a second use of a key waits for the next, and so
        does what a Session's process says after it settled, since a flush appends before it settles."""
        taken: list[_Entry] = []
        later: list[_Entry] = []
        keys: set[tuple[str, str, str]] = set()
        claims: set[str] = set()
        settled: set[str] = set()
        while self._waiting and len(taken) < _MOST:
            entry = self._waiting.popleft()
            item = entry.item
            if type(item) is Append:
                pass
            elif isinstance(item, Admit) and item.key is not None:
                identity = (item.session_id, item.principal_id, item.key)
                if identity in keys:
                    later.append(entry)
                    continue
                keys.add(identity)
            elif isinstance(item, Claim):
                if item.session_id in claims:
                    later.append(entry)
                    continue
                claims.add(item.session_id)
            elif not isinstance(item, Admit):
                if item.session_id in settled:
                    later.append(entry)
                    continue
                if isinstance(item, Settle):
                    settled.add(item.session_id)
            taken.append(entry)
        self._waiting.extendleft(reversed(later))
        return taken

    async def _flush(self, entries: list[_Entry]) -> None:
        # A Session that was busy three times is waited for, alone with all its items, so that their order holds.
        if any(entry.busy >= _BUSY_TRIES for entry in entries):
            stuck = {entry.item.session_id for entry in entries if entry.busy >= _BUSY_TRIES}
            others = [entry for entry in entries if entry.item.session_id not in stuck]
            await self._flush_some([entry for entry in entries if entry.item.session_id in stuck], wait=True)
            if others:
                await self._flush_some(others, wait=False)
        else:
            await self._flush_some(entries, wait=False)

    async def _flush_some(self, entries: list[_Entry], *, wait: bool) -> None:
        try:
            outcomes = await self._write(entries, wait)
        except DatabaseUnavailable as error:
            await self._away(entries, error)
            return
        except (asyncpg.PostgresError, asyncpg.DataError, ValueError, TypeError) as error:
            if len(entries) == 1:
                self._broken(entries[0], error)
                return
            log.warning("a batch failed; its items are run singly", items=len(entries), error=repr(error))
            for entry in entries:
                await self._flush_some([entry], wait=True)
            return
        except Exception as error:
            # A driver that lost its connection in an odd moment, say: what was stored is unknown, and the batcher must go on.
            log.exception("a flush failed in an unknown way")
            await self._away(entries, DatabaseUnavailable(f"The outcome of a commit is unknown: {error!r}."))
            return
        self._tell(entries, outcomes)

    async def _write(self, entries: list[_Entry], wait: bool) -> list[Flushed]:
        batch = Batch()
        for entry in entries:
            item = entry.item
            if isinstance(item, Append):
                batch.appends.append(item)
            elif isinstance(item, Settle):
                batch.settles.append(item)
            elif isinstance(item, Admit):
                batch.admits.append(item)
            else:
                batch.claims.append(item)
        self.flushes += 1
        self.items += len(entries)
        fault_points("before_commit", "flush", batch.kinds())
        found = await self._flushes.flush(batch, wait=wait, origin=self._origin())
        fault_points("after_commit", "flush", batch.kinds())
        kinds = {Append: iter(found["append"]), Settle: iter(found["settle"]), Admit: iter(found["admit"]), Claim: iter(found["claim"])}
        return [next(kinds[type(entry.item)]) for entry in entries]

    def _tell(self, entries: list[_Entry], outcomes: list[Flushed]) -> None:
        again: list[_Entry] = []
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome.outcome == "busy":
                entry.busy += 1
                again.append(entry)
            else:
                self._done(entry, outcome)
        self._waiting.extendleft(reversed(again))

    async def _away(self, entries: list[_Entry], error: DatabaseUnavailable) -> None:
        kept = [entry for entry in entries if entry.failed is None]
        for entry in entries:
            if entry.failed is not None:
                entry.failed(error)
        self._waiting.extendleft(reversed(kept))
        for entry in [waiting for waiting in self._waiting if waiting.failed is not None]:
            self._waiting.remove(entry)
            assert entry.failed is not None
            entry.failed(error)
        if kept and not self._stopping:
            await asyncio.sleep(_AWAY_SECONDS)
        elif kept:
            self._waiting.clear()

    def _broken(self, entry: _Entry, error: Exception) -> None:
        """One item alone is refused by the database: a bug, or a value that the checks before it should have refused."""
        log.error("an item could not be stored", item=type(entry.item).__name__, session=entry.item.session_id, error=repr(error))
        if entry.failed is not None:
            entry.failed(InternalError())
        else:
            self._done(entry, Flushed("stale", 0, _EPOCH, None, None, None, 0, "broken"))

    def _done(self, entry: _Entry, outcome: Flushed) -> None:
        """Tell one item. A fault in what it does then must not stop the others."""
        try:
            entry.done(outcome)
        except Exception:
            log.exception("what follows a flush failed", session=entry.item.session_id)
