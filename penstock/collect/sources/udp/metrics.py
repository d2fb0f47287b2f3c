"""Sources of metrics over UDP: StatsD lines, with the DogStatsD extensions, and Graphite lines.

Each value becomes one `Metric`. The parsers are pure functions of a line: they return metrics, or the reason why the
line is invalid, and never raise. A line is accepted as a whole or becomes a dead letter.

As always with UDP, delivery is not guaranteed; see `penstock.collect.sources.udp.source`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, Unpack

import msgspec

from penstock.collect.sources.udp.inbox import Unfit
from penstock.collect.sources.udp.source import UdpOptions, UdpSource, each_line
from penstock.core.schema import Event

STATSD_PORT, GRAPHITE_PORT = 8125, 2003
NUMBER_LENGTH_MAX = 64
_SHOWN_MAX = 60
_KINDS: dict[str, MetricKind] = {
    "c": "counter",
    "g": "gauge",
    "ms": "timer",
    "h": "histogram",
    "d": "distribution",
    "s": "set",
}
_IGNORED = ("c:", "e:", "card:")
"""Fields that DogStatsD clients use to tell their agent where they run. They are not about the metric."""
_is_number = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII).fullmatch
_encode = msgspec.json.Encoder().encode

MetricKind = Literal["counter", "gauge", "timer", "histogram", "distribution", "set"]


class Metric(Event):
    """One value of a StatsD or Graphite metric, as it was sent. Declare its stream with `app.stream("metrics", Metric,
    key="name")`.

    `value` is the count or measurement; a set has `text` instead. `rate` is the fraction of its values that the sender
    sends, so a counter went up by `value / rate`. With `relative`, a gauge changes by `value` instead of being set to
    it. A tag without a value has the value "". `at` is the sender's time, if it sent one.
    """

    name: str
    kind: MetricKind
    value: float | None = None
    text: str | None = None
    relative: bool = False
    rate: float = 1.0
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    at: datetime | None = None


class _InvalidLine(Exception):
    """The reason why a line is not a metric. Raised and caught only in this module."""


def statsd_metrics(line: bytes) -> Iterable[Metric] | str:
    """Return the metrics in a StatsD line, or the reason why the line is invalid.

    NAME:VALUE[:VALUE...]|KIND[|@RATE][|#TAG[:VALUE],...][|TSECONDS]
    """
    return _parsed_metrics(_statsd_line_metrics, line)


def graphite_metrics(line: bytes) -> Iterable[Metric] | str:
    """Return the metric in a Graphite line, which is a gauge, or the reason why the line is invalid. A time of -1 means
    that the line has no time.

    NAME[;TAG=VALUE...] VALUE SECONDS
    """
    return _parsed_metrics(_graphite_line_metrics, line)


def _parsed_metrics(parse: Callable[[str], Iterable[Metric]], line: bytes) -> Iterable[Metric] | str:
    try:
        return parse(line.decode())
    except UnicodeDecodeError:
        return "it is not valid UTF-8"
    except _InvalidLine as error:
        return str(error)


def _statsd_line_metrics(line: str) -> Iterable[Metric]:
    """Yield the metrics of a StatsD line. They are created lazily, because a datagram can contain 30,000."""
    name, colon, rest = line.partition(":")
    values, *parts = rest.split("|")
    if line.startswith(("_e{", "_sc|")):
        raise _InvalidLine("DogStatsD events and service checks are not metrics")
    if not name or not colon or not parts:
        raise _InvalidLine("it is not of the form NAME:VALUE|KIND")
    kind = _KINDS.get(parts[0])
    if kind is None:
        raise _InvalidLine(f"the kind {_shown_part(parts[0])} is not one of {', '.join(_KINDS)}")
    more = _statsd_extensions(parts[1:]) if len(parts) > 1 else {}
    if kind == "set" and values:
        return (Metric(name=name, kind=kind, text=values, **more),)
    texts = values.split(":")
    numbers = [_metric_number(text) for text in texts]
    if kind == "gauge":
        signed = (text[0] in "+-" for text in texts)
        return (
            Metric(name=name, kind=kind, value=number, relative=sign, **more)
            for number, sign in zip(numbers, signed, strict=True)
        )
    return (Metric(name=name, kind=kind, value=number, **more) for number in numbers)


def _statsd_extensions(parts: Iterable[str]) -> dict[str, Any]:
    """Parse the parts of a StatsD line after the kind, in any order."""
    extensions: dict[str, Any] = {}
    for part in parts:
        if part.startswith("@"):
            extensions["rate"] = _sample_rate(part[1:])
        elif part.startswith("#"):
            extensions["tags"] = _metric_tags(part[1:].split(","), ":")
        elif part.startswith("T"):
            extensions["at"] = _metric_time(part[1:])
        elif not part.startswith(_IGNORED):
            raise _InvalidLine(f"the part {_shown_part(part)} is unknown")
    return extensions


def _graphite_line_metrics(line: str) -> Iterable[Metric]:
    words = line.split()
    if len(words) != 3:
        raise _InvalidLine("it is not of the form NAME VALUE SECONDS")
    name, *tags = words[0].split(";")
    if not name:
        raise _InvalidLine("it has no name")
    at = None if words[2] == "-1" else _metric_time(words[2])
    return (Metric(name=name, kind="gauge", value=_metric_number(words[1]), tags=_metric_tags(tags, "="), at=at),)


def _metric_tags(texts: Iterable[str], sign: str) -> dict[str, str]:
    """Parse a metric's tags. If two tags have the same name, the last one wins."""
    parts = (text.partition(sign) for text in texts if text)
    return {name: value for name, _, value in parts}


def _metric_number(text: str) -> float:
    """Parse a metric's finite decimal number. (`float` alone would accept "nan", "1_0" and digits from any script.)"""
    if len(text) <= NUMBER_LENGTH_MAX and _is_number(text) and math.isfinite(number := float(text)):
        return number
    raise _InvalidLine(f"the value {_shown_part(text)} is not a number")


def _sample_rate(text: str) -> float:
    rate = _metric_number(text)
    if not 0 < rate <= 1:
        raise _InvalidLine(f"the rate {_shown_part(text)} must be above 0 and at most 1")
    return rate


def _metric_time(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(_metric_number(text), UTC)
    except (ArithmeticError, ValueError, OSError):
        raise _InvalidLine(f"the time {_shown_part(text)} is not between the years 1 and 9999") from None


def _shown_part(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")


def metric_events(parse: Callable[[bytes], Iterable[Metric] | str], datagram: bytes) -> Iterator[bytes | Unfit]:
    """Convert the metrics in a datagram to events: JSON, or an `Unfit` with the reason."""
    for line in each_line(datagram):
        outcome = parse(line)
        if isinstance(outcome, str):
            yield Unfit(line, f"The line is not a metric: {outcome}")
        else:
            yield from map(_encode, outcome)


statsd_events = partial(metric_events, statsd_metrics)
graphite_events = partial(metric_events, graphite_metrics)


def statsd(host: str = "127.0.0.1", port: int = STATSD_PORT, **options: Unpack[UdpOptions]) -> UdpSource:
    """Create a source of StatsD and DogStatsD metrics; each value becomes a `Metric`. Takes the same options as
    `udp`."""
    return UdpSource(host, port, kind="statsd", events=statsd_events, **options)


def graphite(host: str = "127.0.0.1", port: int = GRAPHITE_PORT, **options: Unpack[UdpOptions]) -> UdpSource:
    """Create a source of Graphite lines over UDP; each becomes a gauge `Metric`. Takes the same options as `udp`."""
    return UdpSource(host, port, kind="graphite", events=graphite_events, **options)
