"""What a hostile client sends, byte by byte, to a real control plane: each is answered by a problem document, and it goes on. SPEC 11."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helmr.control.api.connection import HEAD_BYTES, Connection
from helmr.control.listener import Listener, ListenerConfig
from helmr.protocol.ids import new_id
from helmr.server import Server, ServerConfig
from helmr.testing.database import DatabaseServer

pytestmark = pytest.mark.anyio
KEY = "hlmr_sk_" + "k" * 43
CREDENTIAL = "hlmr_wk_of-this-test"
SOMEONE = f"/v1/sessions/{new_id()}"
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
SECONDS = 10.0


@pytest.fixture(scope="module")
async def port(anyio_backend: str, database_server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    """A control plane of this module; at its end nothing of all this counts as a fault of it."""
    dsn = database_server.clone()
    config = ServerConfig(dsn=dsn, blobs=tmp_path_factory.mktemp("blobs"), api_key=KEY, worker_token=CREDENTIAL, pool_size=4)
    server = Server(config, Listener(ListenerConfig()))
    await server.start()
    yield int(server.url.rpartition(":")[2])
    answer = await asked(int(server.url.rpartition(":")[2]), "GET", "/metrics")
    assert "helmr_http_failures_total 0.0" in answer.body.decode()
    await server.stop()
    database_server.drop(dsn)


@pytest.fixture(autouse=True)
def no_exception_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json", self
        members = json.loads(self.body)
        assert members["status"] == self.status and members["code"] and members["request_id"]
        return members


def request(method: str, target: str, *headers: str, body: bytes = b"", version: str = "HTTP/1.1", host: bool = True) -> bytes:
    lines = [f"{method} {target} {version}", *(["Host: api"] if host else []), f"Authorization: Bearer {KEY}", *headers]
    if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def asked(port: int, method: str, target: str, *headers: str, **options: Any) -> Answer:
    return (await said(port, request(method, target, *headers, **options)))[0]


async def said(port: int, data: bytes, answers: int = 1, head: bool = False) -> list[Answer]:
    """Send bytes as they are; the answers to them, each whole."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            return [await answer(reader, head=head) for _ in range(answers)]
        finally:
            writer.transport.abort()


async def answer(reader: asyncio.StreamReader, *, head: bool = False) -> Answer:
    top = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in top[1:] if line)}
    length = 0 if head or "content-length" not in headers else int(headers["content-length"])
    return Answer(int(top[0].split()[1]), headers, await reader.readexactly(length))


# --- sizes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_20_megabytes_is_answered_413_by_a_client_that_writes_it_all_first(port: int, chunked: bool) -> None:
    """The client reads only after its last byte, as many do: the answer is there, no reset has eaten it."""
    size = 20_000_000
    piece = b" " * 50_000
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        coding = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        writer.write(request("POST", "/v1/sessions", coding))
        for _ in range(size // len(piece)):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        got = await answer(reader)
        assert (got.status, got.problem()["code"], got.headers["connection"]) == (413, "request_too_large", "close")
        assert await reader.read() == b""
        writer.close()


async def test_a_body_that_waits_for_leave_is_refused_without_being_sent(port: int) -> None:
    got = await asked(port, "POST", "/v1/sessions", "Content-Length: 20000000", "Expect: 100-continue")
    assert (got.status, got.problem()["code"]) == (413, "request_too_large")


async def test_a_body_that_waits_for_leave_gets_it(port: int) -> None:
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("POST", "/v1/sessions", "Content-Length: 2", "Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        got = await answer(reader)
        writer.close()
    assert (got.status, got.problem()["path"]) == (400, "agent")


@pytest.mark.parametrize(
    "head",
    [
        request("GET", "/healthz", "X-Long: " + "y" * 5_000_000),
        request("GET", "/healthz?" + "y" * 5_000_000),
        request("GET", "/healthz", *[f"X-{number}: y" for number in range(10_000)]),
        b"GET " + b"/" * (HEAD_BYTES + 1),
    ],
    ids=["one long header", "a long query", "many headers", "no end"],
)
async def test_a_head_without_measure_is_refused_before_it_ends(port: int, head: bytes) -> None:
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head[: HEAD_BYTES * 2])
        got = await answer(reader)
        writer.transport.abort()
    assert (got.status, got.problem()["code"]) == (400, "invalid_request")


# --- forms ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        request("FOO", "/v1/sessions"),
        request("CONNECT", "api:443"),
        request("GET", "http://api"),
        request("GET", "/healthz", version="HTTP/3.3"),
        request("GET", "/healthz", "X-A: a\r\n b"),
        request("GET", "/healthz", "X-A: a\rb"),
        request("GET", "/healthz", "X-A: a\0b"),
        request("POST", "/v1/sessions", "Content-Length: -3"),
        request("POST", "/v1/sessions", "Content-Length: 99999999999999999999999"),
        request("POST", "/v1/sessions", "Content-Length: 3", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        request("POST", "/v1/sessions", "Transfer-Encoding: chunked", body=b"zz\r\n"),
        request("POST", "/v1/sessions", "Idempotency-Key: a\x01b"),
    ],
)
async def test_what_is_no_http_request_is_answered_by_a_problem_and_ended(port: int, data: bytes) -> None:
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        got = await answer(reader)
        assert (got.status, got.problem()["code"], got.headers["connection"]) == (400, "invalid_request", "close")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    "target",
    ["//v1/sessions", "/v1//sessions", "/v1%2fsessions", "/v1/../v1/sessions", "/v1/sessions/", "/v1/sessions;a=b", "/v1/sessions/%2e%2e"],
)
async def test_no_trick_of_a_path_finds_another_route(port: int, target: str) -> None:
    assert (await asked(port, "GET", target)).problem()["code"] in ("route_not_found", "session_not_found")


