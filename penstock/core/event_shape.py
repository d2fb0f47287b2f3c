"""Descriptions of event classes for the log: the version, the fields, and the fields renamed or dropped since earlier
versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.core.columns import some_columns
from penstock.core.errors import DeclarationError
from penstock.core.schema import Event, event_schema, fields, migrate_of, per_class, type_name

ClassLoader = Callable[[], type[Event]]


class EventShape(msgspec.Struct, frozen=True):
    """The version of an event class, its fields with their types as strings, and the name of its event-time field."""

    version: int
    fields: dict[str, str]
    time: str | None = None


@dataclass(frozen=True)
class EventSpec:
    """A description of an event class. The log uses it to store events and to read older events as this class.

    `name` is the name of the class. `written` is true if a user wrote the class, and false if it was created from a
    declaration. `defaults` contains one row, with a column for each field that has a default. `load` returns the class,
    and works in any process. It is set only if the class has a `migrate` method, and is called only if an old event
    needs that method. Everything else is plain data, so a spec can be pickled if `load` can.
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
        """Return a copy that finds the class with `load`, for use in another process."""
        return replace(self, load=load) if self.load is not None else self


@dataclass(frozen=True)
class _Here:
    """A loader for a class that exists in this process."""

    cls: type[Event]

    def __call__(self) -> type[Event]:
        return self.cls


@per_class
def event_spec(cls: type[Event]) -> EventSpec:
    """Return the description of an event class. Raises `DeclarationError` if a default does not fit its field's
    type."""
    shape = EventShape(
        cls.__event_version__, {field.name: type_name(field.hint) for field in fields(cls)}, cls.__time_field__
    )
    return EventSpec(
        cls.__name__,
        shape,
        event_schema(cls),
        dict(cls.__renamed__),
        cls.__dropped__,
        _event_defaults(cls),
        not cls.__module__.startswith("penstock."),
        _Here(cls) if migrate_of(cls) is not None else None,
    )


def _event_defaults(cls: type[Event]) -> pa.RecordBatch:
    """Return the defaults as one row. A default of None is ignored if the field must not be null."""
    nullable = {field.name for field in fields(cls) if field.nullable}
    defaults: dict[str, Any] = {}
    for info in msgspec.structs.fields(cast(Any, cls)):
        if info.default_factory is not msgspec.NODEFAULT:
            defaults[info.name] = info.default_factory()
        elif info.default is not msgspec.NODEFAULT and (info.default is not None or info.name in nullable):
            defaults[info.name] = info.default
    for name, value in defaults.items():
        try:
            some_columns(cls, [SimpleNamespace(**{name: value})], [name])
        except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as error:
            kind = type_name(next(field.hint for field in fields(cls) if field.name == name))
            raise DeclarationError(
                f"the default of {cls.__name__}.{name} is {value!r}, which is not of type {kind}"
            ) from error
    return some_columns(cls, [SimpleNamespace(**defaults)], defaults)
