"""Joins of a stream with a view. Each event is joined with the view's row at the event's position in log time."""

from __future__ import annotations

from typing import Any

from penstock.core.contracts import Context
from penstock.core.operators import listed
from penstock.core.schema import State
from penstock.joins.output import Joining, Pair, Side, is_of, state_class


class Latest(State):
    """The state of a key in a join with a view. If there is a row in the view, `rows` contains it under the number
    0."""


def current(view: Side, stream: Side, *, inner: bool, function: Pair) -> Joining:
    """Return the parts of a handler that reads a view's changes and a stream. A deleted row of the view arrives as
    None."""
    kind, is_event = view.event, is_of(stream, view)

    def on_event(state: Any, event: Any, ctx: Context) -> Any:
        if event is None:
            state.rows.clear()
        elif is_event(event, ctx):
            row = state.rows.get(0)
            return None if row is None and inner else listed(function(event, row))
        else:
            state.rows[0] = event
        return None

    def on_timer(state: Any, ctx: Context) -> Any:
        return None

    return Joining(state_class(Latest, {"rows": dict[int, kind]}), on_event, on_timer)  # type: ignore[valid-type]
