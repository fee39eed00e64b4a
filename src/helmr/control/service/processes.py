"""The life of a Session's process: where it runs, its start, its end. SPEC [S9], [S13], [S14], [C1], [C10].

none --place--> starting --init.done--> ready --exit--> none        (drawn in docs/reference/state-machines.md)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

from helmr.control.domain.processes import End, after_end
from helmr.control.domain.trees import decide_hold
from helmr.control.service import render, stops
from helmr.control.service.command_losses import lose_commands
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.manifests import Manifests, made_of, template_of
from helmr.control.service.restoring import SYSTEM, Restoring
from helmr.control.service.sleeping import ASLEEP, Sleeping
from helmr.control.service.starting import Starting
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, identity, processes, saves, secrets, sessions
from helmr.protocol import jsontext
from helmr.protocol.errors import SecretUnavailable
from helmr.protocol.ids import new_id
from helmr.protocol.wire import to_wire

Placed = Literal["nothing", "waiting", "full", "secret", "moving", "process"]
Lost = tuple[str, int, End]
"""A process that is gone with its Computer: its Session, its channel, and what its end is called."""
_ON_ITS_HOST: Final = ("starting", "running", "hibernating", "waking")
"""Where a Computer is something that its host's end loses."""
DRAINED: Final = "worker_draining"
"""The code of a failure that is nobody's: its worker is about to go [S14]."""
_LOST: Final = {"code": "worker_lost", "message": "The Computer's host does not answer."}


