"""Which connections of one Computer are decrypted, by which certificates, and what is exchanged in them now. SPEC [X1], [X2]."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Final

from helmr.host.sandbox.egress.authority import Authority
from helmr.host.sandbox.egress.protected import OriginSecrets, Protection, origin_of
from helmr.host.sandbox.egress.tls import one_protocol
from helmr.protocol.errors import SetupError
from helmr.protocol.handing import ProtectedSecret

PREPARED_SECONDS: Final = 20.0
"""How long a connection waits for the Secrets of its origin, after a restart of hostd."""


HANDSHAKES: Final = 40
"""Connections of one Computer that are decrypted at once; more of them begin one after the other."""
HANDSHAKES_A_SECOND: Final = 20.0
"""Each costs hostd some milliseconds of the processor that all Computers share."""


class Pace:
    """So many at once, and from then on so many a second: those that come faster wait."""

    def __init__(self, burst: int = HANDSHAKES, rate: float = HANDSHAKES_A_SECOND) -> None:
        self._burst, self._rate = burst, rate
        self._full_at = 0.0
        """When all of the burst is free again."""

    async def turn(self) -> None:
        """Return when it is one's turn."""
        now = monotonic()
        self._full_at = max(now, self._full_at) + 1 / self._rate
        await asyncio.sleep(max(0.0, self._full_at - now - self._burst / self._rate))


class Unprepared(Exception):
    """The Secrets of an origin aren't there; the text says so to the guest."""


class Inspection:
    """`expected`: origins whose Secrets will be told; until then their connections wait. `on_exchange` is told origin and names."""

    def __init__(
        self,
        authority: Callable[[], Authority],
        upstream: Callable[[], ssl.SSLContext],
        on_exchange: Callable[[str, Sequence[str]], None],
        *,
        expected: Iterable[str] = (),
        patience: float = PREPARED_SECONDS,
    ) -> None:
        self._authority, self.upstream, self.exchanged = authority, upstream, on_exchange
        self._protection = Protection()
        self._told = asyncio.Event()
        self._expected = frozenset(expected)
        self._patience = patience
        self.pace = Pace()
        self._running: dict[asyncio.Task[None], OriginSecrets] = {}

    def protect(self, secrets: Sequence[ProtectedSecret]) -> None:
        """These are exchanged from now on, and no others: a connection whose Secrets are no longer these ends at once."""
        self._protection = Protection(secrets)
        self._told.set()
        for task, known in tuple(self._running.items()):
            if self._protection.at(known.origin) != known:
                task.cancel()

    async def at(self, host: str, port: int) -> OriginSecrets | None:
        """What is exchanged towards an authority; None: its connections stay opaque. Raises `Unprepared`."""
        origin = origin_of(host, port)
        if not self._told.is_set() and origin in self._expected:
            try:
                async with asyncio.timeout(self._patience):
                    await self._told.wait()
            except TimeoutError:
                raise Unprepared(f"The Secrets for {origin} have not come from the control plane yet; try again.") from None
        return self._protection.at(origin)

    def context(self, host: str) -> ssl.SSLContext:
        """How to answer the guest in the place of `host`."""
        return self._authority().context(host)

    @contextmanager
    def watching(self, secrets: OriginSecrets) -> Generator[None]:
        """While the current task is a connection with these Secrets."""
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = secrets
        try:
            if self._protection.at(secrets.origin) != secrets:
                raise asyncio.CancelledError
            yield
        finally:
            self._running.pop(task, None)


@cache
def upstream_context(store: Path | None) -> ssl.SSLContext:
    """How origins are verified: by the operator's store of authorities, or by the system's. Raises `SetupError`."""
    try:
        context = ssl.create_default_context(cafile=None if store is None else str(store))
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"The certificates in {store} can't be read: {error}.") from error
    bundle = system_bundle()
    if store is None and not context.cert_store_stats()["x509"] and bundle is not None:
        context.load_verify_locations(cafile=str(bundle))
    return one_protocol(context)


_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")


def system_bundle() -> Path | None:
    """The system's certificates in one file, wherever its distribution keeps them."""
    found = ssl.get_default_verify_paths()
    return next((Path(name) for name in (found.cafile or "", *_BUNDLES) if os.path.isfile(name)), None)
