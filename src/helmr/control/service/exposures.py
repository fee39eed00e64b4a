"""What follows from Secrets that come and go: who waits for one is started, and who has a revoked one gets nothing to do. SPEC [X2].

revoked -> its processes are parked, and nothing begins on the Computer -> what runs there ends -> the Computer is stopped

A stopped one is started anew when somebody wants it, with what its bindings name then; until the Environment has that, it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import structlog

from helmr.control.service.core import Core, Effects, notify_worker
from helmr.control.store.pool import Connection
from helmr.control.store.queries import computers
from helmr.control.store.queries import secrets as statements
from helmr.protocol.errors import SecretNotFound, SecretUnavailable

BATCH: Final = 200
MOST: Final = 1_000_000

log = structlog.get_logger("helmr.secrets")


class Exposures:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def arrived(self, connection: Connection, effects: Effects, environment_id: str, name: str) -> None:
        """In the transaction that makes a Secret, or gives it a value: Computers that wait for it may be started."""
        rows = await statements.wait_no_longer(connection, environment_id=environment_id, name=name)
        await self._place(connection, effects, rows)

    async def revoked(self, secret_id: str) -> None:
        """Park what may claim Turns on the Computers that have it. Whatever begins later is refused by the database's own account."""
        async with self._core.database.connection() as connection:
            rows = await statements.exposed_to(connection, secret_id=secret_id, count=MOST)
        for row in rows:
            await self._park(str(row["id"]))

    async def settle(self) -> bool:
        """Do again what whoever revoked or made a Secret may not have got to do; whether there may be more (I6). Forgets values too."""
        async with self._core.database.connection() as connection:
            unparked = await statements.exposed_unparked(connection, count=BATCH)
        for row in unparked:
            await self._park(str(row["id"]))

        async def wake(connection: Connection, effects: Effects) -> int:
            rows = await statements.waiting_in_vain(connection, count=BATCH)
            await self._place(connection, effects, rows)
            return len(rows)

        woken = await self._core.write("secret_waits", wake)
        async with self._core.database.connection() as connection:
            forgotten = len(await statements.forget_values(connection, count=BATCH))
        return BATCH in (len(unparked), woken, forgotten)

    async def _park(self, computer_id: str) -> None:
        async def work(connection: Connection, effects: Effects) -> None:
            await computers.members_to_lock(connection, computer_id=computer_id)
            computer = await computers.lock_computer(connection, id=computer_id)
            if computer is not None and computer["residency"] == "running":
                await computers.processes_asleep(connection, computer_id=computer_id)
            effects.computers.add(computer_id)
            await notify_worker(connection, effects, computer_id)

        await self._core.write("park_exposed", work)

    @staticmethod
    async def _place(connection: Connection, effects: Effects, rows: list[Any]) -> None:
        if rows:
            waiting = await statements.wanting_on(connection, computer_ids=[row["id"] for row in rows])
            effects.places.update(str(row["id"]) for row in waiting)


async def why_not(connection: Connection, computer_id: Any) -> SecretUnavailable:
    """What somebody is told who wants something of a Computer that can't run, or gets nothing to do, for a Secret."""
    computer = await computers.computer_row(connection, id=computer_id)
    if computer["waits_secret"] is not None:
        name = computer["waits_secret"]
        return SecretUnavailable(f"The Computer needs the Secret {name}, {computer['waits_reason']}.", secret=name)
    name = await statements.revoked_on(connection, computer_id=computer_id)
    return SecretUnavailable(
        f"The Computer has the Secret {name}, which was revoked: it is stopped once what runs there has ended.", secret=name
    )


async def require_secrets(connection: Connection, environment_id: str, names: Sequence[str]) -> None:
    """Raise `SecretNotFound`, naming the first that the Environment lacks."""
    missing = await statements.missing_names(connection, environment_id=environment_id, names=sorted(set(names)))
    if missing:
        name = missing[0]["name"]
        raise SecretNotFound(f"The Environment has no Secret {name}.", hint=f"helmr secret create {name}", secret=name)


async def refuse_exposed(connection: Connection, computer_id: Any) -> None:
    """Raise `SecretUnavailable` if a Computer that runs or sleeps has a revoked Secret."""
    if await statements.revoked_on(connection, computer_id=computer_id) is not None:
        raise await why_not(connection, computer_id)
