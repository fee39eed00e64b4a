"""A connection to an origin of protected Secrets, decrypted: its requests one after the other, each judged and exchanged by itself [X1].

One connection of the guest is one to the origin, as with a tunnel; it ends when either side ends it. A WebSocket that was agreed on goes on
as bytes: what the guest says then is no header and is not changed, and an origin that sends a value back ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from helmr.host.sandbox.egress.activity import Passage
from helmr.host.sandbox.egress.exchange import Broken, Exchange, Left, Outcome, Seen
from helmr.host.sandbox.egress.protected import OriginSecrets
from helmr.host.sandbox.egress.request import HEAD_BYTES, BadRequest
from helmr.host.sandbox.egress.tls import TlsStream

LINGER_SECONDS: Final = 2.0
"""How long what a guest still sends is read and dropped after a last answer, which it would else not get to see."""
HELD_SECONDS: Final = 0.1
"""How long the end of a WebSocket's bytes that may be the beginning of a value waits for what follows: an answer may be due to it."""

_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interception:
    """Between a guest and an origin, both past their handshakes. `passing` is told of each request, and None between them [C6];
    `exchanged` the names of the Secrets of a request; `misdirected` of one that is not for this origin."""

    guest: TlsStream
    origin: TlsStream
    secrets: OriginSecrets
    host: str
    port: int
    head_seconds: float
    passing: Callable[[Passage | None], None]
    exchanged: Callable[[tuple[str, ...]], None]
    misdirected: Callable[[], None]

    async def run(self) -> None:
        """Until it ends. Both sides are closed on return."""
        pending, seen = b"", Seen(self.secrets)
        try:
            while pending is not None:
                pending = await self._next(pending, seen)
        except (Left, OSError, asyncio.IncompleteReadError):
            self.guest.abort()
        finally:
            self.guest.close()
            self.origin.abort()

    async def _next(self, pending: bytes, seen: Seen) -> bytes | None:
        """One request; what follows it, or None when nothing is to follow."""
        self.passing(None)
        pending = pending or await self._idle()
        if not pending:
            return None
        self.passing(Passage(tunnel=False, moved_at=monotonic()))
        exchange = Exchange(self.guest, self.origin, seen, self.host, self.port, self.exchanged)
        try:
            head, rest = await self._head(pending)
            outcome = await exchange.run(head, rest)
        except BadRequest as error:
            if error.status == 421:
                self.misdirected()
            await self._last_word(exchange, error.status, str(error))
            return None
        except Broken as error:
            await self._last_word(exchange, 502, f"The answer of {self.host}:{self.port} can't be passed on: {error}.")
            return None
        if outcome.switched:
            await self._switched(outcome, seen)
            return None
        if not exchange.sent_all:
            await self.guest.linger(LINGER_SECONDS)
        return outcome.pending if outcome.reusable else None

    async def _idle(self) -> bytes:
        """The guest's next words; none when it or the origin has ended."""
        guest, origin = asyncio.ensure_future(self.guest.read()), asyncio.ensure_future(self.origin.read())
        try:
            await asyncio.wait((guest, origin), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (guest, origin):
                task.cancel()
            await asyncio.gather(guest, origin, return_exceptions=True)
        # What an origin says unasked belongs to no request.
        return guest.result() if not guest.cancelled() and origin.cancelled() else b""

    async def _head(self, pending: bytes) -> tuple[bytes, bytes]:
        try:
            async with asyncio.timeout(self.head_seconds):
                while True:
                    while pending.startswith(b"\r\n"):  # some clients end a body with one
                        pending = pending[2:]
                    end = pending.find(_END)
                    if end > HEAD_BYTES or (end < 0 and len(pending) > HEAD_BYTES):
                        raise BadRequest(431, "The head of the request is too large.")
                    if end >= 0:
                        return pending[: end + len(_END)], pending[end + len(_END) :]
                    data = await self.guest.read()
                    if not data:
                        raise Left
                    pending += data
        except TimeoutError:
            raise BadRequest(408, "The request did not come in time.") from None

    async def _last_word(self, exchange: Exchange, status: int, text: str) -> None:
        if await exchange.answer(status, text):
            await self.guest.linger(LINGER_SECONDS)
        else:
            self.guest.abort()  # in the middle of an answer: the guest must not take what it has for all

    async def _switched(self, outcome: Outcome, seen: Seen) -> None:
        passage = Passage(tunnel=True, moved_at=monotonic())
        self.passing(passage)
        up = asyncio.ensure_future(self._up(outcome.pending, passage))
        down = asyncio.ensure_future(self._down(outcome.early, passage, seen))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _up(self, data: bytes, passage: Passage) -> None:
        await self.origin.write(data)
        while data := await self.guest.read():
            passage.moved("guest", monotonic())
            await self.origin.write(data)

    async def _down(self, data: bytes, passage: Passage, seen: Seen) -> None:
        put = seen.putback()
        while True:
            shown = put.feed(data)
            if put.found:
                return  # another length would break the frames around it
            await self.guest.write(shown)
            try:
                async with asyncio.timeout(HELD_SECONDS if put.holds else None):
                    data = await self.origin.read()
            except TimeoutError:
                await self.guest.write(put.release())
                data = await self.origin.read()
            if not data:
                await self.guest.write(put.finish())
                return
            passage.moved("origin", monotonic())
