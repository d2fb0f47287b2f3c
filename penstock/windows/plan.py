"""Compiled aggregates: functions on a window's accumulators, and classes for its rows and state.

The accumulators are a tuple with one value for each aggregate. The functions' code is generated as a sequence of calls.
They run for every event, and take half as long as a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from struct import Struct
from typing import Any

from penstock.core.operators import KeyFields, made_class
from penstock.core.schema import Event, Record, fields
from penstock.windows.aggregates import Aggregate
from penstock.windows.shapes import Counted, Hybrid, Shape, Trigger

Kept = tuple[Any, ...]


class Window(Record):
    """A span of time, from `start` (inclusive) to `end` (exclusive)."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Sums:
    """The functions on a window's accumulators. `kind` is the type of the tuple of accumulators. If `packing` is not
    None, the tuple has a fixed size. `pack` then turns a pane into a sequence of numbers, beginning with the pane's own
    number, and `unpack` restores the accumulators from the sequence."""

    kind: Any
    zero: Callable[[], Kept]
    add: Callable[[Kept, Any, datetime], Kept]
    merge: Callable[[Kept, Kept], Kept]
    results: Callable[[Kept], Kept]
    packing: str | None
    pack: Callable[[int, Kept], Iterable[Any]]
    unpack: Callable[[Sequence[Any]], Kept]


def compiled(aggregates: Sequence[Aggregate], hints: Mapping[str, Any]) -> Sums:
    """Compile window aggregates for events whose columns have these types."""
    given = [hints.get(aggregate.column or "", int) for aggregate in aggregates]
    kinds = [aggregate.kept(hint) for aggregate, hint in zip(aggregates, given, strict=True)]
    formats = [aggregate.packing(hint) for aggregate, hint in zip(aggregates, given, strict=True)]
    values = ["None" if aggregate.column is None else f"event.{aggregate.column}" for aggregate in aggregates]
    names = {"a": aggregates, **{f"add{i}": aggregate.add for i, aggregate in enumerate(aggregates)}}
    names |= {f"merge{i}": aggregate.merge for i, aggregate in enumerate(aggregates)}
    names |= {f"result{i}": aggregate.result for i, aggregate in enumerate(aggregates)}
    names |= {f"zero{i}": aggregate.zero for i, aggregate in enumerate(aggregates)}
    numbers = range(len(aggregates))

    def tuple_function(arguments: str, part: Callable[[int], str], before: str = "") -> Any:
        return eval(f"lambda {arguments}: ({before}{''.join(part(number) + ', ' for number in numbers)})", names)

    fixed = None if None in formats else "".join(str(packing) for packing in formats)
    return Sums(
        kind=tuple.__class_getitem__(tuple(kinds)),
        zero=tuple_function("", lambda i: f"zero{i}()"),
        add=tuple_function("kept, event, at", lambda i: f"add{i}(kept[{i}], {values[i]}, at)"),
        merge=tuple_function("older, newer", lambda i: f"merge{i}(older[{i}], newer[{i}])"),
        results=tuple_function("kept", lambda i: f"result{i}(kept[{i}])"),
        packing=fixed,
        pack=tuple_function("number, kept", lambda i: _packed(str(formats[i]), f"kept[{i}]"), "number, "),
        unpack=_accumulator_unpacker([str(packing) for packing in formats]),
    )


def _packed(packing: str, value: str) -> str:
    """Generate the code that turns an accumulator into numbers."""
    optional, rest = packing.startswith("?"), packing.removeprefix("?")
    spread = value if len(rest) == 1 else f"*{value}"
    if not optional:
        return spread
    zeros = ", ".join("0" for _ in rest)
    return f"*((False, {zeros}) if {value} is None else (True, {spread}))"


def _accumulator_unpacker(formats: Sequence[str]) -> Callable[[Sequence[Any]], Kept]:
    """Return a function that restores a pane's accumulators from its packed numbers, the first of which is the number
    of the pane itself."""
    parts, at = [], 1
    for packing in formats:
        rest = packing.removeprefix("?")
        first = at + len(packing) - len(rest)
        value = f"n[{first}]" if len(rest) == 1 else f"({', '.join(f'n[{first + i}]' for i in range(len(rest)))},)"
        parts.append(f"({value} if n[{at}] else None)" if rest != packing else value)
        at += len(packing)
    unpack: Callable[[Sequence[Any]], Kept] = eval(f"lambda n: ({''.join(part + ', ' for part in parts)})")
    return unpack


def column_hints(cls: type[Event]) -> dict[str, Any]:
    """Return the types of an event's fields, without None."""
    return {field.name: field.base for field in fields(cls)}


def own_columns(shape: Shape, trigger: Trigger) -> dict[str, Any]:
    """Return the columns that a window's row has in addition to its key and the aggregates, with their types."""
    numbered = isinstance(shape, Counted | Hybrid)
    place = {"number": int, "start": datetime, "end": datetime} if numbered else {"window": Window}
    return place if trigger.when == "close" else {**place, "closed": bool}


def row_class(name: str, columns: Mapping[str, Any]) -> type[Event]:
    """Create the class for a window view's rows, with these columns."""
    cls: type[Event] = made_class(Event, name, columns)
    return cls


@dataclass(frozen=True)
class Work:
    """The parameters for one kind of window.

    `part` extracts from an event the values that the aggregates need, as an instance of `part_class`. `row` creates a
    row from a key, a window, whether the window is closed, and its results; `gone` creates the event that deletes the
    row of a key and a window (None with `latest`, where the key alone identifies the row). `trigger` decides when rows
    are emitted, `late_after` limits how late events can be, `keep` is how long a row is kept after its window has
    ended, and `remembered` is how long a quiet key is remembered. `time_of` returns an event's time; it is None if
    events have no event time.
    """

    key: KeyFields
    sums: Sums
    part: Callable[[Any], Any]
    part_class: Any
    row: Callable[..., Event]
    gone: Callable[[Any, Window | None], Event]
    trigger: Trigger
    latest: bool
    late_after: timedelta
    keep: timedelta
    remembered: timedelta
    time_of: Callable[[Any], datetime] | None


def record_struct(sums: Sums) -> Struct | None:
    """Return the format of a packed pane, with its number and its accumulators, or None if panes have no fixed size."""
    return None if sums.packing is None else Struct(f"<q{sums.packing}")
