"""Messages to one Turn: one handler, one at a time, in order, each ends delivered or rejected. SPEC [S7]."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final

from helmr.guest.runtime.channel import Channel
from helmr.guest.runtime.operations import Group, current_group
from helmr.guest.runtime.source import input_source
from helmr.guest.runtime.stopping import describe, sayable
from helmr.protocol import jsontext
from helmr.sdk.turn import Message, MessageHandler

TURN_CLOSED: Final = "turn_closed"
TURN_TERMINATED: Final = "turn_terminated"


class Mailbox:
    """The messages of one Turn.

    `failed(error)` is called when the handler raised anything but a rejection, `idle()` when no callback runs any more.
    """

    def __init__(
        self, channel: Channel, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None], idle: Callable[[], None]
    ) -> None:
        self._channel, self._loop = channel, loop
        self._failed, self._idle = failed, idle
        self._handler: MessageHandler | None = None
        self._seen: set[str] = set()
        self._queue: deque[Message] = deque()
        self._running: asyncio.Task[None] | None = None
        self._ending: str | None = None
        self.group = Group()
        """The operations that callbacks started."""

    @property
    def registered(self) -> bool:
        return self._handler is not None

    @property
    def idle(self) -> bool:
        """Whether no callback runs."""
        return self._running is None

    def register(self, handler: MessageHandler) -> None:
        self._handler = handler

    def take(self, frame: dict[str, Any]) -> None:
        """Queue a message; one that came before is ignored."""
        id = frame["id"]
        if id in self._seen:
            return
        self._seen.add(id)
        message = Message(id=id, content=frame["content"], source=input_source(frame.get("source")))
        if self._ending is not None or self._handler is None:
            self._reject(message, self._ending or TURN_CLOSED, "not_delivered")
            return
        self._queue.append(message)
        self._next()

    def end(self, reason: str) -> None:
        """Take no message any more and reject those that haven't started; one that has may finish."""
        if self._ending is None:
            self._ending = reason
        while self._queue:
            self._reject(self._queue.popleft(), reason, "not_delivered")

    def cancel(self) -> None:
        """Reject what hasn't started, as by `end`, and cancel the callback that runs."""
        self.end(TURN_TERMINATED)
        if self._running is not None:
            self._running.cancel()

    def _next(self) -> None:
        if self._running is not None or not self._queue:
            return
        message = self._queue.popleft()
        self._say("message.started", message)
        context = copy_context()
        context.run(current_group.set, self.group)
        self._running = self._loop.create_task(self._deliver(message), name=f"message {message.id}", context=context)
        self._running.add_done_callback(lambda task: self._ended(message, task))

    async def _deliver(self, message: Message) -> None:
        assert self._handler is not None
        result = self._handler(message)
        if inspect.isawaitable(result):
            await result

    def _ended(self, message: Message, task: asyncio.Task[None]) -> None:
        self._running = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() and self._ending == TURN_TERMINATED:
            self._reject(message, TURN_TERMINATED, "uncertain")
        elif task.cancelled() or error is not None:
            failure = error or asyncio.CancelledError("The message handler was cancelled.")
            if getattr(type(failure), "helmr_message_rejected", False):
                self._reject(message, "message_rejected", "not_delivered", describe_rejection(failure))
            else:
                self._reject(message, "callback_failed", "uncertain", describe(failure))
                self._failed(failure)
        else:
            self._say("message.delivered", message)
        self._next()
        if self._running is None:
            self._idle()

    def _reject(self, message: Message, reason: str, delivery: str, detail: str | None = None) -> None:
        more = {} if detail is None else {"detail": detail}
        self._say("message.rejected", message, reason=reason, delivery=delivery, **more)

    def _say(self, kind: str, message: Message, **members: str) -> None:
        self._channel.post(jsontext.dumps({"t": kind, "id": message.id, **members})[:-1])


def describe_rejection(error: BaseException) -> str:
    """What the Agent said when it rejected a message."""
    return sayable(str(getattr(error, "detail", None) or error))
