"""Declarations of joins: frozen values that validate themselves and compile into the parts of a handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from inspect import signature
from typing import Any, Literal, NamedTuple

from penstock.core.operators import SPAN_MAX, KeyFields, given_key, is_span, key_names
from penstock.core.schema import Event, fields
from penstock.joins.asof import AsOfJoin
from penstock.joins.bounds import Bounds, bounds_problems
from penstock.joins.current import current
from penstock.joins.interval import IntervalJoin
from penstock.joins.output import NO_TIME, Joining, Pair, Side
from penstock.joins.ranged import RANGE_COLUMNS, RangeJoin
from penstock.rollups import UNITS
from penstock.rollups import RollupDeclaration as DeclaredRollup
from penstock.rollups.problems import KEEP as ROLLUP_KEEP

How = Literal["inner", "left", "right", "full"]
Within = timedelta | tuple[timedelta, timedelta]
KEEP = timedelta(hours=1)
NO_KEYS = ("", "")
"""Placeholder for invalid keys."""
_SHORTEST = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(hours=23),
    "month": timedelta(days=28),
    "year": timedelta(days=365),
}
"""The minimum length of each unit."""
_PLAIN = (str, int, float, bool, bytes, datetime, date, Decimal)


class JoinInputs(NamedTuple):
    """The inputs of a join: the names of the streams or views that it reads, the key of each input, and the sides. The
    side of an unknown input is None (`check` reports the error)."""

    reads: tuple[str, ...]
    keys: tuple[KeyFields, ...]
    sides: tuple[Side | None, ...]


@dataclass(frozen=True)
class Interval:
    """A join of two streams within an interval: a left event is joined with the right events from `before` earlier than
    its time to `after` later."""

    within: Within | None
    how: How
    bounds: Bounds

    @property
    def view_row(self) -> type[Event] | None:
        """The class of a view's rows: None, because both inputs are streams."""
        return None

    @property
    def has_view(self) -> bool:
        return False

    def compiled(self, over: JoinInputs, function: Pair) -> tuple[Joining | None, tuple[str, ...]]:
        """Return the parts of the join's handler, or None and the errors. Each error says what to write instead."""
        own = [*self._problems(), *_time_problems(over), *bounds_problems(self.bounds)]
        faults = [*own, *common_problems(over, function, self.has_view)]
        left, right = over.sides
        if faults or left is None or right is None or self.within is None:
            return None, tuple(faults)
        return IntervalJoin(
            (left, right), _before_and_after(self.within), self.how, function, self.bounds
        ).joining(), ()

    def _problems(self) -> Iterator[str]:
        if self.within is None:
            yield (
                "it has no time limit, so it would keep every event forever: set within=timedelta(...), the maximum "
                "time between the two events, or within=(before, after)"
            )
        elif (
            not all(isinstance(span, timedelta) for span in _before_and_after(self.within))
            or len(_before_and_after(self.within)) != 2
        ):
            yield "within must be either a timedelta or a pair of timedeltas, (before, after)"
        elif any(abs(span) > SPAN_MAX for span in _before_and_after(self.within)):
            yield f"within is longer than a join can wait: use at most timedelta(days={SPAN_MAX.days})"
        elif sum(_before_and_after(self.within), NO_TIME) < NO_TIME:
            yield "its interval is empty: the sum of before and after must not be negative"
        if self.how not in ("inner", "left", "right", "full"):
            yield f"how is {self.how!r}; use 'inner', 'left', 'right' or 'full'"


@dataclass(frozen=True)
class Lookup:
    """A join of a stream with a table, which is the first input. The table is either a stream, read as of event time,
    or a view, read as of log time. `row` is the class of the view's rows, and `view_key` is the view's key."""

    how: Literal["left", "inner"]
    keep: timedelta | None
    bounds: Bounds
    row: type[Event] | None
    view_key: tuple[str, ...] | None

    @property
    def view_row(self) -> type[Event] | None:
        """The class of a view's rows, or None if the table is a stream."""
        return self.row if self.view_key is not None else None

    @property
    def has_view(self) -> bool:
        return self.view_key is not None

    def compiled(self, over: JoinInputs, function: Pair) -> tuple[Joining | None, tuple[str, ...]]:
        own = self._view_problems(over) if self.view_key is not None else self._table_problems(over)
        faults = [*self._problems(), *own, *bounds_problems(self.bounds)]
        faults += common_problems(over, function, self.has_view)
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
            yield f"keep must be a timedelta above zero and at most {SPAN_MAX.days} days"

    def _table_problems(self, over: JoinInputs) -> Iterator[str]:
        if self.row is not None:
            yield "row applies only if the table is a view; the rows of a stream have the stream's class: remove row"
        for side in over.sides:
            if side is not None and side.event.__time_field__ is None:
                name = side.event.__name__
                yield f"{name} has no event time, which the join needs: write class {name}(Event, time=...)"

    def _view_problems(self, over: JoinInputs) -> Iterator[str]:
        view, key = over.reads[0], key_names(over.keys[0])
        if self.keep is not None:
            yield "keep applies only if the table is a stream; for a view, the current row is used: remove keep"
        if sorted(self.view_key or ()) != sorted(key) and over.keys != NO_KEYS:
            listed = ", ".join(self.view_key or ())
            yield f"the view {view} has the key {listed}; the lookup must use the whole key"
        yield from _row_problems(over, self.row, key)


