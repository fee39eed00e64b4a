"""Computers that sleep while nobody works on them, and wake when somebody does. SPEC [C6], [C10].

running --begin--> hibernating --slept--> hibernated --(place)--> waking --woke--> running      (drawn in docs/reference/state-machines.md)

Sleep is decided under the locks of the Computer's Sessions, so no Turn can begin between the decision and the commit: from then on their
processes are `asleep`, which no claim takes. What is admitted meanwhile waits, and the report of the sleep wakes the Computer again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from helmr.control.domain.placement import Reservation, Room, plan_room
from helmr.control.service import render
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.manifests import Manifests, agent_of
from helmr.control.service.saves import Saves
from helmr.control.store.pool import Connection
from helmr.control.store.queries import commands, computers, saves, sessions
from helmr.protocol.errors import ComputerBusy, ComputerDeleting, ComputerNotFound
from helmr.protocol.ids import ComputerId, WorkerId

SLEEP_SECONDS: Final = 60.0
WAKE_SECONDS: Final = 60.0
CANDIDATES: Final = 500
BUSY_SECONDS: Final = 60.0
"""How long a Computer that could not sleep is left alone."""
BUSY_CHARS: Final = 500
REASON_LENGTH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class HowSlept:
    """How a Computer got to sleep, as its worker says it."""

    rung: str
    seconds: float = 0.0
    kept: tuple[str, ...] = ("memory", "files")
    reason: str | None = None
    """Why by no stronger rung."""
    image_bytes: int | None = None
    paged_out: int | None = None

    def told(self) -> dict[str, Any]:
        """For the timeline: what could not be kept is said there [C6]."""
        facts: dict[str, Any] = {"rung": self.rung, "seconds": round(self.seconds, 3), "kept": list(self.kept)}
        more = {"reason": self.reason, "image_bytes": self.image_bytes, "paged_out": self.paged_out}
        return facts | {name: value for name, value in more.items() if value is not None}


def how_slept(said: Mapping[str, Any]) -> HowSlept:
    """From a worker's message; what an older worker leaves out is what was true of it."""
    kept = said.get("kept")
    reason = said.get("reason")
    return HowSlept(
        rung=str(said.get("rung")),
        seconds=float(said.get("seconds", 0)),
        kept=tuple(str(word) for word in cast("list[Any]", kept)) if isinstance(kept, list) else ("memory", "files"),
        reason=str(reason)[:REASON_LENGTH] if reason is not None else None,
        image_bytes=_count(said.get("image_bytes")),
        paged_out=_count(said.get("paged_out")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class Sleeping:
    def __init__(self, core: Core, manifests: Manifests, taken: Saves) -> None:
        self._core = core
        self._manifests = manifests
        self._saves = taken

    async def begin(self, computer_id: str) -> bool:
        """Send a running Computer to sleep on which nobody works or is about to. False when somebody does, or it isn't running."""

        async def work(connection: Connection, effects: Effects) -> bool:
            locked = {row["id"] for row in await computers.members_to_lock(connection, computer_id=computer_id)}
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["residency"] != "running" or computer["status"] != "available":
                return False
            return await self._begin(connection, effects, computer_id, locked)

        return await self._core.write("begin_sleep", work)

    async def hibernate(self, connection: Connection, effects: Effects, computer_id: str) -> None:
        """Somebody wants it to sleep; nothing changes when it doesn't run [C6]. The caller's transaction has locked no Session yet.

        Raises `ComputerBusy`, `ComputerDeleting`, `ComputerNotFound`.
        """
        locked = {row["id"] for row in await computers.members_to_lock(connection, computer_id=computer_id)}
        computer = await computers.lock_computer(connection, id=computer_id)
        require_available(computer)
        if computer["residency"] in ("hibernating", "hibernated", "cold", "unavailable"):
            return
        busy = await computers.still_busy(connection, id=computer_id)
        if busy is not None:
            raise ComputerBusy(busy)
        if computer["residency"] != "running" or not await self._begin(connection, effects, computer_id, locked):
            raise ComputerBusy("A Session or a Command works on the Computer, or is about to.")

    async def _begin(self, connection: Connection, effects: Effects, computer_id: str, locked: set[Any]) -> bool:
        # Read again: whoever came on the Computer while we waited for it is here now, and not among the locked.
        members = await computers.members(connection, computer_id=computer_id)
        if not all(row["id"] in locked and may_sleep(row) for row in members) or await commands.in_use(connection, computer_id=computer_id):
            return False
        await computers.processes_asleep(connection, computer_id=computer_id)
        await computers.begin_sleep(connection, id=computer_id, seconds=SLEEP_SECONDS)
        effects.computers.add(computer_id)
        effects.guests.update(str(row["id"]) for row in members[:1])  # another control plane may have its worker
        return True

    async def slept(self, computer_id: str, fence: int, how: HowSlept) -> bool:
        """The worker says that it sleeps. False when it speaks of an older placement, or nobody asked for it. One that is to wake by now
        is told so already, and wakes after this."""

        async def work(connection: Connection, effects: Effects) -> bool:
            members = await computers.members_to_lock(connection, computer_id=computer_id)
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["residency"] not in ASLEEP:
                return False
            if computer["residency"] == "hibernating":
                await computers.slept(connection, id=computer_id, rung=how.rung)
                data = render.data(computer_id=computer_id, **how.told())
                await _tell(connection, effects, members, "computer.hibernated", data)
                if await saves.is_unsaved(connection, id=computer_id):
                    await saves.save_at_rest(connection, id=computer_id)
            if computer["residency"] != "waking":
                effects.places.update(str(row["id"]) for row in members if wants_awake(row))
            return True

        return await self._core.write("slept", work)

    async def wake(self, connection: Connection, effects: Effects, computer_id: str) -> None:
        """Within a transaction that holds the lock of the hibernated Computer: it is to run again."""
        await computers.begin_wake(connection, id=computer_id, seconds=WAKE_SECONDS)
        effects.computers.add(computer_id)

    async def woke(self, computer_id: str, fence: int, rung: str, seconds: float, *, error: Mapping[str, Any] | None = None) -> bool:
        """The worker says that its processes go on, after a sleep or, with an `error`, because it could not sleep. False for an older
        placement. One that could not sleep is left alone for a minute, so that it goes on in peace."""

        async def work(connection: Connection, effects: Effects) -> bool:
            members = await computers.members_to_lock(connection, computer_id=computer_id)
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["residency"] not in (*ASLEEP, "running"):
                return False
            if computer["residency"] != "running":
                if error is None:
                    slept = await computers.woken(connection, id=computer_id)
                else:
                    busy = str(error.get("message"))[:BUSY_CHARS] if error.get("code") == ComputerBusy.code else None
                    slept = await computers.stayed_awake(connection, id=computer_id, seconds=BUSY_SECONDS, busy=busy)
                if error is None or not await computers.worker_drains(connection, id=computer["worker_id"]):
                    await computers.processes_awake(connection, computer_id=computer_id)
                if slept is not None:
                    data = render.data(computer_id=computer_id, rung=rung, seconds=round(seconds, 3), slept_seconds=round(slept, 3))
                    await _tell(connection, effects, members, "computer.woken", data)
            return True

        return await self._core.write("woke", work)

    async def make_room(self) -> int:
        """Send to sleep what must give way to those that wait for room, longest idle first; how many those are [C10]."""
        async with self._core.database.connection() as connection:
            rooms = [room_of(row) for row in await computers.rooms(connection, soon=True)]
            idle = [_reservation(row) for row in await computers.idle_computers(connection, count=CANDIDATES)]
            waiting = [_reservation(row, row["base"], str(row["environment_id"])) for row in await computers.waiting_for_room(connection)]
        chosen = plan_room(rooms, idle, waiting)
        return sum([await self.begin(computer_id) for computer_id in chosen])

    async def sleep_idle(self) -> int:
        """Send to sleep the Computers all of whose Sessions have been idle for their Agents' `hibernate_after_idle`; how many [C6]."""
        begun = 0
        async with self._core.database.connection() as connection:
            rows = await computers.idle_computers(connection, count=CANDIDATES)
            now = await sessions.now(connection)
            due: list[tuple[str, int]] = []
            for row in rows:
                members = await computers.members(connection, computer_id=row["id"])
                if members and await self._all_due(connection, members, row["woken_at"], now):
                    due.append((str(row["id"]), row["save_failures"]))
        for computer_id, failures in due:
            # What isn't saved is saved first; one whose saves fail sleeps all the same [C5].
            if failures or await self._saves.begin(computer_id, "hibernate", unsaved=True) == "not_now":
                begun += await self.begin(computer_id)
        return begun

    async def turn_around(self, computer_id: str) -> None:
        """A Computer that does not get to sleep in time is to run again."""

        async def work(connection: Connection, effects: Effects) -> None:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is not None and computer["residency"] == "hibernating":
                await self.wake(connection, effects, computer_id)

        await self._core.write("turn_around", work)

    async def _all_due(self, connection: Connection, members: list[Any], woken_at: Any, now: Any) -> bool:
        for member in members:
            manifest = await self._manifests.load(connection, member["deployment_id"])
            period = agent_of(manifest, member["agent"]).hibernate_after_idle_ms
            since = [at for at in (member["idle_at"] or member["closed_at"], woken_at) if at is not None]
            if period is None or not since or (now - max(since)).total_seconds() * 1000 < period:
                return False
        return True


ASLEEP: Final = ("hibernating", "hibernated", "waking")
"""Where a Computer's processes stand still, or may."""


def require_available(computer: Any) -> None:
    """Raise `ComputerDeleting` or `ComputerNotFound` unless one can come on the Computer."""
    if computer["status"] == "deleting":
        raise ComputerDeleting()
    if computer["status"] == "deleted":
        raise ComputerNotFound("The Computer is deleted.")


def may_sleep(row: Any) -> bool:
    """Whether nothing of a Session runs, or could run now."""
    queued = row["claimed_turn"] + 1 < row["next_turn"]
    runnable = queued and not row["held"] and row["status"] != "closed"
    return row["running_turn"] is None and row["process"] in ("none", "ready") and not runnable


def wants_awake(row: Any) -> bool:
    """Whether a Session of a sleeping Computer has something to do there: a Turn that could run, or a process that is to end."""
    return row["process"] == "ending" or (row["status"] != "closed" and not row["held"] and row["claimed_turn"] + 1 < row["next_turn"])


def room_of(row: Any) -> Room:
    """Of a row of `rooms`."""
    return Room(
        worker=WorkerId(str(row["id"])),
        base=row["base"],
        cpu=row["cpu"],
        memory=row["memory"],
        cpu_used=row["cpu_used"],
        memory_used=row["memory_used"],
        environments=None if row["environments"] is None else frozenset(str(one) for one in row["environments"]),
        pressed=row["pressed"],
    )


def _reservation(row: Any, base: str | None = None, environment: str | None = None) -> Reservation:
    worker = None if row["worker_id"] is None else WorkerId(str(row["worker_id"]))
    computer = ComputerId(str(row["id"]))
    return Reservation(computer=computer, worker=worker, cpu=row["cpu"], memory=row["memory"], base=base, environment=environment)


async def _tell(connection: Connection, effects: Effects, members: Any, kind: str, data: bytes) -> None:
    for row in members:
        if row["status"] != "closed":
            await record(connection, effects, str(row["id"]), [(None, kind, data)])
