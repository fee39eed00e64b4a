"""The Agents that the tests of `helmr.testing` run."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helmr import AgentContext, AgentDefinition, InitContext, SyncTurn, Turn, agent, ask_choice, ask_text, image, template
from helmr.testing import Gate

computer = template(id="small", image=image("small").from_host())


def said(turn: Any) -> str:
    return "".join(part["text"] for part in turn.input)


@agent(id="echo", template=computer)
async def echo(turn: Turn, ctx: AgentContext) -> dict[str, Any]:
    await turn.output.write(f"You said: {said(turn)}\n")
    await turn.respond(said(turn))
    return {"characters": len(said(turn)), "recovery": ctx.recovery.kind}


@agent(id="dozer", template=computer, hibernate_after_idle="1h", close_after_idle="never")
async def dozer(turn: Turn, ctx: AgentContext) -> str:
    return ctx.recovery.kind


@agent(id="deployer", template=computer)
async def deployer(turn: Turn, ctx: AgentContext) -> dict[str, Any]:
    where = await ask_choice(turn, "Where to?", ["prod", "stage"])
    return {"where": where, "why": await ask_text(turn, f"Why {where}?")}


@agent(id="plain", template=computer)
def plain(turn: SyncTurn, ctx: AgentContext) -> str:
    turn.output.write("from a thread")
    return os.getcwd()


@dataclass
class Watched:
    """An Agent that waits, and what was seen of it."""

    started: Gate = field(default_factory=Gate)
    go: Gate = field(default_factory=Gate)
    seen: list[str] = field(default_factory=list[str])
    agent: AgentDefinition[Any, Any] = None  # pyright: ignore[reportAssignmentType]


def waiter(**options: Any) -> Watched:
    """A new one; its handler opens `started`, then waits for `go`."""
    watched = Watched()

    async def init(ctx: InitContext) -> int:
        watched.seen.append(f"init {ctx.recovery.kind}")
        return len(watched.seen)

    async def turn(turn: Turn, ctx: AgentContext) -> str:
        turn.on_cancel(lambda reason: watched.seen.append(f"on_cancel {reason}"))
        watched.started.open()
        try:
            await watched.go.wait()
        except asyncio.CancelledError:
            watched.seen.append("cancelled")
            raise
        finally:
            watched.seen.append("finally")
        return "done"

    watched.agent = agent(id="waiter", template=computer, init=init, turn=turn, **options)
    return watched


@agent(id="sleeper", template=computer)
async def sleeper(turn: Turn, ctx: AgentContext) -> str:
    await turn.output.write("asleep")
    await asyncio.sleep(3600)
    return "slept"


@agent(id="stubborn", template=computer)
async def stubborn(turn: Turn, ctx: AgentContext) -> str:
    await turn.output.write("going on")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@agent(id="quitter", template=computer)
async def quitter(turn: Turn, ctx: AgentContext) -> None:
    raise SystemExit(3)


@agent(id="writer", template=computer)
async def writer(turn: Turn, ctx: AgentContext) -> list[str]:
    path = Path("notes.txt")
    before = path.read_text().splitlines() if path.exists() else []
    path.write_text("\n".join([*before, said(turn)]))
    return [*before, said(turn)]


def busy(seconds: float, begins: Gate) -> AgentDefinition[Any, Any]:
    """An Agent that opens the gate and blocks its event loop."""

    async def turn(turn: Turn, ctx: AgentContext) -> None:
        begins.open()
        time.sleep(seconds)

    return agent(id="busy", template=computer, turn=turn)