@pytest.mark.parametrize("name", ["%00", "%F0%9F%98%80", "%0A", "x" * 5000, "..%2f..", "1'%20OR%20'1'='1"])
async def test_no_text_in_a_path_is_more_than_an_unknown_id(port: int, name: str) -> None:
    """[O1]."""
    for target in (f"/v1/sessions/{name}", f"/v1/sessions/{name}/turns/{name}", f"/v1/sessions/{name}/events/stream"):
        assert (await asked(port, "GET", target)).problem()["code"] == "session_not_found"


async def test_a_target_in_absolute_form_is_the_path_that_it_names(port: int) -> None:
    assert (await asked(port, "GET", "http://elsewhere/v1/sessions")).status == 200


async def test_http_1_0_and_a_wish_to_close_are_answered_and_closed(port: int) -> None:
    for data in (request("GET", "/healthz", version="HTTP/1.0", host=False), request("GET", "/healthz", "Connection: close")):
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            assert (await answer(reader)).status == 200
            assert await reader.read() == b""
            writer.close()


async def test_pipelined_requests_are_answered_in_their_order(port: int) -> None:
    data = b"".join([request("GET", "/healthz"), request("POST", "/v1/sessions", body=b"{}"), request("GET", "/nope")] * 5)
    answers = await said(port, data, answers=15)
    assert [got.status for got in answers] == [200, 400, 404] * 5


async def test_a_body_where_none_belongs_does_not_spoil_the_next_request(port: int) -> None:
    data = request("GET", "/v1/sessions", body=b"GET /healthz HTTP/1.1\r\n\r\n") + request("GET", "/nope")
    assert [got.status for got in await said(port, data, answers=2)] == [200, 404]


async def test_compressed_bodies_are_refused_by_name(port: int) -> None:
    body = gzip.compress(b'{"agent":"echo"}')
    got = await asked(port, "POST", "/v1/sessions", "Content-Encoding: gzip", body=body)
    assert (got.status, got.problem()["code"]) == (400, "invalid_request")
    assert "Content-Encoding" in got.problem()["detail"]


