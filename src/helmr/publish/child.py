"""The child process that imports a project: bounded in its time and in what it may say, gone with all its own at its end. SPEC [D2]."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import helmr

GRACE_SECONDS: Final = 5.0
"""How much longer than its time a child gets to tell where it stands."""
PRINTED: Final = 8_192
"""Bytes kept of what imports print: the last ones."""
REPORT_BYTES: Final = 64 << 20

_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_HOME: Final = str(Path(helmr.__file__).resolve().parents[1])
_CHILD: Final = """import sys
place = next((place for place, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
sys.path.insert(place, {home!r})
from helmr.publish.inspection import main
main({descriptor})"""
"""After the standard library, before what is installed: the child's helmr is the one that asks."""
_FRAME: Final = re.compile(r'  File "(.+)", line (\d+) in ')


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a child left: its report where it got that far, else the file that it imported last and, when its time was over, where it
    stood (`stack`: files and lines, the innermost first)."""

    report: Mapping[str, Any] | None
    importing: str
    timed_out: bool
    stack: tuple[tuple[str, int], ...]
    code: int
    printed: str


async def inspect(root: Path, files: tuple[str, ...], seconds: float) -> Said:
    """Import the files in a child, for `seconds` altogether. No environment variable of the caller but a few neutral ones is passed on.

    What the child started is ended with it, also when the caller is cancelled; only what left its session outlives it, and nobody waits
    for that.
    """
    with tempfile.TemporaryFile() as task, tempfile.TemporaryFile() as report:
        task.write(json.dumps({"root": str(root), "files": files, "seconds": seconds}).encode())
        task.seek(0)
        with _Tail() as tail:
            code = await _run(root, task, report, tail, seconds + GRACE_SECONDS)
            printed = tail.text()
        report.seek(0)
        return _read(report.read(REPORT_BYTES), code, printed)


async def _run(root: Path, task: IO[bytes], report: IO[bytes], tail: _Tail, seconds: float) -> int | None:
    """The child's code; None for one that was ended."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-B", "-c", _CHILD.format(home=_HOME, descriptor=report.fileno())),
        stdin=task,
        stdout=tail.writing,
        stderr=asyncio.subprocess.STDOUT,
        cwd=root,
        env={name: os.environ[name] for name in _KEPT if name in os.environ},
        pass_fds=(report.fileno(),),
        start_new_session=True,
    )
    tail.begin()
    try:
        async with asyncio.timeout(seconds):
            return await child.wait()
    except TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError):  # all are gone
            os.killpg(child.pid, signal.SIGKILL)
        if child.returncode is None:
            await child.wait()


class _Tail:
    """The end of what a pipe brings, however much that is. A context, since it reads while it is open."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._kept = b""

    def begin(self) -> None:
        """The writer has its own end by now."""
        os.close(self.writing)
        self.writing = -1
        asyncio.get_running_loop().add_reader(self._reading, self._take)

    def text(self) -> str:
        """What was printed up to now, in one line, without what a terminal would obey."""
        self._take()
        shown = "".join(sign if sign.isprintable() else " " for sign in self._kept.decode(errors="replace"))
        return " ".join(shown.split()[-40:])[-2000:]

    def _take(self) -> None:
        for _ in range(16):  # a process that left the session may still print
            try:
                came = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                return
            if not came:
                asyncio.get_running_loop().remove_reader(self._reading)
                return
            self._kept = (self._kept + came)[-PRINTED:]

    def __enter__(self) -> _Tail:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        if self.writing != -1:
            os.close(self.writing)


def _read(content: bytes, code: int | None, printed: str) -> Said:
    lines = content.decode(errors="replace").splitlines()
    messages = list(_messages(lines))
    last = messages[-1] if messages else {}
    traced = next((place for place, line in enumerate(lines) if line.startswith("Timeout (")), None)
    return Said(
        report=last if "agents" in last else None,
        importing=next((str(message["importing"]) for message in reversed(messages) if "importing" in message), ""),
        timed_out=code is None or traced is not None,
        stack=() if traced is None else _stack(lines[traced:]),
        code=-signal.SIGKILL if code is None else code,
        printed=printed,
    )


def _messages(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):  # a line that was cut by the end of its writer
            message = json.loads(line)
            if isinstance(message, dict):
                yield cast("dict[str, Any]", message)


def _stack(lines: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """The frames of the thread that imports, as Python's fault handler writes them."""
    threads: list[list[tuple[str, int]]] = [[]]
    for line in lines:
        if line.startswith(("Thread ", "Current thread ")):
            threads.append([])
        elif match := _FRAME.match(line):
            threads[-1].append((match[1], int(match[2])))
    ours = str(Path(__file__).with_name("inspection.py"))
    return next((tuple(frames) for frames in threads if any(file == ours for file, _ in frames)), ())
