"""Rules for how long each operator of a view keeps rows before the watermark closes them, read from Spark's plan of the
view.

`lateness.py` uses these rules to find late rows, and the gateway uses them to decide which idle streams need ticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from penstock.analyze.lateness import Closing
from penstock.analyze.trees import items_of, walk

WATERMARK = "spark.watermarkDelayMs"
"""The metadata key that Spark adds to a column with a watermark, and to a window over such a column."""
_BY_EVENT = {"Deduplicate", "DeduplicateWithinWatermark", "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState",
             "TransformWithState", "TransformWithStateInPandas", "TransformWithStateInPySpark"}  # fmt: skip
_TIME = r"precisetimestampconversion\(\w+#(\d+)[^,]*, \w+, LongType\)"
_WINDOW = re.compile(_TIME + r" - (-?\d+)\) % (\d+)\)")
_LONG = re.compile(r"\+ (\d+)\), LongType, \w+\)\)*$")
_SESSION = re.compile(r"cast\(\w+#(\d+)[^ ]* \+ (?:cast\()?(.+?)(?: as interval\))? as \w+\)")
_PART = re.compile(r"(-?[\d.]+) (day|hour|minute|second|millisecond|microsecond)s?")
_UNITS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
          "millisecond": 1_000, "microsecond": 1}  # fmt: skip


@dataclass(frozen=True)
class Closings:
    """The rules of one view: `late` decides which events are too late, and `kept` how long results wait for the
    watermark.

    They differ for a join: an event is late as soon as it is behind the watermark, but a joined row waits longer for
    its partner.
    """

    late: tuple[Closing, ...] = ()
    kept: tuple[Closing, ...] = ()


def closings(frame: DataFrame) -> Closings:
    """Return the closings of a streaming DataFrame. An unknown operator adds no closing, because it is assumed to
    process each event separately."""
    plan = frame._jdf.queryExecution().analyzed()
    nodes = list(walk(plan))
    definitions = dict(_column_definitions(nodes))
    late: list[Closing] = []
    kept: list[Closing] = []
    for node in nodes:
        if node.nodeName() == "Aggregate":
            windows = [
                _window_closing(column, definitions)
                for column in items_of(node.groupingExpressions())
                if _is_watermarked(column)
            ]
            late += windows
            kept += windows
        elif node.nodeName() in _BY_EVENT and _has_watermarked_column(node):
            late.append(Closing(0))
            kept.append(Closing(0))
        elif node.nodeName() == "Join" and _is_timed_stream_join(node):
            late.append(Closing(0))
            kept.append(Closing(_join_wait_micros(node)))
    return Closings(_distinct_closings(late), _distinct_closings(kept))


def _distinct_closings(closings: list[Closing]) -> tuple[Closing, ...]:
    return tuple(dict.fromkeys(closings))


def _column_definitions(nodes: list[Any]) -> Iterator[tuple[int, str]]:
    """Yield each plan column's number and the text of the expression that computes it. A sliding window is computed by
    an operator with several variants, which differ only in how far back they begin; this function uses the first
    variant."""
    for node in nodes:
        if node.nodeName() == "Project":
            for expression in items_of(node.projectList()):
                if expression.getClass().getSimpleName() == "Alias":
                    yield expression.exprId().id(), expression.child().toString()
        elif node.nodeName() == "Expand":
            yield from zip(
                (column.exprId().id() for column in items_of(node.output())),
                (expression.toString() for expression in items_of(node.projections().apply(0))),
                strict=True,
            )


def _window_closing(column: Any, definitions: dict[int, str]) -> Closing:
    """Return the closing for a column in GROUP BY: its windows, or single events if the column is a time rather than a
    window."""
    text = definitions.get(column.exprId().id(), "") if hasattr(column, "exprId") else ""
    match, long = _WINDOW.search(text), _LONG.search(text)
    if match and long:
        return Closing(int(long[1]), int(match[3]), int(match[2]))
    session = _SESSION.search(text)
    return Closing(_duration_micros(session[2])) if session else Closing(0)


def _is_watermarked(expression: Any) -> bool:
    return bool(expression.metadata().contains(WATERMARK)) if _is_attribute_reference(expression) else False


def _is_attribute_reference(expression: Any) -> bool:
    return str(expression.getClass().getSimpleName()) == "AttributeReference"


def _has_watermarked_column(node: Any) -> bool:
    return any(
        _is_watermarked(column) for child in (node, *items_of(node.children())) for column in items_of(child.output())
    )


def _is_timed_stream_join(join: Any) -> bool:
    sides = (join.left(), join.right())
    return all(side.isStreaming() for side in sides) and any(map(_has_watermarked_column, sides))


def _join_wait_micros(join: Any) -> int:
    """Return the longest time that a row on one side of a view's join can wait for the other side: the sum of all
    durations in the join's condition."""
    condition = join.condition()
    text = str(condition.get().toString()) if condition.isDefined() else ""
    return _duration_micros(text)


def _duration_micros(text: str) -> int:
    """Return the sum of all durations in a Spark expression, such as `1 minutes 30 seconds` or `INTERVAL '01:30' MINUTE
    TO SECOND`, in microseconds."""
    total = sum(int(float(number) * _UNITS[unit]) for number, unit in _PART.findall(text))
    return total + sum(_interval_micros(*parts) for parts in _LITERAL.findall(text))


_LITERAL = re.compile(r"INTERVAL '-?(?:(\d+) )?([\d:.]+)' (\w+)(?: TO (\w+))?")


def _interval_micros(days: str, clock: str, first: str, last: str) -> int:
    """Return the microseconds in an SQL interval of a view's plan. Its numbers are in the units from `first` to `last`,
    largest first."""
    names = ["day", "hour", "minute", "second"]
    numbers = [*([days] if days else []), *clock.split(":")]
    begin = names.index(first.lower()) if first.lower() in names else 0
    return sum(int(float(number) * _UNITS[name]) for number, name in zip(numbers, names[begin:], strict=False))
