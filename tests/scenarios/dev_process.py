"""`helmr dev` as a process, for scenarios: its ready line, what it says, Turns of its Agent `echo`. [D4]"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests import programs

from helmr.client import HelmrClient

READY_SECONDS = 60.0
SAID_SECONDS = 20.0
TURN_SECONDS = 30.0


class DevProcess:
    """A running `helmr dev`; `url` and `api_key` come from its ready line. `start` starts a process, as `subprocess.Popen` does."""

    def __init__(self, project: Path, folder: Path, *flags: str, started: list[Any], start: Callable[..., Any] = programs.start) -> None:
        self.folder = folder
        self.process = start(
            [sys.executable, "-m", "helmr.cli", "dev", str(project), "--data-dir", str(folder / "data"), "--json", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        )
        started.append(self.process)
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._out: queue.Queue[str | None] = queue.Queue()
        for stream, lines in ((self.process.stdout, self._out), (self.process.stderr, self._lines)):
            assert stream is not None
            threading.Thread(target=_pump, args=(stream, lines), daemon=True).start()
        line = self._out.get(timeout=READY_SECONDS)
        if line is None:
            raise AssertionError(f"it ended with {self.process.wait()}: {self.rest()}")
        self.ready = json.loads(line)
        self.url: str = self.ready["url"]
        self.api_key: str = self.ready["api_key"]

    def hears(self, text: str) -> str:
        """Wait for a line of standard error with `text` in it."""
        while True:
            line = self._lines.get(timeout=SAID_SECONDS)
            if line is None:
                raise AssertionError(f"{text!r} was never said: {self.said}")
            self.said.append(line)
            if text in line:
                return line

    def rest(self) -> str:
        """What else it said until its end."""
        while (line := self._lines.get(timeout=SAID_SECONDS)) is not None:
            self.said.append(line)
        return "".join(self.said)

    def end(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def turn(self, words: str, key: str = "k") -> str:
        """One Turn of the Session with that key, made when missing; its status."""
        async with HelmrClient(self.url, self.api_key) as client:
            part = [{"type": "text", "text": words}]
            known = (await client.sessions.list(agent="echo", key=key)).items
            if known:
                turn = await client.sessions.ref(known[0].id).enqueue(part)
            else:
                created = (await client.sessions.create(agent="echo", input=part, key=key)).turn
                assert created is not None
                turn = created
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    return (await turn.wait()).status
            except TimeoutError:
                log = (self.folder / "data" / "helmr.log").read_text().splitlines()[-20:]
                raise AssertionError("\n".join([*await self.kinds(key), *log])) from None

    async def kinds(self, key: str = "k") -> list[str]:
        """The kinds of the Session's events."""
        async with HelmrClient(self.url, self.api_key) as client:
            session = (await client.sessions.list(agent="echo", key=key)).items[0]
            return [event.kind for event in (await client.sessions.ref(session.id).events.list()).records]


def clean(folder: Path) -> str:
    done = programs.run(
        [sys.executable, "-m", "helmr.cli", "dev", str(folder / "project"), "--data-dir", str(folder / "data"), "--clean"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder) in line:
                found.append(line)
    return found


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)
