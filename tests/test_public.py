"""The public names, pinned: adding or removing one is a decision, not an accident."""

from __future__ import annotations

import inspect

import penstock
from penstock import App, client, collect


def test_the_package_exports_these_names_and_no_others() -> None:
    assert penstock.__all__ == [
        "App", "Context", "EpochMillis", "Event", "Record", "Shed", "State", "cep", "gone", "joins", "windows",
    ]  # fmt: skip


def test_the_collect_tier_exports_its_sources() -> None:
    assert collect.__all__ == [
        "Metric", "NatsLogin", "Tls", "folder", "graphite", "mqtt", "nats", "ndjson", "poll", "sse", "statsd", "tail",
        "udp", "websocket",
    ]  # fmt: skip


def test_an_app_has_these_methods() -> None:
    public = {name for name in vars(App) if not name.startswith("_")}
    assert public == {
        "streams", "views", "handlers", "queries", "view_handlers", "outputs", "late", "feeds", "inlets", "stream",
        "view", "sql", "handler", "match", "window", "rollup", "join", "enrich", "source", "feed", "webhook",
        "webhooks",
        "preview",
    }  # fmt: skip


def test_the_parameters_of_the_declarations_are_these() -> None:
    assert [*inspect.signature(App.stream).parameters][1:] == [
        "name", "event", "key", "late_after", "keep", "keep_bytes", "partitions", "shed", "ahead",
    ]  # fmt: skip
    assert [*inspect.signature(App.view).parameters][1:] == [
        "name", "reads", "key", "keep", "top", "by", "emit", "time",
    ]  # fmt: skip
    assert [*inspect.signature(App.handler).parameters][1:] == [
        "name", "reads", "key", "state", "emits", "view", "keep",
    ]  # fmt: skip
    assert [*inspect.signature(App.sql).parameters][1:] == [
        "name", "query", "key", "keep", "top", "by", "emit", "time", "bounds",
    ]  # fmt: skip


def test_the_client_exports_these_names_and_its_classes_have_these_methods() -> None:
    assert client.__all__ == [
        "Answer", "BadSignature", "Change", "Client", "ClientError", "Column", "Consumer", "Events", "Flaw",
        "Following", "GaveUp", "Intent", "LiveTable", "OutboxFull", "Page", "Producer", "Progress", "Receipt",
        "Rejection", "Reset", "Rows", "ServerError", "Snapshot", "Stall", "Timing", "Tx", "Unreachable", "verify",
    ]  # fmt: skip
    public = {cls: {name for name in vars(cls) if not name.startswith("_")} for cls in CLIENTS}
    assert public == CLIENTS


CLIENTS = {
    client.Client: {"aclose", "publish", "rows", "events", "query", "follow", "table", "ask"},
    client.Producer: {"aclose", "send", "flush", "pending", "rejected", "forget_rejected"},
    client.Consumer: {"aclose", "run", "pending", "failed", "retry"},
}
