"""Helmr's own programs as processes of a test, without what their start costs: a second of CPU for imports alone, some hundred times.

One process has imported them (`programs_forked.py`), and each start is a fork of it: a process of its own, with the arguments, environment,
files and session that it was given, that runs `python -m ...` or a script from the first line on. It can be stopped, killed and waited for
like any other. What a program costs from nothing, and what it imports, are things for tests that start it with `subprocess`.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, Any, Final

FORKED: Final = Path(__file__).parent / "programs_forked.py"
PADDING: Final = "-" * 4096
"""Room for the command lines of the programs, in the first one's own."""


class Program:
    """A started program: the members of `subprocess.Popen` that tests use."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.args = argv
        self.pid = 0
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._started, self._ended = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input`, read both streams to their ends and wait."""
        said: dict[str, Any] = {}

        def read(name: str, stream: IO[Any]) -> None:
            with stream:
                said[name] = stream.read()

        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.stdout), ("err", self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            try:
                with self.stdin:
                    if input:
                        self.stdin.write(input)
            except BrokenPipeError:
                pass  # it reads no more; what it says and its exit code tell
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said.get("out"), said.get("err")


class Programs:
    """The process that all are forked from; started by the first that wants one, and ended with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket
        self._lock = threading.Lock()
        self._waiting: list[Program] = []
        self._running: dict[int, Program] = {}

    def start(self, program: Program, told: Mapping[str, Any], files: Sequence[int]) -> None:
        with self._lock:
            if self._process is None:
                self._begin()
            self._waiting.append(program)
            socket.send_fds(self._socket, [json.dumps(told).encode()], list(files))
        if not program._started.wait(60):
            raise RuntimeError("the process that programs are forked from does not answer")

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HELMR_")}
        command = [sys.executable, str(FORKED), str(theirs.fileno()), PADDING]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True)
        theirs.close()
        self._socket = ours
        threading.Thread(target=self._hear, name="programs", daemon=True).start()

    def _hear(self) -> None:
        """Which have started, in order, and which have ended."""
        while message := self._socket.recv(4096):
            said = json.loads(message)
            if "started" in said:
                program = self._waiting.pop(0)
                program.pid = said["started"]
                self._running[program.pid] = program
                program._started.set()
            else:
                program = self._running.pop(said["ended"])
                program.returncode = said["status"]
                program._ended.set()


_programs = Programs()


def start(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    text: bool = False,
    start_new_session: bool = False,
    terminal: bool = False,
) -> Program:
    """Like `subprocess.Popen` for a command of this Python: `-W error`, then `-m module` or a script, then arguments.

    `terminal` makes standard input the controlling terminal of a new session.
    """
    command = [str(part) for part in argv]
    assert command[0] == sys.executable, "only programs of this Python are forked"
    program = Program(command)
    opened: list[int] = []

    def end_of(given: Any, number: int) -> int:
        if given is None:
            return number
        if given == DEVNULL:
            opened.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            return opened[-1]
        if given == PIPE:
            reading, writing = os.pipe()
            ours, theirs = (writing, reading) if number == 0 else (reading, writing)
            opened.append(theirs)
            buffer = os.fdopen(ours, "wb" if number == 0 else "rb")
            stream = buffer if not text else io.TextIOWrapper(buffer, line_buffering=True)
            setattr(program, ("stdin", "stdout", "stderr")[number], stream)
            return theirs
        return given if isinstance(given, int) else given.fileno()

    try:
        files = [end_of(stdin, 0), end_of(stdout, 1)]
        files.append(files[1] if stderr == STDOUT else end_of(stderr, 2))
        told = {
            "argv": command[1:],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or os.getcwd()),
            "session": start_new_session or terminal,
            "terminal": terminal,
        }
        _programs.start(program, told, files)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return program


def run(
    argv: Sequence[str | Path], *, capture_output: bool = False, timeout: float | None = None, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """Like `subprocess.run`."""
    if capture_output:
        more |= {"stdout": PIPE, "stderr": PIPE}
    program = start(argv, **more)
    try:
        out, err = program.communicate(timeout=timeout)
    except BaseException:
        program.kill()
        raise
    assert program.returncode is not None
    done = subprocess.CompletedProcess(program.args, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done
