"""The named statements of `sql/`, one namespace of functions per noun. Python never glues SQL (STYLE 5).

Every function takes a connection and the statement's parameters by name, and is awaited: a list of rows, or what the statement's mark
says (`^` one row or None, `$` one value, `!` nothing).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiosql
from aiosql.types import SQLOperationType

_FOLDER: Final = Path(__file__).parent / "sql"


def _load(noun: str) -> Any:
    loader: Any = aiosql
    found = loader.from_path(_FOLDER / f"{noun}.sql", "asyncpg")
    functions: dict[str, Any] = {}
    for name in found.available_queries:
        if name.endswith("_cursor"):
            continue
        function = getattr(found, name)
        functions[name] = _listed(function) if function.operation is SQLOperationType.SELECT else function
    return SimpleNamespace(**functions)


def _listed(function: Any) -> Callable[..., Awaitable[list[Any]]]:
    """The statement's rows as a list: they are all fetched anyway, and a half-read iterator would keep the connection."""

    async def rows(connection: Any, **parameters: Any) -> list[Any]:
        return [row async for row in function(connection, **parameters)]

    rows.sql = function.sql  # pyright: ignore[reportFunctionMemberAccess]
    return rows


sessions: Final[Any] = _load("sessions")
turns: Final[Any] = _load("turns")
events: Final[Any] = _load("events")
messages: Final[Any] = _load("messages")
questions: Final[Any] = _load("questions")
holds: Final[Any] = _load("holds")
processes: Final[Any] = _load("processes")
computers: Final[Any] = _load("computers")
commands: Final[Any] = _load("commands")
streams: Final[Any] = _load("streams")
identity: Final[Any] = _load("identity")
deployments: Final[Any] = _load("deployments")
triggers: Final[Any] = _load("triggers")
delegation: Final[Any] = _load("delegation")
limits: Final[Any] = _load("limits")
retention: Final[Any] = _load("retention")
saves: Final[Any] = _load("saves")
histories: Final[Any] = _load("histories")
pressure: Final[Any] = _load("pressure")
drains: Final[Any] = _load("drains")
secrets: Final[Any] = _load("secrets")
api_keys: Final[Any] = _load("api_keys")
enrolments: Final[Any] = _load("enrolments")
members: Final[Any] = _load("members")
environments: Final[Any] = _load("environments")
workers: Final[Any] = _load("workers")
masterkeys: Final[Any] = _load("masterkeys")
signin: Final[Any] = _load("signin")
audit: Final[Any] = _load("audit")
