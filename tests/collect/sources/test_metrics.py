"""Lines of StatsD and Graphite: the parsers as pure functions, and the resulting events in a stream."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.app import App
from penstock.app.check import check
from penstock.collect.decode import BodyDecoder
from penstock.collect.ingress import Ingress
from penstock.collect.sources.udp.inbox import Unfit
from penstock.collect.sources.udp.metrics import (
    Metric,
    graphite,
    graphite_events,
    graphite_metrics,
    statsd,
    statsd_events,
    statsd_metrics,
)
from penstock.core.settings import Settings
from tests.clocks import ManualClock
from tests.memory_log import MemoryLog

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
SECONDS = b"%d" % AT.timestamp()
GOOD = [
    (b"hits:1|c", [Metric(name="hits", kind="counter", value=1)]),
    (b"hits:3|c|@0.1", [Metric(name="hits", kind="counter", value=3, rate=0.1)]),
    (b"hits:-2.5e3|c", [Metric(name="hits", kind="counter", value=-2500)]),
    (b"fuel:0.5|g", [Metric(name="fuel", kind="gauge", value=0.5)]),
    (b"fuel:+4|g", [Metric(name="fuel", kind="gauge", value=4, relative=True)]),
    (b"fuel:-4|g", [Metric(name="fuel", kind="gauge", value=-4, relative=True)]),
    (b"glork:320|ms|@0.5", [Metric(name="glork", kind="timer", value=320, rate=0.5)]),
    (b"size:.5|h", [Metric(name="size", kind="histogram", value=0.5)]),
    (b"size:7.|d", [Metric(name="size", kind="distribution", value=7)]),
    (b"users:765|s", [Metric(name="users", kind="set", text="765")]),
    (b"users:a:b c|s", [Metric(name="users", kind="set", text="a:b c")]),
    (b"t:1:2:3|ms", [Metric(name="t", kind="timer", value=value) for value in (1, 2, 3)]),
    (
        b"g:+1:2|g",
        [
            Metric(name="g", kind="gauge", value=1, relative=True),
            Metric(name="g", kind="gauge", value=2),
        ],
    ),
    (b"hits:1|c|#a:b,c", [Metric(name="hits", kind="counter", value=1, tags={"a": "b", "c": ""})]),
    (b"hits:1|c|#,url:http://x,", [Metric(name="hits", kind="counter", value=1, tags={"url": "http://x"})]),
    (b"hits:1|c|#a:1,a:2|@1", [Metric(name="hits", kind="counter", value=1, tags={"a": "2"})]),
    (b"hits:1|c|#|@1.0", [Metric(name="hits", kind="counter", value=1)]),
    (b"hits:1|c|T" + SECONDS + b"|c:in-123|e:pod|card:low", [Metric(name="hits", kind="counter", value=1, at=AT)]),
    ("caf\u00e9:1|c".encode(), [Metric(name="caf\u00e9", kind="counter", value=1)]),
]
RUBBISH = [
    (b"", "it is not of the form NAME:VALUE|KIND"),
    (b"hits", "it is not of the form NAME:VALUE|KIND"),
    (b"hits:1", "it is not of the form NAME:VALUE|KIND"),
    (b"hits|c", "it is not of the form NAME:VALUE|KIND"),
    (b":1|c", "it is not of the form NAME:VALUE|KIND"),
    (b"hits:|c", "the value '' is not a number"),
    (b"users:|s", "the value '' is not a number"),
    (b"hits:x|c", "the value 'x' is not a number"),
    (b"hits:1:|c", "the value '' is not a number"),
    (b"hits:nan|c", "the value 'nan' is not a number"),
    (b"hits:inf|g", "the value 'inf' is not a number"),
    (b"hits:1e999|g", "the value '1e999' is not a number"),
    (b"hits:1_0|c", "the value '1_0' is not a number"),
    ("hits:\u0661|c".encode(), "the value '\u0661' is not a number"),
    (b"hits: 1|c", "the value ' 1' is not a number"),
    (b"hits:" + b"1" * 65 + b"|c", f"the value '{'1' * 60}...' is not a number"),
    (b"hits:1|x", "the kind 'x' is not one of c, g, ms, h, d, s"),
    (b"hits:1|", "the kind '' is not one of c, g, ms, h, d, s"),
    (b"hits:1|c|@0", "the rate '0' must be above 0 and at most 1"),
    (b"hits:1|c|@1.5", "the rate '1.5' must be above 0 and at most 1"),
    (b"hits:1|c|@-1", "the rate '-1' must be above 0 and at most 1"),
    (b"hits:1|c|@nan", "the value 'nan' is not a number"),
    (b"hits:1|c|T1e300", "the time '1e300' is not between the years 1 and 9999"),
    (b"hits:1|c|?", "the part '?' is unknown"),
    (b"_e{5,4}:title|text", "DogStatsD events and service checks are not metrics"),
    (b"_sc|name|0", "DogStatsD events and service checks are not metrics"),
    (b"h\xffts:1|c", "it is not valid UTF-8"),
]


@pytest.mark.parametrize(("line", "metrics"), GOOD)
def test_a_line_of_statsd_is_read_as_its_metrics(line: bytes, metrics: list[Metric]) -> None:
    assert list(statsd_metrics(line)) == metrics


@pytest.mark.parametrize(("line", "reason"), RUBBISH)
def test_a_line_that_is_no_metric_has_a_reason(line: bytes, reason: str) -> None:
    assert statsd_metrics(line) == reason


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"a.b 1.5 " + SECONDS, [Metric(name="a.b", kind="gauge", value=1.5, at=AT)]),
        (b"a.b\t-3  -1", [Metric(name="a.b", kind="gauge", value=-3)]),
        (b"a;host=x;dc=eu 1 -1", [Metric(name="a", kind="gauge", value=1, tags={"host": "x", "dc": "eu"})]),
        (b"a 1", "it is not of the form NAME VALUE SECONDS"),
        (b"a 1 2 3", "it is not of the form NAME VALUE SECONDS"),
        (b"", "it is not of the form NAME VALUE SECONDS"),
        (b";a=b 1 2", "it has no name"),
        (b"a nan 2", "the value 'nan' is not a number"),
        (b"a 1 N", "the value 'N' is not a number"),
        (b"a 1 1e20", "the time '1e20' is not between the years 1 and 9999"),
        (b"a\xff 1 1", "it is not valid UTF-8"),
    ],
)
def test_a_line_of_graphite_is_read_as_a_gauge(line: bytes, expected: list[Metric] | str) -> None:
    read = graphite_metrics(line)
    assert (read if isinstance(read, str) else list(read)) == expected


PIECES = b'hits : | 1 + -1e9 c g ms s @ 0.5 # T , { [ } " ; \xff \xc3\xa9 \x00'.split(b" ")
NEAR = st.lists(st.sampled_from([*PIECES, b" ", b"\n"]), max_size=12).map(b"".join)
DECODER = BodyDecoder(Metric, event_bytes_max=1 << 20, events_max=50_000)


@given(st.one_of(st.binary(max_size=80), NEAR))
def test_any_datagram_gives_events_that_a_stream_takes_or_rejects_each_by_itself(datagram: bytes) -> None:
    for read, make in ((statsd_metrics, statsd_events), (graphite_metrics, graphite_events)):
        events = list(make(datagram))
        assert events
        for event in events:
            assert isinstance(event, Unfit) or len(DECODER.decode(event).events) == 1
        for line in datagram.split(b"\n"):
            metrics = read(line.strip())
            assert (metrics != "") if isinstance(metrics, str) else all(_is_sound(metric) for metric in metrics)


def _is_sound(metric: Metric) -> bool:
    finite = metric.value is None or math.isfinite(metric.value)
    return bool(metric.name) and finite and (metric.value is None) == (metric.kind == "set") and 0 < metric.rate <= 1


text = st.text(st.characters(exclude_characters=":|,#\n", exclude_categories=("Cs", "Cc", "Z")), min_size=1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
LETTERS = {"counter": "c", "timer": "ms", "histogram": "h", "distribution": "d"}


@given(
    text.filter(lambda name: not name.startswith("_e{")),
    st.sampled_from(sorted(LETTERS)),
    st.lists(numbers, min_size=1, max_size=5),
    st.floats(min_value=0, max_value=1, exclude_min=True),
    st.dictionaries(text, text, max_size=4),
)
def test_what_a_client_writes_is_what_is_read(
    name: str, kind: Any, values: list[float], rate: float, tags: dict[str, str]
) -> None:
    tagged = ",".join(f"{key}:{value}" for key, value in tags.items())
    line = f"{name}:{':'.join(map(repr, values))}|{LETTERS[kind]}|@{rate!r}|#{tagged}"
    wanted = [Metric(name=name, kind=kind, value=value, rate=rate, tags=tags) for value in values]
    assert list(statsd_metrics(line.encode())) == wanted
    decoded = [
        event
        for raw in statsd_events(line.encode())
        if not isinstance(raw, Unfit)
        for event in DECODER.decode(raw).events
    ]
    assert [(metric.value, metric.rate, metric.tags) for metric in decoded] == [(value, rate, tags) for value in values]


@pytest.mark.parametrize(
    "raw", [b'{"name":"x","kind":"counter","value":1}', b'[{"name":"x","kind":"set"}]', b"[]", b"{}"]
)
def test_a_line_of_json_is_no_metric_even_if_it_describes_one(raw: bytes) -> None:
    assert list(statsd_events(raw)) == [Unfit(raw, "The line is not a metric: it is not of the form NAME:VALUE|KIND")]


def test_a_stream_of_metrics_can_be_declared_and_keeps_all_that_a_metric_has() -> None:
    app = App("test")
    metrics = app.stream("metrics", Metric, key="name")
    app.source("statsd", statsd(), into=metrics)
    app.source("graphite", graphite(), into=metrics)
    assert check(app) == []
    assert [(inlet.source.kind, inlet.source.address) for inlet in app.inlets] == [
        ("statsd", "udp://127.0.0.1:8125"),
        ("graphite", "udp://127.0.0.1:2003"),
    ]
    log = MemoryLog()

    async def fill() -> None:
        ingress = Ingress(app.streams, log, Settings(partitions=1), ManualClock(), print, lambda _: None)
        source_writer = ingress.writer_for_source("statsd", "metrics")
        for raw in statsd_events(b"fuel:+4|g|@0.5|#a:b|T" + SECONDS + b"\nusers:x|s\n\nrubbish\n"):
            await (source_writer.reject(*raw) if isinstance(raw, Unfit) else source_writer.put(raw))
        await source_writer.settle()
        await ingress.close()

    asyncio.run(fill())
    fields = Metric.__struct_fields__
    assert [{name: row[name] for name in fields} for row in log.events("metrics")] == [
        {
            "name": "fuel",
            "kind": "gauge",
            "value": 4.0,
            "text": None,
            "relative": True,
            "rate": 0.5,
            "tags": {"a": "b"},
            "at": AT,
        },
        {
            "name": "users",
            "kind": "set",
            "value": None,
            "text": "x",
            "relative": False,
            "rate": 1.0,
            "tags": {},
            "at": None,
        },
    ]
    (letter,) = log.events("metrics.rejected")
    assert letter["raw"] == b"rubbish"
    assert letter["reason"] == "The line is not a metric: it is not of the form NAME:VALUE|KIND"
