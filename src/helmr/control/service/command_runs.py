"""Commands on their way: to a Computer that is awake, into a scope there, what is heard of them, their end. SPEC [C8], [C6], I5, I6.

A Command is `starting`, with a channel of its Computer, before anything of it leaves; a channel is started once by its supervisor and never
used again. So whatever is said twice, it runs at most once; one whose Computer is gone has failed, and is not tried again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from helmr.control.service import render
from helmr.control.service.background import Background, Coalesced, until_stored
from helmr.control.service.command_losses import lose_commands
from helmr.control.service.command_output import Frame, Said, next_batch
from helmr.control.service.core import Core, Effects
from helmr.control.service.exposures import why_not
from helmr.control.service.guests import CommandRun, Seat
from helmr.control.service.processes import Processes
from helmr.control.service.roster import Roster
from helmr.control.store.pool import Connection
from helmr.control.store.queries import commands, computers, secrets
from helmr.protocol import frames, jsontext
from helmr.protocol.errors import ComputerDeleting, HelmrError
from helmr.protocol.limits import CLEANUP_SECONDS, COMMAND_LOG_BYTES, MIB
from helmr.protocol.link import control
from helmr.protocol.states import COMMAND_ENDED

QUEUE_BYTES: Final = 32 * MIB
"""A supervisor keeps 4 MiB unacknowledged; one that has said so much more is none of ours (I4)."""

log = structlog.get_logger("helmr.commands")


_decoder: Final = msgspec.json.Decoder(Said)


class CommandRuns:
    def __init__(self, core: Core, roster: Roster, work: Processes, background: Background, *, on_full: Callable[[], None]) -> None:
        self._core = core
        self._roster = roster
        self._processes = work
        self._background = background
        self._on_full = on_full
        self._placing = Coalesced(background, "place_command")
        self._syncing = Coalesced(background, "sync_commands")

    # --- to the Computer ----------------------------------------------------------------------------------------------------

    def place(self, command_id: str) -> None:
        """Bring a queued Command to its Computer, which is started or woken for it."""
        self._placing.ask(command_id, self._place)

    def sync(self, computer_id: str) -> None:
        """Tell the Computer's worker, if it is linked here, which Commands to start and to stop."""
        self._syncing.ask(computer_id, self._sync)

    async def _place(self, command_id: str) -> None:
        placed = await self._core.write("place_command", lambda connection, effects: self._begin(connection, effects, command_id))
        if placed == "full":
            self._on_full()

    async def _begin(self, connection: Connection, effects: Effects, command_id: str) -> str:
        row = await commands.command_row(connection, id=command_id)
        if row is None or row["status"] != "queued":
            return "nothing"
        computer = await computers.lock_computer(connection, id=row["computer_id"])
        row = await commands.lock_command(connection, id=command_id)
        if row["status"] != "queued":
            return "nothing"
        if computer["status"] != "available":
            return await self._refuse(
                connection, effects, command_id, ComputerDeleting("The Computer was deleted before the Command began.")
            )
        if computer["residency"] != "running":
            moved = await self._processes.set_going(connection, effects, computer)
            if moved == "secret":
                return await self._refuse(connection, effects, command_id, await why_not(connection, computer["id"]))
            if moved == "moving":
                effects.commands.add(command_id)
            return moved
        if await secrets.revoked_on(connection, computer_id=computer["id"]) is not None:
            return await self._refuse(connection, effects, command_id, await why_not(connection, computer["id"]))
        if await computers.worker_drains(connection, id=computer["worker_id"]):
            return "waiting"
        await commands.start_command(connection, id=command_id, channel=await computers.take_channel(connection, id=computer["id"]))
        effects.commands.add(command_id)
        effects.command_computers.add(str(computer["id"]))
        return "command"

    @staticmethod
    async def _refuse(connection: Connection, effects: Effects, command_id: str, why: HelmrError) -> str:
        """It does not begin: somebody waits for it now, so it waits for nobody."""
        error = render.error(why.code, why.detail)
        await commands.end_command(connection, id=command_id, status="system_failed", exit_code=None, exit_signal=None, error=error)
        effects.commands.add(command_id)
        return "nothing"

    async def _sync(self, computer_id: str) -> None:
        seat = self._roster.seat_of(computer_id)
        if seat is None or not seat.attached:
            return
        async with self._core.database.connection() as connection:
            rows = await commands.alive_on(connection, computer_id=computer_id)
        if self._roster.seat_of(computer_id) is not seat or not seat.attached:
            return
        runs = seat.commands
        for row in rows:
            run = runs.get(row["channel"])
            if run is None:
                run = runs[row["channel"]] = _run_of(row)
                run.there = row["status"] == "running"
                if not run.there:
                    seat.link.send(_start(seat, row))
            if row["stop_cause"] is not None and run.there and not run.told_stop:
                run.told_stop = True
                left = max(0.0, CLEANUP_SECONDS - row["stopping_for"])
                seat.write(frames.encode(run.channel, run.stored, jsontext.dumps({"t": "command.stop", "seconds": left})))

    async def look(self, seat: Seat) -> None:
        """Compare what was told with the database, and tell again what differs (I6)."""
        async with self._core.database.connection() as connection:
            rows = await commands.alive_briefly(connection, computer_id=seat.computer_id)
        runs = seat.commands
        for row in rows:
            run = runs.get(row["channel"])
            if run is None or (row["stop_cause"] is not None and not run.told_stop):
                self.sync(seat.computer_id)
                return

    # --- what is heard ------------------------------------------------------------------------------------------------------

    async def attached(self, seat: Seat, known: set[int]) -> set[int]:
        """The Computer's stream is there, with these channels: which of them are Commands'. Those that it lost have failed."""
        async with self._core.database.connection() as connection:
            rows = await commands.alive_on(connection, computer_id=seat.computer_id)
        runs = seat.commands = {}
        for row in rows:
            if row["channel"] in known:
                run = runs[row["channel"]] = _run_of(row)
                run.there = True
                if row["status"] == "starting":
                    self.started(seat, run.channel)
            elif row["status"] == "running":
                self._background.start(until_stored(lambda row=row: self._lost(row)), "command_lost")
        return {row["channel"] for row in rows}

    def started(self, seat: Seat, channel: int) -> None:
        """The supervisor has started this channel, if it is a Command's."""
        run = seat.commands.get(channel)
        if run is not None:
            run.there = True
            self._background.start(until_stored(lambda: self._started(seat.computer_id, channel)), "command_started")

    def hear(self, seat: Seat, frame: frames.Frame) -> None:
        """A frame of a channel that is no Session's. One that breaks the protocol ends its Command (I4)."""
        run = seat.commands.get(frame.channel)
        if run is None or not frame.payload or frame.op == 0:
            return
        if frame.op <= run.received:
            seat.write(frames.encode(run.channel, run.stored))
            return
        run.received = frame.op
        try:
            said = _decoder.decode(frame.payload)
            data = base64.b64decode(said.data, validate=True)
            if frame.op >= 1 << 53 or said.t not in ("command.output", "command.timed_out") or run.queued_bytes > QUEUE_BYTES:
                raise ValueError(f"a frame {said.t[:40]!r} can't be")
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            log.warning("a Command's scope broke the protocol", computer=seat.computer_id, error=str(error))
            del seat.commands[run.channel]
            self._roster.kill(seat.computer_id, run.channel, "protocol_violated")
            return
        run.queue.append((frame.op, said, data))
        run.more.set()
        run.queued_bytes += len(frame.payload)
        self._drain(seat, run)

    def exited(self, seat: Seat, run: CommandRun, said: Mapping[str, Any], forget: Callable[[], None]) -> None:
        """The scope of a Command has ended: that is recorded after all that it said, then `forget` is called."""

        async def last() -> None:
            await until_stored(lambda: self._end(run.command_id, run.channel, said))
            seat.commands.pop(run.channel, None)
            forget()

        run.last = last
        run.more.set()
        self._drain(seat, run)

    async def exited_unheard(self, computer_id: str, channel: int, said: Mapping[str, Any]) -> None:
        """A scope has ended of which nothing is known here; record it if it is a Command's."""
        async with self._core.database.connection() as connection:
            command_id = await commands.of_channel(connection, computer_id=computer_id, channel=channel)
        if command_id is not None:
            await self._end(str(command_id), channel, said)

    def _drain(self, seat: Seat, run: CommandRun) -> None:
        if not run.draining:
            run.draining = True
            self._background.start(self._store_all(seat, run), "command_output")

    async def _store_all(self, seat: Seat, run: CommandRun) -> None:
        try:
            while run.queue:
                batch = await next_batch(run, seat.handed.redactor)
                await until_stored(lambda batch=batch: self._store(run, batch))
                run.stored = batch[-1][0]
                run.queued_bytes = sum(len(said.data) for _, said, _ in run.queue)
                if seat.commands.get(run.channel) is run:
                    seat.write(frames.encode(run.channel, run.stored))
            if run.last is not None:
                last, run.last = run.last, None
                await last()
        finally:
            run.draining = False

    async def _store(self, run: CommandRun, batch: list[Frame]) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            row = await commands.lock_command(connection, id=run.command_id)
            if row is None or row["channel"] != run.channel or row["status"] in COMMAND_ENDED:
                return
            sizes = {"stdout": row["stdout_bytes"], "stderr": row["stderr_bytes"]}
            kept = row["kept_bytes"]
            chunks: list[tuple[int, str, int, int, bytes]] = []
            for op, said, data in batch:
                if op <= row["last_op"]:
                    continue
                if said.t == "command.timed_out":
                    await commands.mark_stop(connection, id=run.command_id, cause="timed_out")
                    continue
                at = sizes[said.stream] + said.lost
                chunks.append((op, said.stream, at, said.lost, data))
                sizes[said.stream] = at + len(data)
                kept += len(data)
            await commands.append_logs(
                connection,
                id=run.command_id,
                last_op=max(row["last_op"], batch[-1][0]),
                stdout_bytes=sizes["stdout"],
                stderr_bytes=sizes["stderr"],
                kept_bytes=kept,
                sequences=[chunk[0] for chunk in chunks],
                streams=[chunk[1] for chunk in chunks],
                ats=[chunk[2] for chunk in chunks],
                losts=[chunk[3] for chunk in chunks],
                datas=[chunk[4] for chunk in chunks],
            )
            if kept > COMMAND_LOG_BYTES + COMMAND_LOG_BYTES // 8:
                await commands.trim_logs(connection, id=run.command_id, keep=COMMAND_LOG_BYTES)
            effects.commands.add(run.command_id)

        await self._core.write("command_output", work)

    # --- states -------------------------------------------------------------------------------------------------------------

    async def _started(self, computer_id: str, channel: int) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            found = await commands.command_running(connection, computer_id=computer_id, channel=channel)
            if found is not None:
                effects.commands.add(str(found))
            effects.command_computers.add(computer_id)  # it may have been stopped before it was there

        await self._core.write("command_running", work)

    async def _lost(self, row: Any) -> None:
        await self._end(str(row["id"]), row["channel"], {})

    async def _end(self, command_id: str, channel: int, said: Mapping[str, Any]) -> None:
        """The scope and all in it is gone. A repeated report changes nothing."""

        async def work(connection: Connection, effects: Effects) -> None:
            row = await commands.lock_command(connection, id=command_id)
            if row is None or row["channel"] != channel or row["status"] in COMMAND_ENDED:
                return
            status, error = outcome(row["stop_cause"], said)
            code, signal = (said.get(name) if isinstance(said.get(name), int) else None for name in ("code", "signal"))
            await commands.end_command(connection, id=command_id, status=status, exit_code=code, exit_signal=signal, error=error)
            effects.commands.add(command_id)

        await self._core.write("command_ended", work)

    async def time_over(self, command_id: str) -> None:
        """Its time is over by the database's clock: a stop mark, if its supervisor has not made one."""

        async def work(connection: Connection, effects: Effects) -> None:
            row = await commands.lock_command(connection, id=command_id)
            if row is not None and row["status"] not in COMMAND_ENDED:
                await commands.mark_stop(connection, id=command_id, cause="timed_out")
                effects.commands.add(command_id)
                effects.command_computers.add(str(row["computer_id"]))

        await self._core.write("command_time_over", work)

    async def computer_gone(self, computer_id: str) -> None:
        """What runs on a Computer that doesn't run has failed, if nobody said so when it stopped."""

        async def work(connection: Connection, effects: Effects) -> None:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is not None and computer["residency"] in ("cold", "unavailable"):
                await lose_commands(connection, effects, computer_id, None)

        await self._core.write("commands_stranded", work)


