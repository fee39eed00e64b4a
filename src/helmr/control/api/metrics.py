"""What the API tells Prometheus of itself: by route template, never by id."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from helmr.control.api.route import Route
    from helmr.control.api.services import Vitals

METRICS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ApiMetrics:
    """Counts requests by route and status and measures their time, waits and streams included."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests = _Requests()
        registry.register(self._requests)
        self.dropped = Counter("helmr_http_slow_readers_dropped", "Streams ended because their reader took nothing.", registry=registry)
        self.failures = Counter("helmr_http_failures", "Requests that ended with an unexpected error.", registry=registry)
        self.open_streams = Gauge("helmr_http_open_waits", "Long polls and streams under way.", registry=registry)
        self.open_links = Gauge("helmr_worker_links", "Worker links open here.", registry=registry)
        self._leaseless = Gauge(
            "helmr_turns_running_without_lease", "Running Turns whose Computer no worker holds a lease on.", registry=registry
        )
        self._waiting = Gauge(
            "helmr_oldest_waiting_turn_seconds", "Age of the oldest queued Turn that waits for a process.", registry=registry
        )
        self._pressed = Gauge("helmr_workers_with_full_disks", "Live workers whose disks are too full for new work.", registry=registry)

    def observe(self, route: Route | None, status: int, started_at: float) -> None:
        """Record one request that began at `started_at` (perf_counter). Routes unknown to the table are one."""
        self._requests.add(("", "unmatched") if route is None else (route.method, route.path), status, time.perf_counter() - started_at)

    def text(self, vitals: Vitals) -> bytes:
        """All metrics of the registry in Prometheus' text form."""
        self._leaseless.set(vitals.running_without_lease)
        self._waiting.set(vitals.oldest_waiting_seconds)
        self._pressed.set(vitals.workers_pressed)
        return generate_latest(self.registry)


class _Requests(Collector):
    """Plain numbers of one thread, made into metrics when they are asked for: a tenth of the time that locked ones take per request."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], _OfRoute] = {}

    def add(self, route: tuple[str, str], status: int, seconds: float) -> None:
        found = self._routes.get(route)
        if found is None:
            found = self._routes[route] = _OfRoute()
        found.statuses[status] = found.statuses.get(status, 0) + 1
        found.buckets[bisect_left(_BUCKETS, seconds)] += 1
        found.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("helmr_http_requests", "Requests by route and status.", labels=("method", "route", "status"))
        times = HistogramMetricFamily(
            "helmr_http_request_seconds", "Time from a request's headers to the end of its reply.", labels=("method", "route")
        )
        bounds = [*(str(float(bound)) for bound in _BUCKETS), "+Inf"]
        for route, found in self._routes.items():
            for status, count in found.statuses.items():
                requests.add_metric((*route, str(status)), count)
            times.add_metric(route, list(zip(bounds, accumulate(found.buckets), strict=True)), found.seconds)
        yield requests
        yield times


class _OfRoute:
    __slots__ = ("buckets", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(_BUCKETS) + 1)
        """How many took at most each bound and longer than the one before; the last has no bound."""
        self.seconds = 0.0
