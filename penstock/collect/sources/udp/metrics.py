"""Sources of metrics over UDP: the lines of StatsD (with the extensions of DogStatsD) and those of Graphite.

Each value becomes one `Metric`. The parsers are pure functions of a line: they return metrics, or the reason why there
are none, and never raise. A line is taken whole or not at all; one that is not is a dead letter.

As for all of UDP, nothing is promised of what is sent; see `penstock.collect.sources.udp.source`.
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
from penstock.schema import Event

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
"""Parts by which DogStatsD's clients tell its agent where they run; they say nothing of the metric."""
_is_number = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII).fullmatch
_encode = msgspec.json.Encoder().encode

MetricKind = Literal["counter", "gauge", "timer", "histogram", "distribution", "set"]


class Metric(Event):
    """One value of a metric, as it was sent. Declare its stream with `app.stream("metrics", Metric, key="name")`.

    `value` is what was counted or measured; a set has `text` instead. Only one in 1/`rate` was sent, so a counter went
    up by `value / rate`. `relative`: a gauge moves by `value`, it is not set to it. A tag without a value has "". `at`
    is the sender's time, if it gave one.
    """

    name: str
    kind: MetricKind
    value: float | None = None
    text: str | None = None
    relative: bool = False
    rate: float = 1.0
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    at: datetime | None = None


class _Rubbish(Exception):
    """Why a line is no metric; does not leave this module."""


def statsd_metrics(line: bytes) -> Iterable[Metric] | str:
    """The metrics of one line of StatsD, or why it has none.

    NAME:VALUE[:VALUE...]|KIND[|@RATE][|#TAG[:VALUE],...][|TSECONDS]
    """
    return _judged(_statsd, line)


def graphite_metrics(line: bytes) -> Iterable[Metric] | str:
    """The metric of one line of Graphite, a gauge, or why it has none. A time of -1 stands for none.

    NAME[;TAG=VALUE...] VALUE SECONDS
    """
    return _judged(_graphite, line)


def _judged(parse: Callable[[str], Iterable[Metric]], line: bytes) -> Iterable[Metric] | str:
    try:
        return parse(line.decode())
    except UnicodeDecodeError:
        return "it is not valid UTF-8"
    except _Rubbish as error:
        return str(error)


def _statsd(line: str) -> Iterable[Metric]:
    """Values are made into metrics only as they are asked for: there may be 30,000 in a datagram."""
    name, colon, rest = line.partition(":")
    values, *parts = rest.split("|")
    if line.startswith(("_e{", "_sc|")):
        raise _Rubbish("events and service checks of DogStatsD are no metrics")
    if not name or not colon or not parts:
        raise _Rubbish("it does not read NAME:VALUE|KIND")
    kind = _KINDS.get(parts[0])
    if kind is None:
        raise _Rubbish(f"the kind {_shown(parts[0])} is not one of {', '.join(_KINDS)}")
    more = _extensions(parts[1:]) if len(parts) > 1 else {}
    if kind == "set" and values:
        return (Metric(name=name, kind=kind, text=values, **more),)
    texts = values.split(":")
    numbers = [_number(text) for text in texts]
    if kind == "gauge":
        signed = (text[0] in "+-" for text in texts)
        return (
            Metric(name=name, kind=kind, value=number, relative=sign, **more)
            for number, sign in zip(numbers, signed, strict=True)
        )
    return (Metric(name=name, kind=kind, value=number, **more) for number in numbers)


def _extensions(parts: Iterable[str]) -> dict[str, Any]:
    """What stands behind the kind, in any order."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.startswith("@"):
            found["rate"] = _rate(part[1:])
        elif part.startswith("#"):
            found["tags"] = _tags(part[1:].split(","), ":")
        elif part.startswith("T"):
            found["at"] = _time(part[1:])
        elif not part.startswith(_IGNORED):
            raise _Rubbish(f"the part {_shown(part)} is not known")
    return found


def _graphite(line: str) -> Iterable[Metric]:
    words = line.split()
    if len(words) != 3:
        raise _Rubbish("it does not read NAME VALUE SECONDS")
    name, *tags = words[0].split(";")
    if not name:
        raise _Rubbish("it has no name")
    at = None if words[2] == "-1" else _time(words[2])
    return (Metric(name=name, kind="gauge", value=_number(words[1]), tags=_tags(tags, "="), at=at),)


def _tags(texts: Iterable[str], sign: str) -> dict[str, str]:
    """Of two with the same name the later one counts."""
    parts = (text.partition(sign) for text in texts if text)
    return {name: value for name, _, value in parts}


def _number(text: str) -> float:
    """A finite decimal number. (`float` alone would take "nan", "1_0" and digits of every script.)"""
    if len(text) <= NUMBER_LENGTH_MAX and _is_number(text) and math.isfinite(number := float(text)):
        return number
    raise _Rubbish(f"the value {_shown(text)} is no number")


def _rate(text: str) -> float:
    rate = _number(text)
    if not 0 < rate <= 1:
        raise _Rubbish(f"the rate {_shown(text)} is not above 0 and at most 1")
    return rate


def _time(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(_number(text), UTC)
    except (ArithmeticError, ValueError, OSError):
        raise _Rubbish(f"the time {_shown(text)} is not in the years 1 to 9999") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")


def metric_events(parse: Callable[[bytes], Iterable[Metric] | str], datagram: bytes) -> Iterator[bytes | Unfit]:
    """A datagram of lines as an intake wants it: JSON, or what is no metric and why."""
    for line in each_line(datagram):
        found = parse(line)
        if isinstance(found, str):
            yield Unfit(line, f"The line is no metric, since {found}")
        else:
            yield from map(_encode, found)


statsd_events = partial(metric_events, statsd_metrics)
graphite_events = partial(metric_events, graphite_metrics)


def statsd(host: str = "127.0.0.1", port: int = STATSD_PORT, **options: Unpack[UdpOptions]) -> UdpSource:
    """What clients of StatsD and DogStatsD send, each value a `Metric`. The options are those of `udp`."""
    return UdpSource(host, port, kind="statsd", events=statsd_events, **options)


def graphite(host: str = "127.0.0.1", port: int = GRAPHITE_PORT, **options: Unpack[UdpOptions]) -> UdpSource:
    """Lines of Graphite over UDP, each a `Metric` that is a gauge. The options are those of `udp`."""
    return UdpSource(host, port, kind="graphite", events=graphite_events, **options)