@dataclass(frozen=True)
class Ranged:
    """A join of a stream with a rollup, which is the first input. An event is joined with the rows for the unit `per`
    that begin at most `within` before it. `view_key` is the key of the rollup's rows, and `faults` contains the errors
    in the requested unit and range."""

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

    @property
    def has_view(self) -> bool:
        return bool(self.view_key)

    def compiled(self, over: JoinInputs, function: Pair) -> tuple[Joining | None, tuple[str, ...]]:
        faults = [*self.faults, *self._problems(over), *bounds_problems(self.bounds)]
        faults += common_problems(over, function, self.has_view)
        rollup, event = over.sides
        if faults or rollup is None or event is None:
            return None, tuple(faults)
        options: dict[str, Any] = {"per": self.per, "within": self.within, "inner": self.how == "inner"}
        range_join = RangeJoin(rollup, event, rows_max=self.bounds.versions, **options)
        return range_join.joining(function, self.view_key), ()

    def _problems(self, over: JoinInputs) -> Iterator[str]:
        if self.how not in ("inner", "left"):
            yield f"how is {self.how!r}; use 'left' or 'inner'"
        key = key_names(over.keys[0])
        own = [name for name in self.view_key if name not in RANGE_COLUMNS]
        if sorted(own) != sorted(key) and over.keys != NO_KEYS:
            listed = ", ".join(own)
            yield f"the rollup {over.reads[0]} has the key {listed}; the lookup must use the whole key"
        yield from _row_problems(over, self.row, ("per", "start", *key))
        if isinstance(self.row, type) and issubclass(self.row, Event):
            known = {field.name: field.base for field in fields(self.row)}
            for name, kind in (("per", str), ("start", datetime)):
                if known.get(name) is not kind:
                    yield (
                        f"{self.row.__name__} must have the field `{name}: {kind.__name__}`, "
                        "which is used to look up rows"
                    )


def range_faults(rollup: DeclaredRollup | None, table: str, per: Any, within: Any, bounds: Any) -> Iterator[str]:
    """Yield the errors in the unit and range that a join requests from a table. The table is a rollup unless `rollup`
    is None."""
    if rollup is None:
        yield f"per and within apply only to a rollup, and {table} is not a rollup: remove them"
        return
    if per not in rollup.by:
        units = " or ".join(map(repr, rollup.by))
        yield f"{table} is a rollup: set per, the unit of the rows, to {units}; per is {per!r}"
    if not is_span(within):
        yield f"{table} is a rollup: set within, how far back to look, to a timedelta above zero; within is {within!r}"
    elif per in rollup.by and per in UNITS:
        keep = rollup.keep.get(per, ROLLUP_KEEP[per]) if isinstance(rollup.keep, Mapping) else None
        if isinstance(keep, timedelta) and within > keep:
            yield (
                f"within is {within}, but {table} keeps {per}s only for {keep}: increase the rollup's keep, or "
                "reduce within"
            )
        rows = within // _SHORTEST[per] + 1
        if isinstance(bounds, Bounds) and isinstance(bounds.versions, int) and rows > bounds.versions:
            yield (
                f"there can be {rows:,} rows within {within}, but bounds allows {bounds.versions:,} for each key: set "
                f"bounds=joins.Bounds(versions={rows}), or use a coarser unit"
            )


def _row_problems(over: JoinInputs, row: Any, needed: Sequence[str]) -> Iterator[str]:
    """Yield the errors in the class for a joined view's rows."""
    if row is None:
        yield (
            f"set row=Class, an Event with {', '.join(needed)} and all other columns of the view "
            f"{over.reads[0]} that the function needs"
        )
        return
    if not (isinstance(row, type) and issubclass(row, Event)):
        yield f"row is {row!r}, which is not a class derived from Event"
        return
    if any(side is not None and side.event is row for side in over.sides[1:]):
        yield f"row must be a separate class, but {row.__name__} is the class of the stream's events"
    for field in fields(row):
        if field.base not in _PLAIN:
            names = ", ".join(kind.__name__ for kind in _PLAIN)
            yield f"{row.__name__}.{field.name} cannot be read from a view; use {names}"


