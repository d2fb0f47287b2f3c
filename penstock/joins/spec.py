"""A join as it was declared: a frozen value that tells what is wrong with it, and makes the parts of a handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from inspect import signature
from typing import Any, Literal, NamedTuple

from penstock.joins.asof import AsOfJoin
from penstock.joins.bounds import Bounds, bounds_problems
from penstock.joins.current import current
from penstock.joins.interval import IntervalJoin
from penstock.joins.ranged import RANGE_COLUMNS, RangeJoin
from penstock.joins.telling import NO_TIME, Joining, Pair, Side
from penstock.making import SPAN_MAX, KeyFields, given_key, is_span, key_names
from penstock.rollups import UNITS
from penstock.rollups import Declared as DeclaredRollup
from penstock.rollups.problems import KEEP as ROLLUP_KEEP
from penstock.schema import Event, fields

How = Literal["inner", "left", "right", "full"]
Within = timedelta | tuple[timedelta, timedelta]
KEEP = timedelta(hours=1)
NO_KEYS = ("", "")
"""In place of keys that could not be read."""
_SHORTEST = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(hours=23),
    "month": timedelta(days=28),
    "year": timedelta(days=365),
}
"""The least that a unit takes."""
_PLAIN = (str, int, float, bool, bytes, datetime, date, Decimal)


class Declared(NamedTuple):
    """What a join is declared over: the names that it reads, the key of each, and the sides, None for what is not known
    (which `check` tells of)."""

    reads: tuple[str, ...]
    keys: tuple[KeyFields, ...]
    sides: tuple[Side | None, ...]


@dataclass(frozen=True)
class Interval:
    """Two streams within an interval: a right event from `before` the left one to `after` it."""

    within: Within | None
    how: How
    bounds: Bounds

    @property
    def view_row(self) -> type[Event] | None:
        """None: both are streams."""
        return None

    def compiled(self, over: Declared, function: Pair) -> tuple[Joining | None, tuple[str, ...]]:
        """The parts of a handler; or why there are none, each reason with what to write instead."""
        own = [*self._problems(), *_time_problems(over), *bounds_problems(self.bounds)]
        faults = [*own, *common_problems(over, function)]
        left, right = over.sides
        if faults or left is None or right is None or self.within is None:
            return None, tuple(faults)
        return IntervalJoin((left, right), _pair(self.within), self.how, function, self.bounds).joining(), ()

    def _problems(self) -> Iterator[str]:
        if self.within is None:
            yield (
                "it has no bound, so it would keep every event for ever: give within=timedelta(...), how far apart the "
                "two may be, or within=(before, after)"
            )
        elif not all(isinstance(each, timedelta) for each in _pair(self.within)) or len(_pair(self.within)) != 2:
            yield "within must be a timedelta, or two of them: (before, after)"
        elif any(abs(each) > SPAN_MAX for each in _pair(self.within)):
            yield f"within is longer than a join can wait: give at most timedelta(days={SPAN_MAX.days})"
        elif sum(_pair(self.within), NO_TIME) < NO_TIME:
            yield "no time is within its interval: before and after together must not be below zero"
        if self.how not in ("inner", "left", "right", "full"):
            yield f"how is {self.how!r}; use 'inner', 'left', 'right' or 'full'"


@dataclass(frozen=True)
class Lookup:
    """A stream with a table, which comes first in what is read: a stream, as of event time; or, if `row` names the
    class of its rows, a view, as of log time. `view_key` is the view's own key."""

    how: Literal["left", "inner"]
    keep: timedelta | None
    bounds: Bounds
    row: type[Event] | None
    view_key: tuple[str, ...] | None

    @property
    def view_row(self) -> type[Event] | None:
        """The class of a view's rows; None if the table is a stream."""
        return self.row if self.view_key is not None else None

    def compiled(self, over: Declared, function: Pair) -> tuple[Joining | None, tuple[str, ...]]:
        own = self._view_problems(over) if self.view_key is not None else self._table_problems(over)
        faults = [*self._problems(), *own, *bounds_problems(self.bounds), *common_problems(over, function)]
        table, event = over.sides
        if faults or table is None or event is None:
            return None, tuple(faults)
        inner = self.how == "inner"
        if self.view_key is not None:
            return current(table, event, inner=inner, function=function), ()
        keep = KEEP if self.keep is None else self.keep
        return AsOfJoin(event, table, inner=inner, keep=keep, function=function, bounds=self.bounds).joining(), ()

    def _problems(self) -> Iterator[str]:
        if self.how not in ("inner", "left"):
            yield f"how is {self.how!r}; use 'left' or 'inner'"
        if self.keep is not None and not is_span(self.keep):
            yield f"keep must be a timedelta above zero, of at most {SPAN_MAX.days} days"

    def _table_problems(self, over: Declared) -> Iterator[str]:
        if self.row is not None:
            yield "row is for a view; the rows of a stream are of the stream's own class: leave it out"
        for side in over.sides:
            if side is not None and side.event.__time_field__ is None:
                name = side.event.__name__
                yield f"{name} has no event time, by which it is joined: class {name}(Event, time=...)"

    def _view_problems(self, over: Declared) -> Iterator[str]:
        view, key = over.reads[0], key_names(over.keys[0])
        if self.keep is not None:
            yield "keep is for a table that is a stream; of a view the current row counts: leave it out"
        if sorted(self.view_key or ()) != sorted(key) and over.keys != NO_KEYS:
            listed = ", ".join(self.view_key or ())
            yield f"the view {view} has the key {listed}; it can only be looked up by that, all of it"
        yield from _row_problems(over, self.row, key)


