"""What is wrong with the declaration of a rollup, each as a sentence that says what to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from penstock.making import KeyFields, is_name, key_names, unlike
from penstock.rollups.calendar import UNITS
from penstock.rollups.memory import PAGES_MAX
from penstock.schema import Event, Field, fields
from penstock.windows.aggregates import Aggregate, Summary
from penstock.windows.problems import fits, summarizes

OWN_COLUMNS = ("per", "start", "end")
_DAY = timedelta(days=1)
PAGE = {
    "second": timedelta(minutes=1),
    "minute": timedelta(hours=1),
    "hour": _DAY,
    "day": 31 * _DAY,
    "month": 366 * _DAY,
    "year": 3_653 * _DAY,
}
"""The longest that a page of each unit is."""
KEEP = {
    "second": timedelta(hours=1),
    "minute": _DAY,
    "hour": 31 * _DAY,
    "day": 731 * _DAY,
    "month": 3_653 * _DAY,
    "year": 36_525 * _DAY,
}
"""How long each unit is kept unless something else is said."""


def keep_max(unit: str) -> timedelta:
    """The longest that a unit may be kept."""
    return min(PAGE[unit] * (PAGES_MAX * 3 // 4), timedelta(days=3_650_000))


def of_levels(by: Sequence[Any], keep: Any, zone: str) -> Iterator[str]:
    """What is wrong with the units, how long each is kept, and the zone."""
    if not by:
        yield f"by is empty: name some of {', '.join(UNITS)}"
    for unit in by:
        if unit not in UNITS:
            yield f"by has {unit!r}; use some of {', '.join(UNITS)}"
    if any(by.count(unit) > 1 for unit in UNITS):
        yield "a unit stands twice in by"
    yield from _of_keep(by, keep)
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, TypeError, LookupError):
        yield f"the zone {zone!r} is not known here; use a name such as 'Europe/Berlin', or 'UTC'"


def _of_keep(by: Sequence[Any], keep: Any) -> Iterator[str]:
    if not isinstance(keep, Mapping):
        yield f'keep is {keep!r}; say of each unit how long it is kept, as in keep={{"minute": timedelta(days=1)}}'
        return
    for unit, span in keep.items():
        if unit not in by:
            yield f"keep says how long {unit!r} is kept, which is not in by"
        elif not isinstance(span, timedelta) or span <= timedelta(0):
            yield f"keep[{unit!r}] must be a timedelta above zero"
        elif unit in UNITS and span > keep_max(unit):
            yield f"keep[{unit!r}] is {span}: at most {keep_max(unit)} of them are kept; for longer use a coarser unit"


def of_columns(aggregates: Any, key: KeyFields, classes: Sequence[type[Event]]) -> Iterator[str]:
    """What is wrong with the aggregates, the names of their columns, and the fields that they read."""
    for field in key_names(key):
        if field in OWN_COLUMNS:
            yield f"the key is called {field!r}, as a column of every rollup is; give the field another name"
    if not isinstance(aggregates, Mapping):
        yield f'aggregate is {aggregates!r}; name a column for each, as in aggregate={{"orders": windows.count()}}'
        return
    if not aggregates:
        yield 'aggregate is empty: say what is kept, as in aggregate={"orders": windows.count()}'
    for name, aggregate in aggregates.items():
        if name in (*OWN_COLUMNS, *key_names(key)):
            yield f"an aggregate is called {name!r}, as another column is; give it another name"
        elif not is_name(name):
            yield f"an aggregate is called {name!r}; use a name as of a field of an event"
        elif not isinstance(aggregate, Aggregate):
            yield f"{name} is {aggregate!r}, which is no aggregate; write windows.sum('amount'), or one of the others"
        else:
            yield from _of_field(name, aggregate, classes)


def of_key(key: KeyFields, classes: Sequence[type[Event]]) -> Iterator[str]:
    """What is wrong with the types of the key: a row has one column for each of its fields, whatever stream an event
    came by."""
    for field in key_names(key):
        if (told := unlike(field, classes)) is not None:
            yield f"the key {field!r} is {told}; give it one type, or have a rollup for each"


def of_times(classes: Sequence[type[Event]]) -> Iterator[str]:
    timeless = [each.__name__ for each in classes if each.__time_field__ is None]
    if timeless and len(timeless) < len(classes):
        yield f"{timeless[0]} has no event time, and others that it reads have: class {timeless[0]}(Event, time=...)"


def _of_field(name: str, aggregate: Aggregate, classes: Sequence[type[Event]]) -> Iterator[str]:
    column = aggregate.column
    if column is None:
        return
    known = {cls: field_of(cls, column) for cls in classes}
    for cls, field in known.items():
        if field is None:
            listed = ", ".join(each.name for each in fields(cls))
            yield f"{name} is of {column!r}, which is no field of {cls.__name__}; it has {listed}"
        else:
            yield from fits(name, aggregate, field.base, f"{cls.__name__}.{column}")
    if (told := unlike(column, classes)) is not None:
        yield f"{name} is of {column!r}, which is {told}; give it one type"
    if isinstance(aggregate, Summary):
        yield from summarizes(name, aggregate)


def field_of(cls: type[Event], name: str | None) -> Field | None:
    return next((each for each in fields(cls) if each.name == name), None)
