"""`client.projects` and `client.environments`, for a client of a person (`helmr login`). SPEC 12, 14."""

from __future__ import annotations

from typing import Any

from helmr.client.reading import read
from helmr.client.transport import Transport, segment
from helmr.protocol.environment_shapes import Environment, EnvironmentPage, Project, ProjectPage


class Projects:
    """Projects of the installation."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> ProjectPage:
        """A page of projects, the newest first. `limit` 1-100, 50 when omitted."""
        return read(ProjectPage, await self._transport.call("GET", "/v1/projects", query={"cursor": cursor, "limit": limit}))

    async def create(self, name: str, *, idempotency_key: str | None = None) -> Project:
        """A project without Environments. Raises `Forbidden`, `ProjectExists`, `InvalidValue`."""
        return read(Project, await self._transport.write("/v1/projects", {"name": name}, idempotency_key))


class Environments:
    """Environments by their ids."""

    __slots__ = ("_transport",)

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self, *, project: str | None = None, cursor: str | None = None, limit: int | None = None) -> EnvironmentPage:
        """A page of Environments, of one project or of all, the newest first. `limit` 1-100, 50 when omitted."""
        query = {"project": project, "cursor": cursor, "limit": limit}
        return read(EnvironmentPage, await self._transport.call("GET", "/v1/environments", query=query))

    async def get(self, environment_id: str) -> Environment:
        """Raises `EnvironmentNotFound`."""
        return read(Environment, await self._transport.call("GET", f"/v1/environments/{segment(environment_id)}"))

    async def create(self, project: str, name: str, *, idempotency_key: str | None = None) -> Environment:
        """An Environment of the project with that name. Raises `Forbidden`, `ProjectNotFound`, `EnvironmentExists`, `InvalidValue`."""
        return read(Environment, await self._transport.write("/v1/environments", {"project": project, "name": name}, idempotency_key))

    async def limit(
        self,
        environment_id: str,
        *,
        admission_rate: str | None = None,
        admission_burst: int | None = None,
        payload_retention: str | None = None,
        computer_retention: str | None = None,
        trigger_computer_retention: str | None = None,
        trigger_grace: str | None = None,
        max_init_duration: str | None = None,
        idempotency_key: str | None = None,
    ) -> Environment:
        """Set limits; what is None stays as it is. The rate is a number of Sessions and Turns a second, or "unlimited"; the others are
        durations ("30d"), or "never" for what is kept. It acts at once. Raises `Forbidden`, `EnvironmentNotFound`, `InvalidValue`."""
        asked: dict[str, Any] = {
            "admission_rate": admission_rate,
            "admission_burst": admission_burst,
            "payload_retention": payload_retention,
            "computer_retention": computer_retention,
            "trigger_computer_retention": trigger_computer_retention,
            "trigger_grace": trigger_grace,
            "max_init_duration": max_init_duration,
        }
        body = {name: value for name, value in asked.items() if value is not None}
        path = f"/v1/environments/{segment(environment_id)}/limits"
        return read(Environment, await self._transport.write(path, body, idempotency_key))
