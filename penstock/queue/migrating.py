"""Row-by-row migration of events to the newest version of their class, using its `migrate` method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.columns import decimal_fields, some_columns, unfit_decimal
from penstock.core.schema import SYSTEM_COLUMNS, Event, migrate_of, value_class
from penstock.core.times import times
from penstock.queue.versions import EventVersion


class RowError(Exception):
    """Raised for a row that cannot be converted to an event of the class; the original exception is its cause."""

    def __init__(self, row: int, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.row = row


class Migration:
    """The migration from version `number` of a class to the newest, through the stored versions."""

    def __init__(self, cls: type[Event], number: int, versions: Sequence[EventVersion]) -> None:
        self._cls, self._number, self._versions = cls, number, versions
        self._strict: Any = value_class(cls)
        self._decimals = decimal_fields(cls)

    def migrate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert stored events of the first version to the fields of the class.

        Raises `RowError` for the first event that fails.
        """
        events = []
        for row, fields in enumerate(_event_dicts(batch)):
            try:
                events.append(self._migrated_event(fields))
            except Exception as error:
                raise RowError(row, error) from error
        try:
            return self._columns(events)
        except Exception:
            for row, event in enumerate(events):
                try:
                    self._columns([event])
                except Exception as error:
                    raise RowError(row, error) from error
            raise

    def _columns(self, events: Sequence[Any]) -> pa.RecordBatch:
        """Convert migrated events to columns.

        Fails on a value that is valid for its type but not for its column, such as a lone surrogate.
        """
        return some_columns(self._cls, events, self._cls.__struct_fields__)

    def _migrated_event(self, fields: dict[str, Any]) -> Any:
        number = self._number
        for version in self._versions:
            fields = _next_version_fields(self._cls, fields, version, number)
            number = version.number
        event = msgspec.convert(fields, self._strict, from_attributes=True)
        if any(unfit_decimal(getattr(event, name)) for name in self._decimals):
            raise ValueError("a decimal has more digits than its column allows")
        return event


def _event_dicts(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield stored events as dicts of plain values: a record becomes a dict, an enum becomes its value, and a UUID
    becomes a string."""
    names = [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]
    columns = [_plain_values(batch.column(name)) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _plain_values(column: pa.Array) -> Sequence[Any]:
    if pa.types.is_timestamp(column.type):
        return list(times(column))
    return list(column.to_pylist(maps_as_pydicts="strict"))


def _next_version_fields(
    cls: type[Event], fields: dict[str, Any], event_version: EventVersion, number: int
) -> dict[str, Any]:
    """Convert an event's fields to the next stored version. Raises an exception if they do not match that version."""
    assert event_version.step is not None
    assert event_version.shape is not None
    if event_version.step.migrates:
        migrate = migrate_of(cls)
        if migrate is None:
            raise TypeError(f"{cls.__name__} has no migrate method")
        for version in range(number, event_version.number):
            fields = migrate(version, fields)
            if not isinstance(fields, dict):
                raise TypeError(f"migrate({version}, ...) returned {type(fields).__name__}, not a dict of fields")
    kept = [name for name in fields if name not in event_version.step.dropped]
    names = {event_version.step.renamed.get(name, name): name for name in kept}
    if len(names) < len(kept):
        raise TypeError("a field is present under both its old and its new name")
    fields = {name: fields[old] for name, old in names.items()}
    for name in [field for field in event_version.shape.fields if field not in fields]:
        if event_version.fills is None or name not in event_version.fills.schema.names:
            raise TypeError(f"version {event_version.number} has a field {name!r}, and there is no value for it")
        fields[name] = deepcopy(event_version.fill(name))
    surplus = fields.keys() - event_version.shape.fields.keys()
    if surplus:
        raise TypeError(f"version {event_version.number} has no field {min(surplus)!r}")
    return fields
