"""A TCP forwarder whose target can be changed: what a load balancer is to a worker that knows one address."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Forwarder:
    """An async context manager; `url` is its own address. Connections that are there stay with the target they had."""

    def __init__(self, port: int) -> None:
        self.port = port
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
            writer.close()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            try:
                far, near = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return
            self._writers.add(near)
            try:
                await asyncio.wait(
                    [asyncio.ensure_future(_copy(reader, near)), asyncio.ensure_future(_copy(far, writer))],
                )
            finally:
                self._writers.discard(near)
                near.close()
        finally:
            self._writers.discard(writer)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes until either end is gone, which ends the other."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
