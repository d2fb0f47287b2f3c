"""What is wrong with a declaration of windows, each in a sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.making import is_name
from penstock.schema import Event, UnmappedType, arrow_type, fields
from penstock.windows.aggregates import COLLECTED_MAX, Aggregate, Collect, Count, Max, Mean, Min, Sum, Summary, Variance
from penstock.windows.shapes import Counted, Hybrid, Session, Timed, Trigger

if TYPE_CHECKING:
    from penstock.windows.handling import Windowing

PANES_MAX = 10_000
"""Slides in a window: so many sums are kept for each key."""
EVENTS_MAX = 1_000_000
_ZERO = timedelta(0)
_TAKEN = ("window", "number", "start", "end", "closed")
_NUMBERS = (int, float, Decimal)


def problems(windowing: Windowing, classes: Sequence[type[Event]]) -> Iterator[str]:
    """All that is wrong. `classes` are those of the events that are read, as far as they are known."""
    yield from _shape(windowing.over)
    yield from _trigger(windowing.trigger)
    if windowing.keep is None:
        yield (
            "it needs keep=timedelta(...): how long a row stays after its window has ended; without it there would be "
            "more and more rows"
        )
    if windowing.late_after is not None and not _above_zero(windowing.late_after):
        yield "late_after must be a timedelta above zero"
    yield from _names(windowing)
    for cls in dict.fromkeys(classes):
        yield from _columns(windowing, cls)
    timeless = [cls.__name__ for cls in classes if getattr(cls, "__time_field__", None) is None]
    if timeless and (len(timeless) < len(classes) or windowing.late_after is not None):
        yield f"{timeless[0]} has no event time, by which windows go: class {timeless[0]}(Event, time=...)"


def _above_zero(span: Any) -> bool:
    return isinstance(span, timedelta) and span > _ZERO


def _shape(shape: Any) -> Iterator[str]:
    if isinstance(shape, Timed):
        yield from _timed(shape)
    elif isinstance(shape, Counted):
        yield from _counted(shape)
    elif isinstance(shape, Session):
        if not _above_zero(shape.gap):
            yield "the gap of a session must be a timedelta above zero: windows.session(timedelta(minutes=5))"
    elif isinstance(shape, Hybrid):
        if not _is_count(shape.count) or not _above_zero(shape.within):
            yield "windows.hybrid(count, within) takes a number of events and a timedelta, both above zero"
    else:
        yield f"over={shape!r} is no window; write over=windows.tumbling(timedelta(minutes=1)), or one of the others"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= EVENTS_MAX


def _timed(shape: Timed) -> Iterator[str]:
    size, every = shape.size, shape.every
    if not _above_zero(size) or not _above_zero(every):
        yield "the size of a window, and its slide, must be timedeltas above zero"
    elif size < every:
        yield (
            f"the window of {size} is smaller than its slide of {every}, so events between windows would be lost; "
            f"write windows.sliding({every!r}, every={size!r}), or windows.tumbling({size!r})"
        )
    elif size % every:
        down, up = size // every * every, (size // every + 1) * every
        yield f"the slide of {every} does not divide the window of {size}; take a window of {down} or {up}"
    elif size // every > PANES_MAX:
        yield (
            f"a window of {size} each {every} is {size // every:,} slides, and so many sums for each key; at most "
            f"{PANES_MAX:,} are kept: take every={size / PANES_MAX!r} or more"
        )


def _counted(shape: Counted) -> Iterator[str]:
    size, every = shape.size, shape.every
    if not _is_count(size) or not _is_count(every):
        yield (
            "the size of a window, and its slide, must be both timedeltas, or both whole numbers from 1 to "
            f"{EVENTS_MAX:,}: windows.sliding(100, every=10)"
        )
    elif size < every:
        yield (
            f"the window of {size} events is smaller than its slide of {every}, so events between windows would be "
            f"lost; write windows.sliding({every}, every={size}), or windows.tumbling({size})"
        )
    elif size % every:
        down, up = size // every * every, (size // every + 1) * every
        yield f"the slide of {every} events does not divide the window of {size}; take a window of {down} or {up}"
    elif size // every > PANES_MAX:
        yield f"a window of {size:,} events each {every} keeps {size // every:,} sums a key; at most {PANES_MAX:,}"


def _trigger(trigger: Any) -> Iterator[str]:
    if not isinstance(trigger, Trigger):
        yield f"trigger={trigger!r} is none; write windows.on_change, windows.on_close or windows.every(timedelta(...))"
    elif trigger.when == "every" and not _above_zero(trigger.interval):
        yield "windows.every takes a timedelta above zero"


def _names(windowing: Windowing) -> Iterator[str]:
    if not windowing.aggregate:
        yield 'it has no aggregates: write aggregate={"events": windows.count()}'
    for name, each in windowing.aggregate.items():
        if not is_name(name):
            yield f"the column {name!r} is no name: use letters, digits and _, and no word of Python"
        elif name in (*_TAKEN, windowing.key):
            yield f"the column {name!r} is taken: rows have {windowing.key} and {', '.join(_TAKEN)} already"
        if not isinstance(each, Aggregate):
            yield f"{name}={each!r} is no aggregate; write windows.mean(column), or one of the others"
        elif isinstance(each, Collect) and not 0 < each.most <= COLLECTED_MAX:
            yield f"{name} collects {each.most} values; from 1 to {COLLECTED_MAX:,} can be kept"


def _columns(windowing: Windowing, cls: type[Event]) -> Iterator[str]:
    """What is wrong with the aggregates of the columns of a class."""
    try:
        hints = {each.name: each.base for each in fields(cls)}
    except (NameError, TypeError, AttributeError):
        return  # told of the stream
    for name, each in windowing.aggregate.items():
        column = each.column if isinstance(each, Aggregate) else None
        if column is not None and column not in hints:
            yield f"{name} is of {column!r}, which is no field of {cls.__name__}; it has {', '.join(hints)}"
        elif column is not None:
            yield from fits(name, each, hints[column], f"{cls.__name__}.{column}")


def fits(name: str, aggregate: Aggregate, hint: Any, place: str) -> Iterator[str]:
    if isinstance(aggregate, Sum | Mean | Variance) and hint not in _NUMBERS:
        yield f"{name} needs numbers, and {place} has none; count({place.split('.')[1]!r}) takes anything"
    elif isinstance(aggregate, Mean | Variance) and hint is Decimal:
        yield f"{name} would lose digits of the decimals of {place}; give windows.sum and windows.count, and divide"
    elif isinstance(aggregate, Min | Max) and not _has_order(hint):
        yield f"{name} needs values with an order, and those of {place} have none"
    elif not isinstance(aggregate, Count | Summary):
        try:
            arrow_type(aggregate.type(hint))
        except UnmappedType as error:
            yield f"{name}: {error.message}"


def _has_order(hint: Any) -> bool:
    return hint in (int, float, str, bytes, bool, datetime, date, Decimal)
