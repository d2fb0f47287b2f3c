"""All settings, with their defaults, units and meanings.

Each setting can be set with an environment variable: `PENSTOCK_` followed by its name in upper case. A test compares
this table with the table in docs/settings.md.
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

from penstock.core import failpoints
from penstock.core.errors import DeclarationError

MIB = 1024 * 1024
TEST_GAPS = "PENSTOCK_TEST_GAPS"
"""Not a setting: used only by Penstock's own tests. See `penstock/queue/gaps.py`."""


def _setting(default: Any, unit: str, help: str) -> Any:
    return field(default=default, metadata={"unit": unit, "help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    # collect
    body_bytes_max: int = _setting(8 * MIB, "bytes", "largest request body, after decompression")
    event_bytes_max: int = _setting(1 * MIB, "bytes", "largest single event")
    request_events_max: int = _setting(50_000, "events", "maximum number of events in one request")
    pending_events_max: int = _setting(
        100_000,
        "events",
        "maximum number of events per stream that are waiting to be written to disk; further requests get 429",
    )
    pending_bytes_max: int = _setting(
        64 * MIB,
        "bytes",
        "maximum number of bytes per stream that are waiting to be written to disk; further requests get 429; also "
        "the limit for all incomplete request bodies and WebSocket messages, and for those waiting to be decoded in a "
        "thread; one caller can use half of it",
    )
    lag_events_max: int = _setting(
        0,
        "events",
        "how many events a view or handler can be behind a stream before new events are shed, if the stream allows "
        "that, or refused with 429; 0: no limit",
    )
    head_bytes_max: int = _setting(32 * 1024, "bytes", "largest request head: the request line and the headers")
    head_s: float = _setting(10.0, "seconds", "time limit for a request's head, from its first byte")
    body_s: float = _setting(
        30.0, "seconds", "time limit for a request's body (enforced within twice this time) and for a WebSocket message"
    )
    idle_s: float = _setting(75.0, "seconds", "how long a connection can stay open without a request")
    sockets_max: int = _setting(10_000, "connections", "maximum number of open connections of all kinds")
    sockets_per_address_max: int = _setting(
        2_000,
        "connections",
        "maximum number of open connections from one network address; 0: only the total limit applies",
    )
    rate_max: float = _setting(
        0.0,
        "events a second",
        "how many events per second a caller without its own rate can send; a request without events counts as one; "
        "0: no limit",
    )
    publish_window: int = _setting(
        1_000, "messages", "maximum number of unacknowledged messages on a publishing WebSocket"
    )
    recovered_s: float = _setting(
        60.0, "seconds", "time without problems after which a part of the app is considered recovered"
    )
    failed_amber: int = _setting(
        1, "events", "how many events a handler must fail on within `recovered_s` to make the app degraded"
    )
    failed_red: int = _setting(
        100, "events", "how many events a handler must fail on within `recovered_s` to make the app not ready"
    )
    source_down_s: float = _setting(10.0, "seconds", "how long a source can be disconnected before the app is degraded")
    reply_s_max: float = _setting(60.0, "seconds", "longest time that a request can wait for a reply")
    replies_max: int = _setting(1_000, "requests", "maximum number of requests waiting for a reply at the same time")
    group_events_max: int = _setting(20_000, "events", "maximum number of events in one commit of the log")
    quiet_s: float = _setting(
        10.0,
        "seconds",
        "how long a stream must be silent before its time advances without events, which closes its last windows; if "
        "senders send in bursts, make it longer than the pauses between bursts; 0: never",
    )
    # queue
    partitions: int = _setting(
        2, "partitions", "number of partitions for a new stream, if its declaration does not set one"
    )
    dedupe_ids_max: int = _setting(
        1_000_000, "ids", "number of event ids remembered for each stream; each takes about 150 bytes, at most 250"
    )
    dedupe_hours: float = _setting(24.0, "hours", "how long an event id is remembered")
    keep_days: float = _setting(
        7.0, "days", "age at which a stream's events can be deleted, if its declaration does not set one"
    )
    keep_bytes: int = _setting(10 * 1024 * MIB, "bytes", "size above which a stream's oldest events can be deleted")
    rejected_bytes: int = _setting(64 * MIB, "bytes", "size above which a stream's oldest dead letters can be deleted")
    disk_reserve_bytes: int = _setting(
        128 * MIB, "bytes", "free disk space below which new events are refused with 507"
    )
    upkeep_s: float = _setting(10.0, "seconds", "time between two runs of retention and merging")
    # analyze
    batch_events_max: int = _setting(200_000, "events", "maximum number of events from one stream in a micro-batch")
    trigger_ms: int = _setting(0, "ms", "minimum time between two micro-batches of a view; 0: no wait")
    state_partitions: int = _setting(
        1, "partitions", "number of partitions of a view's state in Spark, fixed at its first run"
    )
    spark_cores: int = _setting(0, "cores", "number of cores that Spark can use; 0: all")
    spark_memory_mb: int = _setting(1024, "MiB", "heap size of the Spark driver")
    class_archive: int = _setting(
        1, "0 or 1", "keep an archive of Spark's classes in the user's cache, about 170 MB, for faster starts"
    )
    handler_events_max: int = _setting(
        16_000_000, "events", "maximum number of events from one stream in a handler's batch"
    )
    replica_bytes: int = _setting(
        512 * MIB, "bytes", "how much of a handler's state one worker holds in memory; the rest is loaded when needed"
    )
    # store
    changes_kept: int = _setting(10_000, "versions", "number of changes of a view kept for clients that reconnect")
    changes_bytes: int = _setting(256 * MIB, "bytes", "size above which a view's oldest changes are deleted")
    # serve
    page_events: int = _setting(1_000, "events", "number of events in a page, if the request does not set a limit")
    page_events_max: int = _setting(10_000, "events", "maximum number of events that a request can ask for")
    buffered_changes: int = _setting(
        256, "changes", "number of a view's or stream's latest changes held in memory for readers"
    )
    filters_max: int = _setting(
        1_000, "filters", "maximum number of different filters in use at once on one stream or view"
    )
    wait_s_max: float = _setting(60.0, "seconds", "longest time that a request can wait for new data")
    connections_max: int = _setting(
        1_000, "connections", "maximum number of live connections (server-sent events and WebSocket)"
    )
    held_bytes_max: int = _setting(
        256 * MIB,
        "bytes",
        "maximum total size of live deliveries and long responses that clients have not read yet; one caller can use "
        "half of it",
    )
    subscriptions_max: int = _setting(64, "subscriptions", "maximum number of subscriptions on one WebSocket")
    heartbeat_s: float = _setting(15.0, "seconds", "silence after which a live connection gets a progress message")
    shown_state_bytes_max: int = _setting(
        256 * MIB,
        "bytes",
        "how much handler state the gateway holds in memory to respond to requests for a key's state; the least "
        "recently read state is dropped first",
    )
    compress_bytes_min: int = _setting(
        1024, "bytes", "minimum size of a response that is compressed for clients that accept gzip; 0: never"
    )
    webhooks_max: int = _setting(100, "webhooks", "maximum number of registered webhooks")
    webhook_requests_max: int = _setting(
        64,
        "requests",
        "maximum number of messages in flight at once for all webhooks together, in addition to one for each webhook",
    )
    webhook_host_requests_max: int = _setting(
        8, "requests", "maximum number of webhook messages in flight at once to one host"
    )
    webhook_pending_max: int = _setting(
        1_000, "messages", "number of queued messages at which a webhook stops reading its stream or view"
    )
    webhook_timeout_s: float = _setting(
        15.0, "seconds", "time limit for the complete response from a webhook's receiver"
    )
    webhook_tries_max: int = _setting(20, "tries", "number of tries before a message becomes a dead letter")
    webhook_hours_max: float = _setting(24.0, "hours", "how long a message is retried, counted from the first try")
    webhook_backoff_s: float = _setting(
        1.0, "seconds", "wait after a message's first failed try, doubled after each further failure"
    )
    webhook_backoff_s_max: float = _setting(
        3_600.0, "seconds", "longest wait between two tries, even if the receiver asks for a longer one"
    )
    webhook_dead_max: int = _setting(
        1_000, "messages", "number of dead letters kept for each webhook; the oldest are deleted first"
    )
    webhook_grace_hours: float = _setting(
        24.0, "hours", "how long messages are also signed with the old secret after a rotation"
    )
    webhook_private: str = _setting(
        "",
        "networks",
        "networks that webhooks can reach in addition to the public internet, such as `10.1.0.0/16, ::1/128`",
    )
    query_s_max: float = _setting(5.0, "seconds", "time limit for a query")
    query_rows_max: int = _setting(10_000, "rows", "maximum number of rows in the result of a query")
    query_memory_bytes: int = _setting(
        256 * MIB, "bytes", "memory limit for a query, not counting the data that it reads"
    )
    query_events_max: int = _setting(100_000, "events", "number of a stream's latest events that a query can read")
    query_text_max: int = _setting(10_000, "characters", "maximum length of a query's SQL")
    queries_max: int = _setting(2, "queries", "maximum number of queries running at once; others wait")
    live_queries_max: int = _setting(64, "queries", "maximum number of different live queries running at once")
    live_query_ms: int = _setting(250, "ms", "minimum time between two results of a live query")
    # runtime
    drain_s: float = _setting(10.0, "seconds", "time to finish work after SIGTERM")
    restart_backoff_max_s: float = _setting(30.0, "seconds", "longest wait before a process that died is restarted")

    @property
    def dedupe_window(self) -> timedelta:
        return timedelta(hours=self.dedupe_hours)


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from `PENSTOCK_*` variables, using defaults for all other settings. Raises a `DeclarationError`
    that names the variable for an unknown setting or an invalid value."""
    _refuse_unknown(environ)
    chosen: dict[str, Any] = {}
    for setting in fields(Settings):
        variable = f"PENSTOCK_{setting.name.upper()}"
        if variable not in environ:
            continue
        kind: type[int] | type[float] | type[str] = type(getattr(Settings, setting.name))
        if kind is str:
            chosen[setting.name] = _networks(variable, environ[variable])
            continue
        try:
            chosen[setting.name] = kind(environ[variable])
        except ValueError:
            raise DeclarationError(
                f"{variable}={environ[variable]!r} is not a number ({setting.metadata['unit']})"
            ) from None
        if chosen[setting.name] < 0:
            raise DeclarationError(f"{variable}={environ[variable]!r} is below zero")
        if not math.isfinite(chosen[setting.name]):
            raise DeclarationError(f"{variable}={environ[variable]!r} is not a number ({setting.metadata['unit']})")
    return Settings(**chosen)


def _networks(variable: str, text: str) -> str:
    """Check a list of networks. Settings that are not numbers are always lists of networks."""
    try:
        for word in text.split(","):
            ipaddress.ip_network(word.strip() or "::")
    except ValueError as error:
        raise DeclarationError(f"{variable}: {error}; use networks such as 10.1.0.0/16, separated by commas") from None
    return text


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """Raise `DeclarationError` for an unknown setting, because a misspelled setting would otherwise be ignored
    silently."""
    known = [setting.name.upper() for setting in fields(Settings)]
    for variable in environ:
        name = variable.removeprefix("PENSTOCK_")
        if name in (variable, *known) or variable in (failpoints.VARIABLE, TEST_GAPS):
            continue
        nearest = get_close_matches(name, known, 1)
        hint = f"did you mean PENSTOCK_{nearest[0]}?" if nearest else "docs/settings.md lists them"
        raise DeclarationError(f"{variable} is not a Penstock setting; {hint}")
