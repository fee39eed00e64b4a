"""`client.audit`: who wrote what. SPEC 12, 14."""

from __future__ import annotations

from helmr.client.reading import read
from helmr.client.transport import Transport
from helmr.protocol.audit_shapes import AuditPage, InstallationLogPage


class Audit:
    """What was accepted, with who asked for it: of the client's Environment, and, for admins, of the installation as a whole."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        by: str | None = None,
        operation: str | None = None,
        target: str | None = None,
        since: str | None = None,
        until: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> AuditPage:
        """A page of the Environment's entries, the newest first; needs `audit.read`. `limit` 1-100, 50 when omitted.

        Narrowed to one principal's (`by`, its id), to operations that begin with `operation` ("secrets."), to one `target` by its id, to
        times from `since` to before `until` (RFC 3339, with the offset). Raises `InvalidValue`, `InvalidCursor`.
        """
        query = {"by": by, "operation": operation, "target": target, "since": since, "until": until, "cursor": cursor, "limit": limit}
        return read(AuditPage, await self._transport.call("GET", "/v1/audit", query=query))

    async def installation(
        self,
        *,
        by: str | None = None,
        what: str | None = None,
        since: str | None = None,
        until: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> InstallationLogPage:
        """A page of what people did to the installation: sign-ins, failed ones too, members, projects, Environments. For admins and owners.

        Narrowed as `list` is; `what` by its beginning. Raises `Forbidden`, `InvalidValue`, `InvalidCursor`.
        """
        query = {"by": by, "what": what, "since": since, "until": until, "cursor": cursor, "limit": limit}
        return read(InstallationLogPage, await self._transport.call("GET", "/v1/audit/installation", query=query))
