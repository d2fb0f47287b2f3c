"""Validation beyond msgspec: values must fit the stream's columns and, optionally, times must not be too far ahead.

An event that passes can be stored by every later step: its decimals keep their digits, its times exist in UTC, and its
id, if the class has one, is present and short enough to be remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

import msgspec

from penstock.core.columns import decimal_fields, unfit_decimal
from penstock.core.contracts import Clock
from penstock.core.schema import DECIMAL_DIGITS, DECIMAL_SCALE, Event, Field, Record, fields, per_class
from penstock.core.times import to_micros

ID_CHARS_MAX = 255
"""Maximum length of an id. Up to `dedupe_ids_max` ids are read back when a writer starts, so longer ids would make a
restart slower."""
_YEAR_FIRST, _YEAR_LAST = datetime.min.year, datetime.max.year


class Check(NamedTuple):
    """A check of one field of an event. `unfit` returns whether a value of the field makes the event invalid, and
    `reason` says why."""

    field: str
    unfit: Callable[[Any], bool]
    reason: str


@per_class
def checks(cls: type[Event]) -> tuple[Check, ...]:
    """Return the checks that a decoded event of this class must pass."""
    checks = []
    if cls.__id_field__ is not None:
        base = next(field for field in fields(cls) if field.name == cls.__id_field__).base
        long = base in (str, bytes)
        unfit, most = (_unfit_id, f" or longer than {ID_CHARS_MAX} characters") if long else (_is_missing_id, "")
        checks.append(Check(cls.__id_field__, unfit, f"The id is empty{most}"))
    reason = (
        f"A decimal has more than {DECIMAL_DIGITS - DECIMAL_SCALE} digits before or {DECIMAL_SCALE} after the point"
    )
    checks += [Check(name, unfit_decimal, reason) for name in decimal_fields(cls)]
    for field in fields(cls):
        if not field.epoch and _holds_time(field.base):
            test = _unfit_time if field.base is datetime else _holds_unfit_time
            checks.append(Check(field.name, test, "A time is before the year 1 or after the year 9999 in UTC"))
    return tuple(checks)


class Ahead:
    """A limit on how far an event's time may be ahead of the clock at arrival. `check` checks one event.

    Call `look` before checking the events of a body: it reads the clock once for all of them, so each event costs one
    comparison. If two threads decode bodies at the same time, the time that was read for one body is used for both.
    """

    def __init__(self, cls: type[Event], ahead: timedelta, clock: Clock) -> None:
        self._field = next(field for field in fields(cls) if field.name == cls.__time_field__)
        self._ahead, self._clock = ahead, clock
        self._latest: Any = None
        self.check = Check(
            self._field.name, self._is_past, f"The time is more than {ahead} ahead of the server's clock"
        )

    def look(self) -> None:
        latest = self._clock.now() + self._ahead
        self._latest = to_micros(latest) // 1_000 if self._field.epoch else latest  # in the unit of the field

    def _is_past(self, value: Any) -> bool:
        return value is not None and bool(value > self._latest)


def first_fault(tests: tuple[Check, ...], event: Any) -> Check | None:
    """Return the first check that the event fails, or None."""
    for test in tests:
        field, unfit, _ = test
        if unfit(getattr(event, field)):
            return test
    return None


def _unfit_id(value: str | bytes | None) -> bool:
    return not value or len(value) > ID_CHARS_MAX


def _is_missing_id(value: Any) -> bool:
    return value is None or value == ""


def _unfit_time(value: datetime | None) -> bool:
    """Return whether the time, in UTC, is outside the years that Python and Spark can represent.

    This is only possible in the first and the last year.
    """
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
        return any(_field_holds_time(field) for field in fields(hint))
    return hint is datetime or any(map(_holds_time, get_args(hint)))


def _field_holds_time(field: Field) -> bool:
    return _holds_time(field.base)
