"""Decrypted connections over real TLS: what reaches the origin, what returns, and what is refused [X1], [C4], [C6]."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import ssl
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.egress.secure_site import HOST, PLACEHOLDER, VALUE, Handler, everything, rig, secret

from helmr.host.sandbox.egress.inspection import Pace
from helmr.host.sandbox.egress.tls import TlsStream, secure

pytestmark = pytest.mark.anyio
REAL = VALUE.encode()
FAKE = PLACEHOLDER.encode()


def answering(answer: bytes, heads: list[bytes] | None = None, *, requests: int = 1) -> Handler:
    """An origin that answers so, `{}` being the request's own head."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(requests):
            head = await reader.readuntil(b"\r\n\r\n")
            if heads is not None:
                heads.append(head)
            writer.write(answer.replace(b"{}", head))
            await writer.drain()

    return serve


def sized(body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", b""]) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with its own head and body."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))}
        body = head + await reader.readexactly(int(lines.get(b"content-length", b"0")))
        writer.write(b"HTTP/1.1 200 OK\r\nX-Echo: %s\r\nContent-Length: %d\r\n\r\n" % (lines.get(b"authorization", b"-"), len(body)) + body)


async def test_the_origin_gets_the_value_in_the_header_and_the_guest_its_placeholder_back(tmp_path: Path) -> None:
    async with rig(tmp_path, answering(sized(b"ok {}"), heads := [])) as made:
        said = await made.ask(made.get("/v1?key=" + PLACEHOLDER, "X-Other: " + PLACEHOLDER))
    assert f"Authorization: Bearer {VALUE}".encode() in heads[0]
    assert heads[0].startswith(f"GET /v1?key={PLACEHOLDER} HTTP/1.1\r\n".encode()) and f"X-Other: {PLACEHOLDER}".encode() in heads[0]
    assert said.startswith(b"HTTP/1.1 200")


async def test_an_echo_tells_the_placeholder_in_headers_and_body(tmp_path: Path) -> None:
    pair = base64.b64encode(b"user:" + FAKE).decode()
    async with rig(tmp_path, echo) as made:
        body = f"token={PLACEHOLDER}".encode()
        plain = await made.ask(made.get("/", f"Content-Length: {len(body)}", method="POST") + body)
        basic = await made.ask(f"GET / HTTP/1.1\r\nHost: {made.host}\r\nAuthorization: Basic {pair}\r\nConnection: close\r\n\r\n".encode())
        assert made.exchanged == [(made.origin, ("TOKEN",))] * 2
    assert REAL not in plain and b"X-Echo: Bearer " + FAKE in plain and plain.endswith(b"token=" + FAKE)
    assert base64.b64encode(b"user:" + REAL) not in basic and basic.count(pair.encode()) == 2


async def test_only_the_exact_origin_is_decrypted(tmp_path: Path) -> None:
    """Another name of the same server is an opaque tunnel: its own certificate is seen, and the placeholder stays."""
    heads: list[bytes] = []
    async with rig(tmp_path, answering(sized(b""), heads), certified_for="other.test", allow=["other.test"]) as made:
        where = f"other.test:{made.site.port}"
        stream = await made.connect(where, sni="other.test", trust=tmp_path / "site.pem")
        await stream.write(f"GET / HTTP/1.1\r\nHost: {where}\r\nAuthorization: {PLACEHOLDER}\r\n\r\n".encode())
        assert (await everything(stream)).startswith(b"HTTP/1.1 200")
        assert made.exchanged == []
        opaque = await made.refused()
    assert FAKE in heads[0] and REAL not in heads[0]
    assert opaque.startswith(b"HTTP/1.1 502")  # the origin of the Secret has no certificate of its name here


@pytest.mark.parametrize(("certified_for", "trusted"), [("wrong.test", True), (HOST, False)])
async def test_an_origin_that_the_operators_store_does_not_vouch_for_gets_nothing(
    tmp_path: Path, certified_for: str, trusted: bool
) -> None:
    async with rig(tmp_path, echo, certified_for=certified_for, trusted=trusted) as made:
        answer = await made.refused()
        assert answer.startswith(b"HTTP/1.1 502")
        assert [(decision.allowed, decision.reason) for decision in made.decisions] == [(False, "untrusted")]
        assert made.site.connections == 0 or made.exchanged == []


@pytest.mark.parametrize("sni", ["other.test", None])
async def test_the_name_in_the_handshake_must_be_that_of_the_connect(tmp_path: Path, sni: str | None) -> None:
    async with rig(tmp_path, echo) as made:
        with pytest.raises(ssl.SSLError):
            await made.connect(sni=sni)
        async with asyncio.timeout(5):
            while made.decisions[-1].reason != "misdirected":
                await asyncio.sleep(0)


