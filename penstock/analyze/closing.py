"""What the operators of a view keep until the watermark has passed it: read from Spark's plan of the view.

Late rows are found (`lateness.py`), and idle streams given ticks, by what is said here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from penstock.analyze.lateness import Closing

WATERMARK = "spark.watermarkDelayMs"
"""The mark that Spark puts on a column that has a watermark, and on a window of it."""
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
    """`late` says which events come too late, `kept` how long results wait for the watermark. They differ for a join:
    an event is late there if it is behind the watermark itself, and waits for its partner some time longer."""

    late: tuple[Closing, ...] = ()
    kept: tuple[Closing, ...] = ()


def closings(frame: DataFrame) -> Closings:
    """Of a streaming DataFrame. What is not understood is taken as an operator that looks at each event alone."""
    plan = frame._jdf.queryExecution().analyzed()
    nodes = list(_walk(plan))
    made = dict(_definitions(nodes))
    late: list[Closing] = []
    kept: list[Closing] = []
    for node in nodes:
        if node.nodeName() == "Aggregate":
            found = [_window(each, made) for each in _each(node.groupingExpressions()) if _is_timed(each)]
            late += found
            kept += found
        elif node.nodeName() in _BY_EVENT and _has_time(node):
            late.append(Closing(0))
            kept.append(Closing(0))
        elif node.nodeName() == "Join" and _is_of_streams(node):
            late.append(Closing(0))
            kept.append(Closing(_bound(node)))
    return Closings(_distinct(late), _distinct(kept))


def _distinct(found: list[Closing]) -> tuple[Closing, ...]:
    return tuple(dict.fromkeys(found))


def _definitions(nodes: list[Any]) -> Iterator[tuple[int, str]]:
    """The text of what each column is made from, by the column's number. A sliding window is made by several ways of
    one operator, which differ only in how far back they begin: the first will do."""
    for node in nodes:
        if node.nodeName() == "Project":
            for each in _each(node.projectList()):
                if each.getClass().getSimpleName() == "Alias":
                    yield each.exprId().id(), each.child().toString()
        elif node.nodeName() == "Expand":
            yield from zip(
                (each.exprId().id() for each in _each(node.output())),
                (each.toString() for each in _each(node.projections().apply(0))),
                strict=True,
            )


def _window(column: Any, made: dict[int, str]) -> Closing:
    """The windows of a column that rows are grouped by; the events alone if it is none, but a time."""
    text = made.get(column.exprId().id(), "") if hasattr(column, "exprId") else ""
    found, long = _WINDOW.search(text), _LONG.search(text)
    if found and long:
        return Closing(int(long[1]), int(found[3]), int(found[2]))
    session = _SESSION.search(text)
    return Closing(_micros(session[2])) if session else Closing(0)


def _is_timed(expression: Any) -> bool:
    return bool(expression.metadata().contains(WATERMARK)) if _is_attribute(expression) else False


def _is_attribute(expression: Any) -> bool:
    return str(expression.getClass().getSimpleName()) == "AttributeReference"


def _has_time(node: Any) -> bool:
    return any(_is_timed(each) for child in (node, *_each(node.children())) for each in _each(child.output()))


def _is_of_streams(join: Any) -> bool:
    sides = (join.left(), join.right())
    return all(side.isStreaming() for side in sides) and any(map(_has_time, sides))


def _bound(join: Any) -> int:
    """The most that one side of a join can wait for the other: all durations in its condition together."""
    condition = join.condition()
    text = str(condition.get().toString()) if condition.isDefined() else ""
    return _micros(text)


def _micros(text: str) -> int:
    """All durations in a text of Spark's, as in `1 minutes 30 seconds` or `INTERVAL '01:30' MINUTE TO SECOND`."""
    total = sum(int(float(number) * _UNITS[unit]) for number, unit in _PART.findall(text))
    return total + sum(_literal(*each) for each in _LITERAL.findall(text))


_LITERAL = re.compile(r"INTERVAL '-?(?:(\d+) )?([\d:.]+)' (\w+)(?: TO (\w+))?")


def _literal(days: str, clock: str, first: str, last: str) -> int:
    """A literal of SQL: its numbers are of the units from `first` to `last`, largest first."""
    names = ["day", "hour", "minute", "second"]
    numbers = [*([days] if days else []), *clock.split(":")]
    begin = names.index(first.lower()) if first.lower() in names else 0
    return sum(int(float(number) * _UNITS[name]) for number, name in zip(numbers, names[begin:], strict=False))


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _each(node.children()):
        yield from _walk(child)


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
