"""Compiles window declarations into the parts of a handler with a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.core.deletes import gone_class, kept
from penstock.core.operators import KeyFields, is_key, key_columns, key_hint, key_names, made_class, time_of
from penstock.core.schema import Event, State
from penstock.core.shapes import DECLARED
from penstock.windows.aggregates import Aggregate
from penstock.windows.clock import Late, WindowClock
from penstock.windows.counted import CountedWindows, HybridWindows
from penstock.windows.edges import End, Start
from penstock.windows.plan import Work, column_hints, compiled, own_columns, row_class
from penstock.windows.problems import problems
from penstock.windows.sessions import SessionWindows
from penstock.windows.shapes import Counted, Hybrid, Session, Shape, Timed, Trigger
from penstock.windows.sums import fitted
from penstock.windows.timed import TimedWindows

Reads = Sequence[tuple[type[Event], timedelta | None]]
REMEMBERED_MAX = timedelta(days=365_000)
"""A row is removed, and a quiet key is deleted, after at most a thousand years, because the last valid year is 9999."""


@dataclass(frozen=True)
class Windowing:
    """A window declaration without its inputs."""

    name: str
    key: KeyFields
    over: Shape
    aggregate: Mapping[str, Aggregate]
    trigger: Trigger
    keep: timedelta | None
    latest: bool
    late_after: timedelta | None


class WindowParts(NamedTuple):
    """The parts of a window's handler. `faults` contains the reasons why the handler cannot run; if there are any, the
    other parts cannot be used."""

    state: type[State]
    emits: tuple[type[Event], ...]
    on_event: Any
    on_timer: Any
    key: tuple[str, ...]
    faults: tuple[str, ...] = ()


def handled(windowing: Windowing, reads: Reads, where: str | None = None) -> WindowParts:
    """Compile windows over streams with these classes, each with its `late_after`. The caller must filter the events by
    `where`; this function only makes `where` a part of the state's mark."""
    names, faults = key_names(windowing.key), tuple(problems(windowing, [cls for cls, _ in reads]))
    if faults or not reads or not all(_is_valid_window_input(cls, late, windowing.key) for cls, late in reads):
        unknown = ("it cannot be compiled: its inputs are invalid",)
        return WindowParts(
            WindowClock,
            (Late, Late, Late),
            _refuse_invalid_window,
            _refuse_invalid_window,
            tuple(map(str, names)),
            faults or unknown,
        )
    classes = list(dict.fromkeys(cls for cls, _ in reads))
    hints, numbered = column_hints(classes[0]), isinstance(windowing.over, Counted | Hybrid)
    run = {
        name: fitted(aggregate, hints.get(aggregate.column or "")) for name, aggregate in windowing.aggregate.items()
    }
    windowing = replace(windowing, aggregate=run)
    chosen = [*([Start(), End()] if numbered else []), *windowing.aggregate.values()]
    sums = compiled(chosen, hints)
    row = _row_class(windowing, hints)
    identity = names if windowing.latest else (*names, "number" if numbered else "window")
    late_after = windowing.late_after
    if late_after is None:
        late_after = max((late or timedelta(0) for _, late in reads), default=timedelta(0))
    part, part_class = _aggregated_values_reader(chosen, hints)
    work = Work(
        key=windowing.key,
        sums=sums,
        part=part,
        part_class=part_class,
        row=_row_maker(windowing, row),
        gone=_gone_maker(windowing, row, identity),
        trigger=windowing.trigger,
        latest=windowing.latest,
        late_after=late_after,
        keep=_row_lifetime(windowing),
        remembered=_quiet_key_lifetime(windowing, late_after),
        time_of=time_of(classes),
    )
    windows = _windows_of_shape(windowing.over, work)
    on_event, on_timer = windows.functions()
    state = _window_state_class(
        windows.base, windows.kept(), key_hint(windowing.key, hints), _window_digest(windowing, where)
    )
    return WindowParts(state, (Late, *kept(row, identity)), on_event, on_timer, identity)


def _is_valid_window_input(cls: type[Event], late_after: Any, key: KeyFields) -> bool:
    """Return whether the key's fields exist and the stream is valid; if not, `check` reports it."""
    try:
        return is_key(key, column_hints(cls)) and isinstance(late_after, timedelta | None)
    except (NameError, TypeError, AttributeError):
        return False


def _refuse_invalid_window(*_: Any) -> None:
    raise AssertionError("a declaration with faults is not run")


