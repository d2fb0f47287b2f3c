"""Events row by row from an earlier version of their class to the newest, by the class's own method `migrate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import msgspec
import pyarrow as pa

from penstock.columns import decimal_fields, some_columns, unfit_decimal
from penstock.queue.versions import Version
from penstock.rows import times
from penstock.schema import SYSTEM_COLUMNS, Event, migrate_of, value_class


class RowError(Exception):
    """One row that cannot be made an event of the class, and why: the exception is its cause."""

    def __init__(self, row: int, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.row = row


class Migration:
    """The way from the version `number` of a class to the newest, through stored versions."""

    def __init__(self, cls: type[Event], number: int, versions: Sequence[Version]) -> None:
        self._cls, self._number, self._versions = cls, number, versions
        self._strict: Any = value_class(cls)
        self._decimals = decimal_fields(cls)

    def migrate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Events of the first version as the fields of the class. Raises `RowError` for the first that is not one."""
        made = []
        for row, fields in enumerate(_dicts(batch)):
            try:
                made.append(self._event(fields))
            except Exception as error:
                raise RowError(row, error) from error
        try:
            return self._columns(made)
        except Exception:
            for row, each in enumerate(made):
                try:
                    self._columns([each])
                except Exception as error:
                    raise RowError(row, error) from error
            raise

    def _columns(self, events: Sequence[Any]) -> pa.RecordBatch:
        """Fails on a value that fits its type and not its column, such as half a character of a text."""
        return some_columns(self._cls, events, self._cls.__struct_fields__)

    def _event(self, fields: dict[str, Any]) -> Any:
        number = self._number
        for version in self._versions:
            fields = _stepped(self._cls, fields, version, number)
            number = version.number
        made = msgspec.convert(fields, self._strict, from_attributes=True)
        if any(unfit_decimal(getattr(made, name)) for name in self._decimals):
            raise ValueError("a decimal has more digits than its column")
        return made


def _dicts(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Events as plain values: a record is a dict, an enum its value, a UUID its text."""
    names = [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]
    columns = [_values(batch.column(name)) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: pa.Array) -> Sequence[Any]:
    if pa.types.is_timestamp(column.type):
        return list(times(column))
    return list(column.to_pylist(maps_as_pydicts="strict"))


def _stepped(cls: type[Event], fields: dict[str, Any], made: Version, number: int) -> dict[str, Any]:
    """The fields as the next stored version has them. Raises if they are not those."""
    assert made.step is not None
    assert made.shape is not None
    if made.step.migrates:
        migrate = migrate_of(cls)
        if migrate is None:
            raise TypeError(f"{cls.__name__} has no method migrate")
        for version in range(number, made.number):
            fields = migrate(version, fields)
            if not isinstance(fields, dict):
                raise TypeError(f"migrate({version}, ...) returned {type(fields).__name__}, not a dict of fields")
    kept = [name for name in fields if name not in made.step.dropped]
    names = {made.step.renamed.get(name, name): name for name in kept}
    if len(names) < len(kept):
        raise TypeError("a field is there by its old name and by its new one")
    fields = {name: fields[old] for name, old in names.items()}
    for name in [each for each in made.shape.fields if each not in fields]:
        if made.fills is None or name not in made.fills.schema.names:
            raise TypeError(f"version {made.number} has a field {name!r}, and there is no value for it")
        fields[name] = deepcopy(made.fill(name))
    surplus = fields.keys() - made.shape.fields.keys()
    if surplus:
        raise TypeError(f"version {made.number} has no field {min(surplus)!r}")
    return fields
