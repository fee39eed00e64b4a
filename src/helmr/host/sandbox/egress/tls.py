"""TLS over any pair of streams, as either side: connections of guests come by sockets and by channels, and both are decrypted alike."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

from helmr.host.sandbox.egress.upstream import Streams

READ_BYTES: Final = 1 << 14
"""As much as one record of TLS holds."""
REPLY_BYTES: Final = 1 << 18
"""What may wait to be sent before a reader, too, waits for it."""


class TlsStream:
    """One connection. `read` may be cancelled at any time and loses nothing; it and `write` may run side by side, each once."""

    def __init__(self, streams: Streams, context: ssl.SSLContext, *, server: bool, hostname: str | None = None) -> None:
        self._reader, self._writer = streams
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=hostname)

    async def handshake(self) -> None:
        """Raises `ssl.SSLError` (an `OSError`), having told the other side why."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._drain()
                await self._fill()
            except ssl.SSLError:
                self._send()
                raise
            else:
                await self._drain()
                return

    async def read(self) -> bytes:
        """Some bytes; none at the end, whether or not it was announced. Raises `OSError`."""
        while True:
            try:
                data = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                await self._reply()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            else:
                self._send()
                return data

    async def write(self, data: bytes) -> None:
        """Send it, once there is room. Raises `OSError`."""
        if data:
            self._tls.write(data)
            await self._drain()

    def close(self) -> None:
        """Say that no more comes, and close, without waiting for an answer. Idempotent."""
        self._finish()
        self._writer.close()

    async def linger(self, seconds: float) -> None:
        """Say that no more comes, and drop what still does for a while: what is closed on unread bytes takes back what was said last."""
        self._finish()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(seconds):
                while await self._reader.read(READ_BYTES):
                    continue

    def drop(self) -> None:
        """Close without a word, but with those that wait to be sent: why a handshake failed."""
        self._writer.close()

    def abort(self) -> None:
        """End it so that the other side sees that something is missing."""
        self._writer.transport.abort()

    def _finish(self) -> None:
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending and not self._writer.is_closing():
            self._writer.write(self._outgoing.read())

    async def _reply(self) -> None:
        """What TLS itself has to say to what was read. It doesn't wait for a side that reads only once it has said all, within bounds."""
        self._send()
        if self._writer.transport.get_write_buffer_size() > REPLY_BYTES:
            await self._writer.drain()

    async def _drain(self) -> None:
        self._send()
        await self._writer.drain()

    async def _fill(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


def one_protocol(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, speaking HTTP/1.1 alone, over TLS 1.2 or newer."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


async def secure(stream: TlsStream) -> TlsStream:
    """The stream after its handshake. Raises `ssl.SSLError`, `OSError`; then it has ended."""
    try:
        await stream.handshake()
    except BaseException:
        stream.drop()
        raise
    return stream
