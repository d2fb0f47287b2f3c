"""Prometheus metrics: the figures of `/v1/app` under metric names.

`METRICS` is the complete list. A test compares the table in the documentation with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
WAYS = "by_source"
Figure = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Measure:
    """One Prometheus metric.

    `section` names the list in `/v1/app` that contains one object per sample. It is None if the metric applies to the
    whole app, and `WAYS` for metrics with one sample for each stream and source of events.
    """

    name: str
    type: Literal["counter", "gauge"]
    help: str
    section: str | None
    labels: tuple[str, ...]
    figure: Figure


def _number(field: str, scale: float = 1.0) -> Figure:
    """Return a function that reads a metric's value from a field and multiplies it by `scale`."""

    def figure(item: Mapping[str, Any]) -> Any:
        value = item.get(field)
        return None if value is None else value * scale

    return figure


def _state(value: str) -> Figure:
    """Return a function for a metric that is 1 in one state and 0 in all others."""
    return lambda item: float(item.get("state") == value)


def _time(field: str) -> Figure:
    """Return a function that reads a metric's Unix time from a field with an ISO 8601 time."""

    def figure(item: Mapping[str, Any]) -> Any:
        value = item.get(field)
        return None if value is None else datetime.fromisoformat(str(value)).timestamp()

    return figure


def _engine_restarts(app: Mapping[str, Any]) -> Any:
    return app.get("processes", {}).get("engine", {}).get("restarts")


