"""Readings of meters, their windows by `app.window`, and the same windows computed over a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean, variance
from typing import Any

from penstock import App, Event, windows
from penstock.app.declared import ViewHandler
from penstock.testing import Result, run, tick
from penstock.windows.shapes import Counted, Hybrid, Session, Shape, Timed

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = [tick(timedelta(hours=1)), tick(timedelta(hours=50))]
"""Time enough for every window to close, but not for its row to be removed."""


class Reading(Event, time="at"):
    at: datetime
    meter: str
    watts: int | None = None
    number: int = 0


def reading(second: float, watts: int | None = 1, meter: str = "a", number: int = 0) -> Reading:
    return Reading(at=BEGIN + timedelta(seconds=second), meter=meter, watts=watts, number=number)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def window(over: Any, late: timedelta | None = None, **options: Any) -> tuple[App, ViewHandler]:
    """Return an app with windows over readings."""
    app = App("meters")
    stream = app.stream("readings", Reading, key="meter", late_after=late)
    aggregate = {"n": windows.count(), "total": windows.sum("watts")}
    given: dict[str, Any] = {"key": "meter", "aggregate": aggregate, "keep": timedelta(days=365), **options}
    return app, app.window("used", reads=stream, over=over, **given)


def window_rows(result: Result) -> list[tuple[Any, ...]]:
    """Rows as tuples: key, window in seconds or by number, whether it is closed, and the aggregates n and total."""
    return [(row.meter, place(row), getattr(row, "closed", True), row.n, row.total) for row in result.rows("used")]


def place(row: Any) -> Any:
    if hasattr(row, "number"):
        return row.number
    return seconds_to(row.window.start), seconds_to(row.window.end)


def seconds_to(time: datetime) -> int:
    """Return the seconds from the beginning."""
    return int((time - BEGIN).total_seconds())


def rows_of(over: Any, items: Sequence[Any], late: timedelta | None = None, **options: Any) -> list[tuple[Any, ...]]:
    app, view_handler = window(over, late, **options)
    result = run(app, {"readings": items})
    assert result.failed(view_handler) == []
    return window_rows(result)


AGGREGATES: dict[str, Any] = {
    "n": windows.count(),
    "some": windows.count("watts"),
    "total": windows.sum("watts"),
    "mean": windows.mean("watts"),
    "least": windows.min("watts"),
    "most": windows.max("watts"),
    "first": windows.first("watts"),
    "last": windows.last("watts"),
    "spread": windows.variance("watts"),
}
COLLECTED = AGGREGATES | {"all": windows.collect("watts", most=4)}
"""With a list, the accumulator has no fixed size, and is not packed."""


def naive(events: Sequence[Reading]) -> dict[str, Any]:
    """Return the aggregates of events, which are in order of time."""
    known = [event.watts for event in events if event.watts is not None]
    return {
        "n": len(events),
        "some": len(known),
        "total": sum(known) if known else None,
        "mean": fmean(known) if known else None,
        "least": min(known, default=None),
        "most": max(known, default=None),
        "first": known[0] if known else None,
        "last": known[-1] if known else None,
        "spread": variance(known) if len(known) > 1 else None,
        "all": known[-4:],
    }


def expected(shape: Shape, events: Iterable[Reading]) -> dict[Any, list[Reading]]:
    """Return the closed windows of one key, over all events at once: by number, with the events of each."""
    ordered = sorted(events, key=lambda event: event.at)  # stable: events of the same time keep their order of arrival
    cut: dict[type, Callable[[Any, list[Reading]], dict[Any, list[Reading]]]]
    cut = {Timed: _timed, Counted: _counted, Session: _sessions, Hybrid: _hybrid}
    return cut[type(shape)](shape, ordered)


def _timed(shape: Timed, events: list[Reading]) -> dict[Any, list[Reading]]:
    by_place: dict[Any, list[Reading]] = {}
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for event in events:
        start = epoch + (event.at - epoch) // shape.every * shape.every
        while start + shape.size > event.at:
            by_place.setdefault(_span(start, start + shape.size), []).append(event)
            start -= shape.every
    return by_place


def _span(start: datetime, end: datetime) -> tuple[int, int]:
    return seconds_to(start), seconds_to(end)


def _counted(shape: Counted, events: list[Reading]) -> dict[Any, list[Reading]]:
    starts = range(0, len(events) - shape.size + 1, shape.every)
    return {number + 1: events[start : start + shape.size] for number, start in enumerate(starts)}


def _sessions(shape: Session, events: list[Reading]) -> dict[Any, list[Reading]]:
    sessions: list[list[Reading]] = []
    for event in events:
        if sessions and event.at - sessions[-1][-1].at <= shape.gap:
            sessions[-1].append(event)
        else:
            sessions.append([event])
    return {_span(session[0].at, session[-1].at + shape.gap): session for session in sessions}


def _hybrid(shape: Hybrid, events: list[Reading]) -> dict[Any, list[Reading]]:
    groups: list[list[Reading]] = []
    for event in events:
        if groups and len(groups[-1]) < shape.count and event.at < groups[-1][0].at + shape.within:
            groups[-1].append(event)
        else:
            groups.append([event])
    return {number + 1: group for number, group in enumerate(groups)}
