"""Prometheus metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.serve.metrics import CONTENT_TYPE, METRICS, render
from tests.serve.fakes import make_deps, run
from tests.serve.test_http import get

APP: dict[str, Any] = {
    "name": "test",
    "state": "ready",
    "connections": 3,
    "streams": [
        {
            "name": 'odd"name\\\n',
            "end": 12,
            "events": 10,
            "bytes": 4096,
            "accepted": 5,
            "duplicates": 1,
            "rejected": 2,
            "refused": 0,
            "shed": 6,
            "last_event": "2026-01-01T00:00:00Z",
            "by_source": [
                {"source": "POST", "received": 8, "lost": 0, "durable_ms_mean": 2.5},
                {"source": "feed", "received": 9, "lost": 4, "shed": 6, "durable_ms_mean": None},
            ],
        },
        {"name": "idle", "end": 0, "last_event": None},
    ],
    "views": [
        {"name": "v", "lag": 7, "rows": 3, "version": 9, "batch_ms": 250, "late": 0, "state": "failed"},
        {"name": "w", "lag": None, "state": "running"},
    ],
    "sources": [{"name": "feed", "received": 100, "lost": 3, "reconnects": 2}],
    "processes": {"engine": {"restarts": 4}},
}


def samples(description: dict[str, Any]) -> dict[tuple[str, str], float]:
    values = {}
    for family in text_string_to_metric_families(render(description).decode()):
        for sample in family.samples:
            values[sample.name, "/".join(sample.labels[label] for label in sorted(sample.labels, reverse=True))] = (
                sample.value
            )
    return values


def test_the_figures_of_the_app_are_the_metrics() -> None:
    """Each figure has its name, its labels and its unit; an unknown one has no sample."""
    values = samples(APP)
    odd = 'odd"name\\\n'
    assert values["penstock_stream_events_total", odd] == 12
    assert values["penstock_stream_duplicates_total", odd] == 1
    assert values["penstock_stream_rejected_total", odd] == 2
    assert values["penstock_stream_bytes", odd] == 4096
    assert values["penstock_stream_last_event_seconds", odd] == 1767225600
    assert ("penstock_stream_last_event_seconds", "idle") not in values
    assert values["penstock_view_lag_events", "v"] == 7
    assert ("penstock_view_lag_events", "w") not in values
    assert values["penstock_view_batch_seconds", "v"] == 0.25
    assert (values["penstock_view_failed", "v"], values["penstock_view_failed", "w"]) == (1, 0)
    assert values["penstock_source_received_total", "feed"] == 100
    assert values["penstock_intake_received_total", f"{odd}/POST"] == 8
    assert values["penstock_intake_lost_total", f"{odd}/feed"] == 4
    assert values["penstock_intake_durable_seconds_mean", f"{odd}/POST"] == 0.0025
    assert ("penstock_intake_durable_seconds_mean", f"{odd}/feed") not in values
    assert values["penstock_connections", ""] == 3
    assert values["penstock_ready", ""] == 1
    assert values["penstock_engine_restarts_total", ""] == 4


def test_the_table_is_what_is_served() -> None:
    """Every metric of the table appears once, with its type and help, and no other."""
    families = {
        (family.name + "_total" if family.type == "counter" else family.name): (family.type, family.documentation)
        for family in text_string_to_metric_families(render(APP).decode())
    }
    assert families == {metric.name: (metric.type, metric.help) for metric in METRICS}
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_metrics_are_served_as_prometheus_reads_them() -> None:
    """`/metrics` has the content type of the text format."""

    async def deps() -> Any:
        return make_deps()

    answer = get("/metrics", run(deps()))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert "penstock_ready 1.0" in answer.text
