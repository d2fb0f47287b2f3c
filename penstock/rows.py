"""The rows that handlers run on, and Arrow columns back to events: a column at a time, 0.3 microseconds an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import Event, Field, fields, per_class

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT_US = 2**51
"""Up to here, which is the year 2041, a float of seconds has the microsecond to spare: the fast way is exact."""
_AS_IS = (str, bool, bytes, date, Decimal)
_CODES: dict[Any, Literal["q", "d"]] = {int: "q", float: "d"}
Values = list[Any]
Reader = Callable[[pa.Array], Values]


class Place(NamedTuple):
    """Where an event stands in the log."""

    stream: str
    generation: int
    partition: int
    offset: int


class Inputs(NamedTuple):
    """Rows of one shard, in the order to run them, as columns of equal length. Events may be taken once.

    A tick has neither key nor event. `times` are ingest times in microseconds since 1970, which never go back. `id` and
    `place` tell, of a row by its number, the event's id, if it has one, and where it stands.
    """

    keys: Sequence[str | None]
    events: Iterable[Any]
    times: Sequence[int]
    id: Callable[[int], str | None]
    place: Callable[[int], Place]

    @property
    def time(self) -> int | None:
        return self.times[-1] if self.times else None

    def pieces(self) -> Iterator[Inputs]:
        return iter((self,))


NO_ROWS = Inputs((), (), (), lambda row: None, lambda row: Place("", 0, -1, -1))


class Rows(Protocol):
    """Rows of one shard in pieces. `pieces` begins with the first each time it is called. `time` is that of the last
    row, None if there are none."""

    @property
    def time(self) -> int | None: ...

    def pieces(self) -> Iterator[Inputs]: ...


def to_columns(cls: type[Event], batch: pa.RecordBatch) -> dict[str, Values]:
    """The values of each field. The batch has a column for each; a row that is a tick has no meaning."""
    return {name: read(batch.column(name)) for name, read in _readers(cls)}


def to_events(cls: type[Event], columns: dict[str, Values]) -> list[Any]:
    """Rows as instances of the class."""
    return list(each_event(cls, columns))


def each_event(cls: type[Event], columns: dict[str, Values]) -> Iterator[Any]:
    """The same one by one, so that few are held at a time. Of a subclass, to be exact, that looks the same and takes
    its fields by position, which is four times as fast to make."""
    return map(_twin(cls), *columns.values())


@per_class
def _twin(cls: type[Event]) -> Callable[..., Any]:
    """Asked of msgspec directly: our own metaclass would have the fields given by name."""
    space = {"__annotations__": dict.fromkeys(cls.__struct_fields__, Any), "__module__": cls.__module__}
    meta: Any = type(cls)
    made: Callable[..., Any] = msgspec.StructMeta.__new__(meta, cls.__name__, (cls,), space, frozen=True, kw_only=False)
    return made


@per_class
def _readers(cls: type[Event]) -> Sequence[tuple[str, Reader]]:
    return [(each.name, _reader(each)) for each in fields(cls)]


def _reader(field: Field) -> Reader:
    base = field.base
    if base is datetime:
        return times
    if base in _CODES:
        return _numbers(_CODES[base])
    if base in _AS_IS or get_origin(base) is Literal:
        return _plain
    if base is UUID:
        return _mapped(UUID)
    if isinstance(base, type) and issubclass(base, Enum):
        return _mapped({member.value: member for member in base}.__getitem__)
    kind: Any = list[field.hint]  # type: ignore[name-defined]
    return lambda column: msgspec.convert(column.to_pylist(maps_as_pydicts="strict"), kind)


def _plain(column: pa.Array) -> Values:
    return list(column.to_pylist())


def _numbers(code: Literal["q", "d"]) -> Reader:
    """Straight from memory, where there are no nulls: twice as fast."""

    def read(column: pa.Array) -> Values:
        if column.null_count or not len(column):
            return _plain(column)
        return memoryview(column.buffers()[1]).cast(code)[column.offset : column.offset + len(column)].tolist()

    return read


def _mapped(make: Callable[[Any], Any]) -> Reader:
    return lambda column: [None if value is None else make(value) for value in column.to_pylist()]


def times(column: pa.Array) -> Values:
    """A column of times as aware datetimes. By way of a list of seconds that msgspec converts at once, a quarter of the
    time of `datetime.fromtimestamp` for each (50 ns and 200)."""
    micros = column.cast(pa.int64())
    ends = pc.min_max(micros).as_py()
    if len(column) and not column.null_count and ends["min"] > -_EXACT_US and ends["max"] < _EXACT_US:
        seconds = _numbers("d")(pc.divide(micros.cast(pa.float64()), 1_000_000.0))
        return msgspec.convert(seconds, list[datetime], strict=False)
    return [None if value is None else from_micros(value) for value in micros.to_pylist()]


def micros_of(column: pa.Array) -> list[int]:
    """A column of times, none of them null, as microseconds since 1970."""
    return _numbers("q")(column.cast(pa.int64()))


def from_micros(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def to_micros(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)
