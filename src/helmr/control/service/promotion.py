"""A Deployment becomes the current one, and the windows of its triggers open with it. SPEC [D3], [T3].

One transaction, which no firing of the Environment's triggers overlaps: a firing finds the Deployment and the windows of before, or those
of after. An instant up to the promotion is due under the old window and fires once, later ones under the new. Control planes of versions
before triggers promote without windows; those are set by the duty (`upkeep/cron.py`), as of when it finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog

from helmr.control.domain.cron import Cron
from helmr.control.domain.windows import Rule, Trigger, decide_windows
from helmr.control.service.asked import check_input
from helmr.control.store.pool import Connection
from helmr.control.store.queries import deployments, identity, triggers
from helmr.protocol.cron import check_schedule, check_timezone
from helmr.protocol.errors import DefinitionInvalid, HelmrError
from helmr.protocol.ids import is_definition_id, new_id
from helmr.protocol.manifest import AgentManifest, Manifest, TriggerManifest
from helmr.protocol.unset import UNSET

log = structlog.get_logger("helmr.triggers")

NONE: Final[Mapping[Trigger, TriggerManifest]] = MappingProxyType({})


async def make_current(connection: Connection, environment_id: Any, deployment_id: Any, manifest: Manifest) -> None:
    """Promote in the caller's transaction: new Sessions take this Deployment, and its triggers fire. Locks the Environment."""
    await identity.lock_environment(connection, id=environment_id)
    await deployments.make_current(connection, environment_id=environment_id, deployment_id=deployment_id)
    await set_windows(connection, environment_id, deployment_id, manifest)


async def set_windows(connection: Connection, environment_id: Any, deployment_id: Any, manifest: Manifest | None) -> None:
    """Open and close windows so that those of the manifest are open, from now on. The caller has locked the Environment."""
    wanted = triggers_of(manifest)
    rules = {trigger: Rule(" ".join(defined.schedule.split()), defined.timezone) for trigger, defined in wanted.items()}
    rows = {(row["agent"], row["trigger"]): row for row in await triggers.lock_open_windows(connection, environment_id=environment_id)}
    change = decide_windows({trigger: Rule(row["schedule"], row["timezone"]) for trigger, row in rows.items()}, rules)
    # Later than the locks: no firing has seen a later instant.
    now = await triggers.time_now(connection)
    await triggers.keep_windows(connection, ids=[rows[trigger]["id"] for trigger in change.keep], deployment_id=deployment_id)
    await triggers.close_windows(connection, ids=[rows[trigger]["id"] for trigger in change.close], at=now)
    for trigger in sorted(change.open):
        rule = rules[trigger]
        try:
            planned_at = Cron.read(*rule).next(now)
        except (ValueError, LookupError) as error:  # published before triggers were checked, or a zone that is none any more
            log.error("a trigger can't fire", agent=trigger[0], trigger=trigger[1], error=str(error))
            continue
        await triggers.open_window(
            connection,
            id=new_id(),
            environment_id=environment_id,
            agent=trigger[0],
            trigger=trigger[1],
            schedule=rule.schedule,
            timezone=rule.timezone,
            deployment_id=deployment_id,
            at=now,
            planned_at=planned_at,
        )
    await triggers.set_windows_deployment(connection, id=environment_id, deployment_id=deployment_id)


def triggers_of(manifest: Manifest | None) -> Mapping[Trigger, TriggerManifest]:
    """All triggers of a Deployment."""
    if manifest is None:
        return NONE
    return {(agent.id, trigger.id): trigger for agent in manifest.agents for trigger in agent.triggers}


def check_triggers(agent: AgentManifest) -> None:
    """Raise `DefinitionInvalid` unless each trigger of the Agent can fire. The project checked it with better messages."""
    seen: set[str] = set()
    for trigger in agent.triggers:
        where = f"The trigger {trigger.id!r} of Agent {agent.id}"
        if not is_definition_id(trigger.id) or trigger.id in seen:
            raise DefinitionInvalid(f"{where} needs an id of its own: letters, digits, dots, dashes and underscores, at most 128.")
        seen.add(trigger.id)
        if trigger.input is UNSET:
            raise DefinitionInvalid(f"{where} has no input, so a firing would start nothing.")
        try:
            check_schedule(trigger.schedule)
            check_timezone(trigger.timezone)
            check_input(agent.input_kind, trigger.input)
        except (ValueError, HelmrError) as error:
            raise DefinitionInvalid(f"{where} can't fire: {error.detail if isinstance(error, HelmrError) else error}") from None
