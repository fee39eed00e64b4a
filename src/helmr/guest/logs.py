"""Standard output and error of a Session process, as lossy frames with a bounded buffer."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Callable
from typing import Final

_READ: Final = 16 * 1024


class LogPipe:
    """Reads one pipe. `on_text(text)` returns whether it took the text; what it did not take is lost, and said so with what comes next."""

    def __init__(self, descriptor: int, on_text: Callable[[str], bool]) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lost = 0
        self._closed = False
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def finish(self) -> None:
        """Read what is there, then close. Idempotent."""
        while not self._closed and self._read():
            continue
        self._close()

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return False
        text = self._decoder.decode(data, final=not data)
        if text:
            self._tell(text)
        if not data:
            self._close()
        return bool(data)

    def _tell(self, text: str) -> None:
        told = f"[{self._lost} bytes of this log were lost]\n{text}" if self._lost else text
        if self._on_text(told):
            self._lost = 0
        else:
            self._lost += len(text.encode())

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
