"""A Session process: `init` once, then one Turn at a time, until the host or the supervisor is done with it. SPEC [S8]-[S14], [A1].

It is an event loop of its own. Exceptions of the Agent's code never end it; `SystemExit` and crashes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any, Final

from helmr.guest.polling import guest_loop
from helmr.guest.runtime.channel import Channel
from helmr.guest.runtime.context import LiveContext
from helmr.guest.runtime.definition import load_definition
from helmr.guest.runtime.flights import flights
from helmr.guest.runtime.stopping import sayable
from helmr.guest.runtime.threads import in_thread
from helmr.guest.runtime.turn import TurnRun
from helmr.protocol import jsontext
from helmr.protocol.limits import CLEANUP_SECONDS
from helmr.protocol.states import AbortReason

EXIT_INIT_FAILED: Final = 1
EXIT_UNDRAINED: Final = 70
EXIT_SUPERVISOR_GONE: Final = 71

_REMEMBERED_TURNS: Final = 1024


def run_session(connection: socket.socket) -> int:
    """Serve one Session over its channel until its end; returns the exit status."""
    faulthandler.enable()
    with asyncio.Runner(loop_factory=guest_loop) as runner:
        status = runner.run(SessionProcess(connection).run())
        # From here on the Agent's own tasks, threads and atexit functions get the same time again; then the process ends anyway.
        faulthandler.dump_traceback_later(CLEANUP_SECONDS, exit=True)
        return status


class SessionProcess:
    """Owns the channel, the context, the Turn that runs and the tasks of both. `load(bundle, file, attribute)` finds the definition."""

    def __init__(self, connection: socket.socket, *, load: Callable[[str, str, str], Any] = load_definition) -> None:
        self._socket = connection
        self._load = load
        self._ended: asyncio.Future[int]
        self._channel: Channel
        self._definition: Any = None
        self._context: LiveContext | None = None
        self._init: asyncio.Task[Any] | None = None
        self._ready = False
        self._turn: TurnRun | None = None
        self._known: dict[str, None] = {}
        self._queued: deque[dict[str, Any]] = deque()
        self._ending = False
        self._blank: Context

    async def run(self) -> int:
        """Returns the exit status once the process may end: what it said has left it by then."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_report_unhandled)
        self._blank = copy_context()
        self._ended = loop.create_future()
        self._channel = Channel(
            self._socket, on_frame=self._on_frame, on_unlocated=self._locate, on_closed=lambda: self._end(EXIT_SUPERVISOR_GONE)
        )
        self._channel.start()
        flights.attend(self._channel.hold)
        status = await self._ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS):
                await self._channel.flushed()
        flights.leave()
        self._channel.close()
        return status

    # --- frames -----------------------------------------------------------------------------------------------------------

    def _on_frame(self, kind: str, frame: dict[str, Any]) -> None:
        turn = self._turn
        if kind == "turn.start":
            self._start_turn(frame)
        elif kind == "turn.stop":
            if turn is not None and turn.id == frame["turn"]:
                turn.stop(frame["reason"], float(frame.get("seconds", CLEANUP_SECONDS)))
        elif kind == "message":
            if turn is not None and turn.id == frame["turn"]:
                turn.take_message(frame)
        elif kind == "question.answer":
            if turn is not None:
                turn.questions.answer(frame)
        elif kind == "question.cancelled":
            if turn is not None:
                turn.questions.cancelled(frame)
        elif kind == "session.open":
            self._open(frame)
        elif kind == "session.end":
            reason = "cancelled" if frame.get("reason") == "cancelled" else "shutdown"
            self._shut_down(reason, float(frame.get("seconds", CLEANUP_SECONDS)))
        else:
            print(f"The host sent a frame of an unknown kind, {kind!r}: ignored.", file=sys.stderr, flush=True)

    # --- opening ----------------------------------------------------------------------------------------------------------

    def _open(self, frame: Mapping[str, Any]) -> None:
        if self._context is not None:
            return
        self._context = LiveContext(frame)
        self._init = asyncio.get_running_loop().create_task(self._initialize(frame, self._context), name="init")
        self._init.add_done_callback(self._initialized)

    async def _initialize(self, frame: Mapping[str, Any], context: LiveContext) -> None:
        self._definition = self._load(frame["bundle"], frame["file"], frame["attribute"])
        init = self._definition.init
        if init is not None:
            if inspect.iscoroutinefunction(init) or inspect.iscoroutinefunction(getattr(init, "__call__", None)):  # noqa: B004
                context.initialized(await init(context))
            else:
                context.initialized(await in_thread(init, context))

    def _initialized(self, task: asyncio.Task[None]) -> None:
        if self._ending:
            self._end(0)
            return
        error = asyncio.CancelledError("init was cancelled.") if task.cancelled() else task.exception()
        if error is None:
            self._ready = True
            self._channel.post(b'{"t":"init.done"')
            self._next_turn()
        else:
            text = "".join(traceback.format_exception(error))
            print(text, file=sys.stderr, end="", flush=True)
            failure = {"code": "init_failed", "message": _tail(text)}
            self._channel.post(jsontext.dumps({"t": "init.failed", "error": failure})[:-1])
            self._end(EXIT_INIT_FAILED)

    # --- Turns ------------------------------------------------------------------------------------------------------------

    def _start_turn(self, frame: dict[str, Any]) -> None:
        """Start a Turn once, whatever number of times it comes [I5]; behind one that runs, or `init`, it waits."""
        id = frame["turn"]["id"]
        if id in self._known:
            return
        self._known[id] = None
        if len(self._known) > _REMEMBERED_TURNS:
            del self._known[next(iter(self._known))]
        self._queued.append(frame)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._queued and self._ready and not self._ending and self._turn is None:
            context = self._context
            assert context is not None
            self._turn = TurnRun(
                self._queued.popleft(),
                handler=self._definition,
                context=context,
                root=context.session.parent is None,
                channel=self._channel,
                on_closed=self._turn_closed,
            )

    def _turn_closed(self, undrained: bool) -> None:
        if undrained:
            # What still runs of the Turn could disturb another: this process takes no Turn any more, and waits to be killed [S13].
            if self._ending:
                self._end(EXIT_UNDRAINED)
            return
        self._turn = None
        if self._ending:
            self._end(0)
        elif self._queued:
            # A Turn closes within its handler's context, of which the next one must not see anything.
            self._blank.run(self._next_turn)

    def _locate(self) -> None:
        """Ask where outputs are whose receipts a lost connection took."""
        turn = self._turn
        lost = {op: place for op in self._channel.unlocated if turn is not None and (place := turn.places.get(op)) is not None}
        if turn is not None and lost:
            self._channel.say(jsontext.dumps({"t": "output.locate", "turn": turn.id, "outputs": [list(pair) for pair in lost.items()]}))

    # --- the end ----------------------------------------------------------------------------------------------------------

    def _shut_down(self, reason: AbortReason, seconds: float) -> None:
        """No Turn comes any more: stop what runs within `seconds`, telling it `reason` [A6], then end with status 0 [S13]."""
        if self._ending:
            return
        self._ending = True
        self._queued.clear()
        if self._context is not None:
            self._context.shut_down(reason)
        if self._init is not None and not self._init.done():
            self._init.cancel()
        elif self._turn is not None and not self._turn.closed:
            self._turn.stop(reason, seconds)
        else:
            self._end(EXIT_UNDRAINED if self._turn is not None else 0)

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)


def _report_unhandled(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """A task of the Agent's failed and nobody looked: say so, and go on."""
    print(context.get("message", "An exception was not handled."), file=sys.stderr)
    error = context.get("exception")
    if isinstance(error, BaseException):
        traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()


def _tail(text: str) -> str:
    """The end of a traceback, where the cause is, at most 2,000 characters."""
    return sayable(text[-1990:] if len(text) > 1990 else text)
