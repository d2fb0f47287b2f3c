"""Conditions on event objects, for handlers that run on lists instead of log batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.columns import some_columns
from penstock.core.filters.filter import Filter, compiled
from penstock.core.schema import Event, event_schema


def event_filter(cls: type[Event], where: str) -> Filter:
    """Return the filter for a condition on events of a class. Raises BadExpression if the condition is invalid."""
    return compiled(event_schema(cls), where, None)


def holds(cls: type[Event], where: str, events: Sequence[Any]) -> list[bool]:
    """Return, for each event, whether a filter's condition is true."""
    chosen = event_filter(cls, where)
    flags: list[bool] = chosen.mask(some_columns(cls, events, chosen.asked)).to_pylist()
    return flags
