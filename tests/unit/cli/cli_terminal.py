"""The `helmr` command at a pseudo-terminal that is its own, and a person at the other end."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests import programs


class Terminal:
    """What a person sees and types."""

    def __init__(self, ours: int, process: programs.Program) -> None:
        self._ours = ours
        self.process = process
        self.seen = ""
        self._grown = asyncio.Event()
        self.ended = asyncio.Event()
        """Set once all was read: nobody has the terminal any more."""
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # its other end is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._ours)
            self.ended.set()
        self.seen += data.decode(errors="replace")
        self._grown.set()

    async def until(self, text: str, count: int = 1) -> None:
        """Wait until `text` was seen so often."""
        try:
            async with asyncio.timeout(20):
                while self.seen.count(text) < count:
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} never came; seen:\n{self.seen}") from None

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, 20)


@asynccontextmanager
async def at_terminal(home: Path, url: str, *arguments: str, key: str = "key", stdout: int | None = None) -> AsyncIterator[Terminal]:
    """Run the command in a session of its own, of which the terminal is the controlling one; killed if it is still there at the end."""
    ours, theirs = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HELMR_", "XDG_"))}
    environ |= {"HOME": str(home), "HELMR_API_URL": url, "HELMR_API_KEY": key, "NO_COLOR": "1"}

    process = programs.start(
        [sys.executable, "-W", "error", "-m", "helmr.cli", *arguments],
        env=environ,
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        terminal=True,
    )
    os.close(theirs)
    terminal = Terminal(ours, process)
    try:
        yield terminal
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, 20)
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
