"""The audit log, read. It is written by each write's own transaction (`core.Retry.remember`, the flush, the creation). SPEC 14, [O1]."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from helmr.control.domain.audit import KEPT_DAYS
from helmr.control.service import render
from helmr.control.service.asked import decode_cursor, encode_cursor
from helmr.control.service.core import Core
from helmr.control.service.principals import Principal
from helmr.control.service.signin.people import Person
from helmr.control.store.queries import audit as statements
from helmr.protocol.audit_shapes import Actor, AuditEntry, AuditPage, InstallationEntry, InstallationLogPage
from helmr.protocol.unset import UNSET

_BATCH: Final = 5_000


class Audit:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(
        self,
        principal: Principal,
        *,
        by: str | None,
        operation: str | None,
        target: str | None,
        since: datetime | None,
        until: datetime | None,
        cursor: str | None,
        limit: int,
    ) -> AuditPage:
        """What was written in the Environment, the newest first: by one principal, of operations that begin so, of one target, from `since`
        to before `until`; None doesn't narrow."""
        principal.require("audit.read")
        async with self._core.database.connection() as connection:
            rows = await statements.of_environment(
                connection,
                environment_id=principal.environment_id,
                principal_id=by,
                operation=operation,
                target=target,
                since=since,
                until=until,
                before=None if cursor is None else decode_cursor(cursor),
                count=limit + 1,
            )
        return AuditPage(items=tuple(_entry(row) for row in rows[:limit]), next_cursor=_following(rows, limit))

    async def of_installation(
        self,
        person: Person,
        *,
        by: str | None,
        what: str | None,
        since: datetime | None,
        until: datetime | None,
        cursor: str | None,
        limit: int,
    ) -> InstallationLogPage:
        """What people did to the installation and how they came in, the newest first. Who may read it was checked by the role of now."""
        async with self._core.database.connection() as connection:
            rows = await statements.of_installation(
                connection,
                user_id=by,
                what=what,
                since=since,
                until=until,
                before=None if cursor is None else decode_cursor(cursor),
                count=limit + 1,
            )
        return InstallationLogPage(items=tuple(_installation_entry(row) for row in rows[:limit]), next_cursor=_following(rows, limit))

    async def forget_old(self) -> bool:
        """Delete a part of what is older than `KEPT_DAYS`; whether there may be more."""
        async with self._core.database.connection() as connection:
            gone: int = await statements.forget_old(connection, days=KEPT_DAYS, count=_BATCH)
        return gone == _BATCH


def _following(rows: Any, limit: int) -> str | None:
    return encode_cursor(str(rows[limit - 1]["id"])) if len(rows) > limit else None


def _actor(kind: Literal["api_key", "user", "session"], id: Any, name: str | None) -> Actor:
    return Actor(kind=kind, id=str(id), name=name or UNSET)


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        id=str(row["id"]),
        at=render.time_text(row["at"]),
        by=_actor(row["kind"], row["principal_id"], row["name"]),
        operation=row["operation"],
        target=row["target"],
    )


def _installation_entry(row: Any) -> InstallationEntry:
    return InstallationEntry(
        id=str(row["id"]),
        at=render.time_text(row["at"]),
        what=row["what"],
        address=row["address"],
        about=row["about"],
        by=UNSET if row["user_id"] is None else _actor("user", row["user_id"], row["name"]),
    )
