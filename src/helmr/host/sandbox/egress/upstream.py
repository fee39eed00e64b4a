"""The operator's own proxy, where the host reaches the internet through one."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from helmr.host.sandbox.egress.request import HEAD_BYTES

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One proxy. Its credential never reaches a log: it is no part of the text of this value."""

    host: str
    port: int
    tls: bool = False
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Upstream | None:
        """From a proxy URL; None for kinds of proxy that are not HTTP."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            return None
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        port = parts.port or (443 if parts.scheme == "https" else 3128)
        return cls(host=parts.hostname, port=port, tls=parts.scheme == "https", authorization=authorization)

    async def connect(self, host: str, port: int) -> Streams:
        """A tunnel to `host:port`. Raises `OSError` when the proxy is away or refuses."""
        context = ssl.create_default_context() if self.tls else None
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context, limit=HEAD_BYTES)
        try:
            name = f"[{host}]" if ":" in host else host
            lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
            if self.authorization is not None:
                lines.append(f"Proxy-Authorization: {self.authorization}")
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head = await reader.readuntil(b"\r\n\r\n")
            status = head.split(b" ", 2)[1:2]
            if status != [b"200"]:
                raise ConnectionRefusedError(f"The operator's proxy answered {head.splitlines()[0].decode('latin-1')!r}.")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            raise ConnectionResetError("The operator's proxy gave no proper answer.") from None
        except BaseException:
            writer.close()
            raise
        return reader, writer


def upstream_of(environment: Mapping[str, str], host: str, port: int) -> Upstream | None:
    """The proxy that the host's own tools would take to `host:port`, from HTTP(S)_PROXY, ALL_PROXY and NO_PROXY of `environment`."""
    named = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy") and value}
    url = named.get("http_proxy" if port == 80 else "https_proxy") or named.get("all_proxy")
    if url is None or _bypasses(named.get("no_proxy", ""), host, port):
        return None
    return Upstream.parse(url)


def _bypasses(no_proxy: str, host: str, port: int) -> bool:
    for entry in no_proxy.lower().replace(",", " ").split():
        name = entry.removesuffix(f":{port}").removeprefix("*").removeprefix(".")
        if entry == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
    return False
