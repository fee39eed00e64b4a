"""The numbers of requests as Prometheus reads them."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from helmr.control.api.metrics import ApiMetrics
from helmr.control.service.health import Vitals

VITALS = Vitals(running_without_lease=0, oldest_waiting_seconds=0, workers_pressed=0)


def test_times_are_counted_in_rising_buckets_whose_last_is_all() -> None:
    metrics = ApiMetrics(CollectorRegistry())
    for seconds in (0.0, 0.02, 0.02, 7.0, 1000.0):
        metrics.observe(None, 200 if seconds < 1 else 404, time.perf_counter() - seconds)
    samples = {
        (sample.name, sample.labels.get("le") or sample.labels.get("status")): sample.value
        for family in text_string_to_metric_families(metrics.text(VITALS).decode())
        for sample in family.samples
        if sample.labels.get("route") == "unmatched"
    }
    assert samples["helmr_http_requests_total", "200"] == 3
    assert samples["helmr_http_requests_total", "404"] == 2
    buckets = [value for (name, _), value in samples.items() if name == "helmr_http_request_seconds_bucket"]
    assert buckets == sorted(buckets)
    # A bound may be exceeded by what the test itself takes; what is far from one is certain.
    assert samples["helmr_http_request_seconds_bucket", "5.0"] == 3
    assert samples["helmr_http_request_seconds_bucket", "60.0"] == 4
    assert samples["helmr_http_request_seconds_bucket", "+Inf"] == 5
    assert samples["helmr_http_request_seconds_count", None] == 5
    assert samples["helmr_http_request_seconds_sum", None] >= 1007


def test_routes_that_were_never_asked_have_no_numbers() -> None:
    assert "unmatched" not in ApiMetrics(CollectorRegistry()).text(VITALS).decode()
