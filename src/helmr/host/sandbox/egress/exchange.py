"""One request and its answer within a decrypted connection: placeholders become values on the way up, values placeholders on the way down.

Both sides are read and written by h11 objects of this exchange alone; what follows it is handed back as bytes. Bodies pass in pieces, each
side waiting for the other. SPEC [X1].
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import h11

from helmr.host.sandbox.egress import heads
from helmr.host.sandbox.egress.decoding import Decoder, Identity, UnknownCoding, decoder
from helmr.host.sandbox.egress.protected import OriginSecrets
from helmr.host.sandbox.egress.putback import Pair, PutBack, pairs_of
from helmr.host.sandbox.egress.request import HEAD_BYTES, BadRequest
from helmr.host.sandbox.egress.tls import TlsStream

WHOLE_BYTES: Final = 64 * 1024
"""A body of a stated length up to this is put back as a whole, and keeps a length. A longer one comes in chunks."""
ENCODED: Final = 32
"""Encoded credentials of one connection that are remembered, to be put back."""


class Left(Exception):
    """The guest has gone."""


class Broken(Exception):
    """The origin has broken its answer off, or HTTP; the text says how."""


@dataclass(slots=True)
class Seen:
    """What of an origin's Secrets may return over one connection."""

    secrets: OriginSecrets
    encoded: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    _known: tuple[Pair, ...] | None = None

    def note(self, encoded: tuple[Pair, ...]) -> None:
        for sent, instead in encoded:
            if len(self.encoded) < ENCODED:
                self.encoded[sent] = instead

    def putback(self) -> PutBack:
        if self._known is None:
            self._known = pairs_of(self.secrets.secrets)
        return PutBack((*self._known, *self.encoded.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`pending`: what the guest sent beyond this request. `switched`: from here on it is a WebSocket, which begins with `early`."""

    reusable: bool
    pending: bytes = b""
    switched: bool = False
    early: bytes = b""


class Exchange:
    """Of one request, whose head has been read, for the origin `host:port`."""

    def __init__(
        self, guest: TlsStream, origin: TlsStream, seen: Seen, host: str, port: int, on_exchange: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._guest, self._origin, self._seen = guest, origin, seen
        self._host, self._port, self._on_exchange = host, port, on_exchange
        self._front = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._back = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._method = b""
        self._websocket = False
        self._pending = b""
        self._answered = False
        """Whether the final answer has begun."""
        self.sent_all = False
        """Whether the whole request has gone up."""

    async def run(self, head: bytes, rest: bytes) -> Outcome:
        """Raises `BadRequest` before anything went up; `Left`; `Broken` in the middle of an answer, of which the guest has a part."""
        up = self._opened(head)
        if rest:
            self._front.receive_data(rest)
        sending, receiving = asyncio.ensure_future(self._up(up)), asyncio.ensure_future(self._down())
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                sending.result()  # the guest has left, or broke its framing
                await receiving
            switched = receiving.result()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None and not isinstance(error, Left):
            raise error
        if switched:
            return Outcome(reusable=False, switched=True, pending=self._beyond(), early=self._back.trailing_data[0])
        states = {*self._front.states.values(), *self._back.states.values()}
        clean = self.sent_all and states == {h11.DONE} and not self._back.trailing_data[0]
        return Outcome(reusable=clean, pending=self._beyond())

    async def answer(self, status: int, text: str) -> bool:
        """Say it ourselves, as the last thing on this connection. False where an answer has begun already."""
        if self._answered or self._front.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        self._answered = True
        body = f"helmr egress: {text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close")]
        written = self._front.send(h11.Response(status_code=status, headers=headers, reason=_reason(status)))
        if self._method != b"HEAD":
            written = (written or b"") + (self._front.send(h11.Data(data=body)) or b"")
        await self._guest.write(written or b"")
        return True

    # --- up ---------------------------------------------------------------------------------------------------------------

    def _opened(self, head: bytes) -> bytes:
        """Judge the head; the one for the origin, with values in the place of placeholders."""
        heads.check_lines(head)
        try:
            self._front.receive_data(head)
            request = self._front.next_event()
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint, f"The request is malformed: {error}.") from None
        except ValueError:  # a length of thousands of digits
            raise BadRequest(400, "The request is malformed.") from None
        if not isinstance(request, h11.Request):
            raise BadRequest(400, "The request is malformed.")
        self._method = request.method
        heads.check_request(request, self._host, self._port)
        self._websocket = heads.is_websocket(request)
        exchanged = self._seen.secrets.exchange(heads.request_headers(request))
        self._seen.note(exchanged.encoded)
        if exchanged.names:
            self._on_exchange(exchanged.names)
        return self._back.send(h11.Request(method=request.method, target=request.target, headers=exchanged.headers)) or b""

    async def _up(self, head: bytes) -> None:
        """Head and body; then see whether the guest leaves, and keep what it says meanwhile. Raises `Left`, `BadRequest`."""
        await self._push(head)
        while not self.sent_all:
            try:
                event = self._front.next_event()
            except h11.RemoteProtocolError as error:
                raise BadRequest(400, f"The body of the request is malformed: {error}.") from None
            if event is h11.NEED_DATA:
                self._front.receive_data(await self._heard())
            elif isinstance(event, h11.Data):
                await self._push(self._back.send(h11.Data(data=event.data)) or b"")
            elif isinstance(event, h11.EndOfMessage):
                await self._push(self._back.send(h11.EndOfMessage()) or b"")
                self.sent_all = True
        while len(self._pending) < HEAD_BYTES:
            self._pending += await self._heard()
        await asyncio.get_running_loop().create_future()  # until the answer has come

    async def _heard(self) -> bytes:
        try:
            data = await self._guest.read()
        except OSError:
            data = b""
        if not data:
            raise Left
        return data

    async def _push(self, data: bytes) -> None:
        """Write to the origin. One that takes no more may have answered already, so that is no end yet."""
        try:
            await self._origin.write(data)
        except OSError:
            await asyncio.get_running_loop().create_future()

    def _beyond(self) -> bytes:
        return bytes(self._front.trailing_data[0]) + self._pending

    # --- down -------------------------------------------------------------------------------------------------------------

    async def _down(self) -> bool:
        """The answer, to its end; whether it was a switch to another protocol. Raises `Broken`."""
        try:
            while True:
                event = await self._event()
                if isinstance(event, h11.InformationalResponse):
                    if await self._inform(event):
                        return True
                elif isinstance(event, h11.Response):
                    await self._respond(event)
                    return False
        except h11.LocalProtocolError:  # what was read without a complaint can't be written
            raise Broken("it is no proper HTTP") from None

    async def _event(self) -> Any:
        while True:
            try:
                event = self._back.next_event()
            except (h11.RemoteProtocolError, ValueError):
                raise Broken("it is no proper HTTP") from None  # how exactly would be told in the origin's own words
            if event is h11.NEED_DATA:
                try:
                    data = await self._origin.read()
                except OSError as error:
                    raise Broken(error.strerror or "the connection broke") from None
                self._back.receive_data(data)
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise Broken("the connection ended without it")
            else:
                return event

    async def _inform(self, event: h11.InformationalResponse) -> bool:
        put = self._seen.putback()
        switching = event.status_code == 101
        headers = _shown(heads.response_headers(event), put)
        if switching:
            if not self._websocket:
                raise Broken("it switches to a protocol that nobody asked for")
            if heads.only(event.headers, b"sec-websocket-extensions"):
                raise Broken("it takes an extension that nobody asked for")
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        if self._front.their_http_version == b"1.0":
            return False
        told = h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=put.whole(bytes(event.reason)))
        if switching:
            self._answered = True
        await self._lower(told)
        return switching

    async def _respond(self, event: h11.Response) -> None:
        put = self._seen.putback()
        headers = _shown(heads.response_headers(event), put)
        bodiless = self._method == b"HEAD" or event.status_code in (204, 304)
        decoding: Decoder = Identity()
        if not bodiless:
            try:
                decoding = decoder(heads.only(headers, b"content-encoding"))
            except UnknownCoding as error:
                raise Broken(f"it answers in {error}, though it was asked not to") from None
        closes = heads.says_close(event.headers) or event.http_version < b"1.1"
        if closes:
            headers.append((b"Connection", b"close"))
        reason = put.whole(bytes(event.reason))
        if bodiless:
            self._answered = True
            await self._lower(h11.Response(status_code=event.status_code, headers=headers, reason=reason))
        else:
            length = heads.only(event.headers, b"content-length")
            headers = heads.without(headers, b"content-length", *(() if isinstance(decoding, Identity) else (b"content-encoding",)))
            whole = isinstance(decoding, Identity) and length.isdigit() and int(length) <= WHOLE_BYTES
            if whole:
                body = b"".join([piece async for piece in self._body(put, decoding)])
                headers.append((b"Content-Length", str(len(body)).encode()))
                await self._head_and(h11.Response(status_code=event.status_code, headers=headers, reason=reason), body)
            else:
                self._answered = True
                await self._lower(h11.Response(status_code=event.status_code, headers=headers, reason=reason))
                async for piece in self._body(put, decoding):
                    await self._lower(h11.Data(data=piece))
        if bodiless:
            while not isinstance(await self._event(), h11.EndOfMessage):
                continue
        await self._lower(h11.EndOfMessage())

    async def _head_and(self, head: h11.Response, body: bytes) -> None:
        """In one piece, so that a small answer is one record."""
        self._answered = True
        written = self._front.send(head) or b""
        try:
            await self._guest.write(written + (self._front.send(h11.Data(data=body)) or b"" if body else b""))
        except OSError:
            raise Left from None

    async def _body(self, put: PutBack, decoding: Decoder) -> AsyncGenerator[bytes]:
        try:
            while isinstance(event := await self._event(), h11.Data):
                for piece in decoding.feed(bytes(event.data)):
                    if out := put.feed(piece):
                        yield out
            for piece in decoding.finish():
                yield put.feed(piece)
        except ValueError as error:
            raise Broken(str(error)) from None
        if out := put.finish():
            yield out

    async def _lower(self, event: h11.Event) -> None:
        """Write to the guest. Raises `Left`."""
        data = self._front.send(event)
        try:
            await self._guest.write(cast("bytes", data) or b"")
        except OSError:
            raise Left from None


def _shown(headers: heads.Pairs, put: PutBack) -> heads.Pairs:
    return [(put.whole(name), put.whole(value)) for name, value in headers]


def _reason(status: int) -> bytes:
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Refused"
