"""One HTTP exchange and its repetition. Everything that the client sends goes through here."""

from __future__ import annotations

import asyncio
import io
import os
import urllib.request
from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import yarl
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from helmr.client.configuration import Target
from helmr.client.problems import error_from
from helmr.client.retry import Backoff, RetryPolicy
from helmr.protocol import jsontext
from helmr.protocol.errors import ConnectionFailed, ContentInvalid, HelmrError, InvalidRequest, RequestTimedOut, UnreadableAnswer
from helmr.protocol.ids import new_id
from helmr.protocol.unset import UNSET

Query = Mapping[str, object]
Body = bytes | Path | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]] | None
"""A function makes the body anew for each attempt."""


class Answer(NamedTuple):
    """A success. `replayed`: the write had been accepted before, and this is its original receipt [S4]."""

    body: bytes
    replayed: bool

    def json(self) -> Any:
        """The decoded body. Raises `UnreadableAnswer`."""
        try:
            return jsontext.loads(self.body)
        except ContentInvalid as error:
            raise UnreadableAnswer(f"The server's answer is no JSON: {error.detail}") from None


_PIECE_BYTES = 64 * 1024
SOCKET_MESSAGE_BYTES = 1024 * 1024


class Transport:
    """Calls with bounded time, repeated under one retry policy.

    Every call is safe to repeat: it reads, or carries an idempotency key, or stores content under its own digest. So each failure of
    the connection is repeated with exactly the same bytes and key, and a write whose reply was lost takes effect once [S4].
    """

    def __init__(self, target: Target, *, retry: RetryPolicy, timeout: float) -> None:
        self.target = target
        self.retry = retry
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._reached = False
        """Whether a connection was ever made: an outage is waited out, a wrong address is not."""

    async def close(self) -> None:
        """Close all connections. Idempotent; later calls raise `RuntimeError`."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        json: object = UNSET,
        content: Body = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        waiting: bool = False,
    ) -> Answer:
        """The answer to one request, repeated as the policy allows. `timeout` bounds one attempt, in seconds; `waiting` outlasts outages.

        Raises the declared error of a refusal, `ConnectionFailed`, `RequestTimedOut` or `UnreadableAnswer`.
        """
        headers: dict[str, str] = {}
        if json is not UNSET:
            content = jsontext.dumps(json, jsontext.REQUEST_DEPTH)
            headers["Content-Type"] = "application/json"
        if idempotency_key is not None:
            headers["Idempotency-Key"] = _header_text(idempotency_key)
        backoff = Backoff(self.retry)
        while True:
            try:
                return await self._exchange(method, path, query, headers, content, timeout or self._timeout)
            except HelmrError as error:
                wait = self._wait_after(error, backoff, waiting)
                if wait is None:
                    raise
            await self.retry.sleep(wait)

    async def write(self, path: str, json: object, idempotency_key: str | None, *, method: str = "POST") -> Answer:
        """A write under the given idempotency key, or under one made for this call alone."""
        return await self.call(method, path, json=json, idempotency_key=new_id() if idempotency_key is None else idempotency_key)

    async def open_stream(
        self, path: str, *, query: Query | None = None, headers: Mapping[str, str], silence: float, backoff: Backoff | None = None
    ) -> aiohttp.ClientResponse:
        """A streamed answer, of which no two bytes may be more than `silence` seconds apart. The caller closes it.

        Opening is repeated as a call is; `backoff` is the caller's own when failures of several openings count together.
        """
        backoff = backoff or Backoff(self.retry)
        while True:
            try:
                return await self._begin(path, query, headers, silence)
            except HelmrError as error:
                wait = self._wait_after(error, backoff, True)
                if wait is None:
                    raise
            await self.retry.sleep(wait)

    def backoff(self) -> Backoff:
        """The waits of one opening of a stream."""
        return Backoff(self.retry)

    async def wait_after(self, error: HelmrError, backoff: Backoff) -> None:
        """Wait before the next attempt. Raises `error` when there is none."""
        wait = self._wait_after(error, backoff, False)
        if wait is None:
            raise error
        await self.retry.sleep(wait)

    async def socket(self, path: str, query: Query) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket whose handshake was taken. One attempt; raises what refused it, and aiohttp's errors."""
        url = self._url(path, query)
        timeout = aiohttp.ClientWSTimeout(ws_close=2.0)  # pyright: ignore[reportCallIssue]
        try:
            return await self._opened().ws_connect(url, timeout=timeout, heartbeat=20.0, max_msg_size=SOCKET_MESSAGE_BYTES)
        except aiohttp.WSServerHandshakeError as error:
            headers = error.headers or {}
            problem = jsontext.dumps({"code": headers["Helmr-Error"]}) if "Helmr-Error" in headers else b""
            raise error_from(error.status, problem, headers) from error

    def _wait_after(self, error: HelmrError, backoff: Backoff, waiting: bool) -> float | None:
        if not error.retryable:
            return None
        return backoff.next(error.facts.get("retry_after", 0.0), waiting=waiting and self._reached)

    async def _begin(self, path: str, query: Query | None, headers: Mapping[str, str], silence: float) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence)
        try:
            response = await self._opened().get(self._url(path, query), headers=headers, timeout=timeout, allow_redirects=False)
            if response.status == 200:
                return response
            async with response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise translated(error, self.target.url) from error
        raise error_from(response.status, body, response.headers)

    async def _exchange(
        self, method: str, path: str, query: Query | None, headers: Mapping[str, str], content: Body, seconds: float
    ) -> Answer:
        session = self._opened()
        timeout = aiohttp.ClientTimeout(total=seconds)
        url = self._url(path, query)
        file = None
        try:
            if isinstance(content, Path):
                file = await asyncio.to_thread(content.open, "rb")
            async with session.request(
                method,
                url,
                data=file or _sent(content() if callable(content) else content),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise translated(error, self.target.url) from error
        finally:
            if file is not None:
                file.close()
        if 200 <= response.status < 300:
            return Answer(body, response.headers.get("Idempotency-Replayed") == "true")
        raise error_from(response.status, body, response.headers)

    def _url(self, path: str, query: Query | None) -> yarl.URL:
        text = self.target.url + path
        if query:
            try:
                text += "?" + urlencode(_pairs(query))
            except UnicodeEncodeError:
                raise InvalidRequest("The request holds a lone surrogate, which no UTF-8 text can carry.") from None
        return yarl.URL(text, encoded=True)

    def _note_reached(self) -> None:
        self._reached = True

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("This client is closed.")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=_standing_headers(self.target),
                cookie_jar=aiohttp.DummyCookieJar(),
                proxy=_proxy(self.target.url),
                connector=_Connector(self._note_reached),
            )
        return self._session


