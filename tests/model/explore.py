"""All that may come of operations that are under way at once: every order of them and of what the product does by itself.

Trees of Sessions don't influence each other, so the orders between them don't matter: one tree after the other is explored.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.model.model import Step, World
from tests.model.operations import Operation
from tests.model.values import Outcome

Ending = tuple[tuple[Outcome | None, ...], World]

MOST = 60_000


class TooMany(Exception):
    """More states than are worth looking at."""


def explore(world: World, operations: Sequence[Operation], maybe: frozenset[int] = frozenset()) -> list[Ending]:
    """The different endings: what each operation was answered, and the world once nothing is left to do.

    Operations whose numbers are in `maybe` may also never have happened (their reply was lost): then their answer is None.
    """
    seen: set[tuple[object, ...]] = set()
    endings: dict[tuple[object, ...], Ending] = {}
    nothing: tuple[Outcome | None, ...] = (None,) * len(operations)
    todo: list[tuple[World, frozenset[int], tuple[Outcome | None, ...]]] = [(world, frozenset(range(len(operations))), nothing)]
    while todo:
        at, left, answers = todo.pop()
        state = (at.state(), left, answers)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > MOST:
            raise TooMany
        steps = list(at.steps())
        if not left and all(step == "patience" for step, _ in steps):
            endings[at.state(), answers] = (answers, at)
        for number in left:
            after = at.fork()
            answered = (*answers[:number], operations[number].ask(after), *answers[number + 1 :])
            todo.append((after, left - {number}, answered))
            if number in maybe:
                todo.append((at, left - {number}, answers))
        for step in _relevant(at, steps, {operations[number].root(at) for number in left}):
            after = at.fork()
            after.take(step)
            todo.append((after, left, answers))
    return list(endings.values())


def _relevant(world: World, steps: list[Step], touched: set[str | None]) -> list[Step]:
    """The steps whose order matters now: those of the trees that operations are still to come to, else those of one tree. What needn't
    happen is always among them."""
    free = [root for step, root in _with_roots(world, steps) if step[0] != "patience" and root not in touched and None not in touched]
    if not free:
        return steps
    return [step for step, root in _with_roots(world, steps) if root == free[0] or step[0] == "patience"]


def _with_roots(world: World, steps: list[Step]) -> list[tuple[Step, str]]:
    return [(step, world.sessions[step[1]].root) for step in steps]
