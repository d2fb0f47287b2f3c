"""The rows that handlers process, and the conversion of Arrow columns to events, at 0.25 microseconds per event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa

from penstock.core.arrays import Reader, in_steps, packed
from penstock.core.columns import decimals_as_text, read_decimals
from penstock.core.schema import Event, Field, fields, holds_decimal, per_class
from penstock.core.times import times

_AS_IS = (str, bool, bytes, date)
_CODES: dict[Any, Literal["q", "d"]] = {int: "q", float: "d"}


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of an event in the log."""

    stream: str
    generation: int
    partition: int
    offset: int

    @property
    def path(self) -> str:
        return f"{self.stream}/{self.partition}/{self.offset}"


class Inputs(NamedTuple):
    """One shard's rows, in processing order, as columns of equal length. Events can be iterated only once.

    `keys` contains each distinct key, and `codes` contains each row's index into `keys`, so a key is looked up once for
    all its rows. A tick has neither a key nor an event. `times` contains ingest times in microseconds since 1970, which
    never decrease. `id` and `position` take a row number and return the event's id, if it has one, and its position.
    """

    keys: Sequence[str | None]
    codes: Sequence[int]
    events: Iterable[Any]
    times: Sequence[int]
    id: Callable[[int], str | None]
    position: Callable[[int], LogPosition]

    @classmethod
    def of(
        cls,
        keys: Iterable[str | None],
        events: Iterable[Any],
        times: Sequence[int],
        id: Callable[[int], str | None],
        position: Callable[[int], LogPosition],
    ) -> Inputs:
        """Create the inputs, given each row's key."""
        return cls(*coded(keys), events, times, id, position)

    def key(self, row: int) -> str | None:
        return self.keys[self.codes[row]]

    @property
    def time(self) -> int | None:
        return self.times[-1] if self.times else None

    def pieces(self) -> Iterator[Inputs]:
        return iter((self,))


NO_ROWS = Inputs((), (), (), (), lambda row: None, lambda row: LogPosition("", 0, -1, -1))


def coded(keys: Iterable[str | None]) -> tuple[Sequence[str | None], Sequence[int]]:
    """Return the distinct keys, and for each row the index of its key."""
    numbers: dict[str | None, int] = {}
    codes = [numbers.setdefault(key, len(numbers)) for key in keys]
    return list(numbers), codes


class ShardRows(Protocol):
    """One shard's rows in pieces. `pieces` starts with the first piece each time it is called. `time` is the last row's
    time, or None if there are no rows."""

    @property
    def time(self) -> int | None: ...

    def pieces(self) -> Iterator[Inputs]: ...


def to_events(cls: type[Event], batch: pa.RecordBatch) -> list[Any]:
    """Convert a handler's rows to instances of the class. The batch must have a column for each field and must not
    contain ticks."""
    return list(iterate_events(cls, batch))


def iterate_events(cls: type[Event], batch: pa.RecordBatch) -> Iterator[Any]:
    """Convert a handler's rows to events one by one, so only a few are in memory at a time. The instances belong to a
    subclass that looks the same and takes its fields by position, which makes creating them four times as fast."""
    return map(_positional_class(cls), *(read(batch.column(name)) for name, read in _event_field_readers(cls)))


def values(cls: type[Event], name: str, batch: pa.RecordBatch) -> Iterable[Any]:
    """Return the values of one event field."""
    return next(read(batch.column(name)) for field, read in _event_field_readers(cls) if field == name)


@per_class
def _positional_class(cls: type[Event]) -> Callable[..., Any]:
    """Return a subclass that takes its fields by position. It is created with msgspec's metaclass, because Penstock's
    metaclass makes fields keyword-only."""
    space = {"__annotations__": dict.fromkeys(cls.__struct_fields__, Any), "__module__": cls.__module__}
    meta: Any = type(cls)
    subclass: Callable[..., Any] = msgspec.StructMeta.__new__(
        meta, cls.__name__, (cls,), space, frozen=True, kw_only=False, gc=False
    )
    return subclass


@per_class
def _event_field_readers(cls: type[Event]) -> Sequence[tuple[str, Reader]]:
    return [(field.name, _event_field_reader(field)) for field in fields(cls)]


def _event_field_reader(field: Field) -> Reader:
    base = field.base
    if base is datetime:
        return times
    if base in _CODES:
        return _number_reader(_CODES[base])
    if base in _AS_IS or get_origin(base) is Literal:
        return _plain
    if base is Decimal:
        return in_steps(read_decimals)
    if base is UUID:
        return _mapping_reader(UUID)
    if isinstance(base, type) and issubclass(base, Enum):
        return _mapping_reader({member.value: member for member in base}.__getitem__)
    kind: Any = list[field.hint]  # type: ignore[name-defined]
    if holds_decimal(field.hint):
        return in_steps(
            lambda part: msgspec.convert(list(map(decimals_as_text, part.to_pylist(maps_as_pydicts="strict"))), kind)
        )
    return in_steps(lambda part: msgspec.convert(part.to_pylist(maps_as_pydicts="strict"), kind))


_plain = in_steps(pa.Array.to_pylist)


def _mapping_reader(make: Callable[[Any], Any]) -> Reader:
    return in_steps(lambda part: [None if value is None else make(value) for value in part.to_pylist()])


def _number_reader(code: Literal["q", "d"]) -> Reader:
    """Return a column reader that takes numbers directly from Arrow's memory if there are no nulls. Each Python number
    is created on access."""
    return lambda column: _plain(column) if column.null_count else packed(code, column)
