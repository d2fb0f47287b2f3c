"""Helpers for handlers that write rows to a view. An emitted event becomes the row for its key, and an event created by
`gone` deletes the row for its key."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from penstock.core.operators import made_class
from penstock.core.schema import Event, fields


def gone(row: type[Event], **key: Any) -> Event:
    """Return an event that deletes a row when a handler emits it: `gone(Standing, symbol="ACME")`."""
    return gone_class(row, frozenset(key))(**key)


def gone_class(row: type[Event], key: frozenset[str]) -> type[Event]:
    """Return the class of `gone` events, which has only the key columns of the row class. Cached by row class and
    key."""
    key_class: type[Event] = _delete_class(cast(Any, row), key)
    return key_class


def kept(row: type[Event], key: Iterable[str]) -> tuple[type[Event], type[Event]]:
    """Return the classes of the events that a handler emits to write and delete rows: the row class and its `gone`
    class. If the row class is invalid, which `check` reports, it is returned twice."""
    try:
        return row, gone_class(row, frozenset(key))
    except (NameError, TypeError, AttributeError):
        return row, row


@cache
def _delete_class(row: Any, key: frozenset[str]) -> type[Event]:
    hints = {field.name: field.hint for field in fields(row) if field.name in key}
    key_class: type[Event] = made_class(Event, f"{row.__name__}Gone", hints)
    return key_class
