"""The filtering proxy against real sockets, and against clients that try to get past it [C4]."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helmr.host.sandbox.egress import Decision, EgressPolicy, EgressProxy, Exemption, HostRule, Upstream, forwarded, lookups
from helmr.host.sandbox.egress.addresses import Address
from helmr.host.sandbox.egress.proxy import FindUpstream, ProxyConfig, no_upstream

pytestmark = pytest.mark.anyio

LOOPBACK = ipaddress.ip_address("127.0.0.1")


@dataclass
class Origin:
    """A server that remembers what it got and answers with it."""

    port: int = 0
    received: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        self.received.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        writer.write(b"echo:")
        if b"POST" in head:
            self.received.append(data := await reader.read(65536))
            writer.write(data)
        writer.write_eof()
        self.received.append(await reader.read())
        writer.close()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    found = Origin()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def proxy(
    tmp_path: Path, *allow: str, exempt: Sequence[str] = (), names: dict[str, list[str]] | None = None,
    upstream: FindUpstream = no_upstream, head_seconds: float = 5,
) -> AsyncIterator[tuple[Path, list[Decision]]]:  # fmt: skip
    decisions: list[Decision] = []

    async def resolve(host: str, port: int) -> Sequence[Address]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            pass
        if names is None or host not in names:
            raise OSError(-2, "unknown name")
        return [ipaddress.ip_address(address) for address in names[host]]

    policy = EgressPolicy(allow=tuple(map(HostRule.parse, allow)), exemptions=tuple(map(Exemption.parse, exempt)))
    config = ProxyConfig(
        socket=tmp_path / "egress.sock", policy=policy, on_decision=decisions.append, resolve=resolve, upstream=upstream,
        head_seconds=head_seconds, connect_seconds=5,
    )  # fmt: skip
    async with EgressProxy(config):
        yield tmp_path / "egress.sock", decisions
    assert not (tmp_path / "egress.sock").exists()


async def talk(path: Path, data: bytes) -> bytes:
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        return answer


async def test_a_tunnel_to_an_allowed_and_exempted_host_carries_bytes_both_ways(origin: Origin, tmp_path: Path) -> None:
    where = f"local.test:{origin.port}"
    async with proxy(tmp_path, where, exempt=[where], names={"local.test": ["127.0.0.1"]}) as (path, decisions):
        answer = await talk(path, f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\nGET / HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert answer.endswith(b"echo:")
    assert decisions == [Decision(host="local.test", port=origin.port, allowed=True, reason="allowed", address="127.0.0.1")]


async def test_what_is_not_listed_is_denied_and_logged_without_being_resolved(tmp_path: Path) -> None:
    async with proxy(tmp_path, "other.test") as (path, decisions):
        answer = await talk(path, b"CONNECT example.test:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"example.test:443 is not in the allow-list" in answer
    assert [(decision.allowed, decision.reason) for decision in decisions] == [(False, "not_listed")]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "0.0.0.0", "203.0.113.1"])
async def test_a_listed_name_that_resolves_inside_is_denied(origin: Origin, tmp_path: Path, address: str) -> None:
    where = f"evil.test:{origin.port}"
    async with proxy(tmp_path, where, names={"evil.test": [address]}) as (path, decisions):
        answer = await talk(path, f"CONNECT {where} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert decisions[0].reason == "private_address"
    assert origin.received == []


async def test_the_address_that_was_checked_is_the_one_dialled(origin: Origin, tmp_path: Path) -> None:
    """A name that answers differently the second time gains nothing: it is asked once."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[Address]:
        asked.append(host)
        return [ipaddress.ip_address("192.0.2.1") if len(asked) == 1 else LOOPBACK]

    where = f"rebind.test:{origin.port}"
    config = ProxyConfig(
        socket=tmp_path / "s", policy=EgressPolicy(allow=(HostRule.parse(where),)), on_decision=lambda _: None, resolve=rebinding
    )
    async with EgressProxy(config):
        answer = await talk(tmp_path / "s", f"CONNECT {where} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert asked == ["rebind.test"]
    assert origin.received == []


async def test_of_several_addresses_only_the_permitted_are_tried(origin: Origin, tmp_path: Path) -> None:
    where = f"mixed.test:{origin.port}"
    names = {"mixed.test": ["10.0.0.1", "127.0.0.1"]}
    async with proxy(tmp_path, where, exempt=[f"127.0.0.0/8:{origin.port}"], names=names) as (path, decisions):
        answer = await talk(path, f"CONNECT {where} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert decisions[0].address == "127.0.0.1"


async def test_a_plain_request_goes_on_with_the_checked_host_and_without_hop_headers(origin: Origin, tmp_path: Path) -> None:
    where = f"local.test:{origin.port}"
    async with proxy(tmp_path, where, exempt=[where], names={"local.test": ["127.0.0.1"]}) as (path, _):
        request = (
            f"GET http://{where}/a%20b?q=1 HTTP/1.1\r\nHost: forged.test\r\nProxy-Authorization: Basic x\r\nX-Keep: yes\r\n"
            "X-Drop: no\r\nConnection: keep-alive, X-Drop\r\n\r\n"
        )
        answer = await talk(path, request.encode())
    assert answer.startswith(b"HTTP/1.1 200 OK")
    head = origin.received[0]
    assert head == f"GET /a%20b?q=1 HTTP/1.1\r\nHost: {where}\r\nX-Keep: yes\r\nConnection: close\r\n\r\n".encode()


async def test_a_second_request_smuggled_behind_the_first_does_not_reach_the_origin(origin: Origin, tmp_path: Path) -> None:
    where = f"local.test:{origin.port}"
    async with proxy(tmp_path, where, exempt=[where], names={"local.test": ["127.0.0.1"]}) as (path, decisions):
        first = f"POST http://{where}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
        answer = await talk(path, (first + "GET http://hidden.test/ HTTP/1.1\r\n\r\n").encode())
    assert answer.endswith(b"echo:body")
    assert b"hidden" not in b"".join(origin.received)
    assert len(decisions) == 1


async def test_a_chunked_body_arrives_framed_anew_and_bounded(origin: Origin, tmp_path: Path) -> None:
    where = f"local.test:{origin.port}"
    async with proxy(tmp_path, where, exempt=[where], names={"local.test": ["127.0.0.1"]}) as (path, _):
        head = f"POST http://{where}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        await talk(path, head.encode() + b"4;ext=1\r\nbody\r\n0\r\nTrailer: x\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert b"".join(origin.received[1:]) == b"4\r\nbody\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: local.test\r\n\r\n",
        b"GET https://local.test/ HTTP/1.1\r\n\r\n",
        b"GET ftp://local.test/ HTTP/1.1\r\n\r\n",
        b"GET http://user:pw@local.test/ HTTP/1.1\r\n\r\n",
        b"GET http://local.test@evil.test/ HTTP/1.1\r\n\r\n",
        b"GET http://local.test /x HTTP/1.1\r\n\r\n",
        b"GET http://local.test\\@evil.test/ HTTP/1.1\r\n\r\n",
        b"GET http://local.test/ HTTP/2\r\n\r\n",
        b"CONNECT local.test HTTP/1.1\r\n\r\n",
        b"CONNECT local.test:0 HTTP/1.1\r\n\r\n",
        b"CONNECT http://local.test:80 HTTP/1.1\r\n\r\n",
        b"CONNECT local.test:443\nX: HTTP/1.1\r\n\r\n",
        b"POST http://local.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://local.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST http://local.test/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST http://local.test/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"GET http://local.test/ HTTP/1.1\r\nX : y\r\n\r\n",
        b"GET http://local.test/ HTTP/1.1\r\nX: a\n b\r\n\r\n",
        b"GET http://local.test/ HTTP/1.1\r\n folded\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
)
async def test_a_request_that_two_parsers_could_read_differently_is_refused(tmp_path: Path, request_bytes: bytes) -> None:
    async with proxy(tmp_path, "local.test", "evil.test", names={"local.test": ["127.0.0.1"], "evil.test": ["127.0.0.1"]}) as (
        path,
        decisions,
    ):
        answer = await talk(path, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert decisions == []


@pytest.mark.parametrize("size", [b"0x4", b"4_0", b"+4", b" 4", b"", b"-4", b"4 4", b"\xd9\xa4", b"4" * 20, b"4\n"])
async def test_a_chunk_whose_size_only_one_parser_would_read_ends_the_request(origin: Origin, tmp_path: Path, size: bytes) -> None:
    """[C4]: nothing after it reaches the origin."""
    where = f"local.test:{origin.port}"
    async with proxy(tmp_path, where, exempt=[where], names={"local.test": ["127.0.0.1"]}) as (path, _):
        head = f"POST http://{where}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await talk(path, head + b"2\r\nok\r\n" + size + b"\r\nbodybody\r\n0\r\n\r\n")
    assert b"".join(origin.received[1:]) in (b"2\r\nok\r\n", b"")


async def test_names_that_nobody_answers_for_delay_their_own_sandbox_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """[C4]: also those that were given up while the resolver was still busy with them."""
    answer, asked = threading.Event(), threading.Semaphore(0)

    def getaddrinfo(host: str, *arguments: object, **named: object) -> list[tuple[object, ...]]:
        if host == "slow.test":
            asked.release()
            assert answer.wait(20)
        return [(0, 0, 0, "", ("192.0.2.1", 443))]

    monkeypatch.setattr(lookups.socket, "getaddrinfo", getaddrinfo)
    hostile, other = lookups.Lookups(), lookups.Lookups()
    try:
        async with asyncio.timeout(20):
            given_up = [asyncio.ensure_future(hostile("slow.test", 443)) for _ in range(lookups.LOOKUPS)]
            for _ in given_up:
                await asyncio.to_thread(asked.acquire)
            for task in given_up:
                task.cancel()
            waiting = [asyncio.ensure_future(hostile("slow.test", 443)) for _ in range(2 * lookups.RESOLVERS)]
            assert await other("fast.test", 443) == [ipaddress.ip_address("192.0.2.1")]
            assert not any(task.done() for task in waiting) and not asked.acquire(blocking=False)
            answer.set()
            assert len(await asyncio.gather(*waiting)) == 2 * lookups.RESOLVERS
    finally:
        answer.set()


async def test_an_endless_head_is_refused(tmp_path: Path) -> None:
    async with proxy(tmp_path) as (path, _):
        assert (await talk(path, b"GET http://x/ HTTP/1.1\r\nX: " + b"a" * 200_000)).startswith(b"HTTP/1.1 431 ")


async def test_a_silent_client_is_let_go(tmp_path: Path) -> None:
    async with proxy(tmp_path, head_seconds=0.05) as (path, _):
        assert (await talk(path, b"CONNECT ")).startswith(b"HTTP/1.1 408 ")


async def test_an_unreachable_origin_is_a_bad_gateway(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with proxy(tmp_path, f"127.0.0.1:{port}", exempt=[f"127.0.0.1:{port}"]) as (path, decisions):
        assert (await talk(path, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())).startswith(b"HTTP/1.1 502 ")
    assert decisions[0].reason == "unreachable"


async def test_the_socket_may_lie_deeper_than_a_socket_address_can_say(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 25) / ("deep" * 25)
    folder.mkdir(parents=True)
    config = ProxyConfig(socket=folder / "s", policy=EgressPolicy(), on_decision=lambda _: None)
    async with EgressProxy(config):
        (tmp_path / "short").symlink_to(folder)
        assert (await talk(tmp_path / "short" / "s", b"CONNECT example.test:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
    assert list(folder.iterdir()) == []


async def test_stop_ends_open_tunnels(origin: Origin, tmp_path: Path) -> None:
    where = f"127.0.0.1:{origin.port}"
    async with proxy(tmp_path, where, exempt=[where]) as (path, _):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"CONNECT {where} HTTP/1.1\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_behind_the_operators_proxy_an_exempted_name_is_passed_on_and_others_as_checked_addresses(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    operators = Upstream(host="127.0.0.1", port=server.sockets[0].getsockname()[1], authorization="Basic abc")
    names = {"public.test": ["8.8.8.8"], "inside.test": ["10.0.0.1"]}
    allow = ("named.test", "public.test", "inside.test")
    async with proxy(tmp_path, *allow, exempt=["named.test:443"], names=names, upstream=lambda *_: operators) as (path, _):
        answers = [await talk(path, f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode()) for host in allow]
    server.close()
    await server.wait_closed()
    assert [answer[9:12] for answer in answers] == [b"200", b"200", b"403"]
    assert answers[0].endswith(b"hello")
    assert seen == [
        b"CONNECT named.test:443 HTTP/1.1\r\nHost: named.test:443\r\nProxy-Authorization: Basic abc\r\n\r\n",
        b"CONNECT 8.8.8.8:443 HTTP/1.1\r\nHost: 8.8.8.8:443\r\nProxy-Authorization: Basic abc\r\n\r\n",
    ]


PROGRAM = """
import os, sys, urllib.request
proxy = urllib.request.ProxyHandler({"http": "http://127.0.0.1:" + sys.argv[1]})
print(urllib.request.build_opener(proxy).open(sys.argv[2]).read().decode())
sys.exit(7)
"""


async def test_the_forwarder_gives_a_program_its_port_and_passes_its_status_on(origin: Origin, tmp_path: Path) -> None:
    where = f"local.test:{origin.port}"
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = str(server.sockets[0].getsockname()[1])
    server.close()
    await server.wait_closed()
    async with proxy(tmp_path, where, exempt=[where], names={"local.test": ["127.0.0.1"]}) as (path, _):
        argv = forwarded([sys.executable, "-c", PROGRAM, port, f"http://{where}/"], proxy=str(path), python=sys.executable)
        argv[argv.index("3128")] = port
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        out, _ = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 7
    assert out == b"echo:\n"


@pytest.mark.parametrize(("program", "code"), [("/does/not/exist", 127), ("/etc/passwd", 126)])
async def test_a_program_that_can_not_start_gives_the_shells_status(tmp_path: Path, program: str, code: int) -> None:
    argv = forwarded([program], proxy=str(tmp_path / "none"), python=sys.executable)
    argv[argv.index("3128")] = "0"
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    _, text = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == code
    assert program.encode() in text
