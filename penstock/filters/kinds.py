"""What a value is, and how the columns of a batch become values of that kind.

Columns come in many Arrow types; a filter computes with one type for each kind. Times are computed without a zone, as
what a clock in UTC shows, so that no table of time zones is needed.
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
"""Gives, of a batch, an array of its length, or a scalar that stands for every row."""

SHOWN = {"null": "NULL", "truth": "true or false", "whole": "a number", "real": "a number", "decimal": "a number",
         "text": "text", "time": "a time", "local time": "a time without a zone", "date": "a date",
         "interval": "an interval", "list": "a list", "map": "a map", "struct": "fields", "bytes": "bytes",
         "other": "a type that filters do not know"}  # fmt: skip
NUMBERS = ("whole", "real", "decimal")
SCALARS = ("truth", *NUMBERS, "text", "time", "local time", "date", "interval", "bytes")


class Kind(NamedTuple):
    """A sort of values, and the Arrow type they are computed in."""

    name: str
    arrow: pa.DataType

    @property
    def shown(self) -> str:
        return SHOWN[self.name]


NULL = Kind("null", pa.null())
TRUTH = Kind("truth", pa.bool_())
WHOLE = Kind("whole", pa.int64())
REAL = Kind("real", pa.float64())
TEXT = Kind("text", pa.string())
TIME = Kind("time", pa.timestamp("us"))
LOCAL_TIME = Kind("local time", pa.timestamp("us"))
DATE = Kind("date", pa.date32())
INTERVAL = Kind("interval", pa.duration("us"))
BYTES = Kind("bytes", pa.binary())


class Mistake(Exception):
    """What is wrong with an expression, and where. Becomes a `BadExpression` where the text is known."""

    def __init__(self, position: int, sentence: str) -> None:
        super().__init__(sentence)
        self.position, self.sentence = position, sentence


@dataclass(frozen=True, eq=False)
class Operand:
    """A typed part of an expression. `fixed` is its value if that is the same for every row; `written` what stands in
    the text, if it is a literal; `raw` gives it, if it is a column or part of one, as it is in the batch."""

    kind: Kind
    run: Run
    position: int
    shown: str
    fixed: pa.Scalar | None = None
    written: str | Decimal | bool | None = None
    raw: tuple[pa.DataType, Run] | None = None

    def of(self, kind: Kind, run: Run) -> Operand:
        return replace(self, kind=kind, run=run, fixed=None, raw=None)

    @property
    def typed(self) -> str:
        return f"{self.shown} ({self.kind.shown})"


def constant(kind: Kind, value: Any, position: int, shown: str, written: Any = None) -> Operand:
    scalar = pa.scalar(value, kind.arrow)
    return Operand(kind, lambda batch: scalar, position, shown, scalar, written)


def loaded(raw: pa.DataType, run: Run, position: int, shown: str) -> Operand:
    """A column, or a part of one, as a value."""
    kind, load = _loader(raw)
    return Operand(kind, run if load is None else _then(run, load), position, shown, raw=(raw, run))


def _then(run: Run, load: Callable[[Any], Any]) -> Run:
    return lambda batch: load(run(batch))


def _loader(raw: pa.DataType) -> tuple[Kind, Callable[[Any], Any] | None]:
    """The kind of an Arrow type, and what makes of an array of it one that is computed with."""
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
    """Without its zone, a time is what a clock in UTC shows."""
    unit = times.type.unit
    if unit == "us":
        return times.view(TIME.arrow)
    if unit in ("s", "ms"):
        per_unit = 1_000_000 if unit == "s" else 1_000
        ticks = times.cast(pa.int64())
        fits = pc.and_(pc.greater_equal(ticks, MICROS_MIN // per_unit), pc.less_equal(ticks, MICROS_MAX // per_unit))
        times = pc.if_else(fits, times, pa.scalar(None, times.type))
    return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.timestamp("us"))


def kind_of(raw: pa.DataType) -> Kind:
    if pa.types.is_dictionary(raw):
        return kind_of(raw.value_type)
    for is_it, kind in _SIMPLE:
        if is_it(raw):
            return kind
    if pa.types.is_decimal(raw) and raw.precision <= DIGITS_MAX:
        return Kind("decimal", pa.decimal128(raw.precision, raw.scale))
    if pa.types.is_timestamp(raw):
        return TIME if raw.tz is not None else LOCAL_TIME
    for is_it, name in _NESTED:
        if is_it(raw):
            return Kind(name, raw)
    return Kind("other", raw)


_SIMPLE: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
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
    """An array of so many rows."""
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value
