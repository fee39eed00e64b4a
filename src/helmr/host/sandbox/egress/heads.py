"""Heads within a decrypted connection, as the other side may get them: what is odd is refused, what belongs to a hop stays here [X1].

h11 reads and writes all HTTP of these connections, so that what the origin reads is what was judged. It is lenient where it may be; these
rules say what of that is not taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import h11

from helmr.host.sandbox.egress.request import BadRequest
from helmr.host.sandbox.egress.rules import split_authority

Pairs = list[tuple[bytes, bytes]]

_ODD: Final = re.compile(rb"\r(?!\n)|(?<!\r)\n|\r\n[ \t]|\x00")
"""Lines that end in half of their mark, or go on in the next one: two parsers see two things."""
_HOP_BY_HOP: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"te", b"trailer", b"upgrade"})
_STAYS: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"trailer", b"upgrade", b"alt-svc"})
"""Not passed on from an origin: its framing is made anew, and another way to it (Alt-Svc) would lead around the proxy."""


def check_lines(head: bytes) -> None:
    """Raise `BadRequest` for a head, up to and with its empty line, that is not plainly written."""
    if _ODD.search(head[:-2]):
        raise BadRequest(400, "The head of the request is malformed.")


def check_request(request: h11.Request, host: str, port: int) -> None:
    """Raise `BadRequest` unless the request is for this origin, and of one length."""
    if request.method == b"CONNECT" or not (request.target.startswith(b"/") or (request.method, request.target) == (b"OPTIONS", b"*")):
        raise BadRequest(400, "The target must be a path.")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
        raise BadRequest(400, "The length of the body is ambiguous.")
    hosts = [value for name, value in request.headers if name == b"host"]
    if len(hosts) != 1 or split_authority(hosts[0].decode("latin-1"), default=443) != (host, port):
        raise BadRequest(421, f"This connection is to {host}:{port}; the Host of a request must say so, too.")


def is_websocket(request: h11.Request) -> bool:
    """Whether it asks to go on as a WebSocket: the only protocol that is switched to."""
    values = {name: value.strip().lower() for name, value in request.headers if name in (b"upgrade", b"connection")}
    if request.method != b"GET" or request.http_version != b"1.1":
        return False
    return values.get(b"upgrade") == b"websocket" and b"upgrade" in _tokens([values.get(b"connection", b"")])


def request_headers(request: h11.Request) -> Pairs:
    """Those that go up. The origin is asked not to compress, so that what returns can be seen."""
    websocket = is_websocket(request)
    drop = _HOP_BY_HOP | {b"accept-encoding"} | ({b"sec-websocket-extensions"} if websocket else set[bytes]())
    drop |= _tokens(value for name, value in request.headers if name == b"connection") - {b"host", b"content-length", b"transfer-encoding"}
    kept = [(name, value) for name, value in request.headers.raw_items() if name.lower() not in drop]
    kept.append((b"Accept-Encoding", b"identity"))
    if websocket:
        kept += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    elif says_close(request.headers):
        kept.append((b"Connection", b"close"))
    return kept


def response_headers(response: h11.Response | h11.InformationalResponse) -> Pairs:
    """Those that come down."""
    drop = _STAYS | _tokens(value for name, value in response.headers if name == b"connection")
    return [(name, value) for name, value in response.headers.raw_items() if name.lower() not in drop]


def says_close(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return b"close" in _tokens(value for name, value in headers if name == b"connection")


def only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The values of a header, joined; empty where there is none."""
    return b",".join(value for key, value in headers if key.lower() == name)


def without(headers: Sequence[tuple[bytes, bytes]], *names: bytes) -> Pairs:
    return [(name, value) for name, value in headers if name.lower() not in names]


def _tokens(values: Iterable[bytes]) -> set[bytes]:
    return {token.strip().lower() for value in values for token in value.split(b",")} - {b""}