class Processes:
    def __init__(self, core: Core, manifests: Manifests, sleeping: Sleeping, restoring: Restoring, starting: Starting) -> None:
        self._core = core
        self._manifests = manifests
        self._sleeping = sleeping
        self._restoring = restoring
        self.set_going = starting.set_going

    async def place(self, session_id: str) -> tuple[Placed, str | None]:
        """Give a Session that has runnable work a Computer that is awake, and on it a process. Idempotent.

        Returns what it did and the Computer: nothing (no need), waiting (a back-off, or the Computer is on its way), full (no room),
        secret (one that it needs isn't there, or was revoked), moving (it is to be started or woken now), process (a channel was allocated:
        it is to be started now).
        """

        async def work(connection: Connection, effects: Effects) -> tuple[Placed, str | None]:
            session = await sessions.lock_session(connection, id=session_id)
            if session is None or session["running_turn"] is not None:
                return await self._unwanted(connection, session)
            if session["process"] == "ending":
                return await self._wake_to_end(connection, effects, session)
            queued = session["claimed_turn"] + 1 < session["next_turn"]
            if session["process"] not in ("none", "asleep") or session["status"] == "closed" or session["held"] or not queued:
                return await self._unwanted(connection, session)
            if session["retry_at"] is not None and session["retry_at"] > await sessions.now(connection):
                return "waiting", None
            computer = await self._computer(connection, effects, session)
            placed = await self._place_on(connection, effects, session, computer)
            if placed != "process" and not session["wanting"]:
                await processes.set_wanting(connection, id=session_id, wanting=True)
            return placed, str(computer["id"])

        return await self._core.write("place", work)

    async def _place_on(self, connection: Connection, effects: Effects, session: Any, computer: Any) -> Placed:
        if computer["worker_id"] is not None and await computers.worker_pressed(connection, id=computer["worker_id"]):
            return "waiting"  # it is held for that before long [C7]
        if computer["residency"] in ("cold", "unavailable", "hibernated"):
            moved = await self.set_going(connection, effects, computer)
            if moved == "moving":
                effects.guests.add(str(session["id"]))
            return moved
        if computer["residency"] != "running" or session["process"] != "none":
            return "waiting"
        if await computers.worker_drains(connection, id=computer["worker_id"]):
            return "waiting"
        if await secrets.revoked_on(connection, computer_id=computer["id"]) is not None:
            return "secret"  # it is stopped before long
        environment = await identity.environment_row(connection, id=session["environment_id"])
        channel = await computers.take_channel(connection, id=computer["id"])
        await processes.start_process(connection, id=session["id"], channel=channel, max_init_ms=environment["max_init_ms"])
        effects.guests.add(str(session["id"]))
        return "process"

    async def _wake_to_end(self, connection: Connection, effects: Effects, session: Any) -> tuple[Placed, str | None]:
        """A process that is to end can't while its Computer sleeps; it is woken for that whatever room there is."""
        computer = await computers.lock_computer(connection, id=session["computer_id"])
        if computer is None or computer["residency"] != "hibernated" or computer["status"] != "available":
            return "nothing", None
        await self._sleeping.wake(connection, effects, str(computer["id"]))
        return "moving", str(computer["id"])

    async def ended(
        self,
        session_id: str,
        channel: int,
        end: End,
        *,
        facts: dict[str, Any] | None = None,
        message: str | None = None,
    ) -> bool:
        """The process of that epoch and all that descended from it are gone [S14]. A repeated report changes nothing: False then, and when
        an `init_timeout` finds that `init` is over or has time."""

        async def work(connection: Connection, effects: Effects) -> bool:
            row = await sessions.session_row(connection, id=session_id)
            if row is None:
                return False
            rows = await stops.lock_tree(connection, row["root_session_id"])
            session = rows[row["id"]]
            if session["channel"] != channel or session["process"] == "none":
                return False
            if end == "init_timeout" and not (session["process"] == "starting" and await processes.init_over(connection, id=session_id)):
                return False
            told = session["process"] == "ending"
            starting = session["process"] == "starting"
            kind: End = "asked" if told and end in ("process_lost", "init_failed", "memory_lost") else end
            if starting and end == "process_lost":
                kind = "init_failed"
            after = after_end(kind, session["strikes"])
            entries: list[stops.Entry] = []
            name = "session.process_failed" if kind not in ("asked", "drained") else "session.process_stopped"
            data = render.data(attempt=session["attempt"], cause=kind, message=(message or "")[-4000:] or None, **(facts or {}))
            entries.append((None, name, data))
            if session["running_turn"] is not None:
                await stops.settle_lost(connection, effects, session, strikes=after.strikes, code=after.error_code, details=facts)
            await record(connection, effects, session_id, entries)
            await processes.process_gone(
                connection, id=session_id, strikes=after.strikes, retry_ms=after.retry_ms, recovery_reason=after.recovery_reason
            )
            if after.hold and session["status"] != "closed":
                await self._hold(connection, effects, session["root_session_id"], session["id"])
            effects.guests.add(session_id)
            effects.places.add(session_id)
            if session["status"] == "closing":
                effects.finishes.add(str(session["root_session_id"]))
            return True

        return await self._core.write("process_ended", work)

    async def stranded_ended(self, row: Any) -> None:
        """A row of `stranded`: whoever recorded its Computer's end died before it said so of the process. Its error tells why."""
        end: End = "memory_lost" if row["process"] == "asleep" else "process_lost"
        if row["residency"] == "unavailable":
            end = "worker_lost"
        elif row["cause"] == SecretUnavailable.code:
            end = "drained"
        await self.ended(str(row["id"]), row["channel"], end)

    async def force_stop(self, session_id: str, turn_id: str) -> tuple[str, int] | None:
        """The cleanup time of this Turn's stop mark is over, or its cleanup failed: settle it under its mark, hold the Session, end the
        process tree [S11], [S13]. Returns the Computer and the channel to kill; None when the Turn has settled by itself."""

        async def work(connection: Connection, effects: Effects) -> tuple[str, int] | None:
            row = await sessions.session_row(connection, id=session_id)
            if row is None:
                return None
            rows = await stops.lock_tree(connection, row["root_session_id"])
            session = rows[row["id"]]
            if str(session["running_turn"]) != turn_id or session["stop_cause"] is None:
                return None
            after = after_end("cleanup_failed", session["strikes"])
            await stops.settle_lost(connection, effects, session, strikes=session["strikes"], code=after.error_code)
            await processes.remember_reason(connection, id=session["id"], recovery_reason=after.recovery_reason)
            if session["status"] != "closed":
                await self._hold(connection, effects, session["root_session_id"], session["id"])
            if session["process"] == "none":
                return None
            await processes.process_ending(connection, id=session_id, seconds=0)
            if session["status"] == "closing":
                effects.finishes.add(str(session["root_session_id"]))
            return str(session["computer_id"]), session["channel"]

        return await self._core.write("force_stop", work)

    async def deadline(self, session_id: str) -> None:
        """`max_turn_duration` is over: a stop mark with its cause [S12]."""

        async def work(connection: Connection, effects: Effects) -> None:
            session = await sessions.lock_session(connection, id=session_id)
            due = await sessions.deadline_over(connection, id=session_id)
            if session is not None and session["running_turn"] is not None and session["stop_cause"] is None and due:
                await stops.mark(connection, effects, session, "deadline", render.error("deadline_exceeded"))

        await self._core.write("deadline", work)

    async def computer_running(self, computer_id: str, fence: int) -> bool:
        """The worker says that the Computer runs. False when it speaks of an older placement."""
        async with self._core.database.connection() as connection:
            known = await computers.computer_row(connection, id=computer_id)
        if known is not None and known["residency"] == "restoring":
            return await self._restoring.ran(computer_id, fence)

        async def work(connection: Connection, effects: Effects) -> bool:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["status"] == "deleted":
                return False
            if computer["residency"] != "running":
                await computers.set_residency(connection, id=computer_id, residency="running", error=None)
            return True

        return await self._core.write("computer_running", work)

    async def computer_lost(
        self, computer_id: str, fence: int, residency: str, error: dict[str, Any] | None, *, end: End | None = None
    ) -> None:
        """The Computer failed to start or stopped by itself: its processes are gone. Its files stay where they are."""

        async def work(connection: Connection, effects: Effects) -> list[Lost]:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence:
                return []
            if computer["residency"] == "restoring":
                await self._restoring.give_back(connection, computer, error or _LOST)
                return []
            kind: End = end or ("memory_lost" if computer["residency"] in ASLEEP else "process_lost")
            return await self.lose(connection, effects, computer, residency, error, kind)

        await self.all_ended(await self._core.write("computer_lost", work), error)

    async def lose(
        self, connection: Connection, effects: Effects, computer: Any, residency: str, error: dict[str, Any] | None, end: End
    ) -> list[Lost]:
        """Nothing runs any more on this locked Computer. Returns the processes that did, for `all_ended` after the commit."""
        computer_id = str(computer["id"])
        await computers.set_residency(connection, id=computer_id, residency=residency, error=jsontext.dumps(error) if error else None)
        await lose_commands(connection, effects, computer_id, error)
        if await saves.is_unsaved(connection, id=computer_id):
            await saves.save_at_rest(connection, id=computer_id)
        alive = await processes.alive_on(connection, computer_id=computer_id)
        return [(str(row["id"]), row["channel"], end) for row in alive]

    async def all_ended(self, lost: Collection[Lost], error: dict[str, Any] | None) -> None:
        for session_id, channel, end in lost:
            await self.ended(session_id, channel, end, message=(error or {}).get("message"))

    async def computer_overdue(self, computer_id: str, fence: int, error: dict[str, Any]) -> None:
        """It was starting or waking for too long: whatever its worker still says of that is stale [C1]."""

        async def work(connection: Connection, effects: Effects) -> str | None:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["residency"] not in ("starting", "waking", "restoring"):
                return None
            await computers.raise_fence(connection, id=computer_id)
            return str(computer["residency"])

        residency = await self._core.write("computer_overdue", work)
        if residency in ("starting", "restoring"):
            await self.computer_failed(computer_id, fence + 1, error)
        elif residency == "waking":
            await self.computer_lost(computer_id, fence + 1, "cold", error)

    async def computer_rests(self, computer_id: str, fence: int) -> bool:
        """Make a running Computer cold that has no open Session and no process. False when it has, or has moved on."""

        async def work(connection: Connection, effects: Effects) -> bool:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["residency"] != "running":
                return False
            if await computers.in_use(connection, computer_id=computer_id):
                return False
            await computers.set_residency(connection, id=computer_id, residency="cold", error=None)
            if await saves.is_unsaved(connection, id=computer_id):
                await saves.save_at_rest(connection, id=computer_id)
            return True

        return await self._core.write("computer_rests", work)

    async def computer_failed(self, computer_id: str, fence: int, error: dict[str, Any]) -> None:
        """The Computer could not be started: a failed start for each Session that waits for it, with its back-off and strikes [S14]."""

        async def work(connection: Connection, effects: Effects) -> list[Any]:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["fence"] != fence or computer["residency"] not in ("starting", "restoring"):
                return []
            if computer["residency"] == "restoring":
                await self._restoring.give_back(connection, computer, error)
            else:
                await computers.set_residency(connection, id=computer_id, residency="cold", error=jsontext.dumps(error))
                if error["code"] == DRAINED:
                    await computers.unplace(connection, id=computer_id)
            await lose_commands(connection, effects, computer_id, error, waiting=True)
            return await processes.wanting_on(connection, computer_id=computer_id)

        for row in await self._core.write("computer_failed", work):
            await self._start_failed(str(row["id"]), error)

    async def _start_failed(self, session_id: str, error: dict[str, Any]) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            row = await sessions.session_row(connection, id=session_id)
            rows = await stops.lock_tree(connection, row["root_session_id"])
            session = rows[row["id"]]
            if session["process"] != "none" or session["status"] == "closed":
                return
            after = after_end("drained" if error["code"] == DRAINED else "init_failed", session["strikes"])
            data = render.data(attempt=session["attempt"] + 1, cause=error["code"], message=(error.get("message") or "")[-4000:] or None)
            await record(connection, effects, session_id, [(None, "session.process_failed", data)])
            await processes.start_failed(connection, id=session_id, strikes=after.strikes, retry_ms=after.retry_ms)
            if after.hold:
                await self._hold(connection, effects, session["root_session_id"], session["id"])
                effects.finishes.add(str(session["root_session_id"]))

        await self._core.write("start_failed", work)

    async def worker_lost(self, worker_id: str, wanted: Collection[str] = ()) -> None:
        """A worker was silent for its lease and the grace, or there is none of that id any more: what ran there is lost; its Computers wait
        for their host, or are restored elsewhere when somebody wants them [I8]. What rests there stays as it is, but for the `wanted`."""

        async def work(connection: Connection, effects: Effects) -> list[tuple[str, int]]:
            worker = await computers.lock_worker(connection, id=worker_id)
            if worker is not None and worker["alive"]:
                return []
            lost: list[tuple[str, int]] = []
            for row in await computers.computers_of(connection, worker_id=worker_id):
                computer = await computers.lock_computer(connection, id=row["id"])
                if str(computer["worker_id"]) != worker_id:
                    continue
                if computer["residency"] == "restoring":
                    await self._restoring.give_back(connection, computer, _LOST)
                    continue
                if computer["residency"] not in (*(("hibernated", "cold") if str(computer["id"]) in wanted else ()), *_ON_ITS_HOST):
                    continue
                await computers.raise_fence(connection, id=computer["id"])
                await computers.set_residency(connection, id=computer["id"], residency="unavailable", error=jsontext.dumps(_LOST))
                await lose_commands(connection, effects, str(computer["id"]), _LOST)
                alive = await processes.alive_on(connection, computer_id=computer["id"])
                lost += [(str(row["id"]), row["channel"]) for row in alive]
            return lost

        for session_id, channel in await self._core.write("worker_lost", work):
            await self.ended(session_id, channel, "worker_lost")

    async def _computer(self, connection: Connection, effects: Effects, session: Any) -> Any:
        """The Session's Computer, made from its pinned Template on the first input [C1]."""
        if session["computer_id"] is not None:
            return await computers.lock_computer(connection, id=session["computer_id"])
        template = template_of(await self._manifests.load(connection, session["deployment_id"]), session["template"])
        computer_id = new_id()
        await computers.insert_computer(
            connection,
            id=computer_id,
            environment_id=session["environment_id"],
            deployment_id=session["deployment_id"],
            template_id=template.id,
            template=jsontext.dumps(to_wire(template)),
            made_of=made_of(template),
            cpu=template.cpu,
            memory=template.memory,
        )
        await computers.assign_computer(connection, session_id=session["id"], computer_id=computer_id)
        await record(connection, effects, str(session["id"]), [(None, "computer.assigned", render.data(computer_id=computer_id))])
        return await computers.lock_computer(connection, id=computer_id)

    async def _unwanted(self, connection: Connection, session: Any) -> tuple[Placed, str | None]:
        if session is not None and session["wanting"]:
            await processes.set_wanting(connection, id=session["id"], wanting=False)
        return "nothing", None

    async def _hold(self, connection: Connection, effects: Effects, root: Any, session_id: Any) -> None:
        rows = await stops.lock_tree(connection, root)
        change = decide_hold([stops.node_of(row) for row in rows.values()], session_id)
        await stops.place_hold(connection, effects, session_id, "process_failed", change.holds, SYSTEM)
        for blocked in change.cancel_queued:
            await stops.cancel_queued(connection, effects, blocked)
