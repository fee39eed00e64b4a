"""The network of one Computer in hostd: open under a lease, by socket or by passed channel; what it decided. [C4], I8, UD-45."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from helmr.host.hostd.egress import REFUSALS, ComputerEgress, Decisions
from helmr.host.hostd.trust import Trust
from helmr.host.sandbox.egress import Decision, Exemption
from helmr.host.sandbox.egress.addresses import Address
from helmr.host.sandbox.egress.rules import parse_exemptions
from helmr.protocol.egress import PROXY_SOCKET
from helmr.protocol.errors import InvalidValue
from helmr.protocol.multiplex import Multiplexer

pytestmark = pytest.mark.anyio


async def resolve(host: str, port: int) -> Sequence[Address]:
    return [ipaddress.ip_address("127.0.0.1")]


@pytest.fixture
async def origin() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def network(port: int) -> ComputerEgress:
    trust = Trust(Path("/nonexistent"), "c", None)
    return ComputerEgress("c", [f"in.test:{port}"], [Exemption.parse(f"in.test:{port}")], trust, resolve=resolve)


async def greeted(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], port: int) -> None:
    streams[1].write(f"CONNECT in.test:{port} HTTP/1.1\r\n\r\n".encode())
    assert (await streams[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await streams[0].readexactly(5) == b"hello"


@pytest.mark.ud("UD-45")
async def test_closing_cuts_every_connection_and_opening_takes_new_ones(origin: int, tmp_path: Path) -> None:
    """I8: at the end of the lease, and at the next."""
    egress = network(origin)
    async with asyncio.timeout(10):
        for _ in range(2):
            await egress.open(tmp_path)
            await egress.open(tmp_path)
            streams = await asyncio.open_unix_connection(str(tmp_path / PROXY_SOCKET))
            await greeted(streams, origin)
            assert egress.in_flight().tunnels == 1
            await egress.close()
            await egress.close()
            assert await streams[0].read() == b""
            streams[1].close()
            assert not egress.in_flight() and not (tmp_path / PROXY_SOCKET).exists()
    assert egress.decisions.describe() == {"allowed": 2, "refused": 0, "exchanged": 0, "last_refused": []}


@pytest.mark.ud("UD-45")
async def test_streams_of_a_passed_socket_are_judged_and_cut_like_connections(origin: int, tmp_path: Path) -> None:
    """[C4]: for guests that can't reach a socket of the host (gVisor)."""
    egress = network(origin)
    async with asyncio.timeout(10):
        for _ in range(2):
            ours, theirs = socket.socketpair()
            await egress.open(tmp_path)
            await egress.join(theirs)
            guest = Multiplexer("guest")
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda guest=guest: guest, sock=ours)
            await greeted(tunnel := guest.open(), origin)
            refused = guest.open()
            refused[1].write(b"CONNECT other.test:443 HTTP/1.1\r\n\r\n")
            assert (await refused[0].read()).startswith(b"HTTP/1.1 403")
            assert egress.in_flight().tunnels == 1
            await egress.close()
            await guest.closed
            with pytest.raises(ConnectionResetError):
                await tunnel[0].read()
            refused[1].close()
        ours, theirs = socket.socketpair()
        with pytest.raises(ConnectionError):
            await egress.join(theirs)
        ours.close()
    assert egress.decisions.refused == 2 and egress.decisions.allowed == 2


def test_a_guest_that_is_refused_for_ever_fills_no_log() -> None:
    decisions = Decisions("c")
    with structlog.testing.capture_logs() as logs:
        for port in range(1, 5000):
            decisions.take(Decision(host="x.test", port=port, allowed=False, reason="not_listed"))
    assert len(logs) == REFUSALS + 1
    told = decisions.describe()
    assert told["refused"] == 4999 and [entry["port"] for entry in told["last_refused"]] == list(range(4990, 5000))


def test_the_operators_exceptions_come_from_options_and_the_environment_together() -> None:
    found = parse_exemptions("db.test:5432", "10.0.0.0/8:443, [fd00::/8]:80  db.test:5432", "")
    assert found == tuple(map(Exemption.parse, ["db.test:5432", "10.0.0.0/8:443", "[fd00::/8]:80"]))
    with pytest.raises(InvalidValue, match="names no port"):
        parse_exemptions("db.test")
