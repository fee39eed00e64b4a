"""The end of Computers: by hand, and by age. SPEC [C9].

available --begin--> deleting --gone--> deleted      (drawn in docs/reference/state-machines.md)

It is decided under the Computer's lock, which whoever comes on it takes too: either it has an open Session, or nobody comes any more. Its
worker is told to destroy its files, on each link and again after a while, until it says that nothing is left; one that is away delays that.
A Computer that has never been anywhere is deleted at once.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from helmr.control.service.command_losses import lose_commands
from helmr.control.service.core import Core, Effects, notify_worker
from helmr.control.service.processes import Processes
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers, processes, saves
from helmr.protocol import jsontext
from helmr.protocol.errors import ComputerBusy
from helmr.protocol.ids import is_id

DESTROY_SECONDS: Final = 30.0
"""After how long a worker that said nothing is told again."""

log = structlog.get_logger("helmr.deletions")


class Deletions:
    def __init__(self, core: Core, work: Processes) -> None:
        self._core = core
        self._processes = work

    async def begin(self, connection: Connection, effects: Effects, computer: Any) -> str:
        """The status of a locked Computer once it is to go, whatever it was before. Raises `ComputerBusy` while it has open Sessions."""
        if computer["status"] != "available":
            return str(computer["status"])
        busy = await computers.open_members(connection, computer_id=computer["id"])
        if busy:
            raise ComputerBusy(open_sessions=busy)
        await computers.begin_delete(connection, id=computer["id"], seconds=DESTROY_SECONDS)
        if computer["worker_id"] is None:
            await self._deleted(connection, computer["id"])
            return "deleted"
        effects.computers.add(str(computer["id"]))
        await notify_worker(connection, effects, computer["id"])
        return "deleting"

    async def gone(self, computer_id: str, fence: int) -> None:
        """A worker says that nothing of the Computer is left. Nothing changes unless it is being deleted; a report is repeated safely."""

        async def work(connection: Connection, effects: Effects) -> list[Any]:
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is None or computer["status"] == "available" or fence > computer["fence"]:
                return []
            if computer["status"] == "deleting":
                await self._deleted(connection, computer_id)
            error = {"code": "computer_deleting", "message": "The Computer was deleted."}
            await lose_commands(connection, effects, computer_id, error, waiting=True)
            return await processes.alive_on(connection, computer_id=computer_id)

        for row in await self._core.write("computer_deleted", work):
            await self._processes.ended(str(row["id"]), row["channel"], "process_lost")

    async def _deleted(self, connection: Connection, computer_id: Any) -> None:
        """Nothing of it is left on any host; its saves can't be opened from now on, and are collected."""
        await computers.deleted(connection, id=computer_id)
        under_way = await saves.taking(connection, computer_id=computer_id)
        if under_way is not None:
            error = {"code": "save_outdated", "message": "The Computer is deleted."}
            await saves.fail_save(connection, id=under_way["id"], error=jsontext.dumps(error))
        await saves.forget_key(connection, owner_id=computer_id)
        await saves.collect_soon(connection, id=computer_id)

    async def failed(self, computer_id: str, fence: int, error: dict[str, Any]) -> bool:
        """A worker could not destroy it: it is told again later, and people see why. False for a Computer that isn't being deleted."""
        async with self._core.database.connection() as connection:
            known = await computers.delete_failed(connection, id=computer_id, fence=fence, error=jsontext.dumps(error))
        if known is not None:
            log.warning("a Computer could not be destroyed", computer=computer_id, error=error)
        return known is not None

    async def repeat(self, computer_id: str) -> None:
        """Tell its worker again, if it is time."""

        async def work(connection: Connection, effects: Effects) -> None:
            if await computers.repeat_delete(connection, id=computer_id, seconds=DESTROY_SECONDS) is not None:
                effects.computers.add(computer_id)

        await self._core.write("repeat_delete", work)

    async def leftover(self, computer_id: str, fence: Any) -> int | None:
        """The fence under which a worker may destroy what it has of a Computer that is none of its own; None: it must not.

        It may only what this database knows as deleted, or as restored elsewhere [C5], and never what lived on under a later fence than
        this database saw: then this is an older copy of the database that knows of that (I11).
        """
        row = None
        if is_id(computer_id):
            async with self._core.database.connection() as connection:
                row = await computers.computer_row(connection, id=computer_id)
        if row is None:
            log.warning("a worker has a Computer that this database does not know; its files stay", computer=computer_id)
        elif row["status"] == "deleted" or _lives_elsewhere(row, fence):
            if isinstance(fence, int) and fence <= row["fence"]:
                return int(row["fence"])
            log.warning("a worker has a Computer under a later fence than it should; its files stay", computer=computer_id, fence=fence)
        return None

    async def expire(self, count: int) -> bool:
        """Delete Computers assigned by themselves that have outlived their last Session [C9]; whether there may be more."""
        async with self._core.database.connection() as connection:
            due = await computers.computers_to_delete(connection, count=count)
        for row in due:
            await self._expire(str(row["id"]))
        return len(due) == count

    async def _expire(self, computer_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            computer = await computers.lock_computer(connection, id=computer_id)
            # A Session may have come on it since.
            if await computers.outlived(connection, id=computer_id):
                await self.begin(connection, effects, computer)

        await self._core.write("expire_computer", work)


def _lives_elsewhere(row: Any, fence: Any) -> bool:
    """Whether what a worker has of the Computer is of before it was restored: its files are others since, and another's [C5]."""
    return row["restored_fence"] is not None and isinstance(fence, int) and fence < row["restored_fence"]
