"""Kinds of values, and the conversion of a batch's columns to them.

Columns can have many Arrow types, but a filter uses only one type for each kind of value. Times are computed in UTC,
without a time zone, so that no time zone database is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

MICROS_MIN, MICROS_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999."""
DIGITS_MAX = 38
Run = Callable[[pa.RecordBatch], Any]
"""A function that is called with a batch. Returns an array of the same length, or a scalar that applies to every
row."""

SHOWN = {"null": "NULL", "truth": "true or false", "whole": "a number", "real": "a number", "decimal": "a number",
         "text": "text", "time": "a time", "local time": "a time without a time zone", "date": "a date",
         "interval": "an interval", "list": "a list", "map": "a map", "struct": "a struct", "bytes": "bytes",
         "other": "a type that filters do not support"}  # fmt: skip
NUMBERS = ("whole", "real", "decimal")
SCALARS = ("truth", *NUMBERS, "text", "time", "local time", "date", "interval", "bytes")


class ValueKind(NamedTuple):
    """A kind of value in a filter, and the Arrow type used to compute with it."""

    name: str
    arrow: pa.DataType

    @property
    def shown(self) -> str:
        return SHOWN[self.name]


NULL = ValueKind("null", pa.null())
TRUTH = ValueKind("truth", pa.bool_())
WHOLE = ValueKind("whole", pa.int64())
REAL = ValueKind("real", pa.float64())
TEXT = ValueKind("text", pa.string())
TIME = ValueKind("time", pa.timestamp("us"))
LOCAL_TIME = ValueKind("local time", pa.timestamp("us"))
DATE = ValueKind("date", pa.date32())
INTERVAL = ValueKind("interval", pa.duration("us"))
BYTES = ValueKind("bytes", pa.binary())


class Mistake(Exception):
    """An error in a filter's expression, with its position. Converted to a `BadExpression` where the whole expression
    is known."""

    def __init__(self, position: int, sentence: str) -> None:
        super().__init__(sentence)
        self.position, self.sentence = position, sentence


@dataclass(frozen=True, eq=False)
class Operand:
    """A typed part of a filter's expression. `fixed` is its value if it is the same for every row. `written` is the
    value of a literal. `raw` is set for a column or a part of a column: it contains its Arrow type, and a function that
    returns its values unconverted."""

    kind: ValueKind
    run: Run
    position: int
    shown: str
    fixed: pa.Scalar | None = None
    written: str | Decimal | bool | None = None
    raw: tuple[pa.DataType, Run] | None = None

    def of(self, kind: ValueKind, run: Run) -> Operand:
        return replace(self, kind=kind, run=run, fixed=None, raw=None)

    @property
    def typed(self) -> str:
        return f"{self.shown} ({self.kind.shown})"


def constant(kind: ValueKind, value: Any, position: int, shown: str, written: Any = None) -> Operand:
    scalar = pa.scalar(value, kind.arrow)
    return Operand(kind, lambda batch: scalar, position, shown, scalar, written)


def loaded(raw: pa.DataType, run: Run, position: int, shown: str) -> Operand:
    """Return a column, or part of a column, as an operand."""
    kind, load = _loader(raw)
    return Operand(kind, run if load is None else _then(run, load), position, shown, raw=(raw, run))


def _then(run: Run, load: Callable[[Any], Any]) -> Run:
    return lambda batch: load(run(batch))


def _loader(raw: pa.DataType) -> tuple[ValueKind, Callable[[Any], Any] | None]:
    """Return the kind of value for an Arrow type, and a function that converts its arrays, or None if no conversion is
    needed."""
    kind = kind_of(raw)
    if pa.types.is_dictionary(raw):
        _, inner = _loader(raw.value_type)
        return kind, _after(lambda values: values.cast(raw.value_type), inner)
    if kind.arrow == raw:
        return kind, None
    if pa.types.is_timestamp(raw):
        return kind, _load_time
    return kind, lambda values: values.cast(kind.arrow, safe=False)


def _after(first: Callable[[Any], Any], second: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return first if second is None else lambda values: second(first(values))


def _load_time(times: Any) -> Any:
    """Convert times to UTC without a time zone."""
    unit = times.type.unit
    if unit == "us":
        return times.view(TIME.arrow)
    if unit in ("s", "ms"):
        per_unit = 1_000_000 if unit == "s" else 1_000
        ticks = times.cast(pa.int64())
        fits = pc.and_(pc.greater_equal(ticks, MICROS_MIN // per_unit), pc.less_equal(ticks, MICROS_MAX // per_unit))
        times = pc.if_else(fits, times, pa.scalar(None, times.type))
    return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.timestamp("us"))


def kind_of(raw: pa.DataType) -> ValueKind:
    if pa.types.is_dictionary(raw):
        return kind_of(raw.value_type)
    for is_it, kind in _SIMPLE:
        if is_it(raw):
            return kind
    if pa.types.is_decimal(raw) and raw.precision <= DIGITS_MAX:
        return ValueKind("decimal", pa.decimal128(raw.precision, raw.scale))
    if pa.types.is_timestamp(raw):
        return TIME if raw.tz is not None else LOCAL_TIME
    for is_it, name in _NESTED:
        if is_it(raw):
            return ValueKind(name, raw)
    return ValueKind("other", raw)


_SIMPLE: tuple[tuple[Callable[[Any], bool], ValueKind], ...] = (
    (pa.types.is_null, NULL),
    (pa.types.is_boolean, TRUTH),
    (lambda raw: pa.types.is_integer(raw) and raw != pa.uint64(), WHOLE),
    (pa.types.is_floating, REAL),
    (lambda raw: raw in (pa.string(), pa.large_string()), TEXT),
    (pa.types.is_date, DATE),
    (pa.types.is_duration, INTERVAL),
    (lambda raw: raw in (pa.binary(), pa.large_binary()), BYTES),
)
_NESTED: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (pa.types.is_struct, "struct"),
    (pa.types.is_map, "map"),
    (lambda raw: pa.types.is_list(raw) or pa.types.is_large_list(raw), "list"),
)


def full(value: Any, rows: int) -> Any:
    """Return an Arrow array with `rows` rows, repeating a scalar."""
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value
