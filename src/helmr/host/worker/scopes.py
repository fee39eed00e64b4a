"""The Session processes and Commands of one Computer, from `session.start` and `command.start` to `session.forget`.

A channel is started once and its end is reported until the control plane has recorded it. Nothing here must outlive the worker: a new one
learns the channels from the supervisor's hello, and their ends from `scope.exited`, which the supervisor repeats. [C3], [S14], I5, I6.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from helmr.host.worker.failure import Failure, answered, logger
from helmr.host.worker.ports import HostdRefused
from helmr.protocol import jsontext
from helmr.protocol.frames import SUPERVISOR, FrameError, encode

EXIT_SECONDS: Final = 5.0
"""How long after its processes are gone the supervisor has to say how a killed scope ended."""
RETRY_SECONDS: Final = 1.0
CHANNELS: Final = 4096
"""How many channels of one Computer may wait to be forgotten."""
SIGKILL: Final = 9
STDIN_PIECE_BYTES: Final = 512 * 1024

Prepare = Callable[[], Awaitable[Mapping[str, Any]]]
"""Makes all ready for a scope and gives the members of its scope.start frame; `stdin` (bytes) goes ahead of it."""


class ScopeHost(Protocol):
    """What scopes need of their Computer."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def tell(self, kind: str, **members: Any) -> None: ...
    def write(self, frames: bytes) -> None: ...
    def concluded(self) -> None: ...
    async def create_scope(self, channel: int) -> None: ...
    async def end_scope(self, channel: int) -> Mapping[str, Any]: ...


@dataclass(slots=True, eq=False)
class Scope:
    """One channel. Exactly one of: being prepared (`task`), sent but not confirmed (`start`), running (`pid`), ended (`exit`)."""

    channel: int
    task: asyncio.Task[None] | None = None
    start: bytes | None = None
    pid: int | None = None
    sent: bool = False
    """Its scope.start went to a supervisor, which may have started it."""
    known: bool = False
    """The supervisor has spoken of it."""
    ending: bool = False
    killed: bool = False
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    """The supervisor reported its end."""
    code: int | None = None
    signal: int | None = None
    exit: dict[str, Any] | None = None
    """The members of its session.exited."""


