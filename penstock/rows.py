"""The rows that handlers run on, and Arrow columns back to events: 0.25 microseconds an event."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any, Literal, NamedTuple, Protocol, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import decimals_as_text, read_decimals
from penstock.schema import Event, Field, fields, holds_decimal, per_class

_EPOCH, _TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_EXACT_US = 2**51
"""Up to here, which is the year 2041, a float of seconds has the microsecond to spare: the fast way is exact."""
_STEP = 1_024
"""Values of a column made at a time: so few that they are still in the processor's near memory when an event is made of
them. All of a piece at once takes half as long again."""
_AS_IS = (str, bool, bytes, date)
_CODES: dict[Any, Literal["q", "d"]] = {int: "q", float: "d"}
Reader = Callable[[pa.Array], Iterable[Any]]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where an event stands in the log."""

    stream: str
    generation: int
    partition: int
    offset: int

    @property
    def path(self) -> str:
        return f"{self.stream}/{self.partition}/{self.offset}"


class Inputs(NamedTuple):
    """Rows of one shard, in the order to run them, as columns of equal length. Events may be taken once.

    `keys` has each key that there is, and `codes` for each row the number of its key among them: so a key is looked up
    once for all its rows. A tick has neither key nor event. `times` are ingest times in microseconds since 1970, which
    never go back. `id` and `place` tell, of a row by its number, the event's id, if it has one, and where it stands.
    """

    keys: Sequence[str | None]
    codes: Sequence[int]
    events: Iterable[Any]
    times: Sequence[int]
    id: Callable[[int], str | None]
    place: Callable[[int], Place]

    @classmethod
    def of(
        cls,
        keys: Iterable[str | None],
        events: Iterable[Any],
        times: Sequence[int],
        id: Callable[[int], str | None],
        place: Callable[[int], Place],
    ) -> Inputs:
        """With the key of each row."""
        return cls(*coded(keys), events, times, id, place)

    def key(self, row: int) -> str | None:
        return self.keys[self.codes[row]]

    @property
    def time(self) -> int | None:
        return self.times[-1] if self.times else None

    def pieces(self) -> Iterator[Inputs]:
        return iter((self,))


NO_ROWS = Inputs((), (), (), (), lambda row: None, lambda row: Place("", 0, -1, -1))


def coded(keys: Iterable[str | None]) -> tuple[Sequence[str | None], Sequence[int]]:
    """Each key that there is, and of each row the number of its key."""
    numbers: dict[str | None, int] = {}
    codes = [numbers.setdefault(key, len(numbers)) for key in keys]
    return list(numbers), codes


class Rows(Protocol):
    """Rows of one shard in pieces. `pieces` begins with the first each time it is called. `time` is that of the last
    row, None if there are none."""

    @property
    def time(self) -> int | None: ...

    def pieces(self) -> Iterator[Inputs]: ...


def to_events(cls: type[Event], batch: pa.RecordBatch) -> list[Any]:
    """Rows as instances of the class. The batch has a column for each field, and no ticks."""
    return list(each_event(cls, batch))


def each_event(cls: type[Event], batch: pa.RecordBatch) -> Iterator[Any]:
    """The same one by one, so that few are held at a time. Of a subclass, to be exact, that looks the same and takes
    its fields by position, which is four times as fast to make."""
    return map(_twin(cls), *(read(batch.column(name)) for name, read in _readers(cls)))


def values(cls: type[Event], name: str, batch: pa.RecordBatch) -> Iterable[Any]:
    """The values of one field."""
    return next(read(batch.column(name)) for each, read in _readers(cls) if each == name)


@per_class
def _twin(cls: type[Event]) -> Callable[..., Any]:
    """Asked of msgspec directly: our own metaclass would have the fields given by name."""
    space = {"__annotations__": dict.fromkeys(cls.__struct_fields__, Any), "__module__": cls.__module__}
    meta: Any = type(cls)
    made: Callable[..., Any] = msgspec.StructMeta.__new__(
        meta, cls.__name__, (cls,), space, frozen=True, kw_only=False, gc=False
    )
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
    if base is Decimal:
        return _in_steps(read_decimals)
    if base is UUID:
        return _mapped(UUID)
    if isinstance(base, type) and issubclass(base, Enum):
        return _mapped({member.value: member for member in base}.__getitem__)
    kind: Any = list[field.hint]  # type: ignore[name-defined]
    if holds_decimal(field.hint):
        return _in_steps(
            lambda part: msgspec.convert(list(map(decimals_as_text, part.to_pylist(maps_as_pydicts="strict"))), kind)
        )
    return _in_steps(lambda part: msgspec.convert(part.to_pylist(maps_as_pydicts="strict"), kind))


def _in_steps(read: Callable[[Any], Iterable[Any]]) -> Reader:
    """Read a column part by part, each when the one before is used up."""
    return lambda column: chain.from_iterable(
        read(column[first : first + _STEP]) for first in range(0, len(column), _STEP)
    )


_plain = _in_steps(pa.Array.to_pylist)


def _mapped(make: Callable[[Any], Any]) -> Reader:
    return _in_steps(lambda part: [None if value is None else make(value) for value in part.to_pylist()])


def _numbers(code: Literal["q", "d"]) -> Reader:
    """Straight from memory, where there are no nulls; each number is made when it is taken."""
    return lambda column: _plain(column) if column.null_count else packed(code, column)


def packed(code: Literal["i", "q", "d"], column: pa.Array) -> array[Any]:
    """A column of numbers, none of them null. `code` is that of its type."""
    made = array(code)
    if len(column):
        held = memoryview(column.buffers()[1]).cast(code)
        made.frombytes(held[column.offset : column.offset + len(column)].cast("B"))
    return made


def times(column: pa.Array) -> Iterable[Any]:
    """A column of times as aware datetimes. By way of a list of seconds that msgspec converts at once, a quarter of the
    time of `datetime.fromtimestamp` for each (50 ns and 200)."""
    micros = column.cast(pa.int64())
    ends = pc.min_max(micros).as_py()
    if len(column) and not column.null_count and ends["min"] > -_EXACT_US and ends["max"] < _EXACT_US:
        return _from_seconds(packed("d", pc.divide(micros.cast(pa.float64()), 1_000_000.0)))
    return [None if value is None else from_micros(value) for value in micros.to_pylist()]


_from_seconds = _in_steps(lambda part: msgspec.convert(part.tolist(), list[datetime], strict=False))


def micros_of(column: pa.Array) -> array[int]:
    """A column of times, none of them null, as microseconds since 1970."""
    return packed("q", column.cast(pa.int64()))


def from_micros(value: int) -> datetime:
    return _EPOCH + value * _TICK


def to_micros(value: datetime) -> int:
    return (value - _EPOCH) // _TICK
