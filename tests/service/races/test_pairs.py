"""Every pair of operations on a Session in the middle of everything, in both orders: what two that met do is what the same two do one
after the other. [S6]-[S21], [E1], [E2], [Q4], I1-I5; the rules themselves are proved elsewhere, for one operation at a time.

Each pair runs on two Sessions alike: on one the second begins when the first has ended, on the other both wait for the row and are let in
in that order. Receipts, refusals, timelines and rows must be equal. PostgreSQL hands a row on in the order of the queue nearly always, not
always: the other order's outcome is right too. A first operation of several transactions (a settlement with open messages, the end of a
process) may also be overtaken between them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.effort import SOAKING, often
from tests.service.races.forcing import Referee, quiet, referee, told_once
from tests.service.races.staging import Operation, Stage, stage
from tests.service.scripted import House, agent, house

pytestmark = pytest.mark.anyio

CLIENT = (
    Stage.interrupt_turn, Stage.interrupt_session, Stage.resume, Stage.close, Stage.cancel, Stage.send, Stage.enqueue, Stage.answer,
    Stage.spawn,
)  # fmt: skip
SYSTEM = (Stage.deadline, Stage.idle_close)
GUEST = (
    Stage.complete, Stage.fail, Stage.stop, Stage.output, Stage.asks, Stage.withdraws, Stage.opens, Stage.shuts, Stage.begins,
    Stage.delivers, Stage.rejects, Stage.marks, Stage.undrained, Stage.dies,
)  # fmt: skip
EVERYTHING = CLIENT + SYSTEM + GUEST
SEVERAL = (Stage.complete, Stage.fail, Stage.stop, Stage.undrained, Stage.dies)
"""What takes more than one transaction while messages or questions are open, or what other transactions follow."""

STATES: dict[str, dict[str, Any]] = {
    "busy": {},
    "held": {"held": True},
    "overdue": {"overdue": True},
    "tidy": {"loose": False},
}
"""How the Session is staged."""


def _worth_it(state: str, first: Operation, second: Operation) -> bool:
    """Whether the state matters to the pair. Two frames of one guest never race."""
    if first in GUEST and second in GUEST:
        return False
    if state == "held":
        return Stage.resume in (first, second) or Stage.close in (first, second)
    if state == "overdue":
        return Stage.deadline in (first, second)
    if state == "tidy":
        return Stage.complete in (first, second) or Stage.dies in (first, second)
    return Stage.resume not in (first, second) and Stage.deadline not in (first, second)


ALL = [(state, first, second) for state in STATES for first in EVERYTHING for second in EVERYTHING if _worth_it(state, first, second)]
PAIRS = [pair for n, pair in enumerate(ALL) if SOAKING or pair[0] == "busy" or n % 2]
"""Of the other states each second pair, unless there is time for all."""
PARTS = 12


@pytest.mark.parametrize("part", range(PARTS))
async def test_two_operations_that_meet_do_what_they_do_one_after_the_other(database, tmp_path, part):
    async with house(database, tmp_path, agent("talker", max_turn_duration_ms=3_600_000)) as h, referee(h) as r:
        for state, first, second in PAIRS[part::PARTS]:
            for _ in range(often(1, soak=10)):
                met = await _meet(h, r, STATES[state], first, second)
                right = [await _one_after_the_other(h, STATES[state], first, second)]
                if met != right[0]:
                    right.append(await _one_after_the_other(h, STATES[state], second, first))
                if first in SEVERAL and met not in right:
                    met, right = _outline(met), [_outline(seen) for seen in right]
                assert met in right, f"{state}: {first.__name__}, then {second.__name__}: {_difference(met, right[0])}"
        assert told_once(h)


async def _meet(h: House, r: Referee, state: dict[str, Any], first: Operation, second: Operation) -> Any:
    s = await stage(h, **state)
    async with r.queue(s.session) as q:
        one = await q.first(lambda: first(s))
        two = await q.then(lambda: second(s))
    await quiet(h.plane)
    return await _seen(h, s, {first.__name__: one.code, second.__name__: two.code})


async def _one_after_the_other(h: House, state: dict[str, Any], first: Operation, second: Operation) -> Any:
    s = await stage(h, **state)
    codes: dict[str, str] = {}
    for operation in (first, second):
        codes[operation.__name__] = await _code(operation, s)
        await quiet(h.plane)
    return await _seen(h, s, codes)


async def _code(operation: Operation, s: Stage) -> str:
    from helmr.protocol.errors import HelmrError

    try:
        await operation(s)
    except HelmrError as error:
        return error.code
    return "ok"


async def _seen(h: House, s: Stage, codes: dict[str, str]) -> Any:
    """What others see of the Session, without what differs from run to run. Whether the second Turn runs yet is a matter of time."""
    names = {s.turn: "one", s.queued: "two", s.started: "message started", s.admitted: "message admitted"}
    async with h.database.connection() as connection:
        status = await connection.fetchval("SELECT status FROM sessions WHERE id = $1", s.session)
        holds = await connection.fetch("SELECT kind FROM holds WHERE session_id = $1 AND released_at IS NULL ORDER BY kind", s.session)
        turns = await connection.fetch(
            "SELECT status, error, result, response FROM turns WHERE session_id = $1 ORDER BY sequence", s.session
        )
        children = await connection.fetch("SELECT status, held FROM sessions WHERE parent_session_id = $1", s.session)
        events = await connection.fetch("SELECT turn_id, kind, data FROM events WHERE session_id = $1 ORDER BY sequence", s.session)
    told: list[tuple[str, dict[str, Any]]] = [(event["kind"], _plain(event["data"], names)) for event in events]
    return {
        "codes": codes,
        "status": status,
        "holds": [row["kind"] for row in holds],
        "turns": ["waiting" if turn["status"] in ("queued", "running") and n else tuple(turn) for n, turn in enumerate(turns)],
        "children": [tuple(row) for row in children],
        "of the Turn": [pair for pair, event in zip(told, events, strict=True) if str(event["turn_id"]) == s.turn],
        "of the Session": [pair for pair in told if pair[0] in _OF_THE_SESSION],
    }


def _difference(met: Any, right: Any) -> str:
    """What alone differs, since whole outcomes are too long to be read."""
    return "; ".join(f"{name} is {met[name]}, not {right[name]}" for name in met if met[name] != right[name])


def _outline(seen: Any) -> Any:
    """The same without the order within the Turn: the second came between two commits of the first."""
    return {**seen, "of the Turn": sorted(kind for kind, _ in seen["of the Turn"])}


_OF_THE_SESSION = ("session.interrupt", "session.resume", "session.close", "session.cancel", "session.held", "session.closed")


def _plain(data: bytes, names: dict[str, str]) -> dict[str, Any]:
    members = json.loads(data)
    if isinstance(members, list):
        return {"content": members}
    return {
        name: names.get(value, "new") if name.endswith("_id") else value
        for name, value in members.items()
        if name not in ("ended", "seconds")
    }
