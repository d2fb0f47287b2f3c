"""Checks of the events that a user's function returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.core.schema import Event, per_class, value_class


class _EventCheck(NamedTuple):
    """The strict twin of an event class, and whether its events contain decimals, which need another check."""

    strict: type[msgspec.Struct]
    has_decimals: bool


def check_events(events: Iterable[Any]) -> None:
    """Raise an error if one of the events is not an event, or has a value that does not fit its type.

    A handler's machine checks all emitted events in the same way, but later: an invalid event then fails the event or
    timer for which the handler was called. A compiled handler calls this earlier, if that event or timer is not the
    cause.
    """
    from penstock.core.columns import unfit_decimal  # imported here: it loads pyarrow, which declarations do not need

    for event in events:
        if not isinstance(event, Event):
            raise TypeError(f"returned {type(event).__name__}, which is not an event")
        check = _check_of(type(event))
        twin = msgspec.convert(event, check.strict, from_attributes=True)
        if check.has_decimals and unfit_decimal(twin):
            raise ValueError("a decimal has more digits than its column allows")


@per_class
def _check_of(cls: Any) -> _EventCheck:
    from penstock.core.columns import decimal_fields

    return _EventCheck(value_class(cls), bool(decimal_fields(cls)))
