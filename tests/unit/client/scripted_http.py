"""A real HTTP server on a loopback port whose answers a test scripts byte by byte, connection by connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """`cut`: close the connection after so many bytes of the whole answer. `hold`: keep it open in silence after the answer."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    cut: int | None = None
    hold: bool = False
    pieces: list[bytes] | None = None

    def encoded(self) -> bytes:
        raw = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        names = {"Content-Type": "application/json", **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in names.items())
        if self.pieces is not None or self.hold or names["Content-Type"].startswith("text/event-stream"):
            return f"HTTP/1.1 {self.status} X\r\n{head}Connection: close\r\n\r\n".encode() + raw
        return f"HTTP/1.1 {self.status} X\r\n{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def problem(code: str, status: int, *, headers: dict[str, str] | None = None, **facts: Any) -> Reply:
    members = {"type": "about:blank", "title": "x", "status": status, "code": code, "request_id": "req-1", **facts}
    return Reply(members, status=status, headers={"Content-Type": "application/problem+json", **(headers or {})})


def sse(body: bytes, **options: Any) -> Reply:
    return Reply(body, headers={"Content-Type": "text/event-stream"}, **options)


Handler = Callable[[Request], "Reply | Awaitable[Reply]"]


@dataclass
class Scripted:
    """The server: its URL, what it was asked, and who answers."""

    handler: Handler
    requests: list[Request] = field(default_factory=list[Request])
    url: str = ""
    open_connections: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no connection is open."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there was a request."""

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self.idle.clear()
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                self.asked.set()
                answer = self.handler(request)
                reply = answer if isinstance(answer, Reply) else await answer
                data = reply.encoded()
                for piece in reply.pieces or [data if reply.cut is None else data[: reply.cut]]:
                    writer.write(data + piece if reply.pieces and piece is reply.pieces[0] else piece)
                    await writer.drain()
                if reply.hold:
                    await reader.read()
                if reply.hold or reply.pieces or reply.cut is not None or b"Connection: close" in data:
                    break
        except ConnectionError:
            pass  # the client went away, which some tests want
        finally:
            self.open_connections -= 1
            if not self.open_connections:
                self.idle.set()
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while (size := int(await reader.readline(), 16)) > 0:
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


@asynccontextmanager
async def scripted(handler: Handler | list[Reply]) -> AsyncIterator[Scripted]:
    """A server that answers by `handler`, or by the replies of a list in order."""
    if isinstance(handler, list):
        waiting = list(handler)
        found = Scripted(lambda _: waiting.pop(0))
    else:
        found = Scripted(cast("Handler", handler))
    server = await asyncio.start_server(found.serve_connection, "127.0.0.1", 0, limit=1 << 24)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
