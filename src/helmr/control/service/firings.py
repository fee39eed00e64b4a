"""Triggers fire: a due instant becomes a Session, once. SPEC [T1], [T3], [C9].

One transaction for each trigger. It locks the Environment (shared: promotions wait), then the trigger's window, which another scheduler
passes over. The row of the planned instant is inserted before its Session: of any number of schedulers, also with clocks that disagree, one
succeeds (UD-72). A crash leaves all of it or nothing, and the next look finds the instant still due.

A firing takes an admission token [S5]. Without one it waits, recorded, and is tried again until it fires, its grace is over, or the next
instant takes its place: what an Environment can't admit is no backlog.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import structlog

from helmr.control.domain.cron import Cron
from helmr.control.domain.firing import FiringDecision, decide_firing
from helmr.control.service import render
from helmr.control.service.asked import check_input
from helmr.control.service.core import Core, Effects, record
from helmr.control.service.limits import take_token
from helmr.control.service.manifests import Manifests, agent_of, made_of, template_of
from helmr.control.service.promotion import set_windows, triggers_of
from helmr.control.store.pool import Connection
from helmr.control.store.queries import delegation, identity, triggers
from helmr.protocol import jsontext
from helmr.protocol.errors import AdmissionUnavailable, DatabaseUnavailable, HelmrError
from helmr.protocol.ids import new_id
from helmr.protocol.manifest import Manifest, TriggerManifest
from helmr.protocol.wire import to_wire

SOURCE: Final = b'{"kind":"schedule"}'
TOKEN_SECONDS: Final = (0.1, 10.0)
"""After how long a firing asks again for a token, at the least and at the most: the bucket's rate may be raised meanwhile."""
BROKEN_SECONDS: Final = 60.0
"""After how long a trigger is tried again that this control plane can't fire, such as for want of its zone."""
KEPT_DAYS: Final = 30
"""How long it is remembered what became of an instant, and when a window was open. The newest of each trigger stays."""

log = structlog.get_logger("helmr.triggers")


