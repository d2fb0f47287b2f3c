"""What is wrong with a declaration of windows, each in a sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.making import error_text, is_name, key_names, unlike
from penstock.packed import pack, unpack
from penstock.schema import Event, UnmappedType, arrow_type
from penstock.windows.aggregates import (
    COLLECTED_MAX,
    Aggregate,
    Collect,
    Count,
    Max,
    Mean,
    Min,
    OfColumn,
    Sum,
    Summary,
    Variance,
)
from penstock.windows.plan import column_hints, own_columns
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
    late = windowing.late_after
    if late is not None and not (isinstance(late, timedelta) and late >= _ZERO):
        yield "late_after must be a timedelta, of zero or more"
    yield from _key(windowing)
    yield from _aggregates(windowing, classes)
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


def _slides(size: Any, every: Any) -> bool:
    """Whether windows of that size can have that slide."""
    return not size % every and size // every <= PANES_MAX


def _timed(shape: Timed) -> Iterator[str]:
    size, every = shape.size, shape.every
    if not _above_zero(size) or not _above_zero(every):
        yield "the size of a window, and its slide, must be timedeltas above zero"
    elif size < every:
        swapped = f"windows.sliding({every!r}, every={size!r}), or " if _slides(every, size) else ""
        yield (
            f"the window of {size} is smaller than its slide of {every}, so events between windows would be lost; "
            f"write {swapped}windows.tumbling({size!r})"
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
        swapped = f"windows.sliding({every}, every={size}), or " if _slides(every, size) else ""
        yield (
            f"the window of {size} events is smaller than its slide of {every}, so events between windows would be "
            f"lost; write {swapped}windows.tumbling({size})"
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


def _key(windowing: Windowing) -> Iterator[str]:
    trigger = windowing.trigger
    taken = [*own_columns(windowing.over, trigger)] if isinstance(trigger, Trigger) else []
    for name in key_names(windowing.key):
        if name in taken:
            yield f"the key is called {name!r}, as a column of these rows is; give the field another name"


def _aggregates(windowing: Windowing, classes: Sequence[type[Event]]) -> Iterator[str]:
    if not windowing.aggregate:
        yield 'it has no aggregates: write aggregate={"events": windows.count()}'
    elif not isinstance(windowing.aggregate, Mapping):
        yield f'aggregate={windowing.aggregate!r} has no names: write aggregate={{"events": windows.count()}}'
    else:
        yield from _names(windowing)
        known = {cls: hints for cls in classes if (hints := _hints(cls)) is not None}
        for cls, hints in known.items():
            yield from _columns(windowing, cls, hints)
        yield from _types(windowing, [*known])


def _names(windowing: Windowing) -> Iterator[str]:
    key = key_names(windowing.key)
    for name, each in windowing.aggregate.items():
        if not is_name(name):
            yield f"the column {name!r} is no name: use letters, digits and _, and no word of Python"
        elif name in (*_TAKEN, *key):
            listed = ", ".join(map(str, key))
            yield f"the column {name!r} is taken: rows have {listed} and {', '.join(_TAKEN)} already"
        if not isinstance(each, Aggregate):
            yield f"{name}={each!r} is no aggregate; write windows.mean(column), or one of the others"
        elif isinstance(each, Collect) and not (isinstance(each.most, int) and 0 < each.most <= COLLECTED_MAX):
            yield f"{name} collects {each.most!r} values; from 1 to {COLLECTED_MAX:,} can be kept"
        elif isinstance(each, Summary):
            yield from summarizes(name, each)


def summarizes(name: str, summary: Summary) -> Iterator[str]:
    """What is wrong with the object that a summary keeps. Makes one, as every key does."""
    try:
        made = summary.made()
    except Exception as error:
        yield f"{name} cannot be begun: what makes its object raises {error_text(error)}"
        return
    kind = type(made).__name__
    missing = [each for each in ("add", "merge", "copy") if not callable(getattr(made, each, None))]
    if missing:
        yield f"{name} keeps a {kind}, which has no {missing[0]}; it must have add, merge and copy, as a sketch has"
        return
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(made, enc_hook=pack), type=type(made), dec_hook=unpack)
    except Exception:
        yield f"{name} keeps a {kind}, which cannot be written and read again; take a sketch, or make it a dataclass"


def _hints(cls: type[Event]) -> dict[str, Any] | None:
    """The types of the fields of a class; None if it is not sound, which is told of the stream."""
    try:
        return column_hints(cls)
    except (NameError, TypeError, AttributeError):
        return None


def _columns(windowing: Windowing, cls: type[Event], hints: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the aggregates of the columns of a class."""
    for name, each in windowing.aggregate.items():
        if not isinstance(each, Aggregate) or (each.column is None and not isinstance(each, OfColumn)):
            continue
        if each.column not in [*hints]:
            yield f"{name} is of {each.column!r}, which is no field of {cls.__name__}; it has {', '.join(hints)}"
        else:
            yield from fits(name, each, hints[each.column], f"{cls.__name__}.{each.column}")


def _types(windowing: Windowing, classes: Sequence[type[Event]]) -> Iterator[str]:
    """What has not one type in all classes. A count, or an object of one's own, may take values of several; but not
    while they wait for their turn."""
    waits = isinstance(windowing.over, Counted | Hybrid)
    for field in key_names(windowing.key):
        told = unlike(field, classes)
        if told is not None:
            yield f"the key {field!r} is {told}; give it one type"
    for name, each in windowing.aggregate.items():
        column = getattr(each, "column", None)
        if isinstance(column, str) and (waits or not isinstance(each, Count | Summary)):
            told = unlike(column, classes)
            if told is not None:
                yield f"{name} is of {column!r}, which is {told}; give it one type"


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
