"""The network of a running Computer: its egress proxy, and what that has decided [C4].

The proxy is open while the Computer runs under a lease: the watchdog closes it with every connection when the lease ends, and the next
lease opens it again (I8). A restart of hostd ends the connections too; the Computer goes on, and its next connection is taken as ever.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from helmr.host.hostd.trust import Trust
from helmr.host.sandbox.egress import Decision, EgressPolicy, EgressProxy, Exemption, HostRule
from helmr.host.sandbox.egress.activity import InFlight
from helmr.host.sandbox.egress.inspection import Inspection, upstream_context
from helmr.host.sandbox.egress.lookups import Lookups
from helmr.host.sandbox.egress.proxy import ProxyConfig, Resolve
from helmr.host.sandbox.egress.upstream import upstream_of
from helmr.protocol.egress import CONNECTIONS, PROXY_SOCKET
from helmr.protocol.handing import ProtectedSecret
from helmr.protocol.multiplex import Multiplexer

REFUSALS: Final = 10
"""The last refusals that are kept, and how many a minute are logged one by one."""
_MINUTE: Final = 60.0

_log = structlog.get_logger("helmr.egress")

NOTHING: Final = InFlight(exchanges=0, tunnels=0, retry_seconds=0.0)


@dataclass(slots=True)
class Decisions:
    """What a Computer asked for since hostd has it. A guest that is refused a thousand times a second fills no log."""

    computer: str
    allowed: int = 0
    refused: int = 0
    exchanged: int = 0
    last: deque[Mapping[str, Any]] = field(default_factory=lambda: deque[Mapping[str, Any]](maxlen=REFUSALS))
    _minute: float = 0.0
    _logged: int = 0

    def take(self, decision: Decision) -> None:
        """Count it, and log it within bounds."""
        if decision.allowed:
            self.allowed += 1
        else:
            self.refused += 1
            at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            self.last.append({"host": decision.host, "port": decision.port, "reason": decision.reason, "at": at})
        members = {"host": decision.host, "port": decision.port, "address": decision.address}
        self._write("egress.decision", allowed=decision.allowed, reason=decision.reason, **members)

    def exchange(self, origin: str, secrets: Sequence[str]) -> None:
        """Count a request with Secrets in it, and log their names within bounds [X1]."""
        self.exchanged += 1
        self._write("egress.exchanged", origin=origin, secrets=list(secrets))

    def describe(self) -> Mapping[str, Any]:
        """The member `egress` of a Computer's stats."""
        counts = {"allowed": self.allowed, "refused": self.refused, "exchanged": self.exchanged}
        return counts | {"last_refused": list(self.last)}

    def _write(self, event: str, **members: Any) -> None:
        now = time.monotonic()
        if now - self._minute >= _MINUTE:
            self._minute, self._logged = now, 0
        self._logged += 1
        if self._logged <= REFUSALS:
            _log.info(event, computer=self.computer, **members)
        elif self._logged == REFUSALS + 1:
            _log.info("egress.decisions_not_logged", computer=self.computer, seconds=round(self._minute + _MINUTE - now))


class ComputerEgress:
    """`open` and `close` are idempotent, and may follow each other any number of times."""

    def __init__(
        self,
        computer: str,
        allow: Sequence[str],
        exemptions: Sequence[Exemption],
        trust: Trust,
        *,
        expected: Sequence[str] = (),
        resolve: Resolve | None = None,
    ) -> None:
        """`expected`: origins whose Secrets will be told by `protect`."""
        self.decisions = Decisions(computer)
        self.trust = trust
        self._inspection = Inspection(
            lambda: trust.authority, lambda: upstream_context(trust.store), self.decisions.exchange, expected=expected
        )
        self._policy = EgressPolicy(allow=tuple(map(HostRule.parse, allow)), exemptions=tuple(exemptions))
        self._resolve = Lookups() if resolve is None else resolve
        self._proxy: EgressProxy | None = None
        self._channels: set[Multiplexer] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._proxy is not None

    async def open(self, run: Path | None) -> None:
        """Listen in the run folder `run`; None: what is joined is served alone. Raises `OSError`."""
        if self._proxy is None:
            config = ProxyConfig(
                socket=None if run is None else run / PROXY_SOCKET,
                policy=self._policy,
                on_decision=self.decisions.take,
                resolve=self._resolve,
                upstream=lambda host, port: upstream_of(os.environ, host, port),
                inspection=self._inspection,
            )
            proxy = EgressProxy(config)
            await proxy.start()
            self._proxy = proxy

    def protect(self, secrets: Sequence[ProtectedSecret]) -> None:
        """What is exchanged from now on. Connections in which something else was exchanged end at once [X2]."""
        self._inspection.protect(secrets)

    async def join(self, passed: socket.socket) -> Multiplexer:
        """Serve the streams of a socket whose other end a forwarder inside has: for drivers whose guests can't reach the run folder.

        Owns `passed`, until `cut` or `close`; a proxy that is opened again needs another. The channel says when it has ended. Raises
        `ConnectionError` while the proxy is closed.
        """
        if self._proxy is None:
            passed.close()
            raise ConnectionError("The Computer has no network now.")
        proxy, tasks = self._proxy, self._tasks

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(tasks) >= 2 * CONNECTIONS:  # opened and reset faster than they can end
                writer.transport.abort()
                return
            task = asyncio.ensure_future(proxy.serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        channel = Multiplexer("host", accept=accept, streams=CONNECTIONS)
        passed.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=passed)
        self._channels.add(channel)
        channel.closed.add_done_callback(lambda _: self._channels.discard(channel))
        return channel

    def cut(self) -> None:
        """End every channel, and what goes through it; the proxy stays open."""
        for channel in tuple(self._channels):
            channel.close()

    async def close(self) -> None:
        """End every connection at once, and take no more."""
        proxy, self._proxy = self._proxy, None
        self.cut()
        if proxy is not None:
            await proxy.stop()

    def in_flight(self) -> InFlight:
        """What has not ended of what it asked for [C6]."""
        return NOTHING if self._proxy is None else self._proxy.in_flight()
