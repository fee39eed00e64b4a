"""Names of one sandbox, looked up by the host's resolver: so that who asks for names that nobody answers for waits for them alone."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from helmr.host.sandbox.egress.addresses import Address

LOOKUPS: Final = 4
"""Names that a sandbox may have looked up at once; its others wait."""
RESOLVERS: Final = 32
"""Those of all sandboxes together. Threads of their own: what blocks them must not take those that hostd needs."""

_resolvers: Final = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="egress-resolver")


class Lookups:
    """A look-up that nobody waits for any more counts until it has ended: the resolver can't be told to stop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        """All addresses of a name. Raises `OSError`."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        asked = _resolvers.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)

        def ended(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # hostd has ended meanwhile
                loop.call_soon_threadsafe(self._free.release)

        asked.add_done_callback(ended)
        found = await asyncio.wrap_future(asked)
        return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
