"""What the API tells Prometheus of itself: by route template, never by id."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from helmr.control.api.route import Route

METRICS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ApiMetrics:
    """Counts requests by route and status and measures their time, waits and streams included."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests = Counter("helmr_http_requests", "Requests by route and status.", ("method", "route", "status"), registry=registry)
        self._seconds = Histogram(
            "helmr_http_request_seconds",
            "Time from a request's headers to the end of its reply.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.dropped = Counter("helmr_http_slow_readers_dropped", "Streams ended because their reader took nothing.", registry=registry)
        self.failures = Counter("helmr_http_failures", "Requests that ended with an unexpected error.", registry=registry)
        self.open_streams = Gauge("helmr_http_open_waits", "Long polls and streams under way.", registry=registry)
        self.open_links = Gauge("helmr_worker_links", "Worker links open here.", registry=registry)
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[tuple[str, str], Histogram] = {}

    def observe(self, route: Route | None, status: int, started_at: float) -> None:
        """Record one request that began at `started_at` (perf_counter). Routes unknown to the table are one."""
        method, path = ("", "unmatched") if route is None else (route.method, route.path)
        counter = self._counters.get((method, path, status))
        if counter is None:
            counter = self._counters[method, path, status] = self._requests.labels(method, path, str(status))
        counter.inc()
        timer = self._timers.get((method, path))
        if timer is None:
            timer = self._timers[method, path] = self._seconds.labels(method, path)
        timer.observe(time.perf_counter() - started_at)

    def text(self) -> bytes:
        """All metrics of the registry in Prometheus' text form."""
        return generate_latest(self.registry)
