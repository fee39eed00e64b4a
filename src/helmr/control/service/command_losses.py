"""Commands that end because their Computer does. SPEC [C8], I8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helmr.control.service import render
from helmr.control.service.core import Effects
from helmr.control.store.pool import Connection
from helmr.control.store.queries import commands


async def lose_commands(
    connection: Connection, effects: Effects, computer_id: str, error: Mapping[str, Any] | None, *, waiting: bool = False
) -> None:
    """Within a transaction that holds the Computer's lock: its Commands end with it; `waiting`: also those that it was to start for."""
    stored = render.error((error or {}).get("code") or "computer_gone", (error or {}).get("message") or "The Computer stopped.")
    for row in await commands.lose_commands(connection, computer_id=computer_id, waiting=waiting, error=stored):
        effects.commands.add(str(row["id"]))
