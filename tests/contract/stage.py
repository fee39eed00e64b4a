"""What the tables of the contract are walked on: one runtime for a file, whose Agents play what a row wants of a handler."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from helmr import AgentContext, Turn, agent, image, plain_schema, template, text
from helmr.control.service.principals import session_principal
from helmr.testing import Runtime

Handler = Callable[[Any, Any], Awaitable[Any]]

small = template(id="small", image=image("small").from_host())
_NUMBERS = itertools.count(1)
_PLAYS: dict[str, Handler] = {}
INITS: list[str] = []
"""The Sessions whose `init` ran, in order."""


async def _begin(ctx: Any) -> dict[str, str]:
    INITS.append(ctx.session.id)
    return {"begun": ctx.session.id}


@agent(id="actor", template=small, init=_begin)
async def actor(turn: Turn, ctx: AgentContext[dict[str, str]]) -> Any:
    """Plays the handler that the first text part of its input names."""
    return await _PLAYS[turn.input[0]["text"]](turn, ctx)


@dataclass(frozen=True)
class Issue:
    issue: int


@agent(id="typed", template=small, input_schema=plain_schema(Issue), result_schema=plain_schema(Issue))
async def typed(turn: Turn[Issue], ctx: AgentContext[None]) -> Any:
    """Returns its input, but for some: negative ones are no Issue, zero fails."""
    if turn.input.issue == 0:
        raise ValueError("no issue")
    await turn.respond("done")
    return turn.input if turn.input.issue > 0 else "no issue at all"


@agent(id="briefly", template=small, max_turn_duration="5m", close_after_idle="10m")
async def briefly(turn: Turn, ctx: AgentContext[None]) -> Any:
    return await _PLAYS[turn.input[0]["text"]](turn, ctx)


AGENTS = (actor, typed, briefly)


def play(handler: Handler, *more: str) -> list[Any]:
    """An input that makes `actor` play the handler."""
    name = f"play-{next(_NUMBERS)}"
    _PLAYS[name] = handler
    return [text(name), *(text(each) for each in more)]


class Stage:
    """A runtime, and what the rows do on it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.client = runtime.client

    async def begin(self, handler: Handler, *more: str, **options: Any) -> Any:
        """The receipt of a Session whose first Turn plays the handler."""
        return await self.client.sessions.create(agent=options.pop("agent", "actor"), input=play(handler, *more), **options)

    async def outcome(self, handler: Handler, *more: str, **options: Any) -> Any:
        """How a Turn that plays the handler ended."""
        return await (await self.begin(handler, *more, **options)).turn.wait()

    async def events(self, session: Any) -> list[Any]:
        """The whole timeline of a Session, given by its ref or id."""
        ref = self.client.sessions.ref(session) if isinstance(session, str) else session
        return list((await ref.events.list(limit=1000)).records)

    async def until(self, session: Any, kind: str, count: int = 1) -> Any:
        """The count-th event of that kind, waited for."""
        ref = self.client.sessions.ref(session) if isinstance(session, str) else session
        async with ref.events.stream() as events:
            async for event in events:
                count -= event.kind == kind
                if count == 0:
                    return event
        raise AssertionError(f"the timeline ended without {kind}")

    def by(self, operation: str, session_id: str, **options: Any) -> Any:
        """What a Session does through the services: `spawn`, `start`. Agents reach them by Runtime MCP."""
        plane = self.runtime._engine.plane

        async def ask() -> Any:
            services = plane.server.plane
            async with services.database.connection() as connection:
                environment = await connection.fetchval("SELECT environment_id FROM sessions WHERE id = $1", session_id)
            reply = await getattr(services.sessions, operation)(session_principal(session_id, str(environment)), **options)
            return json.loads(reply.body)

        return plane.loop.run(ask())

    def execute(self, statement: str, *values: Any) -> None:
        """What no Agent and no person can bring about, straight in the runtime's database."""
        self.examine(lambda connection: connection.execute(statement, *values))

    def examine(self, work: Callable[[Any], Awaitable[Any]]) -> None:
        """Do something with a connection to the runtime's database."""
        plane = self.runtime._engine.plane

        async def run() -> None:
            async with plane.server.plane.database.connection() as connection:
                await work(connection)

        plane.loop.run(run())
