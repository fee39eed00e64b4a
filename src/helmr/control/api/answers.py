"""What a handler may give back, and how each becomes a reply."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import anyio

from helmr.control.api.streams import EventStream
from helmr.protocol.wire import to_wire

if TYPE_CHECKING:
    from helmr.control.api.exchange import Exchange
    from helmr.control.api.presence import Presence
    from helmr.control.api.services import Receipt

FILE_CHUNK_BYTES = 256 * 1024

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of a file that never changes."""

    path: Path


@dataclass(frozen=True, slots=True)
class Opened:
    """The bytes of an open file, which is closed afterwards."""

    file: BinaryIO


@dataclass(frozen=True, slots=True)
class Text:
    """A whole reply in another form than JSON."""

    body: bytes
    kind: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole reply with a status and headers of its own."""

    body: bytes
    status: int
    kind: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Pieces:
    """Bytes as they come, of unknown length. What ends `pieces` with an error cuts the reply, so that no reader takes it for whole."""

    pieces: AsyncGenerator[bytes]


Answer: TypeAlias = "bytes | Receipt | EventStream | Blob | Opened | Text | Whole | Pieces"
"""JSON as bytes; a write's receipt; a stream; a file; a text; a reply with headers; bytes as they come."""


def encoded(value: Any) -> bytes:
    """The JSON of a value of `protocol.shapes`."""
    return _encoder.encode(to_wire(value)).encode("utf-8")


async def send_pieces(exchange: Exchange, presence: Presence, answer: Pieces) -> None:
    """Send them one by one, each once its reader has taken the ones before."""

    async def work() -> None:
        async with contextlib.aclosing(answer.pieces) as pieces:
            await exchange.begin(200, b"application/octet-stream")
            if not exchange.head_only:
                async for piece in pieces:
                    await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
        await exchange.send({"type": "http.response.body", "body": b""})

    await presence.during(exchange, work())


async def send_blob(exchange: Exchange, blob: Blob) -> None:
    """Send a file piece by piece; it is never whole in memory."""
    await send_opened(exchange, Opened(await anyio.to_thread.run_sync(lambda: blob.path.open("rb"))))


async def send_opened(exchange: Exchange, opened: Opened) -> None:
    """Send what is left of an open file, and close it."""
    async with anyio.wrap_file(opened.file) as file:
        size = os.fstat(file.wrapped.fileno()).st_size
        await exchange.begin(200, b"application/octet-stream", (b"content-length", b"%d" % size))
        if exchange.head_only:
            await exchange.send({"type": "http.response.body", "body": b""})
            return
        left = size
        while left:
            data = await file.read(min(FILE_CHUNK_BYTES, left))
            if not data:
                raise OSError(f"{file.wrapped.name} ended {left} bytes early.")
            left -= len(data)
            await exchange.send({"type": "http.response.body", "body": data, "more_body": left > 0})
        if not size:
            await exchange.send({"type": "http.response.body", "body": b""})
