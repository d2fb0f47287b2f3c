"""Aggregates compiled: functions on all that is kept of the events of a window, and the classes of its rows and state.

What is kept is a tuple with a value for each aggregate. The functions are made from text, one call after the other:
half the time of a loop, and it is done for every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from struct import Struct
from typing import Any

from penstock.making import KeyFields, made_class
from penstock.schema import Event, Record, fields
from penstock.windows.aggregates import Aggregate
from penstock.windows.shapes import Counted, Hybrid, Shape, Trigger

Kept = tuple[Any, ...]


class Window(Record):
    """A stretch of time, from `start` on and before `end`."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Sums:
    """What is done with what is kept. `kind` is its type. If `packing` is not None, it has a fixed size: `pack` makes
    numbers of that of a pane, whose own number is the first of them, and `unpack` gives it back."""

    kind: Any
    zero: Callable[[], Kept]
    add: Callable[[Kept, Any, datetime], Kept]
    merge: Callable[[Kept, Kept], Kept]
    results: Callable[[Kept], Kept]
    packing: str | None
    pack: Callable[[int, Kept], Iterable[Any]]
    unpack: Callable[[Sequence[Any]], Kept]


def compiled(aggregates: Sequence[Aggregate], hints: Mapping[str, Any]) -> Sums:
    """The functions for these aggregates, of events whose columns have these types."""
    given = [hints.get(each.column or "", int) for each in aggregates]
    kinds = [each.kept(hint) for each, hint in zip(aggregates, given, strict=True)]
    formats = [each.packing(hint) for each, hint in zip(aggregates, given, strict=True)]
    values = ["None" if each.column is None else f"event.{each.column}" for each in aggregates]
    names = {"a": aggregates, **{f"add{i}": each.add for i, each in enumerate(aggregates)}}
    names |= {f"merge{i}": each.merge for i, each in enumerate(aggregates)}
    names |= {f"result{i}": each.result for i, each in enumerate(aggregates)}
    names |= {f"zero{i}": each.zero for i, each in enumerate(aggregates)}
    numbers = range(len(aggregates))

    def made(arguments: str, part: Callable[[int], str], before: str = "") -> Any:
        return eval(f"lambda {arguments}: ({before}{''.join(part(each) + ', ' for each in numbers)})", names)

    fixed = None if None in formats else "".join(str(each) for each in formats)
    return Sums(
        kind=tuple.__class_getitem__(tuple(kinds)),
        zero=made("", lambda i: f"zero{i}()"),
        add=made("kept, event, at", lambda i: f"add{i}(kept[{i}], {values[i]}, at)"),
        merge=made("older, newer", lambda i: f"merge{i}(older[{i}], newer[{i}])"),
        results=made("kept", lambda i: f"result{i}(kept[{i}])"),
        packing=fixed,
        pack=made("number, kept", lambda i: _packed(str(formats[i]), f"kept[{i}]"), "number, "),
        unpack=_unpacking([str(each) for each in formats]),
    )


def _packed(packing: str, value: str) -> str:
    """The text that makes numbers of a value."""
    optional, rest = packing.startswith("?"), packing.removeprefix("?")
    spread = value if len(rest) == 1 else f"*{value}"
    if not optional:
        return spread
    zeros = ", ".join("0" for _ in rest)
    return f"*((False, {zeros}) if {value} is None else (True, {spread}))"


def _unpacking(formats: Sequence[str]) -> Callable[[Sequence[Any]], Kept]:
    """A function that gives what is kept of a pane, of its numbers: the first of them is its own."""
    parts, at = [], 1
    for packing in formats:
        rest = packing.removeprefix("?")
        first = at + len(packing) - len(rest)
        value = f"n[{first}]" if len(rest) == 1 else f"({', '.join(f'n[{first + i}]' for i in range(len(rest)))},)"
        parts.append(f"({value} if n[{at}] else None)" if rest != packing else value)
        at += len(packing)
    made: Callable[[Sequence[Any]], Kept] = eval(f"lambda n: ({''.join(part + ', ' for part in parts)})")
    return made


def column_hints(cls: type[Event]) -> dict[str, Any]:
    """The types of an event's fields, without None."""
    return {each.name: each.base for each in fields(cls)}


def own_columns(shape: Shape, trigger: Trigger) -> dict[str, Any]:
    """The columns of a row besides its key and the aggregates, with their types."""
    numbered = isinstance(shape, Counted | Hybrid)
    place = {"number": int, "start": datetime, "end": datetime} if numbered else {"window": Window}
    return place if trigger.when == "close" else {**place, "closed": bool}


def row_class(name: str, columns: Mapping[str, Any]) -> type[Event]:
    """The class of a view's rows, with these columns."""
    made: type[Event] = made_class(Event, name, columns)
    return made


@dataclass(frozen=True)
class Work:
    """What a sort of windows is run with: the key, how values are summed, what part of an event that
    needs and its class, how a row is made (of key, window, whether it is closed, and results) and what says that it is
    gone, when rows are told, how late an event may be, how long a quiet key is remembered, and how an event's time is
    had."""

    key: KeyFields
    sums: Sums
    part: Callable[[Any], Any]
    part_class: Any
    row: Callable[..., Event]
    gone: Callable[[Any, Window], Event]
    trigger: Trigger
    latest: bool
    late_after: timedelta
    remembered: timedelta
    time_of: Callable[[Any], datetime] | None


def record_struct(sums: Sums) -> Struct | None:
    """How a pane is packed: its number, and what is kept of it."""
    return None if sums.packing is None else Struct(f"<q{sums.packing}")
