"""Every setting, with its default, unit and meaning, in one table.

Each can be set by an environment variable: `PENSTOCK_` and the name in capitals. The table in docs/settings.md is
checked against this one by a test.
"""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from penstock import failpoints
from penstock.errors import DeclarationError

MIB = 1024 * 1024


def _setting(default: Any, unit: str, help: str) -> Any:
    return field(default=default, metadata={"unit": unit, "help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    # collect
    body_bytes_max: int = _setting(8 * MIB, "bytes", "largest request body, after decompression")
    event_bytes_max: int = _setting(1 * MIB, "bytes", "largest single event")
    request_events_max: int = _setting(50_000, "events", "most events in one request")
    pending_events_max: int = _setting(
        100_000, "events", "events of a stream waiting for the disk before 429 is answered"
    )
    pending_bytes_max: int = _setting(
        64 * MIB,
        "bytes",
        "bytes of a stream waiting for the disk before 429 is answered; also of all unfinished request bodies, of "
        "which one caller has half",
    )
    lag_events_max: int = _setting(
        0,
        "events",
        "how far behind a stream a view or handler may be before events are shed, if the stream allows it, or else "
        "refused with 429; 0: no limit",
    )
    head_bytes_max: int = _setting(32 * 1024, "bytes", "largest head of a request: its first line and its headers")
    head_s: float = _setting(10.0, "seconds", "time for the head of a request, from its first byte")
    body_s: float = _setting(30.0, "seconds", "time for the body of a request; it is given up within twice this time")
    idle_s: float = _setting(75.0, "seconds", "time that a connection may be open without a request")
    sockets_max: int = _setting(10_000, "connections", "open connections of all kinds")
    sockets_per_address_max: int = _setting(
        2_000, "connections", "open connections from one network address; 0: no limit but that of all"
    )
    rate_max: float = _setting(
        0.0,
        "events a second",
        "what a caller without a rate may send; a request counts as one event; 0: no limit",
    )
    publish_window: int = _setting(1_000, "messages", "unacknowledged messages of one WebSocket that sends events")
    recovered_s: float = _setting(
        60.0, "seconds", "time without a sign of a problem after which what had it counts as recovered"
    )
    failed_amber: int = _setting(
        1, "events", "failed events of a handler within `recovered_s` from which the app counts as degraded"
    )
    failed_red: int = _setting(100, "events", "the same, from which it counts as not ready")
    source_down_s: float = _setting(
        10.0, "seconds", "time that a source may be cut off before the app counts as degraded"
    )
    reply_s_max: float = _setting(60.0, "seconds", "longest time that a request may wait for a reply")
    replies_max: int = _setting(1_000, "requests", "requests that may wait for a reply at once")
    group_events_max: int = _setting(20_000, "events", "most events in one commit of the log")
    quiet_s: float = _setting(
        10.0,
        "seconds",
        "silence of a stream after which time goes on in it without events, so that its last windows close; more than "
        "the pauses of those who send in bursts; 0: never",
    )
    # queue
    partitions: int = _setting(2, "partitions", "partitions of a new stream that does not say")
    dedupe_ids_max: int = _setting(1_000_000, "ids", "event ids remembered for each stream, about 150 bytes each")
    dedupe_hours: float = _setting(24.0, "hours", "how long an event id is remembered")
    keep_days: float = _setting(7.0, "days", "age at which a stream's events may go, when the stream does not say")
    keep_bytes: int = _setting(10 * 1024 * MIB, "bytes", "size past which a stream's oldest events may go")
    rejected_bytes: int = _setting(64 * MIB, "bytes", "size past which a stream's oldest dead letters may go")
    disk_reserve_bytes: int = _setting(
        128 * MIB, "bytes", "free disk space below which new events are refused with 507"
    )
    upkeep_s: float = _setting(10.0, "seconds", "time between two rounds of retention and merging")
    # analyze
    batch_events_max: int = _setting(200_000, "events", "most events of one stream in one micro-batch")
    trigger_ms: int = _setting(0, "ms", "least time between two micro-batches of a view; 0 means at once")
    state_partitions: int = _setting(1, "partitions", "partitions of a view's state in Spark, fixed by its first run")
    spark_cores: int = _setting(0, "cores", "cores that Spark may use; 0 means all")
    spark_memory_mb: int = _setting(1024, "MiB", "heap of the Spark driver")
    class_archive: int = _setting(
        1, "0 or 1", "keep an archive of Spark's classes in the user's cache, about 170 MB, for shorter starts"
    )
    handler_events_max: int = _setting(16_000_000, "events", "most events of one stream in one batch of a handler")
    replica_bytes: int = _setting(
        512 * MIB, "bytes", "state of a handler that one worker holds in memory; what is over it is loaded when needed"
    )
    # store
    changes_kept: int = _setting(10_000, "versions", "changes of a view kept for clients that come back")
    changes_bytes: int = _setting(256 * MIB, "bytes", "size past which a view's oldest changes go")
    # serve
    page_events: int = _setting(1_000, "events", "events in a page when the request does not say")
    page_events_max: int = _setting(10_000, "events", "most events that a request may ask for")
    buffered_changes: int = _setting(256, "changes", "latest changes of a view or stream held in memory for readers")
    filters_max: int = _setting(1_000, "filters", "different filters in use at once on one stream or view")
    wait_s_max: float = _setting(60.0, "seconds", "longest time that a request may wait for something new")
    connections_max: int = _setting(1_000, "connections", "live connections at once, server-sent events and WebSocket")
    held_bytes_max: int = _setting(
        256 * MIB,
        "bytes",
        "live deliveries and long answers that clients have yet to take, of which one caller has half",
    )
    subscriptions_max: int = _setting(64, "subscriptions", "subscriptions on one WebSocket")
    heartbeat_s: float = _setting(15.0, "seconds", "silence after which a live connection gets a progress mark")
    shown_state_bytes_max: int = _setting(
        256 * MIB,
        "bytes",
        "state of handlers that the gateway holds in memory for those who ask for that of a key; the least recently "
        "read goes first",
    )
    compress_bytes_min: int = _setting(
        1024, "bytes", "length from which an answer is compressed for a client that takes gzip; 0: never"
    )
    webhooks_max: int = _setting(100, "webhooks", "webhooks that may be registered")
    webhook_requests_max: int = _setting(
        64, "requests", "messages of all webhooks on their way at once, besides one for each webhook"
    )
    webhook_host_requests_max: int = _setting(8, "requests", "messages of webhooks on their way to one host at once")
    webhook_pending_max: int = _setting(
        1_000, "messages", "messages of a webhook that wait before its stream or view is read on"
    )
    webhook_timeout_s: float = _setting(15.0, "seconds", "time for a whole answer of a webhook's receiver")
    webhook_tries_max: int = _setting(20, "tries", "tries of a message before it becomes a dead letter")
    webhook_hours_max: float = _setting(24.0, "hours", "time after the first try of a message in which others follow")
    webhook_backoff_s: float = _setting(1.0, "seconds", "wait after the first failure of a message, doubled each time")
    webhook_backoff_s_max: float = _setting(
        3_600.0, "seconds", "longest wait between two tries, also if it is asked for"
    )
    webhook_dead_max: int = _setting(1_000, "messages", "dead letters kept for each webhook; the oldest make room")
    webhook_grace_hours: float = _setting(24.0, "hours", "how long a secret that was rotated goes on to sign")
    webhook_private: str = _setting(
        "", "networks", "networks that webhooks may reach besides the public internet, as in `10.1.0.0/16, ::1/128`"
    )
    query_s_max: float = _setting(5.0, "seconds", "time that a query may take")
    query_rows_max: int = _setting(10_000, "rows", "most rows in the answer to a query")
    query_memory_bytes: int = _setting(256 * MIB, "bytes", "memory that a query may take, besides what it reads")
    query_events_max: int = _setting(100_000, "events", "latest events of a stream that a query sees")
    query_text_max: int = _setting(10_000, "characters", "longest text of a query")
    queries_max: int = _setting(2, "queries", "queries that run at once; more wait for their turn")
    live_queries_max: int = _setting(64, "queries", "different queries that are kept live at once")
    live_query_ms: int = _setting(250, "ms", "least time between two results of a query that is kept live")
    # runtime
    drain_s: float = _setting(10.0, "seconds", "time given to finish work after SIGTERM")
    restart_backoff_max_s: float = _setting(30.0, "seconds", "longest wait before something that died is started again")

    @property
    def dedupe_window(self) -> timedelta:
        return timedelta(hours=self.dedupe_hours)


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """The defaults, overridden by `PENSTOCK_*` variables. One that is no setting, or no number, is refused by name."""
    _refuse_unknown(environ)
    chosen: dict[str, Any] = {}
    for each in fields(Settings):
        variable = f"PENSTOCK_{each.name.upper()}"
        if variable not in environ:
            continue
        kind: type[int] | type[float] | type[str] = type(getattr(Settings, each.name))
        if kind is str:
            chosen[each.name] = _networks(variable, environ[variable])
            continue
        try:
            chosen[each.name] = kind(environ[variable])
        except ValueError:
            raise DeclarationError(
                f"{variable}={environ[variable]!r} is not a number ({each.metadata['unit']})"
            ) from None
        if chosen[each.name] < 0:
            raise DeclarationError(f"{variable}={environ[variable]!r} is below zero")
        if not math.isfinite(chosen[each.name]):
            raise DeclarationError(f"{variable}={environ[variable]!r} is not a number ({each.metadata['unit']})")
    return Settings(**chosen)


def _networks(variable: str, text: str) -> str:
    """Settings that are no number are lists of networks."""
    try:
        for word in text.split(","):
            ipaddress.ip_network(word.strip() or "::")
    except ValueError as error:
        raise DeclarationError(f"{variable}: {error}; use networks such as 10.1.0.0/16, with commas between") from None
    return text


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """A misspelt setting would be the default without a word."""
    known = [each.name.upper() for each in fields(Settings)]
    for variable in environ:
        name = variable.removeprefix("PENSTOCK_")
        if name in (variable, *known) or variable == failpoints.VARIABLE:
            continue
        nearest = get_close_matches(name, known, 1)
        hint = f"did you mean PENSTOCK_{nearest[0]}?" if nearest else "docs/settings.md lists them"
        raise DeclarationError(f"{variable} is no setting of Penstock; {hint}")