def common_problems(over: JoinInputs, function: Pair, has_view: bool) -> Iterator[str]:
    """Yield the errors that any kind of join can have. With `has_view`, the first input is a view that is declared; it
    has no side if the class for its rows is missing or invalid, which is reported separately."""
    if over.keys == NO_KEYS:
        yield (
            'key must be the name of a field, or two names if the sides differ, as in key=("ad", "ad_id"); for a key '
            "with several fields, use a list of names instead of a name"
        )
    if len(set(over.reads)) < len(over.reads):
        yield f"both sides are {over.reads[0]}; a join needs two different streams"
    for number, (name, side) in enumerate(zip(over.reads, over.sides, strict=True)):
        if side is None and has_view and number == 0:
            continue
        if side is None:
            yield f"{name!r} must be declared before the join"
        elif side.late_after > SPAN_MAX:
            yield (
                f"the late_after of {name} is longer than a join can wait: use at most timedelta(days={SPAN_MAX.days})"
            )
    yield from _key_problems(over)
    if not _takes_joined_pair(function):
        yield "its function must take two arguments, the two joined events"


def _key_problems(over: JoinInputs) -> Iterator[str]:
    """Yield the errors found by comparing the keys of a join's two sides."""
    left, right = map(key_names, over.keys)
    if len(left) != len(right):
        yield f"its keys have {len(left)} and {len(right)} fields, so they would never be equal"
        return
    kinds = [
        [_join_key_type(side, name) for name in names] for side, names in zip(over.sides, (left, right), strict=True)
    ]
    for one, other, *kind in zip(left, right, *kinds, strict=True):
        if None not in kind and kind[0] is not kind[1]:
            yield f"{one!r} and {other!r} have different types, so they would never be equal"


def _time_problems(over: JoinInputs) -> Iterator[str]:
    """Yield the problems with the time settings of two joined streams. If neither has event time, log time is used.
    Because the events of two streams never arrive at exactly the same moment, event time requires `late_after`: without
    it, a partner that arrives a moment later would be missed."""
    known = [side for side in over.sides if side is not None]
    timed = [side.event.__time_field__ is not None for side in known]
    if any(timed) and not all(timed):
        name = known[timed.index(False)].event.__name__
        yield f"{name} has no event time, but the other side has one: write class {name}(Event, time=...)"
    elif all(timed):
        for side in known:
            if not side.late_after:
                yield (
                    f"{side.stream} has no late_after, so the join cannot wait for late events: on that stream, set "
                    "late_after=timedelta(...), above zero, because two events never arrive at the same moment"
                )


def _join_key_type(side: Side | None, key: str) -> Any:
    """Return the key field's type on a side of a join, or None if there is no such field (the error is reported for the
    input)."""
    with suppress(NameError, TypeError):
        return (
            next((field.base for field in fields(side.event) if field.name == key), None) if side is not None else None
        )
    return None


def _takes_joined_pair(function: Pair) -> bool:
    try:
        signature(function).bind(None, None)
    except TypeError:
        return False
    return True


def _before_and_after(within: Within) -> tuple[timedelta, timedelta]:
    return within if isinstance(within, tuple) else (within, within)


def two_keys(key: Any, sides: Sequence[Side | None]) -> tuple[KeyFields, KeyFields]:
    """Return the keys of both sides of a join, or NO_KEYS if the key is invalid (`check` reports the error). A tuple
    contains one key for each side. A list contains several fields, with one exception: if it has two names and each
    side has only one of them, the list stands for a single field with a different name on each side."""
    given = key if isinstance(key, tuple) or _is_key_of_two_sides(key, sides) else (key, key)
    keys = tuple(map(given_key, given))
    is_sound = len(keys) == 2 and all(isinstance(name, str) for side_key in keys for name in key_names(side_key))
    return (keys[0], keys[1]) if is_sound else NO_KEYS


def _is_key_of_two_sides(key: Any, sides: Sequence[Side | None]) -> bool:
    if not isinstance(key, list) or len(key) != 2:
        return False
    there = [[_join_key_type(side, name) is not None for name in key] for side in sides]
    return there == [[True, False], [False, True]]


def two_conditions(where: Any) -> tuple[Any, ...]:
    """Return the conditions for both sides of a join; a tuple contains one for each. `check` reports an invalid
    condition."""
    return where if isinstance(where, tuple) and len(where) == 2 else (where, where)


Spec = Interval | Lookup | Ranged
