"""The head of a proxy request, read strictly: what two parsers could understand differently is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from helmr.host.sandbox.egress.rules import split_authority

HEAD_BYTES: Final = 32 * 1024
"""The longest head; the readers that it comes by are limited to as much."""

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"te", b"trailer", b"upgrade", b"host"}
)


class BadRequest(Exception):
    """The request is refused with a status; the text is for the person who made it."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """`path` is None for CONNECT. `length` is that of the body; None means chunks."""

    method: str
    host: str
    port: int
    path: str | None
    headers: Sequence[tuple[bytes, bytes]]
    length: int | None = 0

    def head(self) -> bytes:
        """The head for the origin: one Host, from the address that was checked, and one request a connection."""
        default = self.port == 80
        name = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{self.method} {self.path} HTTP/1.1".encode(), f"Host: {name}{'' if default else f':{self.port}'}".encode()]
        named = {token.strip().lower() for key, value in self.headers if key.lower() == b"connection" for token in value.split(b",")}
        lines += [key + b": " + value for key, value in self.headers if key.lower() not in _HOP_BY_HOP and key.lower() not in named]
        return b"\r\n".join([*lines, b"Connection: close", b"", b""])


async def read_request(reader: asyncio.StreamReader) -> ProxyRequest:
    """Raises `BadRequest`, and `asyncio.IncompleteReadError` when the client left. The reader's limit bounds the head."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(431, "The head of the request is too large.") from None
    first, *rest = head[:-4].split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequest(400, "The request line is malformed.")
    headers = [_header(line) for line in rest]
    try:
        method, target = parts[0].decode("ascii"), parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise BadRequest(400, "The target is not ASCII.") from None
    if method == "CONNECT":
        host, port = split_authority(target, default=None)
        if host is None or port is None:
            raise BadRequest(400, "CONNECT needs host:port.")
        return ProxyRequest(method=method, host=host, port=port, path=None, headers=headers)
    host, port, path = _absolute(target)
    return ProxyRequest(method=method, host=host, port=port, path=path, headers=headers, length=_length(headers))


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequest(400, "A header of the request is malformed.")
    return name, value


def _absolute(target: str) -> tuple[str, int, str]:
    try:
        url = urlsplit(target)
    except ValueError:
        raise BadRequest(400, "The target is malformed.") from None
    if url.scheme != "http" or "@" in url.netloc or any(not "\x21" <= letter <= "\x7e" for letter in target):
        raise BadRequest(400, "This proxy takes CONNECT and http:// URLs without credentials.")
    host, port = split_authority(url.netloc, default=80)
    if host is None or port is None:
        raise BadRequest(400, "The target names no host.")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return host, port, path if path.startswith("/") else f"/{path}"


def _length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise BadRequest(400, "The length of the body is ambiguous.")
        return None
    if len(set(lengths)) > 1 or any(not (value.isdigit() and len(value) < 19) for value in lengths):
        raise BadRequest(400, "The length of the body is ambiguous.")
    return int(lengths[0]) if lengths else 0
