"""An event class as the log knows it: its version, its fields, and what became of the fields of earlier versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.columns import some_columns
from penstock.errors import DeclarationError
from penstock.schema import Event, event_schema, fields, migrate_of, per_class, type_name

ClassLoader = Callable[[], type[Event]]


class EventShape(msgspec.Struct, frozen=True):
    """The version of an event class, its fields with their types as text, and the field of its event time."""

    version: int
    fields: dict[str, str]
    time: str | None = None


@dataclass(frozen=True)
class EventSpec:
    """What the log must know of an event class to store its events, and to read older ones as the class.

    `name` is that of the class, and `written` says whether a user wrote it: other classes are made of a declaration.
    `defaults` has one row, with a column for each field that has a default. `load` gives the class itself, in whatever
    process it is called; it is there if the class has a method `migrate`, and called only if an old event needs that.
    The rest is data, so the value can be pickled if `load` can.
    """

    name: str
    shape: EventShape
    schema: pa.Schema
    renamed: dict[str, str]
    dropped: tuple[str, ...]
    defaults: pa.RecordBatch
    written: bool = True
    load: ClassLoader | None = field(default=None, compare=False)

    def loaded_by(self, load: ClassLoader) -> EventSpec:
        """The same, for a process that has to find the class by itself."""
        return replace(self, load=load) if self.load is not None else self


@dataclass(frozen=True)
class _Here:
    """Gives a class that this process has."""

    cls: type[Event]

    def __call__(self) -> type[Event]:
        return self.cls


@per_class
def event_spec(cls: type[Event]) -> EventSpec:
    """Raises `DeclarationError` if a default is not of its field's type."""
    shape = EventShape(
        cls.__event_version__, {each.name: type_name(each.hint) for each in fields(cls)}, cls.__time_field__
    )
    return EventSpec(
        cls.__name__,
        shape,
        event_schema(cls),
        dict(cls.__renamed__),
        cls.__dropped__,
        _defaults(cls),
        not cls.__module__.startswith("penstock."),
        _Here(cls) if migrate_of(cls) is not None else None,
    )


def _defaults(cls: type[Event]) -> pa.RecordBatch:
    """None as the default of a field that must not be null is no default."""
    nullable = {each.name for each in fields(cls) if each.nullable}
    found: dict[str, Any] = {}
    for each in msgspec.structs.fields(cast(Any, cls)):
        if each.default_factory is not msgspec.NODEFAULT:
            found[each.name] = each.default_factory()
        elif each.default is not msgspec.NODEFAULT and (each.default is not None or each.name in nullable):
            found[each.name] = each.default
    for name, value in found.items():
        try:
            some_columns(cls, [SimpleNamespace(**{name: value})], [name])
        except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as error:
            kind = type_name(next(each.hint for each in fields(cls) if each.name == name))
            raise DeclarationError(f"the default of {cls.__name__}.{name} is {value!r}, which is no {kind}") from error
    return some_columns(cls, [SimpleNamespace(**found)], found)
