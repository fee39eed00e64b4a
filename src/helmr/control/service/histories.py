"""Which history of the database this is, and what hosts know of another one. DESIGN I5, I11.

A restored copy and a fail-over that lost commits have forgotten what hosts have done since. Whoever sees it begins a new *incarnation*:
fences and channels of the former one are void, and each host is asked what it has started before it gets anything to do. It is seen

- by where the database lives: another cluster, timeline or database than before;
- by a host that heard a mark, or started a Turn, that this database knows nothing of;
- by an operator who says so (`helmr serve --new-incarnation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import asyncpg
import structlog

from helmr.control.service import render
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.processes import Processes
from helmr.control.store.pool import Connection
from helmr.control.store.queries import histories, sessions
from helmr.protocol.ids import is_id, new_id

Started = tuple[str, str, int]
"""A Turn that a host has started, and where: Turn, Computer, channel."""

log = structlog.get_logger("helmr.histories")


class Histories:
    """`incarnation` is the present one once `look` has run. `on_changed` is called after another one began, here or elsewhere."""

    def __init__(self, core: Core, work: Processes) -> None:
        self._core = core
        self._processes = work
        self.incarnation = ""
        self.before: str | None = None
        """The one that this one continues."""
        self.on_changed: Callable[[], None] = lambda: None

    async def look(self) -> None:
        """Compare where the database lives with where it lived, and learn the present incarnation."""

        async def work(connection: Connection) -> None:
            place = await _place(connection)
            row = await histories.lock_installation(connection)
            if place is None or row["place"] == place:
                return
            if row["place"] is None:
                await histories.settle_in(connection, place=place)
            else:
                await _begin(connection, place, f"the database moved from {row['place']} to {place}")

        await self._core.database.run(work)
        await self.learn()

    async def learn(self) -> None:
        """Learn the present incarnation: another control plane may have begun one."""
        async with self._core.database.connection() as connection:
            row = await histories.present(connection)
        changed = self.incarnation not in ("", str(row["incarnation"]))
        self.incarnation = str(row["incarnation"])
        self.before = None if row["before"] is None else str(row["before"])
        if changed:
            log.warning("the database has another history than before", incarnation=self.incarnation, before=self.before)
            self.on_changed()

    async def begin(self, reason: str, *, instead_of: str | None = None) -> None:
        """Begin a new incarnation; nothing when `instead_of` isn't the present one any more, since somebody was quicker."""

        async def work(connection: Connection) -> None:
            row = await histories.lock_installation(connection)
            if instead_of in (None, str(row["incarnation"])):
                await _begin(connection, None, reason)

        await self._core.database.run(work)
        await self.learn()

    async def doubt(self, said: Mapping[str, Any]) -> str | None:
        """Why this database can't be the continuation of what a worker's hello tells; None when it can."""
        history: Mapping[str, Any] = said.get("history") or {}
        if self.incarnation in history.get("superseded", ()):
            return "a host has left this incarnation for a later one"
        if history.get("current") != self.incarnation:
            return None  # it comes from elsewhere, or from before: it is asked what it has started
        async with self._core.database.connection() as connection:
            mark = history.get("mark")
            if mark is not None and not (is_id(mark) and await histories.knows_mark(connection, mark=mark)):
                return "a host heard a mark that this database does not have"
            forgotten = await self._forgotten(connection, history.get("since", ()))
            held = [(name, fence[1]) for name, fence in _held(said) if fence[0] == self.incarnation]
            beyond = await histories.beyond(connection, ids=[name for name, _ in held], fences=[number for _, number in held])
        if beyond is not None:
            return f"a host has the Computer {beyond} by a fence that this database has not given"
        return forgotten

    async def served_since(self) -> datetime:
        """Since when the database's server runs. Another one, or other files, come with another server."""
        async with self._core.database.connection() as connection:
            return cast("datetime", await histories.served_since(connection))

    async def weigh(self, since: Sequence[Any]) -> None:
        """What a host of this incarnation has started since its mark: if the database has forgotten any of it, a new one begins."""
        incarnation = self.incarnation
        async with self._core.database.connection() as connection:
            forgotten = await self._forgotten(connection, since)
        if forgotten is not None:
            await self.begin(forgotten, instead_of=incarnation)

    async def repeated(self, turn: str, computer: str, channel: int, incarnation: str) -> None:
        """A host was to start a Turn that it had started elsewhere before: this database had forgotten, and has it as running now. How it
        ended nobody knows; that it was forgotten shows another history than the `incarnation` in which that host was welcomed."""
        async with self._core.database.connection() as connection:
            found = await histories.process_at(connection, computer_id=computer, channel=channel)
        if found is not None and str(found["running_turn"]) == turn:
            await self._processes.ended(str(found["id"]), channel, "history_lost")
        await self.begin(f"a host was to start Turn {turn} again", instead_of=incarnation)

    async def started(self, told: Sequence[Any]) -> None:
        """Turns that a host of an earlier history has started. Those that this database has as queued are settled as lost, with all before
        them (a Session's Turns run in order), and never started again; a process that is busy with one is ended."""
        started = _started(told)
        busy: dict[str, int] = {}
        async with self._core.database.connection() as connection:
            rows = await self._unknown(connection, started)
            for _, computer, channel in [started[int(row["ord"]) - 1] for row in rows]:
                found = await histories.process_at(connection, computer_id=computer, channel=channel)
                if found is not None:
                    busy[str(found["id"])] = channel
        for session_id, channel in busy.items():
            await self._processes.ended(session_id, channel, "history_lost")
        upto: dict[str, int] = {}
        for row in rows:
            if row["session_id"] is not None:
                upto[row["session_id"]] = max(row["sequence"], upto.get(row["session_id"], 0))
        for session_id, sequence in upto.items():
            await self._lose(session_id, sequence)

    async def untorn(self, alive: Sequence[Any], channels: Mapping[str, Any]) -> list[Any]:
        """The rows of `alive` whose processes this database can go on with. One that heard acknowledgements which the database does not
        remember giving is of a history that is lost, and ended: seen at each attach, whatever else is known."""
        kept: list[Any] = []
        for row in alive:
            told: Mapping[str, Any] = channels.get(str(row["channel"]), {})
            if int(told.get("acked") or 0) > row["last_op"]:
                await self._processes.ended(str(row["id"]), row["channel"], "history_lost")
            else:
                kept.append(row)
        return kept

    async def _forgotten(self, connection: Connection, since: Sequence[Any]) -> str | None:
        unknown = await self._unknown(connection, _started(since))
        return f"a host has started Turn {unknown[0]['turn']}, which this database does not know as started" if unknown else None

    async def _unknown(self, connection: Connection, started: list[Started]) -> list[Any]:
        found: list[Any] = await histories.never_started(connection, turns=[turn for turn, _, _ in started])
        return found

    async def _lose(self, session_id: str, upto: int) -> None:
        async def work(connection: Connection, effects: Effects) -> str | None:
            session = await sessions.lock_session(connection, id=session_id)
            if session["running_turn"] is not None and session["process"] != "none":
                return str(session["channel"])
            lost = await histories.lose_queued(connection, session_id=session_id, upto=upto, error=render.error("history_lost"))
            if lost:
                await histories.skip_to(connection, id=session_id, upto=lost[-1]["sequence"])
                data = render.data(reason="history_lost", code="history_lost")
                entries = [
                    (str(row["id"]), kind, told) for row in lost for kind, told in (("turn.running", b"{}"), ("turn.interrupted", data))
                ]
                await record(connection, effects, session_id, entries)
                effects.finishes.add(str(session["root_session_id"]))
                effects.places.add(session_id)
            return None

        channel = await self._core.write("history_lost", work)
        if channel is not None:  # the Turn before them ran in the copy, and can't run any more in truth
            await self._processes.ended(session_id, int(channel), "history_lost")
            await self._core.write("history_lost", work)

    def number(self, fence: Any, row: Any) -> int | None:
        """A host's fence as a number of the present incarnation; None for one that is void. `row` is the Computer's, if there is one.

        The fence of the incarnation before holds where that left the Computer, unless somebody else got it since [I11].
        """
        if isinstance(fence, int):
            return fence  # a host of the version before fences had incarnations
        incarnation, number = str(fence[0]), int(fence[1])
        if incarnation == self.incarnation:
            return number
        if row is None or row["inherited_fence"] is None or incarnation != self.before:
            return None
        inherited, present = int(row["inherited_fence"]), int(row["fence"])
        return present if number == inherited and present == inherited + 1 else None


async def _begin(connection: Connection, place: str | None, reason: str) -> None:
    incarnation = new_id()
    await histories.begin_incarnation(connection, id=incarnation, place=place, reason=reason)
    await histories.supersede_fences(connection)
    log.warning("a new incarnation of the database begins", incarnation=incarnation, reason=reason)


async def _place(connection: Connection) -> str | None:
    """None where the database's operator keeps it from us: then marks and journals alone show another history."""
    try:
        async with connection.transaction():
            return str(await histories.place(connection))
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError) as error:
        log.info("where the database lives can't be read", error=str(error))
        return None


def _held(said: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    return [
        (held["computer"], held["fence"])
        for held in said.get("computers", ())
        if is_id(held["computer"]) and isinstance(held["fence"], list)
    ]


def _started(told: Sequence[Any]) -> list[Started]:
    found: list[Started] = []
    for turn, computer, channel in told:
        if is_id(turn) and is_id(computer):
            found.append((turn, computer, int(channel)))
    return found
