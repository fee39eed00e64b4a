"""A house whose Computers are handed Secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.service.scripted import House, deploy, house, manifest

from helmr.control.service.keyring import Keyring
from helmr.control.service.plane import PlaneConfig
from helmr.control.upkeep.linked import Linked
from helmr.control.upkeep.placement import Placement
from helmr.control.upkeep.secrets import SecretExposures
from helmr.protocol.secrets import SecretBinding
from helmr.protocol.wire import to_wire
from helmr.sdk.secret import secret

SENTINEL = "s3ntinel-Value/of+a-secret"
"""What no sink may ever show."""


@asynccontextmanager
async def secretive(
    dsn: str, tmp_path: Path, *bindings: SecretBinding, values: dict[str, str] | None = None, keyring: Keyring | None = None
) -> AsyncIterator[House]:
    """A house with a master key, whose one Template binds these; `values` are there from the beginning."""
    async with house(dsn, tmp_path, config=PlaneConfig(keyring=keyring or Keyring({1: b"m" * 32}))) as h:
        for name, value in (values or {}).items():
            await create(h, name, value)
        if bindings:
            await bind(h, bindings)
        yield h


async def bind(h: House, bindings: Sequence[SecretBinding]) -> None:
    """Another Deployment, whose Template binds these."""
    made = manifest()
    bound = tuple(to_wire(binding) for binding in bindings)
    await deploy(h.database, h.principal.environment_id, replace(made, templates=(replace(made.templates[0], secrets=bound),)))


async def create(h: House, name: str, value: str, key: str | None = None) -> dict[str, Any]:
    return json.loads((await h.plane.secrets.create(h.principal, name=name, value=value, idempotency_key=key)).body)


async def rotate(h: House, name: str, value: str, key: str | None = None) -> dict[str, Any]:
    return json.loads((await h.plane.secrets.rotate(h.principal, name, value=value, idempotency_key=key)).body)


async def revoke(h: House, name: str, key: str | None = None) -> dict[str, Any]:
    return json.loads((await h.plane.secrets.revoke(h.principal, name, key)).body)


async def attend(h: House) -> None:
    """The duties that follow Secrets."""
    for duty in (SecretExposures(h.plane), Linked(h.plane), Placement(h.plane)):
        await duty.run()


def told(h: House, kind: str) -> list[dict[str, Any]]:
    return [said for said in h.host.said if said["t"] == kind]


async def dump(h: House) -> str:
    """Every row of every table, binary columns as text where they are one and in hex."""
    found: list[str] = []
    async with h.database.connection() as connection:
        tables = await connection.fetch(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        for table in tables:
            for row in await connection.fetch(f'SELECT * FROM "{table["schemaname"]}"."{table["tablename"]}"'):
                for value in row.values():
                    found.append(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
    assert len(found) > 50
    return "\n".join(found)


__all__ = ["SENTINEL", "attend", "bind", "create", "dump", "revoke", "rotate", "secret", "secretive", "told"]
