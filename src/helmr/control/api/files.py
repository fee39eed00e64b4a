"""Files of Computers over HTTP: read and written as bytes or as archives, never whole in memory. [C8]"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from helmr.control.api.answers import Answer, Pieces, encoded
from helmr.control.api.call import Call, given
from helmr.control.api.requests import Nothing, ReadFilesQuery, WriteFilesQuery
from helmr.control.api.route import Route
from helmr.control.api.services import Stream, Streams
from helmr.control.service.stream_run import failure_of
from helmr.protocol import errors
from helmr.protocol.commands import CopyReceipt
from helmr.protocol.errors import StreamBroken

UPLOAD_BYTES: Final = 1 << 50
"""Uploads end when the Computer's disk is full, not before."""


async def read(call: Call[ReadFilesQuery, Nothing]) -> Answer:
    streams, query = call.services.streams, call.query
    opening = {"path": query.path, "form": query.form}
    stream = await call.while_present(_opened(streams, call, "read", opening))
    return Pieces(_said(streams, stream))


async def write(call: Call[WriteFilesQuery, Nothing]) -> Answer:
    streams, query = call.services.streams, call.query
    opening: dict[str, Any] = {"path": query.path, "form": query.form}
    if (mode := given(query.mode)) is not None:
        opening["mode"] = mode
    if (name := given(query.name)) is not None:
        opening["name"] = name
    stream = await _opened(streams, call, "write", opening)
    try:
        async for piece in call.chunks(UPLOAD_BYTES):
            left = memoryview(piece)
            while left and await stream.until_room():
                size = min(len(left), stream.room)
                stream.send(bytes(left[:size]))
                left = left[size:]
            if left:
                break  # It says why, or is lost.
        else:
            stream.say("eof")
        return encoded(await _receipt(stream))
    finally:
        streams.close(stream)


async def _opened(streams: Streams, call: Call[Any, Any], kind: Any, opening: dict[str, Any]) -> Stream:
    stream = await streams.open(call.principal, call.path["computer_id"], kind, opening)
    try:
        await stream.begin()
    except BaseException:
        streams.close(stream)
        raise
    return stream


async def _said(streams: Streams, stream: Stream) -> AsyncGenerator[bytes]:
    """Its data; each counts as taken once the next is asked for. Raises when it doesn't end by `done`."""
    try:
        while True:
            message = await stream.receive()
            if message is None:
                raise stream.error or StreamBroken()
            if isinstance(message, bytes):
                yield message
                stream.taken(len(message))
            elif message["t"] == "failed":
                raise failure_of(message)
            elif message["t"] == "done":
                return
    finally:
        streams.close(stream)


async def _receipt(stream: Stream) -> CopyReceipt:
    while True:
        message = await stream.receive()
        if message is None:
            raise stream.error or StreamBroken()
        if isinstance(message, bytes) or message["t"] not in ("done", "failed"):
            continue
        if message["t"] == "failed":
            raise failure_of(message)
        left_out = message.get("left_out")
        return CopyReceipt(
            bytes=_count(message.get("bytes")),
            entries=_count(message.get("entries")),
            left_out=tuple(str(name)[:500] for name in left_out) if isinstance(left_out, list) else (),  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            more_left_out=_count(message.get("more_left_out")),
        )


def _count(value: object) -> int:
    """A number that a Computer says; its word is worth no more than that."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


_ERRORS: Final = (
    errors.PathNotFound,
    errors.PathRefused,
    errors.ComputerDeleting,
    errors.CapacityUnavailable,
    errors.ComputerUnreachable,
    errors.StreamsExhausted,
    errors.StreamBroken,
)

FILE_ROUTES = (
    Route(
        method="GET",
        path="/v1/computers/{computer_id}/files",
        name="read_files",
        summary="Read a file of a Computer, or a tree of files as tar",
        handler=read,
        tag="Commands",
        permission="computers.exec",
        query=ReadFilesQuery,
        gives="pieces",
        errors=_ERRORS,
    ),
    Route(
        method="PUT",
        path="/v1/computers/{computer_id}/files",
        name="write_files",
        summary="Write a file on a Computer, or a tree of files from tar",
        handler=write,
        tag="Commands",
        permission="computers.exec",
        query=WriteFilesQuery,
        takes="bytes",
        body_bytes=UPLOAD_BYTES,
        answer=CopyReceipt,
        errors=_ERRORS,
    ),
)