class Firings:
    def __init__(self, core: Core, manifests: Manifests) -> None:
        self._core = core
        self._manifests = manifests

    async def fire_due(self, count: int) -> bool:
        """Fire up to `count` triggers that are due; whether there may be more. Any number of control planes may do so at once."""
        async with self._core.database.connection() as connection:
            without = await triggers.environments_without_windows(connection, count=count)
        for row in without:
            await self._adopt(row["id"])
        async with self._core.database.connection() as connection:
            rows = await triggers.windows_due(connection, count=count)
        for row in rows:
            await self._attempt(row)
        return len(rows) == count

    async def seconds_to_next(self) -> float | None:
        """Until the next look, by the database's clock; negative when it is overdue, None without a trigger."""
        async with self._core.database.connection() as connection:
            return await triggers.seconds_to_next(connection)

    async def forget(self, count: int) -> bool:
        """Forget up to `count` old records; whether there may be more."""

        async def work(connection: Connection) -> bool:
            firings = await triggers.forget_firings(connection, days=KEPT_DAYS, count=count)
            windows = await triggers.forget_windows(connection, days=KEPT_DAYS, count=count)
            return count in (firings, windows)

        return await self._core.database.run(work)

    # --- details ---

    async def _adopt(self, environment_id: Any) -> None:
        """Set the windows of a Deployment that became current without them."""

        async def work(connection: Connection, effects: Effects) -> None:
            environment = await identity.lock_environment(connection, id=environment_id)
            current = environment["current_deployment_id"]
            if environment["windows_deployment_id"] != current:
                manifest = None if current is None else await self._manifests.load(connection, current)
                await set_windows(connection, environment_id, current, manifest)

        await self._core.write("set_windows", work)

    async def _attempt(self, row: Any) -> None:
        """Fire one trigger; what is wrong with it must not hold up the others."""
        try:
            await self._core.write("fire_trigger", lambda connection, effects: self._fire(connection, effects, row))
        except DatabaseUnavailable:
            raise
        except (HelmrError, ValueError, LookupError) as error:
            log.error("a trigger can't fire; it is tried again", window=str(row["id"]), seconds=BROKEN_SECONDS, error=str(error))
            async with self._core.database.connection() as connection:
                await triggers.postpone_window(connection, id=row["id"], seconds=BROKEN_SECONDS)

    async def _fire(self, connection: Connection, effects: Effects, row: Any) -> None:
        environment = await triggers.share_environment(connection, id=row["environment_id"])
        if environment["windows_deployment_id"] != environment["current_deployment_id"]:
            return  # its windows are to be set before
        window = await triggers.lock_window(connection, id=row["id"])
        if window is None:
            return
        named = {name: window[name] for name in ("environment_id", "agent", "trigger")}
        known = await triggers.firing_at(connection, planned_at=window["planned_at"], **named)
        decision = decide_firing(
            Cron.read(window["schedule"], window["timezone"]),
            planned_at=window["planned_at"],
            now=window["now"],
            closed_at=window["closed_at"],
            grace=timedelta(milliseconds=environment["trigger_grace_ms"]),
            waiting=known is not None and known["status"] == "queued",
        )
        if decision is None:  # the database's clock went back
            await triggers.plan_window(connection, id=window["id"], planned_at=window["planned_at"], due_at=window["planned_at"], missed=0)
            return
        if decision.displaces:
            await triggers.miss_firing(connection, planned_at=window["planned_at"], **named)
        wait = await self._settle(connection, effects, environment, window, decision, named)
        due = decision.next_at if wait is None else window["now"] + wait
        planned = decision.next_at if wait is None else decision.planned_at
        await triggers.plan_window(connection, id=window["id"], planned_at=planned, due_at=due, missed=decision.missed)

    async def _settle(
        self, connection: Connection, effects: Effects, environment: Any, window: Any, decision: FiringDecision, named: dict[str, Any]
    ) -> timedelta | None:
        """Record the decided instant, with its Session if it fires; else, for want of a token, after how long to try again."""
        at = decision.planned_at
        claimed = await triggers.claim_firing(connection, planned_at=at, missed=decision.passed, **named)
        if claimed is None:
            return None
        if decision.late:
            await triggers.miss_firing(connection, planned_at=at, **named)
            log.info("a trigger missed its time", agent=window["agent"], trigger=window["trigger"], missed=decision.missed)
            return None
        try:
            await take_token(connection, str(window["environment_id"]))
        except AdmissionUnavailable as error:
            least, most = TOKEN_SECONDS
            return timedelta(seconds=min(max(float(error.facts["retry_after"]), least), most))
        session_id = await self._session(connection, effects, environment, window, at, claimed["missed"])
        await triggers.fire_firing(connection, planned_at=at, session_id=session_id, **named)
        return None

    async def _definition(self, connection: Connection, environment: Any, window: Any) -> tuple[Any, Manifest, TriggerManifest]:
        """The current Deployment, if it still has the trigger; else the last one that had it, for what was due when it went."""
        key = window["agent"], window["trigger"]
        current = environment["current_deployment_id"]
        if current is not None:
            manifest = await self._manifests.load(connection, current)
            found = triggers_of(manifest).get(key)
            if found is not None:
                return current, manifest, found
        manifest = await self._manifests.load(connection, window["deployment_id"])
        return window["deployment_id"], manifest, triggers_of(manifest)[key]

    async def _session(self, connection: Connection, effects: Effects, environment: Any, window: Any, planned_at: Any, missed: int) -> str:
        """A new root with its first Turn, on a new Computer of its own."""
        deployment_id, manifest, trigger = await self._definition(connection, environment, window)
        agent = agent_of(manifest, window["agent"])
        template = template_of(manifest, agent.template)
        session_id, turn_id, computer_id = new_id(), new_id(), new_id()
        await triggers.insert_scheduled_computer(
            connection,
            id=computer_id,
            environment_id=window["environment_id"],
            deployment_id=deployment_id,
            template_id=template.id,
            template=jsontext.dumps(to_wire(template)),
            made_of=made_of(template),
            cpu=template.cpu,
            memory=template.memory,
        )
        await triggers.insert_scheduled_session(
            connection,
            id=session_id,
            environment_id=window["environment_id"],
            deployment_id=deployment_id,
            agent=agent.id,
            template=agent.template,
            input_kind=agent.input_kind,
            computer_id=computer_id,
            close_after_idle_ms=agent.close_after_idle_ms,
            max_turn_ms=agent.max_turn_duration_ms,
        )
        data = check_input(agent.input_kind, trigger.input)
        await delegation.insert_first_turn(connection, session_id=session_id, id=turn_id, source=SOURCE, input=data)
        fired = {"id": trigger.id, "planned_at": render.time_text(planned_at), "missed": missed}
        entries: list[tuple[str | None, str, bytes]] = [
            (None, "computer.assigned", render.data(computer_id=computer_id)),
            (turn_id, "turn.queued", render.data(sequence=1, source={"kind": "schedule"}, trigger=fired)),
        ]
        if trigger.slack_channel_id is not None:
            entries.append((None, "slack.delivery_unavailable", render.data(reason="channel_unavailable")))
        await record(connection, effects, session_id, entries)
        effects.places.add(session_id)
        log.info("a trigger fired", agent=agent.id, trigger=trigger.id, session=session_id, planned_at=fired["planned_at"])
        return session_id
