"""The HTTP API as one ASGI application, made from the route table. Nothing here starts a task that outlives its request."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from helmr.control.api.answers import Answer, Blob, Opened, Pieces, Text, Whole, send_blob, send_opened, send_pieces
from helmr.control.api.call import admit
from helmr.control.api.dispatch import Dispatcher
from helmr.control.api.exchange import JSON, ClientGone, Exchange
from helmr.control.api.metrics import ApiMetrics
from helmr.control.api.openapi import document
from helmr.control.api.presence import Draining, Presence
from helmr.control.api.site import LOCAL, Site
from helmr.control.api.sockets import Sockets
from helmr.control.api.streams import EventStream, SlowReader, StreamTiming
from helmr.control.api.table import WORKER_LINK_PATH, route_table
from helmr.control.api.worker_link import WorkerLinks
from helmr.protocol.errors import AuthoringError, HelmrError, InternalError, PublishError, Refused, ShuttingDown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from helmr.control.api.route import Route
    from helmr.control.api.services import Services

REPLAYED = (b"idempotency-replayed", b"true")

log = structlog.get_logger()


def build_app(
    services: Services, *, registry: CollectorRegistry | None = None, timing: StreamTiming | None = None, site: Site = LOCAL
) -> Api:
    """The API on `services`, reached at `site`. Metrics go to `registry`, or to one of its own; `timing` is for tests."""
    return Api(services, registry=registry or CollectorRegistry(), timing=timing or StreamTiming(), site=site)


class Api:
    """An ASGI application. Call `drain` before its server stops: servers wait for open requests, and streams end only when told."""

    def __init__(self, services: Services, *, registry: CollectorRegistry, timing: StreamTiming, site: Site = LOCAL) -> None:
        self._services = services
        self._site = site
        self._timing = timing
        self._presence = Presence()
        self._links = WorkerLinks(services)
        self._sockets = Sockets(services)
        self._metrics = ApiMetrics(registry)
        self._metrics.open_streams.set_function(lambda: self._presence.open)
        self._metrics.open_links.set_function(lambda: self._links.open)
        self.routes = route_table(_described, self._metrics.text)
        self._dispatcher = Dispatcher(self.routes)

    def drain(self) -> None:
        """End open streams (without `event: end`), waits (with the state as it is) and worker links, whose other ends come again.

        From here on `/readyz` says no. Idempotent; requests that don't wait are still answered.
        """
        self._presence.drain()
        self._links.drain()
        self._sockets.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._serve(Exchange(scope, receive, send))
        elif kind == "websocket":
            await self._serve_link(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)

    async def _serve(self, exchange: Exchange) -> None:
        route: Route | None = None
        try:
            route, path = self._dispatcher.find(exchange.scope)
            call = await admit(route, path, exchange, self._services, self._presence, self._site)
            await self._answer(route, exchange, await route.handler(call))
        except (Refused, AuthoringError, PublishError) as error:
            await self._refuse(exchange, error)
        except ClientGone:
            exchange.status = exchange.status or 499
        except Draining:
            await self._refuse(exchange, ShuttingDown())
        except SlowReader:
            self._metrics.dropped.inc()
            exchange.cut()
        except Exception:
            self._metrics.failures.inc()
            log.exception("request_failed", request_id=exchange.request_id, route=None if route is None else route.name)
            await self._refuse(exchange, InternalError())
        finally:
            self._metrics.observe(route, exchange.status, exchange.started_at)

    async def _answer(self, route: Route, exchange: Exchange, answer: Answer) -> None:
        if isinstance(answer, bytes):
            await exchange.reply(route.status, answer)
        elif isinstance(answer, EventStream):
            await answer.send(exchange, self._presence, self._timing)
        elif isinstance(answer, Text):
            await exchange.reply(route.status, answer.body, answer.kind)
        elif isinstance(answer, Whole):
            await exchange.reply(answer.status, answer.body, answer.kind, *answer.headers)
        elif isinstance(answer, Pieces):
            await send_pieces(exchange, self._presence, answer)
        elif isinstance(answer, Blob):
            await send_blob(exchange, answer)
        elif isinstance(answer, Opened):
            await send_opened(exchange, answer)
        elif answer.replayed:
            await exchange.reply(route.status, answer.body, JSON, REPLAYED)
        else:
            await exchange.reply(route.status, answer.body)

    async def _refuse(self, exchange: Exchange, error: HelmrError) -> None:
        if exchange.begun:
            # The status is gone; the server cuts a reply that doesn't end, which readers of streams take for a lost connection.
            log.warning("reply_cut", request_id=exchange.request_id, code=error.code, detail=error.detail)
        else:
            await exchange.refuse(error)

    async def _serve_link(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == WORKER_LINK_PATH:
            await self._links.serve(scope, receive, send)
        else:
            await self._sockets.serve(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return


@cache
def _described() -> bytes:
    text: dict[str, Any] = document()
    return json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()