def _standing_headers(target: Target) -> dict[str, str]:
    """Those of every request. Without a key there is no credential: whoever signs in has none yet."""
    headers = {"Accept": "application/json"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    if target.environment is not None:
        headers["Helmr-Environment"] = target.environment
    return headers


class _Connector(aiohttp.TCPConnector):
    """Tells when a connection was made; requests alone don't, since aiohttp repeats some that a broken connection lost."""

    def __init__(self, made: Callable[[], None]) -> None:
        super().__init__(limit=0, limit_per_host=0)  # pyright: ignore[reportUnknownMemberType]
        self._made = made

    async def connect(self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        connection = await super().connect(req, traces, timeout)
        self._made()
        return connection


def segment(value: str, name: str = "id") -> str:
    """`value` as one segment of a path. Raises `InvalidRequest` when it is empty, which would name another route, or no UTF-8."""
    if not value:
        raise InvalidRequest(f"The {name} is empty.")
    try:
        return "%2E" * len(value) if value in (".", "..") else quote(value, safe="")
    except UnicodeEncodeError:
        raise InvalidRequest(f"The {name} holds a lone surrogate, which no UTF-8 text can carry.") from None


def _header_text(value: str) -> str:
    if not value or not value.isascii() or not value.isprintable():
        raise InvalidRequest("An idempotency key is made of printable ASCII characters.")
    return value


def translated(error: Exception, url: str) -> HelmrError:
    """What a failure of the connection is to a caller."""
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError)):
        failed = ConnectionFailed(
            f"No secure connection to {url}: {error}", hint="Look at the server's certificate and this machine's CA store."
        )
        vars(failed)["retryable"] = False
        return failed
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        why = os.strerror(number).lower() if number and number > 0 else str(error.os_error)
        return ConnectionFailed(f"{url} can't be reached: {why}.")
    if isinstance(error, (TimeoutError, aiohttp.ServerTimeoutError)):
        return RequestTimedOut(f"{url} did not answer in time.")
    return ConnectionFailed(f"The connection to {url} broke: {error or type(error).__name__}.", hint="")


def _pairs(query: Query) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None or value is UNSET:
            continue
        if isinstance(value, (list, tuple)):
            pairs += [(name, str(item)) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            pairs.append((name, str(value)))
    return pairs


def _proxy(url: str) -> str | None:
    """The proxy that the process environment names for this server. Asked once: aiohttp's own look-up reads netrc at each request."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _sent(content: Any) -> Any:
    """Bytes as aiohttp wants them: long ones in pieces, so that the event loop is not blocked."""
    return io.BytesIO(content) if isinstance(content, bytes) and len(content) > _PIECE_BYTES else content
