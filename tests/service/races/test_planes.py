"""Two control planes write to the same Sessions, all operations mixed: order is kept, nothing is lost or there twice. DESIGN 7, I2, I6."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from tests.effort import often
from tests.service.races.forcing import quiet, referee, told_once
from tests.service.races.planes import beside
from tests.service.races.staging import TEXT, Stage, stage
from tests.service.scripted import House, Process, house

from helmr.control.service.plane import ControlPlane
from helmr.protocol.errors import HelmrError, SessionNotOpen

pytestmark = pytest.mark.anyio

SESSIONS = 6
CLIENTS = 3
ENQUEUES = 6


class Handler:
    """Plays a process: each Turn writes three outputs and settles; a marked one stops."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.done = 0

    def hear(self) -> None:
        """Do what was told since."""
        process = self.process
        said, self.done = process.received[self.done :], len(process.received)
        for frame in said:
            if frame["t"] == "turn.start":
                turn = frame["turn"]["id"]
                process.say("messages.open", turn=turn)
                for n in range(3):
                    process.output(turn, f"{n} ")
                process.settle(turn, result=frame["input"])
            elif frame["t"] == "session.end" and process.alive:
                process.die("exited", code=0)


async def client(h: House, planes: tuple[ControlPlane, ...], s: Stage, name: str, chance: random.Random) -> list[str]:
    """Enqueues one after the other, each with its key and once more, through whichever control plane; meddles in between. The Turns."""
    admitted: list[str] = []
    for n in range(ENQUEUES):
        text = [{"type": "text", "text": f"{name} {n}"}]
        try:
            replies = await asyncio.gather(
                *(plane.turns.enqueue(h.principal, s.session, text, f"{name} {n}") for plane in chance.sample(planes, len(planes)))
            )
        except SessionNotOpen:
            break
        assert replies[0].body == replies[1].body and {reply.replayed for reply in replies} == {False, True}
        admitted.append(json.loads(replies[0].body)["id"])
        await meddle(h, chance.choice(planes), s, chance, admitted[-1])
    return admitted


async def meddle(h: House, plane: ControlPlane, s: Stage, chance: random.Random, turn: str) -> None:
    controls: list[Any] = [
        lambda: plane.turns.interrupt(h.principal, s.session, turn, None),
        lambda: plane.turns.send(h.principal, s.session, turn, TEXT, None),
        lambda: plane.controls.interrupt(h.principal, s.session, None),
        lambda: release(h, plane, s),
        lambda: release(h, plane, s),
    ]
    try:
        await chance.choice(controls)()
    except HelmrError as error:
        assert error.code in ("turn_not_running", "turn_stopping", "message_closed", "hold_not_found")


async def release(h: House, plane: ControlPlane, s: Stage) -> None:
    """Every hold that is there now."""
    for hold in (await plane.sessions.get(h.principal, s.session)).holds:
        assert hold.id is not None
        await plane.controls.resume(h.principal, s.session, hold.id, None)


@pytest.mark.parametrize("seed", range(2))
async def test_all_operations_at_once_from_two_control_planes_keep_every_order(database, tmp_path, seed):
    """[S4], [S6], [S8], [E1], I2, I5: what one client enqueues runs in its order; each key admits once; each output is there once."""
    async with house(database, tmp_path, size=16) as h, beside(h, tmp_path) as other, referee(h, other) as r:
        for round_ in range(often(1, soak=20)):
            chance = random.Random(f"{seed} {round_}")
            stages = [await stage(h, loose=False, queued=False) for _ in range(SESSIONS)]
            handlers = [Handler(s.process) for s in stages]
            for s, handler in zip(stages, handlers, strict=True):
                handler.done = len(s.process.received)
                s.process.settle(s.turn)

            async def play(handlers: list[Handler] = handlers) -> None:
                while True:
                    for handler in handlers:
                        handler.hear()
                    await asyncio.sleep(0.0005)

            async def hinder(stages: list[Stage] = stages, chance: random.Random = chance) -> None:
                """Hold rows now and then until somebody waits, if anybody comes: batches skip them, then wait for them."""
                while True:
                    async with r.queue(chance.choice(stages).session):
                        for _ in range(20):
                            if await r.waiting():
                                break
                    await asyncio.sleep(0.005)

            player, hinderer = asyncio.create_task(play()), asyncio.create_task(hinder())
            async with asyncio.timeout(30):
                made = await asyncio.gather(
                    *(client(h, (h.plane, other), s, f"client {n}", chance) for s in stages for n in range(CLIENTS))
                )
                hinderer.cancel()
                await asyncio.gather(hinderer, return_exceptions=True)
                for s in stages:
                    await release(h, other, s)
                for s in stages:
                    await other.controls.close(h.principal, s.session, None)
                for s in stages:
                    await h.until(s.session, "session.closed")
                await quiet(h.plane, other)
            player.cancel()
            await asyncio.gather(player, return_exceptions=True)
            for index, s in enumerate(stages):
                await _in_order(h, s, made[index * CLIENTS : (index + 1) * CLIENTS])
        assert told_once(h)


async def _in_order(h: House, s: Stage, clients: list[list[str]]) -> None:
    events = await h.events(s.session)
    queued = [event["turn_id"] for event in events if event["kind"] == "turn.queued"]
    running = [event["turn_id"] for event in events if event["kind"] == "turn.running"]
    assert sorted(queued) == sorted([s.turn, *(turn for admitted in clients for turn in admitted)]), "none lost, none twice"
    assert running == [turn for turn in queued if turn in running]
    for admitted in clients:
        assert admitted == [turn for turn in queued if turn in admitted], "a client's own order"
    for turn in queued:
        outputs = [event["data"] for event in events if event["turn_id"] == turn and event["kind"] == "turn.output"]
        assert outputs == [[{"type": "text", "text": f"{n} "}] for n in range(len(outputs))] and len(outputs) <= 3
        ends = [event["kind"] for event in events if event["turn_id"] == turn and event["kind"].startswith(("turn.c", "turn.f", "turn.i"))]
        assert len(ends) == 1
        if ends == ["turn.completed"]:
            assert len(outputs) == (0 if turn == s.turn else 3)
