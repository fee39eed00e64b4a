"""A Turn's output: single writes and piped iterables, within the Turn's budget. SPEC [A4], [E5], [E6]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from helmr.guest.runtime.channel import Channel, Posted
from helmr.guest.runtime.operations import Operation
from helmr.protocol.content import HumanContent, normalize
from helmr.protocol.errors import ContentLimitExceeded, HelmrError, TurnCancelled, TurnSettling
from helmr.protocol.limits import PIPE_WINDOW, TURN_OUTPUT_BYTES
from helmr.sdk.signal import AbortSignal
from helmr.sdk.turn import Output, OutputReceipt

if TYPE_CHECKING:
    from helmr.guest.runtime.turn import TurnRun


class Budget:
    """What a Turn may still say: output and questions, together."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TURN_OUTPUT_BYTES

    def spend(self, size: int) -> None:
        """Raise `ContentLimitExceeded` past 8 MiB, spending nothing."""
        if size > self._left:
            raise ContentLimitExceeded(f"A Turn's output and questions are {TURN_OUTPUT_BYTES} bytes at most; {self._left} are left.")
        self._left -= size


class LiveOutput(Output):
    """The output of a Turn that runs."""

    __slots__ = ("_budget", "_channel", "_head", "_posted", "_run")

    def __init__(self, run: TurnRun, channel: Channel, budget: Budget) -> None:
        self._run, self._channel, self._budget = run, channel, budget
        self._head = b'{"t":"turn.output","turn":"' + run.id.encode() + b'","content":'
        self._posted = 0

    def write(self, value: HumanContent) -> Awaitable[OutputReceipt]:
        operation: Operation[OutputReceipt] = self._run.operation("output.write")
        try:
            body = self._admit(value)
        except HelmrError as error:
            operation.fail(error)
            return operation

        places = self._run.places

        def stored(sequence: int | None) -> None:
            places.pop(posted.op, None)
            if sequence is not None:
                operation.succeed(OutputReceipt(sequence=sequence))

        posted = self._channel.post(body, ask=True, output=True, located=True, stored=stored)
        self._posted += 1
        places[posted.op] = self._posted
        return operation

    def pipe(self, values: AsyncIterable[HumanContent] | Iterable[HumanContent], *, signal: AbortSignal | None = None) -> Awaitable[None]:
        operation: Operation[None] = self._run.operation("output.pipe")
        if isinstance(values, str) or not (hasattr(values, "__aiter__") or hasattr(values, "__iter__")):
            operation.fail(TypeError("pipe() takes an iterable of Content values; write() takes one value."))
            return operation
        self._run.own(operation, Pipe(self._run.loop, self._channel, self._post_piped).run(values, signal))
        return operation

    def _post_piped(self, value: HumanContent, stored: Callable[[int | None], None]) -> Posted:
        body = self._admit(value)
        self._posted += 1
        return self._channel.post(body, output=True, stored=stored)

    def _admit(self, value: HumanContent) -> bytes:
        if self._run.closed:
            raise TurnSettling("The Turn has ended; its output is closed.")
        _, data = normalize(value)
        self._budget.spend(len(data))
        return self._head + data


class Pipe:
    """Moves an iterable's values into the output, `PIPE_WINDOW` in flight at most."""

    __slots__ = ("_channel", "_in_flight", "_loop", "_post", "_room")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        post: Callable[[HumanContent, Callable[[int | None], None]], Posted],
    ) -> None:
        self._loop, self._channel, self._post = loop, channel, post
        self._in_flight = 0
        self._room: asyncio.Future[None] | None = None

    async def run(self, values: AsyncIterable[HumanContent] | Iterable[HumanContent], signal: AbortSignal | None) -> None:
        """Pipe to the end. Raises what the iterable raises, `TurnCancelled` when `signal` aborts, and what a bad value gives."""
        task = asyncio.current_task()
        assert task is not None
        if signal is not None:
            signal.raise_if_aborted()
        unlisten = signal.listen(lambda _: self._loop.call_soon_threadsafe(task.cancel)) if signal is not None else None
        try:
            last = await self._drain(values)
            if self._in_flight:
                assert last is not None
                self._channel.want(last.op)
                await self._until(0)
        except asyncio.CancelledError:
            if signal is not None and signal.reason is not None:
                raise TurnCancelled("The pipe's signal aborted.", reason=signal.reason) from None
            raise
        finally:
            if unlisten is not None:
                unlisten()

    async def _drain(self, values: AsyncIterable[HumanContent] | Iterable[HumanContent]) -> Posted | None:
        last: Posted | None = None
        if isinstance(values, AsyncIterable):
            source = aiter(values)
            try:
                async for value in source:
                    last = await self._put(value)
            finally:
                await _close(source)
        else:
            for value in values:
                last = await self._put(value)
        return last

    async def _put(self, value: HumanContent) -> Posted:
        if self._in_flight >= PIPE_WINDOW:
            await self._until(PIPE_WINDOW - 1)
        posted = self._post(value, self._stored)
        self._in_flight += 1
        return posted

    def _stored(self, sequence: int | None) -> None:
        self._in_flight -= 1
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _until(self, limit: int) -> None:
        while self._in_flight > limit:
            self._room = self._loop.create_future()
            await self._room


async def _close(source: AsyncIterator[HumanContent]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
