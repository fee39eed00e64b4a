"""Both kinds of links with the control plane's end given by a test: in process, and over a real WebSocket server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import uvicorn

from helmr.control.api.services import Services
from helmr.control.api.worker_link import WorkerLinks
from helmr.host.worker.link_local import local_links
from helmr.host.worker.link_websocket import WebSocketLinks
from helmr.host.worker.ports import LinkFactory
from helmr.protocol.errors import Unauthenticated
from helmr.protocol.link import Link, LinkEnd

CREDENTIAL = "hlmr_wk_test"
Accept = Callable[[Link], LinkEnd]


class Endpoint:
    """The control plane's WebSocket endpoint, served alone."""

    def __init__(self, accept: Accept) -> None:
        self.url = ""
        self.credential = CREDENTIAL
        self._accept = accept
        services = SimpleNamespace(
            principals=SimpleNamespace(authenticate_worker=self._authenticate), links=SimpleNamespace(open=lambda _, link: accept(link))
        )
        self._links = WorkerLinks(cast("Services", services))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket" and scope["path"] == "/v1/workers/link"
        await self._links.serve(scope, receive, send)

    async def _authenticate(self, token: str) -> str:
        if token != self.credential:
            raise Unauthenticated
        return "worker"


@asynccontextmanager
async def endpoint(accept: Accept) -> AsyncIterator[Endpoint]:
    """A served `Endpoint` on a free port."""
    found = Endpoint(accept)
    listener = socket.create_server(("127.0.0.1", 0))
    found.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(found, lifespan="off", log_config=None, ws="websockets-sansio", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield found
    finally:
        server.should_exit = True
        await serving
        listener.close()


@asynccontextmanager
async def websocket_links(accept: Accept) -> AsyncIterator[LinkFactory]:
    async with endpoint(accept) as server, aiohttp.ClientSession() as session:
        links = WebSocketLinks(session, server.url, CREDENTIAL)
        try:
            yield links.connect
        finally:
            await links.stop()


@asynccontextmanager
async def links_of(kind: str, accept: Accept) -> AsyncIterator[LinkFactory]:
    """A link factory of a kind ("local", "websocket") whose other ends `accept` takes."""
    if kind == "local":
        yield local_links(accept)
    else:
        async with websocket_links(accept) as factory:
            yield factory