def _stream(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_stream_{name}", kind, help, "streams", ("stream",), figure)


def _way(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_intake_{name}", kind, help, WAYS, ("stream", "source"), figure)


def _view(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_view_{name}", kind, help, "views", ("view",), figure)


def _handler(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_handler_{name}", kind, help, "handlers", ("handler",), figure)


def _source(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_source_{name}", kind, help, "sources", ("source",), figure)


def _webhook(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_webhook_{name}", kind, help, "webhooks", ("webhook",), figure)


def _app(name: str, kind: Literal["counter", "gauge"], help: str, figure: Figure) -> Measure:
    return Measure(f"penstock_{name}", kind, help, None, (), figure)


METRICS: tuple[Measure, ...] = (
    _stream("events_total", "counter", "Total number of events appended to the stream.", _number("end")),
    _stream("accepted_total", "counter", "Events accepted since the gateway started.", _number("accepted")),
    _stream("duplicates_total", "counter", "Events whose id had been seen already.", _number("duplicates")),
    _stream("rejected_total", "counter", "Events that went to the stream's dead letters.", _number("rejected")),
    _stream("refused_total", "counter", "Events refused because the gateway was busy.", _number("refused")),
    _stream("shed_total", "counter", "Events shed while the stream was overloaded.", _number("shed")),
    _stream("kept_events", "gauge", "Events that are currently stored.", _number("events")),
    _stream("bytes", "gauge", "Size of the stream on disk.", _number("bytes")),
    _stream("last_event_seconds", "gauge", "Unix time of the last event's arrival.", _time("last_event")),
    _way("received_total", "counter", "Events received from this source.", _number("received")),
    _way("accepted_total", "counter", "Events that were accepted.", _number("accepted")),
    _way("duplicates_total", "counter", "Events that had been received already.", _number("duplicates")),
    _way("rejected_total", "counter", "Events that went to the dead letters.", _number("rejected")),
    _way("refused_total", "counter", "Events refused because the gateway was busy.", _number("refused")),
    _way("failed_total", "counter", "Events that could not be written; the sender got an error.", _number("failed")),
    _way("lost_total", "counter", "One-way events that could not be accepted.", _number("lost")),
    _way("shed_total", "counter", "Events shed while the stream was overloaded.", _number("shed")),
    _way("received_bytes_total", "counter", "Bytes received, as sent.", _number("received_bytes")),
    _way(
        "durable_seconds_min",
        "gauge",
        "Minimum time to make a received event durable.",
        _number("durable_ms_min", 0.001),
    ),
    _way(
        "durable_seconds_mean",
        "gauge",
        "Mean time to make a received event durable.",
        _number("durable_ms_mean", 0.001),
    ),
    _way(
        "durable_seconds_max",
        "gauge",
        "Maximum time to make a received event durable.",
        _number("durable_ms_max", 0.001),
    ),
    _view("lag_events", "gauge", "Events that the view has not read yet.", _number("lag")),
    _view("rows", "gauge", "Rows that the view serves.", _number("rows")),
    _view("version", "gauge", "Version of the view's latest change.", _number("version")),
    _view("batch_seconds", "gauge", "Duration of the view's last micro-batch.", _number("batch_ms", 0.001)),
    _view("late_total", "counter", "Events that came too late for the view.", _number("late")),
    _view("watermark_seconds", "gauge", "Unix time up to which the view accepts events.", _time("watermark")),
    _view(
        "skew_seconds", "gauge", "How far event time lags behind ingest time in the view's input.", _number("skew_s")
    ),
    _view("failed", "gauge", "1 if the view's query has failed and is not running.", _state("failed")),
    _handler("lag_events", "gauge", "Events that the handler has not read yet.", _number("lag")),
    _handler("events_total", "counter", "Events processed since the engine started.", _number("events")),
    _handler("emitted_total", "counter", "Total number of events emitted.", _number("emitted")),
    _handler("failures_total", "counter", "Total number of events that the handler failed on.", _number("failed")),
    _handler("watermark_seconds", "gauge", "Log time that the handler has reached, as Unix time.", _time("watermark")),
    _handler("keys", "gauge", "Keys that have state.", _number("keys")),
    _handler("state_bytes", "gauge", "Approximate size of the state in memory.", _number("bytes")),
    _handler("run_seconds_total", "counter", "Time spent in the handler since the engine started.", _number("run_s")),
    _handler(
        "read_seconds_total",
        "counter",
        "Time spent reading the handler's events and state since the engine started.",
        _number("read_s"),
    ),
    _handler(
        "write_seconds_total", "counter", "Time spent writing state since the engine started.", _number("write_s")
    ),
    _handler(
        "delta_bytes_total", "counter", "Size of the deltas written since the engine started.", _number("delta_bytes")
    ),
    _handler("snapshot_bytes", "gauge", "Size of the last snapshot written.", _number("snapshot_bytes")),
    _handler("replica_hits_total", "counter", "Batches of a shard whose state was in memory.", _number("replica_hits")),
    _handler(
        "replica_catch_ups_total", "counter", "Batches of a shard that read deltas first.", _number("replica_catch_ups")
    ),
    _handler(
        "replica_loads_total",
        "counter",
        "Batches of a shard that loaded its state from files first.",
        _number("replica_loads"),
    ),
    _handler("batch_seconds", "gauge", "Duration of the handler's last micro-batch.", _number("batch_ms", 0.001)),
    _handler("failed", "gauge", "1 if the handler's query has failed and is not running.", _state("failed")),
    _source("received_total", "counter", "Events received from the source.", _number("received")),
    _source("lost_total", "counter", "Datagrams that arrived but could not be accepted.", _number("lost")),
    _source("reconnects_total", "counter", "Number of reconnects of the source.", _number("reconnects")),
    _stream("readers", "gauge", "Current number of followers of the stream.", _number("readers")),
    _stream("stalls_total", "counter", "Number of `stall` messages to followers that were behind.", _number("stalls")),
    _stream(
        "resets_total", "counter", "Number of times that a follower's position was no longer kept.", _number("resets")
    ),
    _view("readers", "gauge", "Current number of followers of the view.", _number("readers")),
    _view("stalls_total", "counter", "Number of `stall` messages to followers that were behind.", _number("stalls")),
    _view(
        "merges_total",
        "counter",
        "Number of times that a follower got several changes merged into one.",
        _number("merges"),
    ),
    _view(
        "resets_total", "counter", "Number of times that a follower's position was no longer kept.", _number("resets")
    ),
    _app("cut_off_total", "counter", "Live connections closed because the client did not read.", _number("cut_off")),
    _webhook("delivered_total", "counter", "Messages that the receiver has accepted.", _number("delivered")),
    _webhook("failures_total", "counter", "Failed attempts to deliver a message.", _number("failures")),
    _webhook("pending", "gauge", "Messages waiting to be delivered.", _number("pending")),
    _webhook("retrying", "gauge", "Waiting messages with at least one failed attempt.", _number("retrying")),
    _webhook("lag", "gauge", "Events or versions that the webhook has not read yet.", _number("lag")),
    _webhook("dead", "gauge", "Dead letters that are currently stored.", _number("dead")),
    _webhook("forgotten_total", "counter", "Dead letters deleted to make room for others.", _number("forgotten")),
    _webhook("active", "gauge", "1 if the webhook is active.", _state("active")),
    _app("connections", "gauge", "Live connections: server-sent events and WebSocket.", _number("connections")),
    _app("clock_seconds", "gauge", "Unix time up to which all results are complete.", _time("clock")),
    _app("ready", "gauge", "1 if the app is ready.", _state("ready")),
    _app("engine_restarts_total", "counter", "Number of restarts of the engine.", _engine_restarts),
)


class AppCollector(Collector):
    """A Prometheus collector for one description of the app. Unknown figures have no samples."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description

    def collect(self) -> Iterator[Metric]:
        for measure in METRICS:
            kind = CounterMetricFamily if measure.type == "counter" else GaugeMetricFamily
            family = kind(measure.name, measure.help, labels=measure.labels)
            for item in self._metric_items(measure):
                value = measure.figure(item)
                if value is not None:
                    family.add_metric([str(item[key]) for key in _label_fields(measure)], float(value))
            yield family

    def _metric_items(self, measure: Measure) -> Iterable[Mapping[str, Any]]:
        if measure.section == WAYS:
            return [
                {"stream": stream["name"], **way}
                for stream in self._description.get("streams", ())
                for way in stream.get(WAYS, ())
            ]
        return [self._description] if measure.section is None else self._description.get(measure.section, ())


def _label_fields(measure: Measure) -> tuple[str, ...]:
    """Return the names of the fields that contain a sample's labels."""
    return measure.labels if measure.section == WAYS else ("name",) * len(measure.labels)


def render(description: Mapping[str, Any]) -> bytes:
    """Return the body of `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AppCollector(description))
    return generate_latest(registry)