@pytest.mark.parametrize("kind", ["text/xml", "application/x-www-form-urlencoded", "", "\xff"])
async def test_a_body_is_read_as_json_whatever_its_type_is_called(port: int, kind: str) -> None:
    got = await asked(port, "POST", "/v1/sessions", f"Content-Type: {kind}", body=b"{}")
    assert (got.status, got.problem()["path"]) == (400, "agent")


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PATCH", "PURGE", "M-SEARCH"])
async def test_methods_of_no_route_are_405_with_those_that_are(port: int, method: str) -> None:
    got = await asked(port, method, "/v1/sessions")
    assert (got.status, got.problem()["code"], got.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD, POST")


# --- WebSockets where none are ------------------------------------------------------------------------------------------------


async def test_a_wish_for_a_websocket_elsewhere_is_ignored(port: int) -> None:
    """The route answers as ever, and the connection goes on."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for target, status in (("/v1/sessions", 200), ("/nope", 404), ("/v1/sessions", 200)):
            writer.write(request("GET", target, *UPGRADE))
            assert (await answer(reader)).status == status
        writer.close()
    assert (await asked(port, "POST", "/v1/sessions", *UPGRADE, "Content-Length: 0")).problem()["code"] == "invalid_request"
    assert (await asked(port, "GET", "/healthz", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")).status == 200


async def test_a_link_without_a_handshake_is_no_link(port: int) -> None:
    got = await asked(port, "GET", "/v1/workers/link", "Connection: Upgrade", "Upgrade: websocket")
    assert (got.status, got.problem()["code"]) == (404, "worker_not_found"), "it asks for a worker of that name"


async def test_a_link_with_an_unknown_credential_is_401_and_no_fault_of_ours(port: int) -> None:
    """The autouse fixture sees that nothing is logged as an error."""
    got = await asked(port, "GET", "/v1/workers/link", *UPGRADE)
    assert (got.status, got.problem()["code"]) == (401, "unauthenticated")


async def test_a_link_with_a_subprotocol_that_is_none_of_ours_is_opened_without_it(port: int) -> None:
    lines = ["GET /v1/workers/link HTTP/1.1", "Host: api", f"Authorization: Bearer {CREDENTIAL}", *UPGRADE]
    data = "\r\n".join([*lines, "Sec-WebSocket-Protocol: soap, wamp", "", ""]).encode()
    got = (await said(port, data))[0]
    assert got.status == 101 and "sec-websocket-protocol" not in got.headers


# --- values -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["", "0s", "-1s", "1e9s", "%D9%A3s", "9" * 5000 + "s", "5", "nan", "1h", "5s%00", "5s&wait=6s"])
async def test_an_odd_wait_is_refused_or_of_a_turn_that_is_not_there(port: int, wait: str) -> None:
    got = await asked(port, "GET", f"{SOMEONE}/turns/{new_id()}?wait={wait}")
    assert got.problem()["code"] in ("invalid_value", "invalid_request")


@pytest.mark.parametrize("limit", ["1e9", "1000000000", "0", "-1", "%20", "1.0", "0x10", "%EF%BC%91", "9" * 5000])
async def test_an_odd_limit_is_refused(port: int, limit: str) -> None:
    for target in ("/v1/sessions", f"{SOMEONE}/turns", f"{SOMEONE}/events"):
        if (target, limit) != (f"{SOMEONE}/events", "1000000000"):
            assert (await asked(port, "GET", f"{target}?limit={limit}")).problem()["code"] in ("invalid_value", "invalid_request")


@pytest.mark.parametrize("cursor", ["3", "%F0%9F%98%80", "AAAA", "%00", "a" * 3000, "..", "%22"])
async def test_a_cursor_of_another_list_is_refused(port: int, cursor: str) -> None:
    got = await asked(port, "GET", f"/v1/sessions?cursor={cursor}")
    assert (got.status, got.problem()["code"]) in ((400, "invalid_cursor"), (422, "invalid_value"))


@pytest.mark.parametrize("key", ["\xe9", "", " ", "k" * 513, "a\tb"])
async def test_an_idempotency_key_of_odd_bytes_is_refused_by_the_route_itself(port: int, key: str) -> None:
    """[S4]."""
    got = await asked(port, "POST", f"{SOMEONE}/close", f"Idempotency-Key: {key}")
    assert (got.status, got.problem()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("value", ["\xff\xfe", "hlmr_sk_" + "a" * 2000, "hlmr_sk_", "\xa0", "a b c"])
async def test_a_credential_of_odd_bytes_is_401(port: int, value: str) -> None:
    data = f"GET /v1/sessions HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {value}\r\n\r\n".encode("latin-1")
    assert (await said(port, data))[0].problem()["code"] == "unauthenticated"


# --- time -------------------------------------------------------------------------------------------------------------------


class Hasty(Connection):
    grace_seconds = 0.2


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /healthz HTTP/1.1\r\nHost: api\r\nX-Slow: ",
        request("POST", "/v1/sessions", "Content-Length: 100")[:-2] + b"\r\n{",
        request("POST", "/v1/sessions", "Transfer-Encoding: chunked") + b"5\r\nab",
    ],
    ids=["head", "body", "chunk"],
)
async def test_a_request_that_never_ends_is_408(database: str, tmp_path: Path, begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds a connection for ever by not finishing a request; one that waits for an answer is none of those."""
    monkeypatch.setattr("helmr.control.listener.Connection", Hasty)
    server = Server(ServerConfig(dsn=database, blobs=tmp_path, api_key=KEY, pool_size=4), Listener(ListenerConfig()))
    await server.start()
    try:
        got = (await said(int(server.url.rpartition(":")[2]), begun))[0]
        assert (got.status, got.problem()["code"], got.headers["connection"]) == (408, "request_too_slow", "close")
        assert got.problem()["retryable"] is True
    finally:
        await server.stop()


async def test_a_connection_that_says_nothing_is_closed_without_a_word(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helmr.control.listener.Connection", Hasty)
    server = Server(ServerConfig(dsn=database, blobs=tmp_path, api_key=KEY, pool_size=4), Listener(ListenerConfig()))
    await server.start()
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            assert await reader.read() == b""
            writer.close()
    finally:
        await server.stop()
