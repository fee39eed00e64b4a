"""Long histories: what a Session costs that has had 20,000 Turns and 200,000 events, as ratios to one that has had ten.

python -m bench.history [--turns 20000] [--rounds 300]

Both lie in one database, and each operation alternates between them in the same run. What grows with a history has a ratio over 1.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helmr.control.service.plane import ControlPlane
from helmr.control.service.principals import PERMISSIONS, Principal, ensure_environment
from helmr.control.store.pool import Database
from helmr.control.store.queries import deployments, identity
from helmr.objects.folder import FolderStore
from helmr.protocol import jsontext
from helmr.protocol.ids import new_id
from helmr.protocol.manifest import AgentManifest, ImageManifest, Manifest, TemplateManifest
from helmr.protocol.wire import to_wire
from helmr.testing.database import DatabaseServer

EVENTS_A_TURN = 10
TEXT = [{"type": "text", "text": "more"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A Session with that many Turns, all of them completed, and their events."""

    session_id: str
    turn_ids: tuple[str, ...]

    @property
    def events(self) -> int:
        return len(self.turn_ids) * EVENTS_A_TURN


Operation = Callable[[ControlPlane, Principal, History], Awaitable[Any]]

OPERATIONS: dict[str, Operation] = {
    "enqueue": lambda plane, principal, h: plane.turns.enqueue(principal, h.session_id, TEXT, None),
    "enqueue with a key": lambda plane, principal, h: plane.turns.enqueue(principal, h.session_id, TEXT, new_id()),
    "events, first page": lambda plane, principal, h: plane.events.page(principal, h.session_id, 0, 50),
    "events, middle page": lambda plane, principal, h: plane.events.page(principal, h.session_id, h.events // 2, 50),
    "events, last page": lambda plane, principal, h: plane.events.page(principal, h.session_id, h.events - 50, 50),
    "turns, first page": lambda plane, principal, h: plane.turns.list(principal, h.session_id, None, 5),
    "turns, last page": lambda plane, principal, h: plane.turns.list(principal, h.session_id, str(len(h.turn_ids) - 5), 5),
    "turn, the first": lambda plane, principal, h: plane.turns.get(principal, h.session_id, h.turn_ids[0], 0),
    "turn, the last": lambda plane, principal, h: plane.turns.get(principal, h.session_id, h.turn_ids[-1], 0),
    "session": lambda plane, principal, h: plane.sessions.get(principal, h.session_id),
    "explain": lambda plane, principal, h: plane.explanations.explain(principal, h.session_id),
    "interrupt": lambda plane, principal, h: plane.controls.interrupt(principal, h.session_id, None),
}
"""What people do with a Session. None needs a process: the Sessions are held."""


async def installation(database: Database, folder: Path) -> tuple[ControlPlane, Principal]:
    """A control plane on a migrated database, with an Agent and somebody who may do everything."""
    async with database.connection() as connection:
        environment_id = await ensure_environment(connection, "bench", "main")
        principal_id, deployment_id = new_id(), new_id()
        await identity.insert_principal(
            connection, id=principal_id, environment_id=environment_id, kind="api_key", name="bench", permissions=list(PERMISSIONS)
        )
        template = TemplateManifest(id="small", image=ImageManifest(name="small", base="host"))
        agent = AgentManifest(id="talker", template="small", file="agents/a.py", line=1, attribute="talker")
        manifest = jsontext.canonical(to_wire(Manifest(protocol=1, bundle="0" * 64, agents=(agent,), templates=(template,))))
        await deployments.insert_deployment(
            connection, id=deployment_id, environment_id=environment_id, digest="0" * 64, manifest=manifest, promote=True
        )
        await deployments.finish_deployment(connection, id=deployment_id, status="deployed", error=None)
        await deployments.make_current(connection, environment_id=environment_id, deployment_id=deployment_id)
    plane = ControlPlane(database, FolderStore(folder / "blobs"))
    await plane.start()
    return plane, Principal(id=principal_id, environment_id=environment_id, kind="api_key", permissions=frozenset(PERMISSIONS))


async def history(plane: ControlPlane, principal: Principal, turns: int) -> History:
    """A Session with `turns` completed Turns, ten events each, as the flush would have written them; held."""
    reply = await plane.sessions.create(principal, agent="talker")
    session_id = jsontext.loads(reply.body)["session"]["id"]
    turn_ids = tuple(new_id() for _ in range(turns))
    async with plane.database.connection() as connection, connection.transaction():
        await connection.execute(
            """INSERT INTO turns (session_id, sequence, id, status, source, input, result, created_at, started_at, terminal_at)
            SELECT $1, n, id, 'completed', '{"kind":"api_key"}', '[{"type":"text","text":"go"}]', 'null', now(), now(), now()
            FROM unnest($2::uuid[]) WITH ORDINALITY AS t (id, n)""",
            session_id,
            list(turn_ids),
        )
        await connection.execute(
            """INSERT INTO events (session_id, sequence, turn_id, kind, data, created_at)
            SELECT $1, (n - 1) * 10 + e, id,
                CASE e WHEN 1 THEN 'turn.queued' WHEN 2 THEN 'turn.running' WHEN 10 THEN 'turn.completed' ELSE 'turn.output' END,
                CASE e WHEN 1 THEN convert_to('{"sequence":' || n || ',"source":{"kind":"api_key"}}', 'UTF8')
                    WHEN 2 THEN '{}' WHEN 10 THEN '{}'
                    ELSE '[{"type":"text","text":"some output of the ordinary length of a line, or so"}]'::bytea END,
                now()
            FROM unnest($2::uuid[]) WITH ORDINALITY AS t (id, n), generate_series(1, 10) AS e""",
            session_id,
            list(turn_ids),
        )
        await connection.execute(
            "UPDATE sessions SET next_turn = $2 + 1, claimed_turn = $2, next_event = $2 * 10 + 1 WHERE id = $1", session_id, turns
        )
    await plane.controls.interrupt(principal, session_id, None)
    return History(session_id=session_id, turn_ids=turn_ids)


async def measure(plane: ControlPlane, principal: Principal, short: History, long: History, rounds: int) -> None:
    """Print each operation's p50 and p95 on the short history and on the long one, and their ratio."""
    print(f"{'':24}{'short p50':>12}{'p95':>8}{'long p50':>12}{'p95':>8}{'ratio of p95':>15}   ms")
    for name, operation in OPERATIONS.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for history_, taken in zip((short, long), times, strict=True):
                plane.hub.touch(history_.session_id)
                began = time.perf_counter()
                await operation(plane, principal, history_)
                taken.append((time.perf_counter() - began) * 1000)
        p50, p95 = ([statistics.quantiles(taken, n=20)[at] for taken in times] for at in (9, 18))
        print(f"{name:24}{p50[0]:12.2f}{p95[0]:8.2f}{p50[1]:12.2f}{p95[1]:8.2f}{p95[1] / p95[0]:15.2f}")


async def run(dsn: str, turns: int, rounds: int) -> None:
    database = Database(dsn)
    await database.start()
    with tempfile.TemporaryDirectory() as folder:
        plane, principal = await installation(database, Path(folder))
        try:
            short = await history(plane, principal, 10)
            long = await history(plane, principal, turns)
            async with database.connection() as connection:
                await connection.execute("ANALYZE")
            print(f"{turns:,} Turns, {turns * EVENTS_A_TURN:,} events against 10 Turns, 100 events")
            await measure(plane, principal, short, long, rounds)
        finally:
            await plane.stop()
            await database.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    with DatabaseServer() as server:
        dsn = server.clone()
        try:
            asyncio.run(run(dsn, options.turns, options.rounds))
        finally:
            server.drop(dsn)


if __name__ == "__main__":
    main()
