"""A Session's timeline, followed to its end across any number of connections. SPEC [E4]."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Self, cast

import aiohttp

from helmr.client.retry import Backoff
from helmr.client.sse import Message, SseParser
from helmr.client.transport import Transport
from helmr.protocol import jsontext
from helmr.protocol.errors import ConnectionFailed, ContentInvalid, UnreadableAnswer
from helmr.protocol.ids import SessionId, TurnId
from helmr.protocol.shapes import Event

SILENCE_SECONDS = 45.0
"""Three heartbeats of the server: a connection that is silent for so long is dead."""


class EventStream:
    """An async iterator over Events: each sequence once, in order, none left out.

    A broken or silent connection is opened again after the last Event that was taken in; what arrives twice is dropped, and after a gap
    the connection is not believed. It ends when the Session is closed and sealed. It gives up with `ConnectionFailed` only when the
    server stays out of reach for the retry policy's `waiting_patience`; a refusal is raised as its own class. `last_sequence` is where
    to go on later.

    Close it with `aclose()` or `async with` when leaving early.
    """

    def __init__(self, transport: Transport, path: str, after: int, *, silence: float = SILENCE_SECONDS) -> None:
        self._transport = transport
        self._path = path
        self._silence = silence
        self._last_received = after
        self.last_sequence = after
        """Sequence of the last Event that was yielded."""
        self._ready: deque[Event] = deque()
        self._response: aiohttp.ClientResponse | None = None
        self._parser = SseParser()
        self._backoff = Backoff(transport.retry)
        self._ended = False
        self.connections = 0
        """How often a connection was opened."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            if self._ended:
                await self.aclose()
                raise StopAsyncIteration
            await self._receive()
        event = self._ready.popleft()
        self.last_sequence = event.sequence
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. Idempotent; a later `anext` ends the iteration."""
        self._ended = True
        self._ready.clear()
        self._disconnect()

    async def _receive(self) -> None:
        if self._response is None:
            await self._connect()
            return
        try:
            chunk = await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            chunk = b""
        if not chunk:
            await self._reconnect_later()
            return
        try:
            followed = all(self._take(message) for message in self._parser.feed(chunk))
        except UnreadableAnswer:
            self._disconnect()
            raise
        if not followed:
            await self._reconnect_later()

    async def _connect(self) -> None:
        headers = {"Accept": "text/event-stream"}
        if self._last_received:
            headers["Last-Event-ID"] = str(self._last_received)
        response = await self._transport.open_stream(
            self._path, query={"after": self._last_received}, headers=headers, silence=self._silence, backoff=self._backoff
        )
        self._response, self._parser = response, SseParser()
        self.connections += 1

    async def _reconnect_later(self) -> None:
        """The connection ended before the stream did. A server that answers is never given up, but asked ever less often."""
        floor = self._parser.retry or 0.0
        self._disconnect()
        wait = self._backoff.next(floor, waiting=True)
        if wait is None:
            if self._transport.retry.attempts <= 1:
                raise ConnectionFailed("The event stream broke.", hint="Follow it again from the last sequence that you have seen.")
            wait = max(floor, self._transport.retry.longest)
        await self._transport.retry.sleep(wait)

    def _disconnect(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _take(self, message: Message) -> bool:
        """Take one message in. False when an Event is missing before it."""
        if message.event == "end" and message.id is None:
            self._ended = True
            return True
        if message.id is None or not message.data:
            return True
        event = read_event(_decoded(message.data))
        if event.sequence <= self._last_received:
            return True
        if event.sequence != self._last_received + 1:
            return False
        self._last_received = event.sequence
        self._backoff.reset()
        self._ready.append(event)
        return True


def read_event(data: Any) -> Event:
    """An Event from decoded JSON. Kinds that this client does not know pass as they are: a newer server's timeline stays readable."""
    members = cast("dict[str, Any]", data) if isinstance(data, dict) else {}

    def member(name: str, fits: Callable[[Any], bool]) -> Any:
        if name not in members or not fits(members[name]):
            raise UnreadableAnswer(f"An event has no fitting {name}.")
        return members[name]

    return Event(
        session_id=SessionId(member("session_id", _is_text)),
        turn_id=cast("TurnId | None", member("turn_id", lambda value: value is None or isinstance(value, str))),
        sequence=member("sequence", lambda value: type(value) is int and value > 0),
        created_at=member("created_at", _is_text),
        kind=member("kind", _is_text),
        data=member("data", lambda value: isinstance(value, (dict, list))),
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _decoded(data: str) -> Any:
    try:
        return jsontext.loads(data)
    except ContentInvalid as error:
        raise UnreadableAnswer(f"An event is no JSON: {error.detail}") from None
