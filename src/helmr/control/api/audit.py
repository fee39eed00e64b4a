"""The audit log: of an Environment, and of the installation. SPEC 14."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from helmr.control.api.answers import Answer, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.constraints import Bytes, Instant
from helmr.control.api.requests import AnyId, Cursor, Limit, Nothing
from helmr.control.api.route import Route
from helmr.protocol import errors, limits
from helmr.protocol.audit_shapes import AuditPage, InstallationLogPage
from helmr.protocol.unset import UNSET, UnsetType

TAG = "Audit"

Time = Annotated[str, Instant()]
Word = Annotated[str, Bytes(1, 128)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """`operation` narrows to those that begin with it, `since` and `until` to a span of time, its end not included."""

    by: AnyId | UnsetType = UNSET
    operation: Word | UnsetType = UNSET
    target: Word | UnsetType = UNSET
    since: Time | UnsetType = UNSET
    until: Time | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationLogQuery:
    """`what` narrows to what begins with it."""

    by: AnyId | UnsetType = UNSET
    what: Word | UnsetType = UNSET
    since: Time | UnsetType = UNSET
    until: Time | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = limits.PAGE


async def list_(call: Call[AuditQuery, Nothing]) -> Answer:
    query = call.query
    page = await call.services.audit.list(
        call.principal,
        by=given(query.by),
        operation=given(query.operation),
        target=given(query.target),
        since=_instant(query.since),
        until=_instant(query.until),
        cursor=given(query.cursor),
        limit=query.limit,
    )
    return encoded(page)


async def of_installation(call: Call[InstallationLogQuery, Nothing]) -> Answer:
    query = call.query
    page = await call.services.audit.of_installation(
        call.person,
        by=given(query.by),
        what=given(query.what),
        since=_instant(query.since),
        until=_instant(query.until),
        cursor=given(query.cursor),
        limit=query.limit,
    )
    return encoded(page)


def _instant(text: str | UnsetType) -> datetime | None:
    return None if isinstance(text, UnsetType) else datetime.fromisoformat(text)


AUDIT_ROUTES = (
    Route(
        method="GET",
        path="/v1/audit",
        name="list_audit",
        summary="List what was written in the Environment and by whom, the newest first",
        handler=list_,
        tag=TAG,
        permission="audit.read",
        query=AuditQuery,
        answer=AuditPage,
        errors=(errors.InvalidCursor,),
    ),
    Route(
        method="GET",
        path="/v1/audit/installation",
        name="list_installation_log",
        summary="List what people did to the installation and how they came in, the newest first",
        handler=of_installation,
        tag=TAG,
        access="person",
        permission="members.manage",
        query=InstallationLogQuery,
        answer=InstallationLogPage,
        errors=(errors.InvalidCursor,),
    ),
)
