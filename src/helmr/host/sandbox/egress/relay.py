"""Bytes on their way through the proxy: tunnels as they come, and one request and one answer by the framing that HTTP gives them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

PUMP_BYTES: Final = 1 << 14

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;|\r\n)")
"""Strictly: Python's `int` knows more spellings of a number than HTTP does."""
_HOP_BY_HOP: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive"})
_BODILESS: Final = frozenset({204, 304})


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, moved: Callable[[], None] = lambda: None) -> None:
    """All bytes until the end of `source`, which is passed on; `moved` is called for each piece."""
    try:
        while data := await source.read(PUMP_BYTES):
            moved()
            sink.write(data)
            await sink.drain()
    finally:
        if sink.can_write_eof() and not sink.is_closing():
            sink.write_eof()


async def send_body(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int | None) -> None:
    """A body of `length` bytes; None: in chunks, which are framed anew. Raises `ValueError` for broken chunks."""
    if length is None:
        await _send_chunks(source, sink)
    else:
        await _send(source, sink, length)


async def relay_response(source: asyncio.StreamReader, sink: asyncio.StreamWriter, method: str) -> None:
    """One answer to its end, by its own framing: an origin that keeps its connection open must not keep the exchange open.

    What is no answer that one could frame is passed on as it comes, until the origin closes.
    """
    while True:
        try:
            head = await source.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, asyncio.IncompleteReadError):
                sink.write(error.partial)
            await pump(source, sink)
            return
        first, *lines = head[:-4].split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if status is None:
            sink.write(head)
            await pump(source, sink)
            return
        code = int(status[1])
        informational = 100 <= code < 200
        kept = [line for line in lines if informational or line.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
        closing = [] if informational else [b"Connection: close"]
        sink.write(b"\r\n".join([first, *kept, *closing, b"", b""]))
        if not informational:
            break
    if method != "HEAD" and code not in _BODILESS:
        await _response_body(source, sink, lines)
    await sink.drain()


async def _response_body(source: asyncio.StreamReader, sink: asyncio.StreamWriter, lines: list[bytes]) -> None:
    pairs = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    codings = [value.lower() for name, value in pairs if name == b"transfer-encoding"]
    lengths = {value for name, value in pairs if name == b"content-length"}
    if codings == [b"chunked"]:
        await _send_chunks(source, sink)
    elif not codings and len(lengths) == 1 and (length := lengths.pop()).isdigit() and len(length) < 19:
        await _send(source, sink, int(length))
    else:
        await pump(source, sink)


async def _send_chunks(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while True:
        line = await source.readuntil(b"\r\n")
        written = _SIZE.match(line)
        if written is None:
            raise ValueError("The chunk has no size.")
        size = int(written[1], 16)
        sink.write(b"%x\r\n" % size)
        if size == 0:
            break
        await _send(source, sink, size)
        if await source.readexactly(2) != b"\r\n":
            raise ValueError("The chunk is longer than it said.")
        sink.write(b"\r\n")
    while await source.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers are nobody's business
    sink.write(b"\r\n")
    await sink.drain()


async def _send(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> None:
    while length:
        data = await source.read(min(length, PUMP_BYTES))
        if not data:
            raise ConnectionResetError
        length -= len(data)
        sink.write(data)
        await sink.drain()
