"""A TLS origin of ours on loopback, the authority that its operator trusts, and a guest that talks to it through the proxy."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from helmr.host.sandbox.egress import Decision, EgressPolicy, EgressProxy, Exemption, HostRule
from helmr.host.sandbox.egress.addresses import Address
from helmr.host.sandbox.egress.authority import Authority
from helmr.host.sandbox.egress.inspection import Inspection
from helmr.host.sandbox.egress.protected import read_protected
from helmr.host.sandbox.egress.proxy import ProxyConfig
from helmr.host.sandbox.egress.tls import TlsStream, one_protocol, secure
from helmr.host.sandbox.egress.upstream import Streams
from helmr.protocol.handing import ProtectedSecret

PLACEHOLDER = "hlmr_ph_0123456789abcdefghijklmn"
VALUE = "s3cr3t-value/with+odd=chars"
HOST = "api.test"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """What came to the origin, head by head, and how often somebody connected."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0


def secret(origin: str, *, value: str = VALUE, headers: Sequence[str] = ("Authorization", "X-Api-Key")) -> ProtectedSecret:
    told = {"name": "TOKEN", "placeholder": PLACEHOLDER, "value": value, "allowed_origins": [origin], "headers": list(headers)}
    return read_protected([told])[0]


def server_context(folder: Path, host: str = HOST, name: str = "site") -> tuple[ssl.SSLContext, Path]:
    """A server's context for `host`, and the file of the authority that vouches for it."""
    authority = Authority(folder / f"{name}.key", name)
    (folder / f"{name}.pem").write_bytes(authority.certificate)
    context = authority.context(host)
    context.sni_callback = None  # type: ignore[assignment]
    return context, folder / f"{name}.pem"


@dataclass
class Rig:
    """A proxy whose Computer has one protected Secret for `origin`."""

    site: Site
    inspection: Inspection
    proxy: EgressProxy
    socket: Path
    authority: Authority
    decisions: list[Decision] = field(default_factory=list)
    exchanged: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"https://{HOST}:{self.site.port}"

    @property
    def host(self) -> str:
        return f"{HOST}:{self.site.port}"

    async def tunnel(self, where: str | None = None) -> tuple[bytes, Streams]:
        """The answer to a CONNECT, and the streams."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        where = where or self.host
        writer.write(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
        return await reader.readuntil(b"\r\n\r\n"), (reader, writer)

    async def refused(self, where: str | None = None) -> bytes:
        """The answer to a CONNECT that comes to nothing."""
        answer, (_, writer) = await self.tunnel(where)
        writer.close()
        await writer.wait_closed()
        return answer

    async def connect(self, where: str | None = None, sni: str | None = HOST, trust: Path | None = None) -> TlsStream:
        """A decrypted connection of a guest that trusts the Computer's authority (or `trust`)."""
        answer, streams = await self.tunnel(where)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        context = one_protocol(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        if trust is None:
            context.load_verify_locations(cadata=self.authority.certificate.decode())
        else:
            context.load_verify_locations(cafile=str(trust))
        context.check_hostname = sni is not None
        return await secure(TlsStream(streams, context, server=False, hostname=sni))

    async def ask(self, request: bytes, *, pieces: int = 1) -> bytes:
        """All that comes back over one connection; the request is sent in so many pieces."""
        stream = await self.connect()
        size = max(1, -(-len(request) // pieces))
        for at in range(0, len(request), size):
            await stream.write(request[at : at + size])
        return await everything(stream)

    def get(self, path: str = "/", *headers: str, method: str = "GET", close: bool = True) -> bytes:
        """A request with the placeholder where it belongs."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", f"Authorization: Bearer {PLACEHOLDER}", *headers]
        return "\r\n".join([*lines, *(["Connection: close"] if close else []), "", ""]).encode()


async def everything(stream: TlsStream) -> bytes:
    said = b""
    try:
        while data := await stream.read():
            said += data
    except OSError as error:
        said += f"<{type(error).__name__}>".encode()
    stream.abort()
    return said


async def resolve(host: str, port: int) -> Sequence[Address]:
    return [ipaddress.ip_address("127.0.0.1")]


@asynccontextmanager
async def rig(
    folder: Path, handler: Handler, *, value: str = VALUE, certified_for: str = HOST, trusted: bool = True, told: bool = True,
    allow: Sequence[str] = (), headers: Sequence[str] = ("Authorization", "X-Api-Key"), patience: float = 5.0, head_seconds: float = 5.0,
) -> AsyncGenerator[Rig]:  # fmt: skip
    """`allow`: other hosts of the site that the Template lists. `trusted`: whether the operator's store has the site's authority."""
    site = Site()
    context, store = server_context(folder, certified_for)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        site.connections += 1
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    site.port = server.sockets[0].getsockname()[1]
    where = [f"{HOST}:{site.port}", *(f"{name}:{site.port}" for name in allow)]
    upstream = one_protocol(ssl.create_default_context(cafile=str(store)) if trusted else ssl.create_default_context())
    authority = Authority(folder / "egress-ca.pem", "c")
    decisions: list[Decision] = []
    exchanged: list[tuple[str, tuple[str, ...]]] = []
    origin = f"https://{HOST}:{site.port}"
    inspection = Inspection(
        lambda: authority, lambda: upstream, lambda at, names: exchanged.append((at, tuple(names))), expected=[origin], patience=patience
    )  # fmt: skip
    if told:
        inspection.protect([secret(origin, value=value, headers=headers)])
    config = ProxyConfig(
        socket=folder / "egress.sock",
        policy=EgressPolicy(allow=tuple(map(HostRule.parse, where)), exemptions=tuple(map(Exemption.parse, where))),
        on_decision=decisions.append,
        resolve=resolve,
        head_seconds=head_seconds,
        connect_seconds=5,
        inspection=inspection,
    )
    async with EgressProxy(config) as proxy:
        yield Rig(site, inspection, proxy, folder / "egress.sock", authority, decisions, exchanged)
    server.close()
    await server.wait_closed()
