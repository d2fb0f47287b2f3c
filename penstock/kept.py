"""Rows that a handler keeps as a view: an event that it emits is the row with these key columns from now on, and `gone`
says that there is none any more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from penstock.making import made_class
from penstock.schema import Event, fields


def gone(row: type[Event], **key: Any) -> Event:
    """What a handler emits in place of a row to have it removed: `gone(Standing, symbol="ACME")`."""
    return gone_class(row, frozenset(key))(**key)


def gone_class(row: type[Event], key: frozenset[str]) -> type[Event]:
    """The class of that: the key columns of a row class, and nothing else. It is the same for the same two."""
    key_class: type[Event] = _made(cast(Any, row), key)
    return key_class


def kept(row: type[Event], key: Iterable[str]) -> tuple[type[Event], type[Event]]:
    """The classes that a handler emits to keep rows: the rows' own, and that of what removes them. If the row class is
    not sound there is no other one, and `check` tells of it."""
    try:
        return row, gone_class(row, frozenset(key))
    except (NameError, TypeError, AttributeError):
        return row, row


@cache
def _made(row: Any, key: frozenset[str]) -> type[Event]:
    hints = {each.name: each.hint for each in fields(row) if each.name in key}
    made: type[Event] = made_class(Event, f"{row.__name__}Gone", hints)
    return made
