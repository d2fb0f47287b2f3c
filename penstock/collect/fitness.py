"""What msgspec does not check of a decoded event: that its values keep their worth in the stream's columns; and, where
a stream asks for it, that its time is not far ahead.

An event that passed is one that every later step can hold: its decimals keep their digits, its times exist in UTC, and
its id, if the class has one, is there and of a size that can be remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

import msgspec

from penstock.columns import decimal_fields, unfit_decimal
from penstock.contracts import Clock
from penstock.rows import to_micros
from penstock.schema import DECIMAL_DIGITS, DECIMAL_SCALE, Event, Field, Record, fields, per_class

ID_CHARS_MAX = 255
"""Ids are held in memory, up to `dedupe_ids_max` of them, so a long one costs more than its own event."""
_YEAR_FIRST, _YEAR_LAST = datetime.min.year, datetime.max.year


class Check(NamedTuple):
    """A test of one field: `unfit` of its value says whether the event must be refused, for `reason`."""

    field: str
    unfit: Callable[[Any], bool]
    reason: str


@per_class
def checks(cls: type[Event]) -> tuple[Check, ...]:
    """The tests that an event of this class still has to pass once it is decoded."""
    found = []
    if cls.__id_field__ is not None:
        base = next(each for each in fields(cls) if each.name == cls.__id_field__).base
        long = base in (str, bytes)
        unfit, most = (_unfit_id, f", or has more than {ID_CHARS_MAX} characters") if long else (_absent, "")
        found.append(Check(cls.__id_field__, unfit, f"The id is empty{most}"))
    reason = (
        f"A decimal needs more than {DECIMAL_DIGITS - DECIMAL_SCALE} digits before or {DECIMAL_SCALE} after the point"
    )
    found += [Check(name, unfit_decimal, reason) for name in decimal_fields(cls)]
    for each in fields(cls):
        if not each.epoch and _holds_time(each.base):
            test = _unfit_time if each.base is datetime else _holds_unfit_time
            found.append(Check(each.name, test, "A time is before the year 1 or after 9999 in UTC"))
    return tuple(found)


class Ahead:
    """How far ahead of the moment at which it comes the time of an event may be. `check` is the test of that.

    `look` is called before the events of a body are tested: it asks the clock once for all of them, so an event costs a
    comparison. Bodies may be decoded in two threads at a time; then the moment of one serves both.
    """

    def __init__(self, cls: type[Event], ahead: timedelta, clock: Clock) -> None:
        self._field = next(each for each in fields(cls) if each.name == cls.__time_field__)
        self._ahead, self._clock = ahead, clock
        self._latest: Any = None
        self.check = Check(self._field.name, self._is_past, f"The time is more than {ahead} ahead of the clock here")

    def look(self) -> None:
        latest = self._clock.now() + self._ahead
        self._latest = to_micros(latest) // 1_000 if self._field.epoch else latest  # as the field comes in

    def _is_past(self, value: Any) -> bool:
        return value is not None and bool(value > self._latest)


def first_fault(tests: tuple[Check, ...], event: Any) -> Check | None:
    """The first test that the event fails."""
    for test in tests:
        field, unfit, _ = test
        if unfit(getattr(event, field)):
            return test
    return None


def _unfit_id(value: str | bytes | None) -> bool:
    return not value or len(value) > ID_CHARS_MAX


def _absent(value: Any) -> bool:
    return value is None or value == ""


def _unfit_time(value: datetime | None) -> bool:
    """Whether the time, moved to UTC, leaves the years that Python and Spark can show. Only the outer years can."""
    if value is None or _YEAR_FIRST < value.year < _YEAR_LAST:
        return False
    try:
        value.astimezone(UTC)
    except OverflowError:
        return True
    return False


def _holds_unfit_time(value: Any) -> bool:
    if isinstance(value, datetime):
        return _unfit_time(value)
    if isinstance(value, dict):
        return any(map(_holds_unfit_time, value.values()))
    if isinstance(value, list):
        return any(map(_holds_unfit_time, value))
    if isinstance(value, msgspec.Struct):
        return any(_holds_unfit_time(getattr(value, name)) for name in value.__struct_fields__)
    return False


def _holds_time(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, Record):
        return any(_field_holds_time(each) for each in fields(hint))
    return hint is datetime or any(map(_holds_time, get_args(hint)))


def _field_holds_time(field: Field) -> bool:
    return _holds_time(field.base)
