"""Streams to Computers: a shell, or a connection to a port. SPEC 12, [C8]."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import aiohttp

from helmr.client.problems import error_from
from helmr.client.transport import Transport, translated
from helmr.protocol import jsontext, streams
from helmr.protocol.errors import ConnectionFailed, HelmrError, StreamBroken, UnreadableAnswer
from helmr.protocol.streams import PIECE_BYTES, WINDOW_BYTES, StreamError

OPEN_SECONDS = 150.0
"""How long opening may take; the server waits a little less for a Computer that has to be woken or started."""
_GRANT_BYTES = WINDOW_BYTES // 4


class ComputerStream:
    """Bytes to and from something on a Computer. Close it, or use it with `async with`: what serves it there ends with it.

    Bounded: what isn't read here makes the other end wait, and `write` waits for the other end.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._data: deque[bytes] = deque()
        self._taken = 0
        self._room = WINDOW_BYTES
        self._ready = False
        self._eof = False
        self._last: Mapping[str, Any] | None = None
        self._error: HelmrError | None = None
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._hear())

    async def read(self) -> bytes:
        """The next bytes, as they came; empty once the other end says no more. Raises `StreamBroken` when the way to it was lost."""
        await self._until(lambda: bool(self._data) or self._eof or self._last is not None)
        if not self._data:
            return b""
        data = self._data.popleft()
        self._taken += len(data)
        if self._taken >= _GRANT_BYTES:
            taken, self._taken = self._taken, 0
            await self._say("credit", bytes=taken)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; returns once all have left. What is sent to an end that has closed is lost. Raises `StreamBroken`."""
        view = memoryview(data)
        while view:
            await self._until(lambda: self._room > 0 or self._last is not None)
            if self._last is not None:
                return
            piece = view[: min(len(view), PIECE_BYTES, self._room)]
            self._room -= len(piece)
            await self._send(self._socket.send_bytes(bytes(piece)))
            view = view[len(piece) :]

    async def write_eof(self) -> None:
        """Say that nothing more is sent; the other direction goes on."""
        await self._say("eof")

    async def close(self) -> None:
        """End it. Idempotent."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begun(self) -> None:
        await self._until(lambda: self._ready or self._last is not None)

    async def _until(self, there: Any) -> None:
        while not there():
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()

    async def _say(self, kind: str, **members: Any) -> None:
        await self._send(self._socket.send_str(streams.word(kind, **members).decode()))

    async def _send(self, sending: Any) -> None:
        try:
            await sending
        except (aiohttp.ClientError, ConnectionError) as error:
            await self._until(lambda: self._last is not None or self._error is not None)
            if self._last is None:
                raise self._error or StreamBroken() from error

    async def _hear(self) -> None:
        """Take what comes, always: what the reader didn't take is bounded by its window."""
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._data.append(message.data)
                elif message.type is aiohttp.WSMsgType.TEXT:
                    self._word(streams.read_word(message.data.encode()))
                self._news.set()
            failed = self._socket.exception()
            self._error = self._error or StreamBroken(f"The connection to the server broke: {failed}." if failed else None)
        except StreamError as error:
            self._error = UnreadableAnswer(f"The server's word can't be read: {error}.")
        finally:
            self._error = self._error or StreamBroken("The stream was closed.")
            self._news.set()

    def _word(self, said: Mapping[str, Any]) -> None:
        match said["t"]:
            case "ready":
                self._ready = True
            case "credit":
                self._room = min(WINDOW_BYTES, self._room + streams.whole(said, "bytes", WINDOW_BYTES))
            case "eof":
                self._eof = True
            case "exit" | "done":
                self._last = said
            case "refused":
                problem = {"Content-Type": "application/problem+json"}
                self._error = error_from(streams.whole(said, "status", 599), jsontext.dumps(said.get("problem")), problem)
            case _:
                pass  # A newer server may say more.


class Shell(ComputerStream):
    """A program on a terminal of its own on a Computer; what is written is typed there."""

    async def resize(self, rows: int, columns: int) -> None:
        """Tell the terminal its size."""
        await self._say("resize", rows=rows, columns=columns)

    async def wait(self) -> int:
        """The exit code of the program once it has ended, 128 + its number for a signal. Whoever doesn't `read` makes it wait."""
        await self._until(lambda: self._last is not None)
        assert self._last is not None
        signal = self._last.get("signal")
        return int(self._last.get("code", 0)) if signal is None else 128 + int(signal)


async def open_shell(transport: Transport, path: str, opening: Mapping[str, Any]) -> Shell:
    """A shell that has begun."""

    async def make(socket: aiohttp.ClientWebSocketResponse) -> Shell:
        await socket.send_str(streams.word("open", **opening).decode())
        return Shell(socket)

    return await _opened(transport, path, {}, make)


async def open_connection(transport: Transport, path: str, port: int) -> ComputerStream:
    """A connection that was taken."""

    async def make(socket: aiohttp.ClientWebSocketResponse) -> ComputerStream:
        return ComputerStream(socket)

    return await _opened(transport, path, {"port": port}, make)


async def _opened(transport: Transport, path: str, query: Mapping[str, object], make: Any) -> Any:
    """Repeated as calls are, until what serves it has begun: nothing has happened before."""
    backoff = transport.backoff()
    while True:
        try:
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    return await _attempt(transport, path, query, make)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                raise translated(error, transport.target.url) from error
        except (HelmrError, ConnectionFailed) as error:
            await transport.wait_after(error, backoff)


async def _attempt(transport: Transport, path: str, query: Mapping[str, object], make: Any) -> Any:
    socket = await transport.socket(path, query)
    try:
        stream: ComputerStream = await make(socket)
    except BaseException:
        await socket.close()
        raise
    try:
        await stream._begun()  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        await stream.close()
        raise
    return stream
