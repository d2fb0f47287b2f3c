"""Functions and operators for times, dates and intervals. All times are in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.filters.functions import Function, anything, computed, need, written_text
from penstock.core.filters.kinds import DATE, INTERVAL, MICROS_MAX, MICROS_MIN, WHOLE, Mistake, Operand, constant
from penstock.core.filters.numbers import whole, within

_MOMENTS = ("time", "local time")
_DAY = timedelta(days=1)
DAYS_MIN, DAYS_MAX = MICROS_MIN // 86_400_000_000, MICROS_MAX // 86_400_000_000
_SECONDS = {
    "millisecond": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800,
}  # fmt: skip
_UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_DATE_UNITS = _UNITS[_UNITS.index("day") :]
_PART = re.compile(r"\s*([+-]?\d{1,12}(?:\.\d{1,6})?)\s*([a-zA-Z]{1,12})\s*")
INTERVAL_S_MAX = 3_660_000 * 86_400
"""About ten thousand years."""


def _field(function: Callable[..., Any], **options: Any) -> Callable[[Sequence[Operand]], Operand]:
    def build(operands: Sequence[Operand]) -> Operand:
        run = operands[0].run
        return computed(WHOLE, lambda batch: pc.cast(function(run(batch), **options), pa.int64()), operands[0].position)

    return build


def _truncated(operands: Sequence[Operand]) -> Operand:
    unit, this = written_text("date_trunc", operands[0]).lower(), need(*_MOMENTS, "date")("date_trunc", operands[1])
    units = _DATE_UNITS if this.kind == DATE else _UNITS
    if unit not in units:
        raise Mistake(operands[0].position, f"date_trunc takes one of {', '.join(map(repr, units))} here")
    run = this.run
    return computed(this.kind, lambda batch: pc.floor_temporal(run(batch), unit=unit), this.position)


def _interval(operands: Sequence[Operand]) -> Operand:
    """Parse the text after INTERVAL: '1 hour 30 minutes'. Only units with a fixed length are allowed."""
    (operand,) = operands
    text, seconds, place = written_text("INTERVAL", operand), 0.0, 0
    while place < len(text) or not text:
        match = _PART.match(text, place)
        unit = "" if match is None else match[2].lower().removesuffix("s")
        if match is None or unit not in _SECONDS:
            units = ", ".join(_SECONDS)
            raise Mistake(
                operand.position,
                f"{operand.shown} is not an interval: write a number and a unit, such as '90 minutes'; the units are "
                f"{units}",
            )
        seconds += float(match[1]) * _SECONDS[unit]
        place = match.end()
        if abs(seconds) > INTERVAL_S_MAX:
            raise Mistake(operand.position, f"the interval {operand.shown} is too long")
    return constant(INTERVAL, timedelta(seconds=seconds), operand.position, operand.shown)


def shifted(name: str, left: Operand, right: Operand) -> Operand | None:
    """Build the filter's `time + INTERVAL`, `time - INTERVAL` or `time - time`. Return None for any other operands."""
    kinds = left.kind.name, right.kind.name
    if name == "+" and kinds[0] == "interval":
        left, right, kinds = right, left, (kinds[1], kinds[0])
    if name in "+-" and kinds[1] == "interval" and kinds[0] in _MOMENTS:
        return _moved(name, left, right)
    if name in "+-" and kinds == ("date", "interval"):
        return _moved_days(name, left, right)
    if name == "-" and kinds[0] == kinds[1] and kinds[0] in _MOMENTS:
        return _elapsed(left, right)
    if name == "-" and kinds == ("date", "date"):
        first, second = left.run, right.run
        return computed(WHOLE, lambda batch: pc.subtract(_days(first(batch)), _days(second(batch))), left.position)
    return None


def _ticks(values: Any) -> Any:
    return pc.cast(values, pa.int64())


def _days(values: Any) -> Any:
    return pc.cast(pc.cast(values, pa.int32()), pa.int64())


def _moved(name: str, this: Operand, by: Operand) -> Operand:
    run, other, arrow = this.run, by.run, this.kind.arrow

    def moved(batch: pa.RecordBatch) -> Any:
        ticks = whole(name, _ticks(run(batch)), _ticks(other(batch)))
        return pc.cast(within(ticks, MICROS_MIN, MICROS_MAX), arrow)

    return computed(this.kind, moved, this.position)


def _moved_days(name: str, this: Operand, by: Operand) -> Operand:
    length = None if by.fixed is None else by.fixed.as_py()
    if length is None or length % _DAY:
        raise Mistake(by.position, "only whole days can be added to or subtracted from a date")
    run, count = this.run, (length // _DAY) * (1 if name == "+" else -1)

    def moved(batch: pa.RecordBatch) -> Any:
        days = within(pc.add(_days(run(batch)), count), DAYS_MIN, DAYS_MAX)
        return pc.cast(pc.cast(days, pa.int32()), pa.date32())

    return computed(DATE, moved, this.position)


def _elapsed(left: Operand, right: Operand) -> Operand:
    first, second = left.run, right.run

    def elapsed(batch: pa.RecordBatch) -> Any:
        return pc.cast(whole("-", _ticks(first(batch)), _ticks(second(batch))), pa.duration("us"))

    return computed(INTERVAL, elapsed, left.position)


_DAYS, _CLOCK = need(*_MOMENTS, "date"), need(*_MOMENTS)
FUNCTIONS: Mapping[str, Function] = {
    "year": Function(_DAYS, _field(pc.year), 1),
    "month": Function(_DAYS, _field(pc.month), 1),
    "day": Function(_DAYS, _field(pc.day), 1),
    "dayofweek": Function(_DAYS, _field(pc.day_of_week, count_from_zero=False, week_start=7), 1),
    "hour": Function(_CLOCK, _field(pc.hour), 1),
    "minute": Function(_CLOCK, _field(pc.minute), 1),
    "second": Function(_CLOCK, _field(pc.second), 1),
    "date_trunc": Function(anything, _truncated, 2),
    "interval": Function(need("text"), _interval, 1),
}