@pytest.mark.parametrize("host", ["other.test", "api.test", "api.test:1", "API.TEST.:1", "", "a b", "api.test:443"])
async def test_the_host_of_each_request_must_be_that_of_the_connect(tmp_path: Path, host: str) -> None:
    async with rig(tmp_path, answering(sized(b"first"), heads := [], requests=9)) as made:
        first = made.get("/1", close=False)
        second = first.replace(b"/1", b"/2").replace(f"Host: {made.host}".encode(), f"Host: {host}".encode())
        said = await made.ask(first + second)
    assert said.count(b"HTTP/1.1 200") == 1 and said.partition(b"first")[2].startswith(
        b"HTTP/1.1 421" if " " not in host else b"HTTP/1.1 4"
    )
    assert len(heads) == 1


async def test_a_host_header_may_differ_in_case_and_repeat_the_port(tmp_path: Path) -> None:
    async with rig(tmp_path, echo) as made:
        assert (await made.ask(made.get().replace(b"Host: api", b"HOST: API"))).startswith(b"HTTP/1.1 200")


ATTACKS = {
    "two lengths": b"POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled",
    "lengths that differ": b"POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
    "another coding": b"POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding of HTTP/1.0": b"POST / HTTP/1.0\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: {}\r\nX: a\r\n b\r\n\r\n",
    "half a line end": b"GET / HTTP/1.1\nHost: {}\n\nGET /smuggled HTTP/1.1\r\nHost: {}\r\n\r\n",
    "half a line end within": b"GET / HTTP/1.1\r\nHost: {}\r\nX: a\nAuthorization: x\r\n\r\n",
    "a lone return": b"GET / HTTP/1.1\r\nHost: {}\r\nX: a\rY: b\r\n\r\n",
    "a nul": b"GET / HTTP/1.1\r\nHost: {}\r\nX: a\0b\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost: {}\r\nX : a\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: {}\r\nHost: {}\r\n\r\n",
    "an absolute target": b"GET https://{}/ HTTP/1.1\r\nHost: {}\r\n\r\n",
    "a tunnel in the tunnel": b"CONNECT {} HTTP/1.1\r\nHost: {}\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a chunk without a size": b"POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a chunk that is longer": b"POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabGET /smuggled HTTP/1.1\r\n\r\n",
    "a length of thousands of digits": b"POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: -1\r\n\r\n",
    "an endless head": b"GET / HTTP/1.1\r\nHost: {}\r\nX: " + b"a" * 70_000,
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_two_parsers_could_read_differently_is_refused(tmp_path: Path, attack: str) -> None:
    """What did go up of a body that broke off is no second request: the connection ends with it."""
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            got.extend(data)

    async with rig(tmp_path, serve) as made:
        said = await made.ask(ATTACKS[attack].replace(b"{}", made.host.encode()))
        assert said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 50")), said
    assert b"smuggled" not in got
    assert not got or attack.startswith("a chunk")


@given(st.integers(1, 40), st.booleans())
@examples(8, soak=60)
async def test_requests_are_the_same_however_they_are_cut_and_pipelined(pieces: int, chunked: bool) -> None:
    import tempfile

    body = b"5\r\nhello\r\n0\r\n\r\n" if chunked else b"hello"
    framing = "Transfer-Encoding: chunked" if chunked else "Content-Length: 5"
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(3):
            got.append(await reader.readuntil(b"\r\n\r\n"))
            got.append(await reader.readuntil(b"0\r\n\r\n") if chunked else await reader.readexactly(5))
            writer.write(sized(b"answer %d " % number + REAL))

    with tempfile.TemporaryDirectory() as folder:
        async with rig(Path(folder), serve) as made:
            request = made.get("/", framing, method="POST", close=False) + body
            said = await made.ask(request * 2 + made.get("/", framing, method="POST") + body, pieces=pieces)
    assert [head.count(b"Bearer " + REAL) for head in got[::2]] == [1, 1, 1] and all(chunks(sent) == b"hello" for sent in got[1::2])
    assert [said.count(b"answer %d " % number + FAKE) for number in range(3)] == [1, 1, 1]


@given(st.lists(st.integers(0, 2000), max_size=8))
@examples(8, soak=60)
async def test_an_echo_in_chunks_is_put_back_wherever_it_is_cut(cuts: list[int]) -> None:
    import tempfile

    text = b"begin " + REAL + b" middle " + base64.b64encode(REAL) + b" end"
    places = sorted({min(cut % (len(text) + 1), len(text)) for cut in cuts} | {0, len(text)})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start, end in pairwise(places):
            writer.write(b"%x\r\n%s\r\n" % (end - start, text[start:end]))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    with tempfile.TemporaryDirectory() as folder:
        async with rig(Path(folder), serve) as made:
            said = dechunked(await made.ask(made.get()))
    assert said == b"begin " + FAKE + b" middle " + base64.b64encode(FAKE) + b" end"


def dechunked(answer: bytes) -> bytes:
    head, _, rest = answer.partition(b"\r\n\r\n")
    return chunks(rest) if b"chunked" in head else rest


def chunks(rest: bytes) -> bytes:
    if rest == b"hello":
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            return body
    raise AssertionError("the chunks have no end")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
async def test_a_compressed_answer_is_opened(tmp_path: Path, coding: str) -> None:
    """The origin is asked for identity; one that compresses all the same hides nothing."""
    text = b"x" * 1000 + REAL
    raw = zlib.compressobj(wbits=-15)
    body = {"gzip": gzip.compress(text), "deflate": zlib.compress(text), "raw deflate": raw.compress(text) + raw.flush()}[coding]
    named = coding.removeprefix("raw ").encode()
    async with rig(tmp_path, answering(sized(body, b"Content-Encoding: " + named), heads := [])) as made:
        said = await made.ask(made.get("/", "Accept-Encoding: gzip, br"))
    assert b"Accept-Encoding: identity\r\n" in heads[0] and b"br" not in heads[0].split(b"\r\n\r\n")[0].split(b"Accept-Encoding:")[1]
    assert dechunked(said) == b"x" * 1000 + FAKE and b"ncoding: " + named not in said.split(b"\r\n\r\n")[0]


async def test_a_coding_that_cannot_be_opened_is_refused_and_a_broken_one_cuts_the_answer(tmp_path: Path) -> None:
    async with rig(tmp_path, answering(sized(REAL, b"Content-Encoding: br"))) as made:
        refused = await made.ask(made.get())
    assert refused.startswith(b"HTTP/1.1 502") and b"answers in br" in refused and REAL not in refused
    (tmp_path / "2").mkdir()
    async with rig(tmp_path / "2", answering(sized(gzip.compress(b"a" * 9000)[:-9], b"Content-Encoding: gzip"))) as made:
        cut = await made.ask(made.get())
    assert not cut.endswith(b"0\r\n\r\n")


async def test_small_answers_keep_a_length_and_large_ones_come_in_chunks(tmp_path: Path) -> None:
    async with rig(tmp_path, answering(sized(REAL))) as made:
        small = await made.ask(made.get())
    (tmp_path / "2").mkdir()
    async with rig(tmp_path / "2", answering(sized(b"y" * 70_000 + REAL))) as made:
        large = await made.ask(made.get())
    assert b"Content-Length: %d\r\n" % len(FAKE) in small and small.endswith(FAKE)
    assert b"ontent-Length" not in large and dechunked(large) == b"y" * 70_000 + FAKE


async def test_head_and_bodiless_answers_keep_the_connection(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", sized(b"last")):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    async with rig(tmp_path, serve) as made:
        said = await made.ask(made.get(method="HEAD", close=False) + made.get(close=False) + made.get())
    assert b"Content-Length: 99\r\n\r\nHTTP/1.1 304" in said and said.endswith(b"last")


async def test_a_body_waits_for_100_continue_and_the_answer_may_come_before_it(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        if b"/no" in head:
            writer.write(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(sized(await reader.readexactly(5)))

    async with rig(tmp_path, serve) as made:
        stream = await made.connect()
        await stream.write(made.get("/", "Expect: 100-continue", "Content-Length: 5", method="PUT"))
        assert (await stream.read()).startswith(b"HTTP/1.1 100")
        await stream.write(b"hello")
        assert (await everything(stream)).endswith(b"hello")
        stream = await made.connect()
        await stream.write(made.get("/no", "Expect: 100-continue", "Content-Length: 5", method="PUT"))
        assert (await stream.read()).startswith(b"HTTP/1.1 417")
        stream.abort()


@pytest.mark.parametrize(("early", "shown"), [(b"", b"welcome"), (b"pushed ", b"pushed welcome")])
async def test_a_websocket_goes_on_as_bytes_and_ends_when_a_value_comes_back(tmp_path: Path, early: bytes, shown: bytes) -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n" + early)
        got.append(await reader.readexactly(len(FAKE)))
        writer.write(b"welcome")
        got.append(await reader.readexactly(4))
        writer.write(b"never " + REAL[:9])
        await writer.drain()
        writer.write(REAL[9:] + b" seen")

    async with rig(tmp_path, serve) as made:
        stream = await made.connect()
        asking = made.get("/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Extensions: permessage-deflate", close=False)
        await stream.write(asking + FAKE)
        said = b""
        while shown not in said:
            said += await stream.read()
            assert made.proxy.in_flight().tunnels <= 1
        assert made.proxy.in_flight().tunnels == 1 and made.proxy.in_flight().exchanges == 0
        await stream.write(b"more")
        rest = await everything(stream)
    assert b"deflate" not in got[0] and b"Bearer " + REAL in got[0] and got[1] == FAKE
    assert REAL not in said + rest and b" seen" not in rest


async def test_other_upgrades_are_not_passed_on(tmp_path: Path) -> None:
    async with rig(tmp_path, answering(sized(b"plain"), heads := [])) as made:
        said = await made.ask(made.get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAA", close=False))
    assert b"h2c" not in heads[0] and b"HTTP2-Settings" not in heads[0] and said.endswith(b"plain")


async def test_an_exchange_counts_while_it_lasts_and_an_idle_connection_does_not(tmp_path: Path) -> None:
    """[C6]"""
    asked, may = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await may.wait()
        writer.write(sized(b"done"))
        await reader.read()

    async with rig(tmp_path, serve) as made, asyncio.timeout(10):
        stream = await made.connect()
        await stream.write(made.get(close=False))
        await asked.wait()
        assert (made.proxy.in_flight().exchanges, made.proxy.in_flight().tunnels) == (1, 0)
        may.set()
        while b"done" not in await stream.read():
            continue
        while made.proxy.in_flight():
            await asyncio.sleep(0)
        stream.abort()


async def test_twenty_megabytes_pass_in_flat_memory_and_wait_for_their_reader(tmp_path: Path) -> None:
    total, sent = 20 << 20, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        piece = b"z" * 65536
        while sent < total:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async with rig(tmp_path, serve) as made:
        stream = await made.connect()
        await stream.write(made.get())
        await stream.read()
        before = -1
        while before != sent:  # nobody reads: what is between us fills, which gives no event, and then it stands
            before = sent
            await asyncio.sleep(0.02)
        assert sent < total  # the kernel's own buffers hold some of it
        tracemalloc.start()
        try:
            got = 0
            while data := await stream.read():
                got += len(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        stream.abort()
    assert got >= total and peak < 8 << 20, peak


async def test_a_guest_that_leaves_ends_the_request_at_the_origin(tmp_path: Path) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with contextlib.suppress(OSError):
            await reader.read()
        ended.set()

    async with rig(tmp_path, serve) as made, asyncio.timeout(10):
        stream = await made.connect()
        await stream.write(made.get())
        await asked.wait()
        stream.close()
        await ended.wait()
        while made.proxy.in_flight():
            await asyncio.sleep(0)


async def test_an_answer_that_breaks_off_looks_broken_and_none_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path, answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nonly this")) as made:
        cut = await made.ask(made.get())
    assert b"only thi" in cut and not cut.endswith(b"0\r\n\r\n")
    (tmp_path / "2").mkdir()
    async with rig(tmp_path / "2", answering(b"")) as made:
        none = await made.ask(made.get())
    assert none.startswith(b"HTTP/1.1 502")


ODD_ANSWERS = [
    b"HTTP/1.1 200 OK\r\nX : " + REAL + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + REAL + b"\r\n\r\n",
    REAL + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nUpgrade: " + REAL + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
]


@pytest.mark.parametrize("number", range(len(ODD_ANSWERS)))
async def test_an_answer_that_is_no_http_is_refused_without_its_own_words(tmp_path: Path, number: int) -> None:
    async with rig(tmp_path, answering(ODD_ANSWERS[number])) as made:
        said = await made.ask(made.get())
    assert said.startswith(b"HTTP/1.1 502") and REAL not in said and VALUE[:8].encode() not in said


async def test_a_value_in_the_reason_or_an_early_hint_is_put_back(tmp_path: Path) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: <" + REAL + b">\r\n\r\n"
    async with rig(tmp_path, answering(hint + b"HTTP/1.1 200 " + REAL + b"\r\nContent-Length: 0\r\n\r\n")) as made:
        said = await made.ask(made.get())
    assert said.count(FAKE) == 2 and REAL not in said


async def test_connections_that_come_too_fast_wait_for_their_turn() -> None:
    """Handshakes cost hostd time that belongs to all Computers."""
    pace, began = Pace(burst=5, rate=50.0), monotonic()
    for _ in range(10):
        await pace.turn()
    assert 0.09 < monotonic() - began < 5


async def test_what_an_origin_says_unasked_is_no_answer_to_the_next_request(tmp_path: Path) -> None:
    async with rig(tmp_path, answering(sized(b"first") + sized(b"poison"), heads := [], requests=2)) as made:
        said = await made.ask(made.get("/1", close=False) + made.get("/2"))
    assert b"first" in said and b"poison" not in said and len(heads) == 1


async def test_an_origin_that_speaks_between_requests_ends_the_connection(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sized(b"first"))
        await may.wait()
        writer.write(sized(b"poison"))
        await reader.read()

    may = asyncio.Event()
    async with rig(tmp_path, serve) as made, asyncio.timeout(10):
        stream = await made.connect()
        await stream.write(made.get(close=False))
        assert (await stream.read()).endswith(b"first")
        may.set()
        assert await everything(stream) in (b"", b"<ConnectionResetError>")


async def test_a_client_that_offers_http2_as_well_is_answered_in_http1(tmp_path: Path) -> None:
    async with rig(tmp_path, echo) as made:
        _, streams = await made.tunnel()
        context = ssl.create_default_context(cadata=made.authority.certificate.decode())
        context.set_alpn_protocols(["h2", "http/1.1"])
        stream = await secure(TlsStream(streams, context, server=False, hostname=HOST))
        assert stream._tls.selected_alpn_protocol() == "http/1.1"
        stream.abort()


async def test_a_redirect_to_another_origin_carries_no_value(tmp_path: Path) -> None:
    """The client follows it with what it has: the placeholder."""
    async with rig(
        tmp_path, answering(b"HTTP/1.1 302 Found\r\nLocation: https://evil.test/?k=" + REAL + b"\r\nContent-Length: 0\r\n\r\n")
    ) as made:
        said = await made.ask(made.get())
        denied = await made.refused("evil.test:443")
    assert b"Location: https://evil.test/?k=" + FAKE in said and REAL not in said
    assert denied.startswith(b"HTTP/1.1 403")


async def test_a_secret_that_is_taken_away_ends_its_connections_at_once_and_the_next_ones_are_opaque(tmp_path: Path) -> None:
    """[X2]"""
    async with rig(tmp_path, echo) as made, asyncio.timeout(10):
        stream = await made.connect()
        await stream.write(made.get(close=False))
        await stream.read()
        made.inspection.protect([secret(made.origin)])
        await stream.write(made.get(close=False))
        assert await stream.read()  # the same settings change nothing
        made.inspection.protect([])
        assert b"HTTP" not in await everything(stream)
        opaque = await made.connect(trust=tmp_path / "site.pem")
        await opaque.write(made.get())
        said = b""
        while FAKE not in said:
            said += await opaque.read()
        assert REAL not in said
        opaque.abort()


async def test_a_rotated_value_ends_connections_with_the_old_one(tmp_path: Path) -> None:
    async with rig(tmp_path, echo) as made, asyncio.timeout(10):
        stream = await made.connect()
        made.inspection.protect([secret(made.origin, value="another-value")])
        assert await everything(stream) in (b"", b"<ConnectionResetError>")


async def test_connections_wait_for_secrets_that_are_still_to_come(tmp_path: Path) -> None:
    """After a restart of hostd: a placeholder never goes up as it is in the meantime."""
    async with rig(tmp_path, answering(sized(b"ok"), heads := []), told=False, patience=0.05) as made, asyncio.timeout(10):
        refused = await made.refused()
        assert refused.startswith(b"HTTP/1.1 503") and made.decisions[-1].reason == "unprepared"
        made.inspection._patience = 5
        waiting = asyncio.ensure_future(made.ask(made.get()))
        await asyncio.sleep(0)
        made.inspection.protect([secret(made.origin)])
        assert (await waiting).endswith(b"ok")
    assert REAL in heads[0]


async def test_a_client_that_says_nothing_or_half_a_head_is_let_go(tmp_path: Path) -> None:
    async with rig(tmp_path, echo, head_seconds=0.1) as made, asyncio.timeout(10):
        _, streams = await made.tunnel()
        assert await streams[0].read() == b""  # no handshake
        stream = await made.connect()
        await stream.write(b"GET / HT")
        assert (await everything(stream)).startswith(b"HTTP/1.1 408")
        streams[1].close()
