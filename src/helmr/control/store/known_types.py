"""What the server's own types are is asked once per process, not once per connection: of what a new connection costs, that is half."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import asyncpg

if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

_BUILT_IN: Final = 1 << 14
"""Types below this number are the same in every database of a version of PostgreSQL."""
_known: Final[dict[tuple[object, frozenset[int]], Any]] = {}


class _Nothing:
    """Stands for the statement that asked: none did, so none has taken the place of the one that is being prepared."""

    name: Final = "known"


class KnowingConnection(_Base):
    """A connection that uses what an earlier one to the same version of PostgreSQL was told of arrays and other built-in types."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:
        # Not public. Should it go by another name one day, every connection asks again, and a test says so.
        wanted = frozenset(typeoids)
        place = (self.get_server_version(), wanted)
        if place in _known:
            return _known[place], _Nothing
        inherited: Any = super()
        types, statement = await inherited._introspect_types(wanted, timeout)
        if all(oid < _BUILT_IN for oid in wanted):
            _known[place] = types
        return types, statement
