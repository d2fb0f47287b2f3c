"""Compiles rollup declarations into the parts of a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, NamedTuple

from penstock.core.operators import KeyFields, is_key, key_hint, key_names, made_class
from penstock.core.schema import Event, State, fields
from penstock.rollups import problems
from penstock.rollups.columns import bounded
from penstock.rollups.handling import Rolling, Sheet
from penstock.rollups.memory import Pages, RollupMemory
from penstock.windows.aggregates import Aggregate
from penstock.windows.sums import fitted

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class RollupDeclaration:
    """A rollup as the user declared it."""

    name: str
    key: KeyFields
    by: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    keep: Mapping[str, timedelta]
    zone: str
    where: str | None = None

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a row. When sorted by them, the rows for one unit are adjacent and in order of
        time."""
        return ("per", "start", *(name for name in key_names(self.key) if isinstance(name, str)))


class Rolled(NamedTuple):
    """The parts of a rollup's handler. `faults` contains the reasons why the handler cannot run; if there are any, the
    other parts cannot be used."""

    state: type[State]
    row: type[Event]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]
    settle: Callable[..., Any]
    faults: tuple[str, ...] = ()


def rolled(declared: RollupDeclaration, classes: Sequence[type[Event]]) -> Rolled:
    """Compile a rollup over events of these classes."""
    try:
        list(map(fields, classes))
    except (NameError, TypeError, AttributeError):
        classes = ()  # the error is reported for the stream
    faults = (
        *problems.of_levels(declared.by, declared.keep, declared.zone),
        *problems.of_key(declared.key, classes),
        *problems.of_columns(declared.aggregates, declared.key, classes),
        *problems.of_times(classes),
    )
    known = {field.name: field.base for field in fields(classes[0])} if classes else {}
    if faults or not is_key(declared.key, known):  # the error in an invalid key is reported for the handler
        unknown = dict.fromkeys(declared.row_key[2:], str)
        return Rolled(
            RollupMemory,
            _row_class(declared, unknown, {}),
            _refuse_invalid_rollup,
            _refuse_invalid_rollup,
            _refuse_invalid_rollup,
            faults,
        )
    sheet = _rollup_sheet(declared, classes[0], known)
    on_event, on_timer, settle = Rolling(sheet).functions()
    return Rolled(sheet.state, sheet.row, on_event, on_timer, settle)


def _rollup_sheet(declared: RollupDeclaration, event: type[Event], known: Mapping[str, Any]) -> Sheet:
    hints = {name: _rollup_column_hint(aggregate, event) for name, aggregate in declared.aggregates.items()}
    run = {name: fitted(aggregate, hints[name]) for name, aggregate in declared.aggregates.items()}
    declared = replace(declared, aggregates=run)
    kinds = {name: aggregate.kept(hints[name]) for name, aggregate in declared.aggregates.items()}
    columns = {name: aggregate.type(hints[name]) for name, aggregate in declared.aggregates.items()}
    pages = Pages([bounded(kind) for kind in kinds.values()])
    keeps = tuple(declared.keep.get(unit, problems.KEEP[unit]) // _MICROSECOND for unit in declared.by)
    key = key_hint(declared.key, known)
    row = _row_class(declared, {name: known[name] for name in key_names(declared.key)}, columns)
    state = pages.memory(key, len(declared.by), _rollup_digest(declared, key, kinds))
    return Sheet(declared.by, keeps, declared.zone, declared.aggregates, row, declared.key, pages, state)


def _rollup_column_hint(aggregate: Aggregate, event: type[Event]) -> Any:
    field = problems.field_of(event, aggregate.column)
    return None if field is None else field.base


def _rollup_digest(declared: RollupDeclaration, key: Any, kinds: Mapping[str, Any]) -> str:
    """Return a digest that identifies this rollup's state. The digest does not depend on the retention."""
    parts = [
        f"{type(aggregate).__name__} of {aggregate.column} as {kinds[name]}"
        for name, aggregate in declared.aggregates.items()
    ]
    text = f"{', '.join(declared.by)} by {key} of {', '.join(parts)} in {declared.zone}"
    if isinstance(declared.key, tuple):
        text += f" by {', '.join(declared.key)}"
    if declared.where is not None:
        text += f" where {declared.where}"
    return blake2b(text.encode(), digest_size=4).hexdigest()


def _row_class(declared: RollupDeclaration, key: Mapping[str, Any], columns: Mapping[str, Any]) -> type[Event]:
    """Create the class of a rollup's rows. The unit and the start come first, because rows are found by these columns
    before they are parsed."""
    hints = {"per": str, "start": datetime, "end": datetime, **key, **columns}
    title = "".join(word.capitalize() for word in declared.name.replace("_", "-").split("-"))
    cls: type[Event] = made_class(Event, title or "Row", hints)
    return cls


def _refuse_invalid_rollup(*_: Any) -> Any:
    raise AssertionError("a declaration with faults is not run")