class Scopes:
    """Called in the event loop by its Computer."""

    def __init__(self, host: ScopeHost) -> None:
        self._host = host
        self._scopes: dict[int, Scope] = {}

    @property
    def live(self) -> int:
        """Channels whose end isn't recorded here."""
        return sum(scope.exit is None for scope in self._scopes.values())

    def start(self, channel: int, prepare: Prepare) -> None:
        """Start a channel. A repeated request repeats what is known of it."""
        scope = self._scopes.get(channel)
        if scope is None:
            scope = self._scopes[channel] = Scope(channel)
            failed = self._failing(scope)
            scope.task = self._host.spawn(
                answered(lambda: self._start(scope, prepare), failed, "session.start", channel=channel), f"session-start-{channel}"
            )
        elif scope.exit is not None:
            self._host.tell("session.exited", **scope.exit)
        elif scope.pid is not None:
            self._host.tell("session.started", channel=channel, pid=scope.pid)

    def refuse(self, channel: int, failure: Failure) -> None:
        """Report a channel as failed without starting it."""
        if channel not in self._scopes:
            scope = self._scopes[channel] = Scope(channel)
            self._failing(scope)(failure)

    def kill(self, channel: int, reason: str) -> None:
        """End a channel's whole process tree and report it, also one that is unknown here."""
        scope = self._scopes.get(channel)
        if scope is None:
            scope = self._scopes[channel] = Scope(channel)
        if scope.exit is not None:
            self._host.tell("session.exited", **scope.exit)
            return
        if scope.ending:
            return
        scope.ending = scope.killed = True
        if scope.task is not None:
            scope.task.cancel()
        logger.info("session.kill", channel=channel, reason=reason)
        scope.start = None
        self._own("scope.kill", channel=channel)
        self._host.spawn(self._end(scope), f"session-kill-{channel}")

    def forget(self, channel: int) -> None:
        """The end is recorded: drop what is kept of it, here and in the supervisor."""
        scope = self._scopes.get(channel)
        if scope is None or scope.exit is not None:
            self._scopes.pop(channel, None)
            self._own("scope.forget", channel=channel)

    def attached(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Join what is known here with a supervisor's hello; the `channels` of computer.attached."""
        channels: dict[str, Any] = {}
        for number, told in hello.items():
            scope = self._named(_channel(number))
            scope.known, scope.start = True, None
            if scope.pid is None and scope.exit is None:
                scope.pid = told.get("pid")
            channels[number] = {"alive": bool(told.get("alive")) and scope.exit is None} | {
                name: int(told[name]) for name in ("acked",) if told.get(name)
            }
        for channel, scope in self._scopes.items():
            if str(channel) not in channels:
                channels[str(channel)] = {"alive": scope.exit is None and not (scope.known and scope.start is None)}
        return channels

    def resume(self) -> None:
        """After `attached`: say again what may have been lost with the former stream or link."""
        for scope in tuple(self._scopes.values()):
            if scope.exit is not None:
                self._host.tell("session.exited", **scope.exit)
            elif scope.start is not None:
                self._host.write(scope.start)
            elif scope.killed and scope.known:
                self._own("scope.kill", channel=scope.channel)

    def missing(self, hello: Mapping[str, Any]) -> None:
        """Channels that the supervisor knew and doesn't know any more are over."""
        for channel, scope in tuple(self._scopes.items()):
            if scope.known and scope.exit is None and str(channel) not in hello:
                self._over(scope, None, None)

    def on_started(self, channel: int, pid: int | None) -> None:
        scope = self._named(channel)
        scope.known, scope.start = True, None
        if scope.exit is None:
            scope.pid = pid
            self._host.tell("session.started", channel=channel, pid=pid)

    def on_exited(self, channel: int, code: int | None, signal: int | None) -> None:
        """The supervisor's report; it repeats it until `scope.forget`."""
        scope = self._named(channel)
        if scope.exit is None:
            self._over(scope, code, signal)

    def on_failed(self, channel: int, message: str) -> None:
        scope = self._named(channel)
        scope.known, scope.start = True, None
        if scope.exit is None and not scope.ending:
            scope.ending = True
            self._host.spawn(self._end(scope, Failure(code="start_failed", message=message)), f"session-failed-{channel}")

    def gone(self, cause: str, message: str, facts: Mapping[str, Any]) -> None:
        """The Computer's processes are over, all at once."""
        for scope in tuple(self._scopes.values()):
            if scope.exit is None:
                if scope.task is not None:
                    scope.task.cancel()
                scope.exited.set()
                self._conclude(scope, cause=cause, message=message, **facts)

    def _named(self, channel: int) -> Scope:
        """A channel that the supervisor names; it is a guest, so what it may invent is bounded (I4)."""
        scope = self._scopes.get(channel)
        if scope is None:
            if len(self._scopes) >= CHANNELS:
                raise FrameError(f"The supervisor names more than {CHANNELS} channels.")
            scope = self._scopes[channel] = Scope(channel)
        return scope

    async def _start(self, scope: Scope, prepare: Prepare) -> None:
        members = dict(await prepare())
        stdin = _stdin_frames(scope.channel, members.pop("stdin", b""))
        start = stdin + _own_frame("scope.start", channel=scope.channel, **members)
        await self._host.create_scope(scope.channel)
        scope.task = None
        scope.start, scope.sent = start, True
        self._host.write(start)

    def _failing(self, scope: Scope) -> Callable[[Failure], None]:
        def failed(failure: Failure) -> None:
            scope.task = None
            if scope.exit is None and not scope.killed:
                self._conclude(scope, cause="failed", message=failure.message, error=failure.to_wire(), ended=0, seconds=0.0)

        return failed

    def _over(self, scope: Scope, code: int | None, signal: int | None) -> None:
        scope.known, scope.start = True, None
        scope.code, scope.signal = code, signal
        scope.exited.set()
        if not scope.ending:
            scope.ending = True
            self._host.spawn(self._end(scope), f"session-end-{scope.channel}")

    async def _end(self, scope: Scope, failure: Failure | None = None) -> None:
        """End what is left of the scope, then report it. hostd being away delays the report, since it would not be true."""
        ended: Mapping[str, Any] = {}
        while scope.exit is None:
            try:
                ended = await self._host.end_scope(scope.channel)
                break
            except HostdRefused as refused:
                # The Computer is not there any more, and so are its processes.
                logger.info("scope.end_refused", channel=scope.channel, code=refused.code)
                break
            except OSError as error:
                logger.warning("scope.end_failed", channel=scope.channel, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        if scope.killed and (scope.sent or scope.known):
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    await scope.exited.wait()
            except TimeoutError:
                logger.warning("scope.exit_unreported", channel=scope.channel)
        if scope.exit is None:
            self._report(scope, ended, failure)

    def _report(self, scope: Scope, ended: Mapping[str, Any], failure: Failure | None) -> None:
        oom = cast("Mapping[str, Any]", ended.get("oom") or {})
        cause = "exited"
        if failure is not None:
            cause = "failed"
        elif scope.killed:
            cause = "killed"
        elif oom and scope.signal == SIGKILL:
            # The Session process itself was the victim; a child's end by memory is its parent's affair [S14].
            cause = "out_of_memory"
        signal = scope.signal
        if scope.killed and scope.code is None and signal is None:
            signal = SIGKILL
        self._conclude(
            scope,
            cause=cause,
            code=scope.code,
            signal=signal,
            message=failure.message if failure else None,
            error=failure.to_wire() if failure else None,
            limit=oom.get("limit"),
            peak=oom.get("peak"),
            ended=ended.get("ended", 0),
            seconds=ended.get("seconds", 0.0),
        )

    def _conclude(self, scope: Scope, **members: Any) -> None:
        scope.exit = {"channel": scope.channel, **members}
        scope.start = scope.pid = None
        self._host.tell("session.exited", **scope.exit)
        self._host.concluded()

    def _own(self, kind: str, **members: Any) -> None:
        self._host.write(_own_frame(kind, **members))


def _channel(number: str) -> int:
    if len(number) <= 10 and number.isascii() and number.isdecimal() and number[0] != "0" and int(number) < 1 << 32:
        return int(number)
    raise FrameError(f"{number[:40]!r} is no channel.")


def _stdin_frames(channel: int, data: bytes) -> bytes:
    """What a Command reads, in pieces that each fit into a frame."""
    frames: list[bytes] = []
    for at in range(0, len(data), STDIN_PIECE_BYTES):
        piece = base64.b64encode(data[at : at + STDIN_PIECE_BYTES]).decode()
        frames.append(_own_frame("scope.stdin", channel=channel, at=at, data=piece))
    return b"".join(frames)


def _own_frame(kind: str, **members: Any) -> bytes:
    return encode(SUPERVISOR, 0, jsontext.dumps({"t": kind, **members}))
