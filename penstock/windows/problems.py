"""Validation of window declarations. Each error is a sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.operators import error_text, is_name, key_names, unlike
from penstock.core.schema import Event, UnmappedType, arrow_type
from penstock.core.state_value import pack, unpack
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
"""Maximum number of slides in a window. Each key stores an accumulator for every slide."""
EVENTS_MAX = 1_000_000
_ZERO = timedelta(0)
_TAKEN = ("window", "number", "start", "end", "closed")
_NUMBERS = (int, float, Decimal)


def problems(windowing: Windowing, classes: Sequence[type[Event]]) -> Iterator[str]:
    """Yield all errors in a window declaration. `classes` contains the known classes of the input events."""
    yield from _window_shape_problems(windowing.over)
    yield from _trigger_problems(windowing.trigger)
    if windowing.keep is None:
        yield (
            "it needs keep=timedelta(...), the time that a row is kept after its window has ended: without keep, the "
            "number of rows would grow without limit"
        )
    late = windowing.late_after
    if late is not None and not (isinstance(late, timedelta) and late >= _ZERO):
        yield "late_after must be a timedelta of zero or more"
    yield from _window_key_problems(windowing)
    yield from _window_aggregate_problems(windowing, classes)
    timeless = [cls.__name__ for cls in classes if getattr(cls, "__time_field__", None) is None]
    if timeless and (len(timeless) < len(classes) or windowing.late_after is not None):
        yield f"{timeless[0]} has no event time, which windows need: write class {timeless[0]}(Event, time=...)"


def _is_window_span(span: Any) -> bool:
    return isinstance(span, timedelta) and span > _ZERO


def _window_shape_problems(shape: Any) -> Iterator[str]:
    if isinstance(shape, Timed):
        yield from _timed_window_problems(shape)
    elif isinstance(shape, Counted):
        yield from _counted_window_problems(shape)
    elif isinstance(shape, Session):
        if not _is_window_span(shape.gap):
            yield "the gap of a session must be a timedelta above zero, as in windows.session(timedelta(minutes=5))"
    elif isinstance(shape, Hybrid):
        if not _is_window_count(shape.count) or not _is_window_span(shape.within):
            yield "windows.hybrid(count, within) takes a number of events and a timedelta, both above zero"
    else:
        yield f"over={shape!r} is not a window; write over=windows.tumbling(timedelta(minutes=1)) or another kind"


def _is_window_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= EVENTS_MAX


def _can_slide_by(size: Any, every: Any) -> bool:
    """Return whether windows of this size can have this slide."""
    return not size % every and size // every <= PANES_MAX


def _timed_window_problems(shape: Timed) -> Iterator[str]:
    size, every = shape.size, shape.every
    if not _is_window_span(size) or not _is_window_span(every):
        yield "the size and the slide of a window must be timedeltas above zero"
    elif size < every:
        swapped = f"windows.sliding({every!r}, every={size!r}), or " if _can_slide_by(every, size) else ""
        yield (
            f"the window of {size} is smaller than its slide of {every}, so events between windows would be lost; "
            f"write {swapped}windows.tumbling({size!r})"
        )
    elif size % every:
        down, up = size // every * every, (size // every + 1) * every
        yield f"the window of {size} is not a multiple of its slide of {every}; use a window of {down} or {up}"
    elif size // every > PANES_MAX:
        yield (
            f"a window of {size} every {every} has {size // every:,} slides, so each key would need that many sums; "
            f"the limit is {PANES_MAX:,}: use every={size / PANES_MAX!r} or more"
        )


def _counted_window_problems(shape: Counted) -> Iterator[str]:
    size, every = shape.size, shape.every
    if not _is_window_count(size) or not _is_window_count(every):
        yield (
            "the size and the slide of a window must both be timedeltas, or both integers from 1 to "
            f"{EVENTS_MAX:,}, as in windows.sliding(100, every=10)"
        )
    elif size < every:
        swapped = f"windows.sliding({every}, every={size}), or " if _can_slide_by(every, size) else ""
        yield (
            f"the window of {size} events is smaller than its slide of {every}, so events between windows would be "
            f"lost; write {swapped}windows.tumbling({size})"
        )
    elif size % every:
        down, up = size // every * every, (size // every + 1) * every
        yield f"the window of {size} events is not a multiple of its slide of {every}; use a window of {down} or {up}"
    elif size // every > PANES_MAX:
        yield (
            f"a window of {size:,} events every {every} needs {size // every:,} sums for each key; the limit is "
            f"{PANES_MAX:,}"
        )


def _trigger_problems(trigger: Any) -> Iterator[str]:
    if not isinstance(trigger, Trigger):
        yield f"trigger={trigger!r} is not a trigger; write windows.on_change, .on_close or .every(timedelta(...))"
    elif trigger.when == "every" and not _is_window_span(trigger.interval):
        yield "windows.every takes a timedelta above zero"


def _window_key_problems(windowing: Windowing) -> Iterator[str]:
    trigger = windowing.trigger
    taken = [*own_columns(windowing.over, trigger)] if isinstance(trigger, Trigger) else []
    for name in key_names(windowing.key):
        if name in taken:
            yield (
                f"the key has the name {name!r}, but these rows already have a column with that name; rename the field"
            )


def _window_aggregate_problems(windowing: Windowing, classes: Sequence[type[Event]]) -> Iterator[str]:
    if not windowing.aggregate:
        yield 'it has no aggregates: write aggregate={"events": windows.count()}'
    elif not isinstance(windowing.aggregate, Mapping):
        yield f'aggregate={windowing.aggregate!r} has no column names: write aggregate={{"events": windows.count()}}'
    else:
        yield from _aggregate_name_problems(windowing)
        known = {cls: hints for cls in classes if (hints := _window_input_hints(cls)) is not None}
        for cls, hints in known.items():
            yield from _aggregate_column_problems(windowing, cls, hints)
        yield from _window_field_type_problems(windowing, [*known])


def _aggregate_name_problems(windowing: Windowing) -> Iterator[str]:
    key = key_names(windowing.key)
    for name, aggregate in windowing.aggregate.items():
        if not is_name(name):
            yield f"the column name {name!r} is invalid: use letters, digits and _, but not a Python keyword"
        elif name in (*_TAKEN, *key):
            listed = ", ".join(map(str, key))
            yield f"the name {name!r} is taken: rows already have the columns {listed}, {', '.join(_TAKEN)}"
        if not isinstance(aggregate, Aggregate):
            yield f"{name}={aggregate!r} is not an aggregate; write windows.mean(column), or another aggregate"
        elif isinstance(aggregate, Collect) and not (
            isinstance(aggregate.most, int) and 0 < aggregate.most <= COLLECTED_MAX
        ):
            yield f"{name} collects {aggregate.most!r} values; use a number from 1 to {COLLECTED_MAX:,}"
        elif isinstance(aggregate, Summary):
            yield from summarizes(name, aggregate)


def summarizes(name: str, summary: Summary) -> Iterator[str]:
    """Yield the errors in a window summary's object. To check it, this function creates an object, as every key
    does."""
    try:
        instance = summary.made()
    except Exception as error:
        yield f"{name} cannot create its object: the function raises {error_text(error)}"
        return
    kind = type(instance).__name__
    missing = [method for method in ("add", "merge", "copy") if not callable(getattr(instance, method, None))]
    if missing:
        yield (
            f"{name} keeps a {kind}, which has no method {missing[0]}; it must have add, merge and copy, like a sketch"
        )
        return
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(instance, enc_hook=pack), type=type(instance), dec_hook=unpack)
    except Exception:
        yield f"{name} keeps a {kind}, which cannot be stored; use a sketch, or make it a dataclass"


def _window_input_hints(cls: type[Event]) -> dict[str, Any] | None:
    """Return the types of a class's fields, or None if the class is invalid (an error is reported for its stream)."""
    try:
        return column_hints(cls)
    except (NameError, TypeError, AttributeError):
        return None


