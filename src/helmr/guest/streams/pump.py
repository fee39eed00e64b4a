"""Bytes in both directions between a stream and a descriptor, within the stream's windows. SPEC [C8]."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from typing import Any

from helmr.guest.streams.channel import StreamChannel
from helmr.protocol.streams import PIECE_BYTES


class Pump:
    """`on_eof` is called once the other end's last data are written, and after them `epilogue`; `on_word` gets its other words.

    A descriptor that ends, or breaks, closes only its own direction.
    """

    def __init__(
        self,
        channel: StreamChannel,
        descriptor: int,
        *,
        on_eof: Callable[[], None] = lambda: None,
        epilogue: bytes = b"",
        on_word: Callable[[Mapping[str, Any]], None] = lambda said: None,
    ) -> None:
        os.set_blocking(descriptor, False)
        self._channel, self._descriptor = channel, descriptor
        self._on_eof, self._on_word, self._epilogue = on_eof, on_word, epilogue
        self._down = bytearray()
        self._ending = False
        self.up_open = True
        """Whether the descriptor may have more to read."""
        self.down_open = True
        """Whether the other end may have more to say."""
        self.read_bytes = 0

    def step(self, *others: int, seconds: float | None = None) -> set[int]:
        """Wait until something can be done, and do it; which of the descriptors `others` are readable. Raises `HungUp`."""
        channel, poll = self._channel, select.poll()
        if channel.waiting:
            self._take()
        poll.register(channel.fileno(), select.POLLIN | (select.POLLOUT if channel.unsent else 0))
        own = (select.POLLIN if self.hungry else 0) | (select.POLLOUT if self._down else 0)
        if own:
            poll.register(self._descriptor, own)
        for other in others:
            poll.register(other, select.POLLIN)
        ready = dict(poll.poll(None if seconds is None else seconds * 1000))
        if ready.get(channel.fileno(), 0) & select.POLLOUT:
            channel.write()
        if ready.get(channel.fileno(), 0) & ~select.POLLOUT:
            self._take()
        events = ready.get(self._descriptor, 0)
        if self._down and events & ~select.POLLIN:
            self._write()
        if self.hungry and events & ~select.POLLOUT:
            self._read()
        if self._ending and not self._down and self.down_open:
            self.down_open = False
            self._on_eof()
        return {other for other in others if other in ready}

    @property
    def hungry(self) -> bool:
        """Whether the descriptor is read: it is open, and the other end takes more."""
        return self.up_open and self._channel.credit > 0 and not self._channel.unsent

    def _take(self) -> None:
        for message in self._channel.read():
            if isinstance(message, bytes):
                if self.down_open and not self._ending:
                    self._down += message
                else:
                    self._channel.granted(len(message))
            elif message["t"] == "eof":
                self._end()
            else:
                self._on_word(message)

    def _end(self) -> None:
        if self.down_open and not self._ending:
            self._ending = True
            self._down += self._epilogue

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, min(PIECE_BYTES, self._channel.credit))
        except BlockingIOError:
            return
        except OSError:  # EIO: the terminal has no other end any more; ECONNRESET
            data = b""
        self.read_bytes += len(data)
        if data:
            self._channel.data(data)
        else:
            self.up_open = False
            self._channel.say("eof")

    def _write(self) -> None:
        try:
            written = os.write(self._descriptor, self._down[:PIECE_BYTES])
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            self._channel.granted(len(self._down))
            self._down.clear()
            self._ending = True
            return
        del self._down[:written]
        self._channel.granted(written)