def _windows_of_shape(shape: Shape, work: Work) -> TimedWindows | CountedWindows | SessionWindows | HybridWindows:
    if isinstance(shape, Timed):
        return TimedWindows(shape, work)
    if isinstance(shape, Counted):
        return CountedWindows(shape, work)
    return SessionWindows(shape, work) if isinstance(shape, Session) else HybridWindows(shape, work)


def _row_lifetime(windowing: Windowing) -> timedelta:
    """Return how long a row is kept after its window has ended. An invalid `keep` is reported by `check`."""
    keep = windowing.keep if isinstance(windowing.keep, timedelta) else timedelta(0)
    return min(keep, REMEMBERED_MAX)


def _quiet_key_lifetime(windowing: Windowing, late_after: timedelta) -> timedelta:
    """Return how long a quiet key is remembered: longer than its rows are kept."""
    return min(_window_length(windowing.over) + late_after + _row_lifetime(windowing), REMEMBERED_MAX)


def _window_length(shape: Shape) -> timedelta:
    """Return the approximate length of a window."""
    if isinstance(shape, Timed):
        return shape.size
    if isinstance(shape, Hybrid):
        return shape.within
    return shape.gap if isinstance(shape, Session) else timedelta(0)


def _row_class(windowing: Windowing, hints: Mapping[str, Any]) -> type[Event]:
    key = {name: hints[name] for name in key_names(windowing.key)}
    columns = {**key, **own_columns(windowing.over, windowing.trigger)}
    for name, aggregate in windowing.aggregate.items():
        columns[name] = aggregate.type(hints.get(aggregate.column or "", int))
    return row_class("Row", columns)


def _row_maker(windowing: Windowing, row: type[Event]) -> Any:
    """Return a function that creates a window's row from a key, a window, whether the window is closed, and its
    results. The code of the function is generated, because it is called for each row."""
    numbered = isinstance(windowing.over, Counted | Hybrid)
    key = windowing.key
    named = [f"{name}=key[{number}]" for number, name in enumerate(key)] if isinstance(key, tuple) else [f"{key}=key"]
    given = [*named, "number=window, start=r[0], end=r[1]" if numbered else "window=window"]
    given += ["closed=closed"] if windowing.trigger.when != "close" else []
    given += [f"{name}=r[{number + 2 * numbered}]" for number, name in enumerate(windowing.aggregate)]
    return eval(f"lambda key, window, closed, r: Row({', '.join(given)})", {"Row": row})


def _gone_maker(windowing: Windowing, row: type[Event], identity: tuple[str, ...]) -> Any:
    """Return a function that takes a key and a window, and creates the event that deletes the row for them."""
    gone: Any = gone_class(row, frozenset(identity))
    if windowing.latest:
        return lambda key, _: gone(**key_columns(windowing.key, key))
    if isinstance(windowing.key, tuple):
        return lambda key, window: gone(**key_columns(windowing.key, key), window=window)
    name = windowing.key
    return lambda key, window: gone(**{name: key}, window=window)


def _aggregated_values_reader(aggregates: Sequence[Aggregate], hints: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a function that extracts from an event the values that the window's aggregates need, and the class of the
    function's result. A state can contain instances of this class."""
    names = list(dict.fromkeys(aggregate.column for aggregate in aggregates if aggregate.column is not None))
    columns = [(name, hints[name] | None) for name in names]
    part: Any = msgspec.defstruct("Part", columns, array_like=True, frozen=True, gc=False)
    return eval(f"lambda event: Part({', '.join(f'event.{name}' for name in names)})", {"Part": part}), part


def _window_digest(windowing: Windowing, where: str | None) -> str:
    """Return a short digest of everything that the windows' state depends on. State with a different mark must not be
    used."""
    kinds = [(name, type(aggregate).__name__, aggregate.column) for name, aggregate in windowing.aggregate.items()]
    text = f"{windowing.over} {windowing.trigger.when} {windowing.latest} {kinds}"
    if isinstance(windowing.key, tuple):
        text += f" by {', '.join(windowing.key)}"
    if where is not None:
        text += f" where {where}"
    return blake2b(text.encode(), digest_size=6).hexdigest()


def _window_state_class(base: Any, kept: Mapping[str, tuple[Any, Any]], key: Any, mark: str) -> Any:
    hints = {DECLARED: Literal[mark], "key": key | None, **{name: kind for name, (kind, _) in kept.items()}}
    defaults = {DECLARED: mark, "key": None, **{name: default for name, (_, default) in kept.items()}}
    return made_class(base, "Windows", hints, defaults)
