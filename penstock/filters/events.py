"""Conditions on events as objects: where a handler runs on lists, and not on batches of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.columns import some_columns
from penstock.filters.filter import Filter, compiled
from penstock.schema import Event, event_schema


def event_filter(cls: type[Event], where: str) -> Filter:
    """The filter of a condition on events of a class. Raises BadExpression if the condition is invalid."""
    return compiled(event_schema(cls), where, None)


def holds(cls: type[Event], where: str, events: Sequence[Any]) -> list[bool]:
    """For which events the condition is true."""
    chosen = event_filter(cls, where)
    found: list[bool] = chosen.mask(some_columns(cls, events, chosen.asked)).to_pylist()
    return found
