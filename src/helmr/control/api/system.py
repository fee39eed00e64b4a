"""What an installation says of itself: capabilities, health, metrics, its own description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from helmr.control.api.answers import Answer, Text, encoded
from helmr.control.api.call import Call
from helmr.control.api.exchange import JSON
from helmr.control.api.metrics import METRICS_TEXT
from helmr.control.api.requests import LONGEST_WAIT_SECONDS, Nothing
from helmr.control.api.route import Route
from helmr.control.api.services import Vitals
from helmr.protocol import errors, limits
from helmr.protocol.shapes import Capabilities

FEATURES = (
    "sessions",
    "turns",
    "messages",
    "questions",
    "events",
    "events.stream",
    "computers",
    "agents",
    "deployments",
    "triggers",
    "workers",
    "secrets",
    "api_keys",
    "sign_in",
    "audit",
)
LIMITS = {
    "input_bytes": limits.INPUT_BYTES,
    "content_bytes": limits.CONTENT_BYTES,
    "content_parts": limits.CONTENT_PARTS,
    "turn_output_bytes": limits.TURN_OUTPUT_BYTES,
    "question_options": limits.QUESTION_OPTIONS,
    "answer_bytes": limits.ANSWER_BYTES,
    "response_bytes": limits.RESPONSE_BYTES,
    "key_bytes": limits.KEY_BYTES,
    "labels": limits.LABELS,
    "page": limits.PAGE_MAX,
    "events_page": limits.EVENTS_PAGE_MAX,
    "wait_seconds": LONGEST_WAIT_SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthStatus:
    status: str


async def capabilities(call: Call[Nothing, Nothing]) -> Answer:
    return _capabilities()


@cache
def _capabilities() -> bytes:
    return encoded(Capabilities(version=version("helmr"), api="v1", features=FEATURES, limits=LIMITS))


async def healthz(call: Call[Nothing, Nothing]) -> Answer:
    return encoded(HealthStatus(status="ok"))


async def readyz(call: Call[Nothing, Nothing]) -> Answer:
    if call.draining:
        raise errors.ShuttingDown()
    await call.services.health.ready()
    return encoded(HealthStatus(status="ready"))


def system_routes(describe: Callable[[], bytes], metrics: Callable[[Vitals], bytes]) -> tuple[Route, ...]:
    """The routes that speak of the whole: `describe` gives the API document, `metrics` the metrics as text, vitals among them."""

    async def openapi(call: Call[Nothing, Nothing]) -> Answer:
        return Text(describe(), JSON)

    async def metrics_text(call: Call[Nothing, Nothing]) -> Answer:
        return Text(metrics(await call.services.health.vitals()), METRICS_TEXT)

    return (
        Route(
            method="GET",
            path="/v1/capabilities",
            name="get_capabilities",
            summary="Read what this installation can do, and its limits",
            handler=capabilities,
            tag="System",
            answer=Capabilities,
        ),
        Route(
            method="GET",
            path="/v1/openapi.json",
            name="get_openapi",
            summary="Read this description of the API",
            handler=openapi,
            tag="System",
            access="public",
            answer=dict,
        ),
        Route(
            method="GET",
            path="/healthz",
            name="get_health",
            summary="Tell that the process answers",
            handler=healthz,
            tag="System",
            access="public",
            answer=HealthStatus,
        ),
        Route(
            method="GET",
            path="/readyz",
            name="get_readiness",
            summary="Tell whether requests can be served: the database is there, and the process is not stopping",
            handler=readyz,
            tag="System",
            access="public",
            answer=HealthStatus,
            errors=(errors.DatabaseUnavailable, errors.Unavailable),
        ),
        Route(
            method="GET",
            path="/metrics",
            name="get_metrics",
            summary="Read the process's metrics in Prometheus' text form",
            handler=metrics_text,
            tag="System",
            access="public",
            gives="text",
        ),
    )
