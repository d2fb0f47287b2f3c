"""Validation of rollups. Each error is a sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from penstock.core.operators import KeyFields, is_name, key_names, unlike
from penstock.core.schema import Event, Field, fields
from penstock.rollups.calendar import UNITS
from penstock.rollups.memory import PAGES_MAX
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
"""The maximum length of a page, by unit."""
KEEP = {
    "second": timedelta(hours=1),
    "minute": _DAY,
    "hour": 31 * _DAY,
    "day": 731 * _DAY,
    "month": 3_653 * _DAY,
    "year": 36_525 * _DAY,
}
"""The default retention, by unit."""


def keep_max(unit: str) -> timedelta:
    """Return the longest retention that is allowed for a unit."""
    return min(PAGE[unit] * (PAGES_MAX * 3 // 4), timedelta(days=3_650_000))


def of_levels(by: Sequence[Any], keep: Any, zone: str) -> Iterator[str]:
    """Yield the errors in a rollup's units, their retention and the time zone."""
    if not by:
        yield f"by is empty: use one or more of {', '.join(UNITS)}"
    for unit in by:
        if unit not in UNITS:
            yield f"by contains {unit!r}; use one or more of {', '.join(UNITS)}"
    if any(by.count(unit) > 1 for unit in UNITS):
        yield "by contains a unit twice"
    yield from _rollup_keep_problems(by, keep)
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, TypeError, LookupError):
        yield f"unknown time zone {zone!r}; use a name such as 'Europe/Berlin' or 'UTC'"


def _rollup_keep_problems(by: Sequence[Any], keep: Any) -> Iterator[str]:
    if not isinstance(keep, Mapping):
        yield f'keep is {keep!r}; use a timedelta for each unit, as in keep={{"minute": timedelta(days=1)}}'
        return
    for unit, span in keep.items():
        if unit not in by:
            yield f"keep contains {unit!r}, which is not in by"
        elif not isinstance(span, timedelta) or span <= timedelta(0):
            yield f"keep[{unit!r}] must be a timedelta above zero"
        elif unit in UNITS and span > keep_max(unit):
            yield f"keep[{unit!r}] is {span}, but the limit is {keep_max(unit)}; to keep more, use a coarser unit"


def of_columns(aggregates: Any, key: KeyFields, classes: Sequence[type[Event]]) -> Iterator[str]:
    """Yield the errors in a rollup's aggregates, in their column names, and in the fields that they read."""
    for field in key_names(key):
        if field in OWN_COLUMNS:
            yield (
                f"the key has the name {field!r}, but every rollup already has a column with that name; rename the "
                "field"
            )
    if not isinstance(aggregates, Mapping):
        yield (
            f"aggregate is {aggregates!r}; give each aggregate a column name, as in "
            f'aggregate={{"orders": windows.count()}}'
        )
        return
    if not aggregates:
        yield 'aggregate is empty: add a column name and its aggregate, as in aggregate={"orders": windows.count()}'
    for name, aggregate in aggregates.items():
        if name in (*OWN_COLUMNS, *key_names(key)):
            yield f"an aggregate has the name {name!r}, which is already used by another column; rename it"
        elif not is_name(name):
            yield f"an aggregate has the name {name!r}; use a valid name for an event field"
        elif not isinstance(aggregate, Aggregate):
            yield f"{name} is {aggregate!r}, which is not an aggregate; write windows.sum('amount'), for example"
        else:
            yield from _rollup_field_problems(name, aggregate, classes)


def of_key(key: KeyFields, classes: Sequence[type[Event]]) -> Iterator[str]:
    """Yield an error for each key field of a rollup whose type differs between classes. A row has one column for each
    key field, whichever stream an event comes from."""
    for field in key_names(key):
        if (kinds := unlike(field, classes)) is not None:
            yield f"the key {field!r} is {kinds}; give it one type, or declare a separate rollup for each class"


def of_times(classes: Sequence[type[Event]]) -> Iterator[str]:
    timeless = [cls.__name__ for cls in classes if cls.__time_field__ is None]
    if timeless and len(timeless) < len(classes):
        yield (
            f"{timeless[0]} has no event time, but the other inputs have one: write class {timeless[0]}(Event, "
            "time=...)"
        )


def _rollup_field_problems(name: str, aggregate: Aggregate, classes: Sequence[type[Event]]) -> Iterator[str]:
    column = aggregate.column
    if column is None:
        return
    known = {cls: field_of(cls, column) for cls in classes}
    for cls, field in known.items():
        if field is None:
            listed = ", ".join(known_field.name for known_field in fields(cls))
            yield f"{name} reads {column!r}, which is not a field of {cls.__name__}; its fields are {listed}"
        else:
            yield from fits(name, aggregate, field.base, f"{cls.__name__}.{column}")
    if (kinds := unlike(column, classes)) is not None:
        yield f"{name} reads {column!r}, which is {kinds}; give it one type"
    if isinstance(aggregate, Summary):
        yield from summarizes(name, aggregate)


def field_of(cls: type[Event], name: str | None) -> Field | None:
    return next((field for field in fields(cls) if field.name == name), None)