def outcome(stop_cause: str | None, said: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """How a Command ended, by its stop mark and the worker's report of its scope; and why, when that is nobody's wish."""
    if stop_cause is not None:
        return stop_cause, None
    cause = said.get("cause")
    error: Mapping[str, Any] = said.get("error") or {}
    if cause == "out_of_memory":
        details = {name: said[name] for name in ("limit", "peak") if said.get(name) is not None}
        return "system_failed", render.error("out_of_memory", "The program used more memory than its Computer has.", details)
    if cause == "exited" and (said.get("code") is not None or said.get("signal") is not None):
        return "exited", None
    message = str(error.get("message") or said.get("message") or "The program was lost.")
    return "system_failed", render.error(str(error.get("code") or "process_lost"), message)


def _run_of(row: Any) -> CommandRun:
    return CommandRun(command_id=str(row["id"]), channel=row["channel"], received=row["last_op"], stored=row["last_op"])


def _start(seat: Seat, row: Any) -> bytes:
    members: dict[str, Any] = {} if row["cwd"] is None else {"cwd": row["cwd"]}
    return control(
        "command.start",
        computer=seat.computer_id,
        channel=row["channel"],
        argv=jsontext.loads(row["argv"]),
        env={**seat.handed.variables, **jsontext.loads(row["env"])},
        stdin=base64.b64encode(row["stdin"] or b"").decode(),
        timeout_ms=row["timeout_ms"],
        **members,
    )