@dataclass(frozen=True)
class Ranged:
    """A stream with a rollup, which comes first in what is read: the rows of the unit `per` that begin `within` that
    time before an event. `view_key` is the key of the rollup's rows, and `faults` what is wrong with what was asked of
    the rollup."""

    how: Literal["left", "inner"]
    bounds: Bounds
    row: type[Event] | None
    view_key: tuple[str, ...]
    per: str
    within: timedelta
    faults: tuple[str, ...]

    @property
    def view_row(self) -> type[Event] | None:
        return self.row if self.view_key else None

    def compiled(self, over: Declared, function: Pair) -> tuple[Joining | None, tuple[str, ...]]:
        faults = [*self.faults, *self._problems(over), *bounds_problems(self.bounds), *common_problems(over, function)]
        rollup, event = over.sides
        if faults or rollup is None or event is None:
            return None, tuple(faults)
        options: dict[str, Any] = {"per": self.per, "within": self.within, "inner": self.how == "inner"}
        made = RangeJoin(rollup, event, rows_max=self.bounds.versions, **options)
        return made.joining(function, self.view_key), ()

    def _problems(self, over: Declared) -> Iterator[str]:
        if self.how not in ("inner", "left"):
            yield f"how is {self.how!r}; use 'left' or 'inner'"
        key = key_names(over.keys[0])
        own = [name for name in self.view_key if name not in RANGE_COLUMNS]
        if sorted(own) != sorted(key) and over.keys != NO_KEYS:
            listed = ", ".join(own)
            yield f"the rollup {over.reads[0]} has the key {listed}; it can only be looked up by that, all of it"
        yield from _row_problems(over, self.row, ("per", "start", *key))
        if isinstance(self.row, type) and issubclass(self.row, Event):
            known = {each.name: each.base for each in fields(self.row)}
            for name, kind in (("per", str), ("start", datetime)):
                if known.get(name) is not kind:
                    yield f"{self.row.__name__} must have the field `{name}: {kind.__name__}`, by which rows are found"


def range_faults(rollup: DeclaredRollup | None, table: str, per: Any, within: Any, bounds: Any) -> Iterator[str]:
    """What is wrong with the unit and the range that were asked of a table, which is a rollup unless that is None."""
    if rollup is None:
        yield f"per and within are for a rollup, and {table} is none: leave them out"
        return
    if per not in rollup.by:
        units = " or ".join(map(repr, rollup.by))
        yield f"{table} is a rollup: say of which unit its rows are, per={units}; per is {per!r}"
    if not is_span(within):
        yield f"{table} is a rollup: say how far back its rows go, within=timedelta(...), above zero; it is {within!r}"
    elif per in rollup.by and per in UNITS:
        keep = rollup.keep.get(per, ROLLUP_KEEP[per]) if isinstance(rollup.keep, Mapping) else None
        if isinstance(keep, timedelta) and within > keep:
            yield f"within is {within}, and {table} keeps {per}s for {keep}: give those more keep, or within less"
        rows = within // _SHORTEST[per] + 1
        if isinstance(bounds, Bounds) and isinstance(bounds.versions, int) and rows > bounds.versions:
            yield (
                f"there may be {rows:,} rows within {within}, and bounds keeps {bounds.versions:,} of a key: give "
                f"bounds=joins.Bounds(versions={rows}), or a coarser unit"
            )