def _aggregate_column_problems(windowing: Windowing, cls: type[Event], hints: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors in window aggregates of a class's columns."""
    for name, aggregate in windowing.aggregate.items():
        if not isinstance(aggregate, Aggregate) or (aggregate.column is None and not isinstance(aggregate, OfColumn)):
            continue
        if aggregate.column not in [*hints]:
            listed = ", ".join(hints)
            yield f"{name} reads {aggregate.column!r}, which is not a field of {cls.__name__}; its fields are {listed}"
        else:
            yield from fits(name, aggregate, hints[aggregate.column], f"{cls.__name__}.{aggregate.column}")


def _window_field_type_problems(windowing: Windowing, classes: Sequence[type[Event]]) -> Iterator[str]:
    """Yield an error for each field whose type differs between classes. A count or a user's object can accept values of
    several types, but not if events have to wait."""
    waits = isinstance(windowing.over, Counted | Hybrid)
    for field in key_names(windowing.key):
        kinds = unlike(field, classes)
        if kinds is not None:
            yield f"the key {field!r} is {kinds}; give it one type"
    for name, aggregate in windowing.aggregate.items():
        column = getattr(aggregate, "column", None)
        if isinstance(column, str) and (waits or not isinstance(aggregate, Count | Summary)):
            kinds = unlike(column, classes)
            if kinds is not None:
                yield f"{name} reads {column!r}, which is {kinds}; give it one type"


def fits(name: str, aggregate: Aggregate, hint: Any, column: str) -> Iterator[str]:
    if isinstance(aggregate, Sum | Mean | Variance) and hint not in _NUMBERS:
        yield f"{name} needs numbers, but {column} is not a number; count({column.split('.')[1]!r}) takes any type"
    elif isinstance(aggregate, Mean | Variance) and hint is Decimal:
        yield f"{name} would lose digits of the decimals in {column}; use windows.sum and windows.count, and divide"
    elif isinstance(aggregate, Min | Max) and not _has_min_and_max(hint):
        yield f"{name} needs values that can be ordered, but the values of {column} cannot be ordered"
    elif not isinstance(aggregate, Count | Summary):
        try:
            arrow_type(aggregate.type(hint))
        except UnmappedType as error:
            yield f"{name}: {error.message}"


def _has_min_and_max(hint: Any) -> bool:
    return hint in (int, float, str, bytes, bool, datetime, date, Decimal)
