"""From the declaration of a rollup to the parts of the handler that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, NamedTuple

from penstock.making import KeyFields, is_key, key_hint, key_names, made_class
from penstock.rollups import problems
from penstock.rollups.columns import bounded
from penstock.rollups.handling import Rolling, Sheet
from penstock.rollups.memory import Memory, Pages
from penstock.schema import Event, State, fields
from penstock.windows.aggregates import Aggregate

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Declared:
    """A rollup as it was written down."""

    name: str
    key: KeyFields
    by: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    keep: Mapping[str, timedelta]
    zone: str
    where: str | None = None

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a row. In this order, rows of one unit stand together, in the order of time."""
        return ("per", "start", *(name for name in key_names(self.key) if isinstance(name, str)))


class Rolled(NamedTuple):
    """The parts of a handler. With `faults`, which tell why there can be none, they are of no use."""

    state: type[State]
    row: type[Event]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]
    settle: Callable[..., Any]
    faults: tuple[str, ...] = ()


def rolled(declared: Declared, classes: Sequence[type[Event]]) -> Rolled:
    """Make a handler of a rollup of events of these classes."""
    try:
        list(map(fields, classes))
    except (NameError, TypeError, AttributeError):
        classes = ()  # told of the stream
    faults = (
        *problems.of_levels(declared.by, declared.keep, declared.zone),
        *problems.of_key(declared.key, classes),
        *problems.of_columns(declared.aggregates, declared.key, classes),
        *problems.of_times(classes),
    )
    known = {each.name: each.base for each in fields(classes[0])} if classes else {}
    if faults or not is_key(declared.key, known):  # a key that is none is told of the handler
        unknown = dict.fromkeys(declared.row_key[2:], str)
        return Rolled(Memory, _row_class(declared, unknown, {}), _never, _never, _never, faults)
    sheet = _sheet(declared, classes[0], known)
    on_event, on_timer, settle = Rolling(sheet).functions()
    return Rolled(sheet.state, sheet.row, on_event, on_timer, settle)


def _sheet(declared: Declared, event: type[Event], known: Mapping[str, Any]) -> Sheet:
    hints = {name: _hint(each, event) for name, each in declared.aggregates.items()}
    kinds = {name: each.kept(hints[name]) for name, each in declared.aggregates.items()}
    columns = {name: each.type(hints[name]) for name, each in declared.aggregates.items()}
    pages = Pages([bounded(each) for each in kinds.values()])
    keeps = tuple(declared.keep.get(unit, problems.KEEP[unit]) // _MICROSECOND for unit in declared.by)
    key = key_hint(declared.key, known)
    row = _row_class(declared, {name: known[name] for name in key_names(declared.key)}, columns)
    state = pages.memory(key, len(declared.by), _mark(declared, key, kinds))
    return Sheet(declared.by, keeps, declared.zone, declared.aggregates, row, declared.key, pages, state)


def _hint(aggregate: Aggregate, event: type[Event]) -> Any:
    field = problems.field_of(event, aggregate.column)
    return None if field is None else field.base


def _mark(declared: Declared, key: Any, kinds: Mapping[str, Any]) -> str:
    """What tells state of this declaration from that of another one. How long it is kept makes no difference."""
    parts = [f"{type(each).__name__} of {each.column} as {kinds[name]}" for name, each in declared.aggregates.items()]
    text = f"{', '.join(declared.by)} by {key} of {', '.join(parts)} in {declared.zone}"
    if isinstance(declared.key, tuple):
        text += f" by {', '.join(declared.key)}"
    if declared.where is not None:
        text += f" where {declared.where}"
    return blake2b(text.encode(), digest_size=4).hexdigest()


def _row_class(declared: Declared, key: Mapping[str, Any], columns: Mapping[str, Any]) -> type[Event]:
    """The class of the rows. Unit and start come first: rows are found by them before they are parsed."""
    hints = {"per": str, "start": datetime, "end": datetime, **key, **columns}
    title = "".join(word.capitalize() for word in declared.name.replace("_", "-").split("-"))
    made: type[Event] = made_class(Event, title or "Row", hints)
    return made


def _never(*_: Any) -> Any:
    raise AssertionError("a declaration with faults is not run")