def _row_problems(over: Declared, row: Any, needed: Sequence[str]) -> Iterator[str]:
    """What is wrong with the class of a view's rows."""
    if row is None:
        yield (
            f"give row=Class, an Event with those columns of the view {over.reads[0]} that it needs, and "
            f"{', '.join(needed)}"
        )
        return
    if not (isinstance(row, type) and issubclass(row, Event)):
        yield f"row is {row!r}, which is not a class derived from Event"
        return
    if any(side is not None and side.event is row for side in over.sides[1:]):
        yield f"row must be a class of its own, and {row.__name__} is that of the stream's events"
    for each in fields(row):
        if each.base not in _PLAIN:
            names = ", ".join(kind.__name__ for kind in _PLAIN)
            yield f"{row.__name__}.{each.name} cannot be read from a view; use {names}"


def common_problems(over: Declared, function: Pair) -> Iterator[str]:
    """What may be wrong with any join."""
    if over.keys == NO_KEYS:
        yield (
            'key must be the name of a field, or two names if the sides differ: key=("ad", "ad_id"); a key of several '
            "fields is a list of names in place of a name"
        )
    if len(set(over.reads)) < len(over.reads):
        yield f"both sides are {over.reads[0]}; a join is of two streams"
    for name, side in zip(over.reads, over.sides, strict=True):
        if side is None:
            yield f"{name!r} must be declared before it"
        elif side.late_after > SPAN_MAX:
            yield f"late_after of {name} is longer than a join can wait: give at most timedelta(days={SPAN_MAX.days})"
    yield from _key_problems(over)
    if not _takes_two(function):
        yield "its function must take two arguments, the two that are joined"


def _key_problems(over: Declared) -> Iterator[str]:
    """What is wrong with the keys of the two sides, compared to each other."""
    left, right = map(key_names, over.keys)
    if len(left) != len(right):
        yield f"its keys have {len(left)} and {len(right)} fields: they would never be the same"
        return
    kinds = [[_kind(side, name) for name in names] for side, names in zip(over.sides, (left, right), strict=True)]
    for one, other, *kind in zip(left, right, *kinds, strict=True):
        if None not in kind and kind[0] is not kind[1]:
            yield f"{one!r} and {other!r} are of different types: they would never be the same"


def _time_problems(over: Declared) -> Iterator[str]:
    """What is wrong with the times of two streams. If none has event time, log time counts. The two are never quite
    abreast, so with event time and no lateness a partner that comes a moment later would be missed."""
    known = [side for side in over.sides if side is not None]
    timed = [side.event.__time_field__ is not None for side in known]
    if any(timed) and not all(timed):
        name = known[timed.index(False)].event.__name__
        yield f"{name} has no event time, and the other side has: class {name}(Event, time=...)"
    elif all(timed):
        for side in known:
            if not side.late_after:
                yield (
                    f"how long to wait for late events of {side.stream}? Give that stream late_after=timedelta(...), "
                    "above zero: the two streams are never quite abreast"
                )


def _kind(side: Side | None, key: str) -> Any:
    """The type of the key; None if there is none, which is told with what is read."""
    with suppress(NameError, TypeError):
        return next((each.base for each in fields(side.event) if each.name == key), None) if side is not None else None
    return None


def _takes_two(function: Pair) -> bool:
    try:
        signature(function).bind(None, None)
    except TypeError:
        return False
    return True


def _pair(within: Within) -> tuple[timedelta, timedelta]:
    return within if isinstance(within, tuple) else (within, within)


def two_keys(key: Any, sides: Sequence[Side | None]) -> tuple[KeyFields, KeyFields]:
    """The key on both sides; NO_KEYS if it is none, which `check` tells. A tuple has that of each side. A list is of
    several fields; but of two that are not both in the events of either side, it is one field with two names."""
    given = key if isinstance(key, tuple) or _are_two_names(key, sides) else (key, key)
    found = tuple(map(given_key, given))
    is_sound = len(found) == 2 and all(isinstance(name, str) for each in found for name in key_names(each))
    return (found[0], found[1]) if is_sound else NO_KEYS


def _are_two_names(key: Any, sides: Sequence[Side | None]) -> bool:
    if not isinstance(key, list) or len(key) != 2:
        return False
    there = [[_kind(side, name) is not None for name in key] for side in sides]
    return there == [[True, False], [False, True]]


def two_conditions(where: Any) -> tuple[Any, ...]:
    """The condition on both sides, of which a tuple has two. What is no text is told by `check`."""
    return where if isinstance(where, tuple) and len(where) == 2 else (where, where)


Spec = Interval | Lookup | Ranged
