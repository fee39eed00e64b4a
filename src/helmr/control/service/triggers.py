"""Triggers of the current Deployment, and when they fire. SPEC [T3]."""

from __future__ import annotations

from typing import Any, Final

from helmr.control.domain.cron import Cron
from helmr.control.service import render
from helmr.control.service.core import Core
from helmr.control.service.manifests import Manifests, agent_of
from helmr.control.service.principals import Principal
from helmr.control.store.queries import deployments, triggers
from helmr.protocol.errors import AgentNotFound, InvalidCursor, TriggerNotFound
from helmr.protocol.ids import DeploymentId, SessionId, is_definition_id
from helmr.protocol.triggers import Firing, TriggerInfo, TriggerPage
from helmr.protocol.unset import UNSET

SHOWN: Final = 5
"""How many fires are told in advance."""


class Triggers:
    def __init__(self, core: Core, manifests: Manifests) -> None:
        self._core = core
        self._manifests = manifests

    async def get(self, principal: Principal, agent: str, trigger: str) -> TriggerInfo:
        """Raises `AgentNotFound` and `TriggerNotFound`, the same for another Environment's [O1]."""
        principal.require("deployments.read")
        rows = await self._rows(principal, ("", ""), (agent, trigger), 1)
        if not rows:
            await self._known(principal, agent)
            raise TriggerNotFound()
        return _info(rows[0])

    async def list(self, principal: Principal, cursor: str | None, limit: int) -> TriggerPage:
        """By Agent and id."""
        principal.require("deployments.read")
        after = "", ""
        if cursor is not None:
            agent, _, trigger = cursor.partition(":")
            if not is_definition_id(agent) or not is_definition_id(trigger):
                raise InvalidCursor()
            after = agent, trigger
        rows = await self._rows(principal, after, (None, None), limit + 1)
        items = tuple(_info(row) for row in rows[:limit])
        return TriggerPage(items=items, next_cursor=f"{items[-1].agent}:{items[-1].trigger}" if len(rows) > limit else None)

    async def _known(self, principal: Principal, agent: str) -> None:
        """Raise `AgentNotFound` unless the current Deployment has the Agent."""
        async with self._core.database.connection() as connection:
            row = await deployments.current_deployment(connection, environment_id=principal.environment_id)
        if row is None:
            raise AgentNotFound()
        agent_of(self._manifests.of(str(row["id"]), row["manifest"]), agent)

    async def _rows(self, principal: Principal, after: tuple[str, str], only: tuple[str | None, str | None], count: int) -> Any:
        async with self._core.database.connection() as connection:
            return await triggers.list_triggers(
                connection,
                environment_id=principal.environment_id,
                after_agent=after[0],
                after_trigger=after[1],
                agent=only[0],
                trigger=only[1],
                count=count,
            )


def _info(row: Any) -> TriggerInfo:
    try:
        upcoming = Cron.read(row["schedule"], row["timezone"]).upcoming(row["now"], SHOWN)
    except (ValueError, LookupError):  # a zone that this control plane lacks: it can fire none of them, and the log says so when one is due
        upcoming = []
    return TriggerInfo(
        agent=row["agent"],
        trigger=row["trigger"],
        deployment_id=DeploymentId(str(row["deployment_id"])),
        schedule=row["schedule"],
        timezone=row["timezone"],
        active_since=render.time_text(row["opened_at"]),
        missed=row["missed"],
        next_fires=tuple(render.time_text(instant) for instant in upcoming),
        last_firing=_firing(row) if row["last_planned_at"] is not None else UNSET,
    )


def _firing(row: Any) -> Firing:
    return Firing(
        planned_at=render.time_text(row["last_planned_at"]),
        status=row["last_status"],
        missed=row["last_missed"],
        recorded_at=render.time_text(row["last_recorded_at"]),
        fired_at=UNSET if row["last_fired_at"] is None else render.time_text(row["last_fired_at"]),
        session_id=UNSET if row["last_session_id"] is None else SessionId(str(row["last_session_id"])),
    )
