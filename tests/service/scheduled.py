"""A control plane whose Agents have triggers, on a database whose clock stands where the test sets it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.service.scripted import House, agent, deploy, house, manifest

from helmr.control.service.plane import ControlPlane
from helmr.control.upkeep.cron import CronFirings
from helmr.protocol.manifest import AgentManifest, TriggerManifest
from helmr.protocol.wire import to_wire
from helmr.testing.clock import move

MONDAY = datetime(2025, 3, 3, tzinfo=UTC)
SAID = ({"type": "text", "text": "by itself"},)


def trigger(id: str, schedule: str, zone: str = "UTC", **options: Any) -> TriggerManifest:
    return TriggerManifest(id=id, schedule=schedule, timezone=zone, input=list(SAID), **options)


def scheduled(*triggers: TriggerManifest, name: str = "talker", **options: Any) -> AgentManifest:
    return agent(name, triggers=triggers, **options)


class Hours:
    """Moves the database's clock, and looks at what was fired."""

    def __init__(self, h: House) -> None:
        self.h = h
        self.promotions = 0

    async def set(self, to: datetime) -> None:
        """The clock shows `to` now, and goes on from there."""
        async with self.h.database.connection() as connection:
            now = await connection.fetchval("SELECT clock_timestamp()")
            await move(connection, (to - now).total_seconds())

    async def tick(self, to: datetime | None = None, plane: ControlPlane | None = None) -> None:
        """The duty runs, at `to`."""
        if to is not None:
            await self.set(to)
        duty = CronFirings(plane or self.h.plane)
        while await duty.run():
            pass

    async def promote(self, *agents: AgentManifest) -> str:
        """A new Deployment becomes current: of an Agent without triggers, unless others are given."""
        self.promotions += 1
        bundle = hashlib.sha256(str(self.promotions).encode()).hexdigest()
        made = manifest(*(agents or (agent("talker"),)), bundle=bundle)
        return await deploy(self.h.database, self.h.principal.environment_id, made)

    async def rows(self, sql: str, *arguments: Any) -> list[Any]:
        async with self.h.database.connection() as connection:
            return await connection.fetch(sql, *arguments)

    async def firings(self, trigger: str | None = None) -> list[tuple[str, str, int]]:
        """Planned time, status and what was passed over, in order."""
        rows = await self.rows(
            "SELECT * FROM trigger_firings WHERE $1::text IS NULL OR trigger = $1 ORDER BY planned_at, agent, trigger", trigger
        )
        return [(f"{row['planned_at']:%d %H:%M}", row["status"], row["missed"]) for row in rows]

    async def sessions(self) -> list[Any]:
        return await self.rows("SELECT * FROM sessions ORDER BY id")

    async def info(self, id: str, name: str = "talker") -> dict[str, Any]:
        return to_wire(await self.h.plane.triggers.get(self.h.principal, name, id))

    async def queued(self, session_id: Any) -> dict[str, Any]:
        """What the Session's `turn.queued` says."""
        return next(event["data"] for event in await self.h.events(str(session_id)) if event["kind"] == "turn.queued")


@asynccontextmanager
async def hours(dsn: str, tmp_path: Path, *agents: AgentManifest, at: datetime = MONDAY) -> AsyncIterator[Hours]:
    """The clock shows `at` when the Agents become current."""
    async with house(dsn, tmp_path) as h:
        made = Hours(h)
        await made.set(at)
        await made.promote(*agents)
        yield made


def minutes(begin: datetime, count: int, step: int = 1) -> Iterator[datetime]:
    return (begin + number * timedelta(minutes=step) for number in range(count))


def planned(firings: Sequence[tuple[str, str, int]]) -> list[str]:
    return [at for at, _, _ in firings]


__all__ = ["MONDAY", "SAID", "Hours", "agent", "hours", "minutes", "planned", "scheduled", "trigger"]
