"""A bad network in front of control planes: it cuts event streams anywhere, holds bytes back for a moment, falls silent, and never lies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

Plan = Callable[[random.Random], int | None]
"""How many bytes of the next stream pass before it is cut; None: all of them."""


def anywhere(random: random.Random) -> int | None:
    """In the status line, in a header, in the first chunk, or somewhere in what follows."""
    return random.choice([random.randrange(1, 40), random.randrange(40, 400), random.randrange(400, 3000), random.randrange(400, 40_000)])


class Cutter:
    """An async context manager; `url` is its own address. Streams go to `ports` in turn, everything else to the first one that answers."""

    def __init__(self, ports: Sequence[int], *, cuts: int, seed: int = 0, plan: Plan = anywhere, bursts: bool = False) -> None:
        self.ports = list(ports)
        self.cuts = cuts
        self.streams = 0
        """How many streams were asked for."""
        self.served: list[int] = []
        """The port of each stream that was answered."""
        self.silent = False
        """Whether bytes of streams vanish, and nobody is told: a half-open connection."""
        self._random = random.Random(seed)
        self._plan = plan
        self._bursts = bursts
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                stream = b"/events/stream" in head.partition(b"\r\n")[0]
                port = self.ports[self.streams % len(self.ports)] if stream else self.ports[0]
                self.streams += stream
                limit = None
                if stream and self.cuts > 0:
                    limit = self._plan(self._random)
                    self.cuts -= limit is not None
                await self._join(head, reader, writer, port, stream, limit)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, stream: bool, limit: int | None
    ) -> None:
        far, near = await asyncio.open_connection("127.0.0.1", port)
        self._writers.add(near)
        try:
            near.write(head)
            down = self._stream(far, writer, port, limit) if stream else _copy(far, writer)
            tasks = [asyncio.ensure_future(_copy(reader, near)), asyncio.ensure_future(down)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._writers.discard(near)
            near.transport.abort()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, limit: int | None) -> None:
        """Pass bytes on, odd pieces at a time, up to the cut."""
        sent = 0
        while data := await self._piece(reader):
            if not sent:
                self.served.append(port)
            if limit is not None:
                data = data[: limit - sent]
            sent += len(data)
            if not self.silent:
                writer.write(data)
                await writer.drain()
            if limit is not None and sent >= limit:
                return

    async def _piece(self, reader: asyncio.StreamReader) -> bytes:
        if not self._bursts:
            return await reader.read(self._random.choice([7, 100, 5000]))
        await asyncio.sleep(0.02)
        return await reader.read(1 << 20)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
