"""The supervisor's zygotes: one process per bundle and preload list, spawned when first needed. DESIGN 6."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

ZYGOTES: Final = 4
"""Zygotes that stay; the one used longest ago is ended first."""

_MESSAGE_BYTES: Final = 4096
_CODE: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from helmr.guest.zygote import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A Session process to be forked. `descriptors` (channel, stdout, stderr) are sent, and closed once it has been."""

    channel: int
    descriptors: tuple[socket.socket, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a zygote imports. Plain ones preload nothing: for modules that can't be forked."""

    path: tuple[str, ...]
    preload: tuple[str, ...]


class Zygote:
    """One zygote process. `on_message` gets what it and its keepers say, `on_gone` that nobody can say anything any more."""

    def __init__(self, recipe: Recipe, runtime: str, on_message: Callable[[Zygote, dict[str, Any]], None]) -> None:
        self.recipe = recipe
        self.ready = False
        self.starts: deque[Start] = deque()
        self.sent: dict[int, Start] = {}
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [argument for folder in recipe.path for argument in ("--path", folder)]
        arguments += [argument for module in recipe.preload for argument in ("--preload", module)]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CODE, runtime, *arguments], stdin=theirs.fileno(), start_new_session=True, cwd="/"
            )
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self.read)

    def start(self, start: Start) -> None:
        """Have it fork a Session process, as soon as it can."""
        self.starts.append(start)
        self._send_starts()

    def retire(self) -> None:
        """End it; what it has forked goes on, and is heard until the last is gone."""
        self._socket.send(json.dumps({"quit": True}).encode())

    def became_ready(self) -> None:
        self.ready = True
        self._send_starts()

    def take_starts(self) -> list[Start]:
        """Give up what it has not forked yet, for another to fork."""
        taken = [*self.sent.values(), *self.starts]
        self.starts.clear()
        self.sent.clear()
        return taken

    def forked(self, channel: int) -> None:
        """It has forked a keeper for the channel: its descriptors have been taken."""
        start = self.sent.pop(channel, None)
        if start is not None:
            close_descriptors(start)

    def read(self) -> None:
        """Hear everything that was said."""
        while self._socket.fileno() >= 0:
            try:
                data = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._socket.fileno())
                self._loop.remove_writer(self._socket.fileno())
                self._socket.close()
                return
            self._on_message(self, json.loads(data))

    def _send_starts(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        while self.ready and self.starts:
            start = self.starts[0]
            connection, stdout, stderr = start.descriptors
            passed = array.array("i", [connection.fileno(), stdout, stderr])
            try:
                self._socket.sendmsg(
                    [json.dumps({"start": start.channel}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed.tobytes())]
                )
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._send_starts)
                return
            self.sent[start.channel] = self.starts.popleft()


class Zygotes:
    """The zygotes by name. `on_message(message)` gets what concerns scopes; `on_failed(channel, message)` a start that came to nothing."""

    def __init__(self, runtime: str, on_message: Callable[[dict[str, Any]], None], on_failed: Callable[[int, str], None]) -> None:
        self._runtime, self._on_message, self._on_failed = runtime, on_message, on_failed
        self._named: OrderedDict[str, Zygote] = OrderedDict()
        self._running: dict[int, Zygote] = {}
        self._all: list[Zygote] = []

    def start(self, name: str, recipe: Recipe, start: Start) -> None:
        """Fork a Session process from the zygote of this name, which is spawned if there is none."""
        zygote = self._named.get(name) or self._spawn(name, recipe)
        self._named.move_to_end(name)
        zygote.start(start)

    def ended(self, pid: int, status: int) -> bool:
        """Whether the dead child `pid` was a zygote. What it was to fork has failed."""
        zygote = self._running.pop(pid, None)
        if zygote is None:
            return False
        zygote.process.returncode = status
        zygote.read()
        self._drop(zygote)
        for start in zygote.take_starts():
            close_descriptors(start)
            self._on_failed(start.channel, f"The zygote ended (wait status {status}) before the process was forked.")
        return True

    def read(self) -> None:
        """Hear everything that zygotes and keepers have said so far."""
        for zygote in self._all:
            zygote.read()

    def _spawn(self, name: str, recipe: Recipe) -> Zygote:
        self._retire_oldest()
        zygote = Zygote(recipe, self._runtime, self._heard)
        self._named[name] = zygote
        self._running[zygote.process.pid] = zygote
        self._all.append(zygote)
        return zygote

    def _retire_oldest(self) -> None:
        for name, zygote in list(self._named.items())[: max(0, len(self._named) - ZYGOTES + 1)]:
            if zygote.ready and not zygote.starts and not zygote.sent:
                del self._named[name]
                zygote.retire()

    def _heard(self, zygote: Zygote, message: dict[str, Any]) -> None:
        if "ready" in message:
            if message["unfit"] is None:
                zygote.became_ready()
            else:
                self._replace(zygote, message["unfit"])
        elif "refused" in message:
            self._replace(zygote, message["message"])
            zygote.retire()
        else:
            if "forked" in message or "failed" in message:
                zygote.forked(message.get("forked", message.get("failed", 0)))
            self._on_message(message)

    def _replace(self, zygote: Zygote, why: str) -> None:
        """Fork from a zygote that preloads nothing instead: each process imports for itself."""
        print(f"helmr supervisor: Session processes import for themselves, since {why}", file=sys.stderr, flush=True)
        name = next((name for name, named in self._named.items() if named is zygote), None)
        waiting = zygote.take_starts()
        if name is not None:
            del self._named[name]
            plain = Recipe(path=zygote.recipe.path, preload=())
            self._spawn(name, plain)
            for start in waiting:
                self._named[name].start(start)
        else:
            for start in waiting:
                close_descriptors(start)
                self._on_failed(start.channel, why)

    def _drop(self, zygote: Zygote) -> None:
        for name, named in list(self._named.items()):
            if named is zygote:
                del self._named[name]


def close_descriptors(start: Start) -> None:
    """Close this process's copies of what a Session process was given."""
    connection, *pipes = start.descriptors
    connection.close()
    for pipe in pipes:
        os.close(pipe)
