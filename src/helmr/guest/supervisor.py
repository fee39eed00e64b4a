"""The supervisor: pid 1 of a Computer, and the only way between its Session processes and the host. DESIGN 6, I4-I6.

It runs no code of users, and spawns, never forks: a fork of a running event loop shares its epoll with the parent. Started as

    python3 -I -c "import sys; sys.path.insert(0, RUNTIME); from helmr.guest.supervisor import main; main()" --socket /run/helmr/host.sock
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from helmr.guest.command import CommandScope
from helmr.guest.door import Door
from helmr.guest.forwarding import Forwarding
from helmr.guest.groups import make_groups
from helmr.guest.kernel import become_subreaper, set_process_name
from helmr.guest.launch import Launch
from helmr.guest.polling import guest_loop
from helmr.guest.processes import descendants, kill, marked
from helmr.guest.scope import Scope, in_flight
from helmr.guest.uplink import Uplink
from helmr.guest.zygotes import Recipe, Start, Zygotes
from helmr.protocol.frames import PROTOCOL, SUPERVISOR, Frame, encode

LOG_BYTES: Final = 256 * 1024
"""Logs are dropped while more than this waits to be written."""

COMMANDS: Final = "commands"
"""The name of the zygote from which Commands are started."""

HANGUP: Final = b'{"t":"hangup"}'

_SWEEP_SECONDS: Final = 0.02
_SWEEPS: Final = 250


def main() -> None:
    """Entry point; runs until it is told to end by SIGTERM."""
    parser = argparse.ArgumentParser(prog="helmr-supervisor")
    parser.add_argument("--socket", help="the socket that hostd listens on")
    parser.add_argument("--door", help="where hostd passes streams in, if it doesn't listen")
    parser.add_argument("--groups", help="folder of the process groups of this kernel, for scopes that the host can't group")
    parser.add_argument("--memory", type=int, default=0, help="bytes of data that one process of a scope may have; 0: as many as it likes")
    parser.add_argument("--pids", type=int, default=0, help="processes that a scope may have; 0: as many as it likes")
    parser.add_argument("--runtime", default=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    parser.add_argument("--egress", action="store_true", help="hostd has an egress proxy for this Computer")
    options = parser.parse_args()
    set_process_name("helmr-supervisor")
    if os.getpid() != 1:
        become_subreaper()
    with asyncio.Runner(loop_factory=guest_loop) as runner:
        own = make_groups(options.groups, options.pids) if options.groups else ""
        way = Supervisor(options.socket, options.runtime, door=options.door, egress=options.egress, groups=own, memory=options.memory)
        runner.run(way.run())


class Supervisor:
    """Owns the stream to the host, the zygotes and the scopes."""

    def __init__(
        self, host: str | None, runtime: str, *, door: str | None = None, egress: bool = False, groups: str = "", memory: int = 0
    ) -> None:
        self._host, self._runtime, self._egress = host, runtime, egress
        self._at, self._groups, self._memory = door, groups, memory
        self._token = secrets.token_hex(8)
        self._scopes: dict[int, Scope | CommandScope] = {}
        self._stdin: dict[int, bytearray] = {}
        """What Commands will read that are to be started."""
        self._streams: set[int] = set()
        """Channels of streams, which end with the connection to the host [C8]."""
        self._attached = False
        self._uplink: Uplink
        self._zygotes: Zygotes
        self._forwarding: Forwarding | None = None
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Serve until SIGTERM, then end everything that descends from here."""
        self._loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        self._zygotes = Zygotes(self._runtime, self._heard, self._failed)
        self._uplink = Uplink(self._host, on_connected=self._connected, on_frames=self._take, on_lost=self._lost, on_room=self._resume_all)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._loop.add_signal_handler(signal.SIGTERM, ending.set)
        if self._egress:
            self._forwarding = Forwarding(self._runtime, self._host)
            self._forwarding.start()
        self._uplink.connect()
        if self._at is not None:
            self._door = Door(self._at, self._passed)
        await ending.wait()
        while kill(descendants(os.getpid())):  # noqa: ASYNC110 - dying processes of others give no event to wait for
            await asyncio.sleep(_SWEEP_SECONDS)

    # --- what scopes need of the stream -----------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether the host has attached to the present stream."""
        return self._attached

    @property
    def congested(self) -> bool:
        return self._uplink.congested

    def send(self, data: bytes) -> None:
        self._uplink.send(data)
        if self._uplink.congested:
            self._resume_all()

    # --- the host ---------------------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        channels = {
            str(number): {"pid": scope.pid, "alive": not scope.finished, "last_op": scope.last_op, "acked": scope.acknowledged}
            for number, scope in self._scopes.items()
        }
        self._say({"t": "hello", "protocol": PROTOCOL, "python": platform.python_version(), "channels": channels})

    def _passed(self, word: str, stream: socket.socket) -> bool:
        takers = {"stream": self._uplink.adopt} | ({} if self._forwarding is None else {"egress": self._forwarding.adopt})
        if word in takers:
            takers[word](stream)
        return word in takers

    def _lost(self) -> None:
        self._attached = False
        for channel in self._streams:
            # What it said since is lost, and nobody is there to say it again: the stream is over.
            self._scopes[channel].forward(0, HANGUP)
            self._scopes[channel].flush()
        self._resume_all()

    def _resume_all(self) -> None:
        for scope in self._scopes.values():
            scope.resume()

    def _take(self, frames: list[Frame]) -> None:
        touched: list[Scope | CommandScope] = []
        for channel, op, payload in frames:
            if channel == SUPERVISOR:
                self._obey(json.loads(payload))
            elif (scope := self._scopes.get(channel)) is not None:
                scope.forward(op, payload)
                touched.append(scope)
        for scope in touched:
            scope.flush()

    def _obey(self, frame: dict[str, Any]) -> None:
        kind = frame["t"]
        commands: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "attach": self._attach,
            "scope.start": self._start,
            "scope.stdin": self._take_stdin,
            "scope.kill": self._kill,
            "scope.forget": self._forget,
            "ping": lambda frame: self._say({"t": "pong", "n": frame["n"], **in_flight(self._scopes.items())}),
        }
        command = commands.get(kind)
        if command is None:
            print(f"helmr supervisor: the host sent an unknown frame, {kind!r}", file=sys.stderr, flush=True)
        else:
            command(frame)

    def _attach(self, frame: dict[str, Any]) -> None:
        """Send again what the host has not stored, then the ends it has not recorded; each frame keeps its op [E5]."""
        self._attached = True
        for number, op in frame["acked"].items():
            scope = self._scopes.get(int(number))
            if scope is not None:
                scope.acknowledge(int(op))
        for scope in list(self._scopes.values()):
            kept = scope.kept()
            if kept:
                self._uplink.send(kept)
            if scope.finished:
                self._report_end(scope)
            else:
                scope.remind()
        self._resume_all()

    def _say(self, message: dict[str, Any]) -> None:
        self._uplink.send(encode(SUPERVISOR, 0, json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")))

    # --- scopes -----------------------------------------------------------------------------------------------------------

    def _start(self, frame: dict[str, Any]) -> None:
        channel: int = frame["channel"]
        known = self._scopes.get(channel)
        if known is not None:
            if known.pid is not None:
                self._say({"t": "scope.started", "channel": channel, "pid": known.pid})
            return
        ours, theirs = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        start = Start(channel=channel, descriptors=(theirs, out_end, err_end))
        if "argv" in frame:
            self._start_command(frame, start, ours, {"stdout": out, "stderr": err})
            return
        stream: dict[str, Any] | None = frame.get("stream")
        if stream is not None:
            self._streams.add(channel)
        scope = Scope(
            channel,
            ours,
            {"stdout": out, "stderr": err},
            self,
            on_log=lambda stream, text: self._log(channel, stream, text),
            on_broken=lambda why: self._broken(channel, why),
            on_finished=lambda: self._finished(channel),
        )
        self._scopes[channel] = scope
        path = tuple(frame.get("path", ()))
        launch = Launch(
            channel=channel,
            scope=self._marker(channel),
            path=path,
            env=frame.get("env", {}),
            cwd=frame.get("cwd") or "/",
            user=frame.get("user"),
            host=self._host or "",
            group=f"{self._groups}/{channel}" if self._groups else "",
            memory=self._memory,
            stream=stream is not None,
        )
        if stream is not None:
            scope.begin(launch.encode(), json.dumps({"t": "open", **stream}).encode())
            self._zygotes.start(COMMANDS, Recipe(path=(), preload=()), start)
            return
        scope.begin(launch.encode(), json.dumps({"t": "session.open", **frame["open"]}).encode())
        recipe = Recipe(path=path, preload=tuple(frame.get("preload", ())))
        self._zygotes.start(frame["zygote"], recipe, start)

    def _start_command(self, frame: dict[str, Any], start: Start, connection: socket.socket, outputs: Mapping[str, int]) -> None:
        channel, stdin = start.channel, bytes(self._stdin.pop(start.channel, b""))
        scope = CommandScope(
            channel,
            connection,
            outputs,
            self,
            timeout=frame["timeout_ms"] / 1000,
            on_kill=lambda: self._kill({"channel": channel}),
            on_finished=lambda: self._finished(channel),
        )
        self._scopes[channel] = scope
        launch = Launch(
            channel=channel,
            scope=self._marker(channel),
            path=(),
            env=frame.get("env", {}),
            cwd=frame.get("cwd") or "/",
            user=frame.get("user"),
            host=self._host or "",
            group=f"{self._groups}/{channel}" if self._groups else "",
            memory=self._memory,
            argv=tuple(frame["argv"]),
            stdin=len(stdin),
        )
        scope.begin(launch.encode(), stdin)
        self._zygotes.start(COMMANDS, Recipe(path=(), preload=()), start)

    def _take_stdin(self, frame: dict[str, Any]) -> None:
        """A piece of what a Command will read; a start that is sent again brings all pieces again."""
        channel: int = frame["channel"]
        if channel in self._scopes:
            return
        if frame["at"] == 0:
            self._stdin[channel] = bytearray()
        self._stdin[channel] += base64.b64decode(frame["data"])

    def _heard(self, message: dict[str, Any]) -> None:
        """A keeper or a zygote said something about a scope."""
        if "reaped" in message:
            self._keeper_ended(message["reaped"], message["status"])
            return
        for kind in ("forked", "started", "exited", "failed"):
            if kind in message and (scope := self._scopes.get(message[kind])) is not None:
                self._note(kind, scope, message)

    def _note(self, kind: str, scope: Scope | CommandScope, message: dict[str, Any]) -> None:
        if kind == "failed":
            self._failed(scope.channel, message["message"])
        elif kind == "exited":
            how = {name: message[name] for name in ("code", "signal") if name in message}
            self._sweep(scope, how)
        else:
            if kind == "forked":
                scope.keeper = message["pid"]
            else:
                scope.pid = message["pid"]
                self._say_if_live({"t": "scope.started", "channel": scope.channel, "pid": scope.pid})
            if scope.doomed:
                self._kill_tree(scope)

    def _failed(self, channel: int, why: str) -> None:
        scope = self._scopes.get(channel)
        if scope is not None and scope.exit is None:
            scope.failure = why
            scope.ended({})

    def _broken(self, channel: int, why: str) -> None:
        print(f"helmr supervisor: channel {channel}: {why}", file=sys.stderr, flush=True)
        self._kill({"channel": channel})

    def _kill(self, frame: dict[str, Any]) -> None:
        scope = self._scopes.get(frame["channel"])
        if scope is not None and scope.exit is None:
            scope.doomed = True
            self._kill_tree(scope)

    def _kill_tree(self, scope: Scope | CommandScope) -> None:
        """Kill what is below the keeper, which then ends the rest and reports; it is woken in case the Agent stopped it."""
        if scope.keeper is not None:
            kill(descendants(scope.keeper))
            _wake(scope.keeper)

    def _keeper_ended(self, pid: int, status: int) -> None:
        """A keeper that ended without a word was killed: do what it would have done."""
        for scope in self._scopes.values():
            if scope.keeper == pid and scope.exit is None and not scope.sweeping:
                if scope.pid is not None:
                    kill([*descendants(scope.pid), scope.pid])
                self._sweep(scope, {"signal": signal.SIGKILL.value})

    def _sweep(self, scope: Scope | CommandScope, how: dict[str, Any], sweeps: int = _SWEEPS) -> None:
        """End what carries the scope's mark and escaped its keeper; then the scope has ended."""
        scope.sweeping = True
        left = marked(self._marker(scope.channel))
        if left and sweeps:
            kill(left)
            self._loop.call_later(_SWEEP_SECONDS, self._sweep, scope, how, sweeps - 1)
        else:
            scope.ended(how)

    def _finished(self, channel: int) -> None:
        if self._attached:
            self._report_end(self._scopes[channel])

    def _report_end(self, scope: Scope | CommandScope) -> None:
        if scope.failure is not None:
            self._say({"t": "scope.failed", "channel": scope.channel, "message": scope.failure})
        else:
            self._say({"t": "scope.exited", "channel": scope.channel, **(scope.exit or {})})

    def _forget(self, frame: dict[str, Any]) -> None:
        scope = self._scopes.get(frame["channel"])
        if scope is not None and scope.finished:
            del self._scopes[frame["channel"]]
            self._streams.discard(frame["channel"])
            scope.forget()

    def _log(self, channel: int, stream: str, text: str) -> bool:
        if not self._attached or self._uplink.queued_bytes > LOG_BYTES:
            return False
        self._say({"t": "log", "channel": channel, "stream": stream, "text": text})
        return True

    def _say_if_live(self, message: dict[str, Any]) -> None:
        if self._attached:
            self._say(message)

    def _marker(self, channel: int) -> str:
        return f"{self._token}.{channel}"

    # --- children ---------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap everything: zygotes, keepers whose zygote is gone, orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._forwarding is not None and self._forwarding.ended(pid, status):
                continue
            if not self._zygotes.ended(pid, status):
                self._zygotes.read()
                self._keeper_ended(pid, status)


def _wake(pid: int) -> None:
    """Let a keeper go on that was stopped."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
