"""A stream with a view: each event with the view's row as it stood in the log when the event came."""

from __future__ import annotations

from typing import Any

from penstock.contracts import Context
from penstock.joins.telling import Joining, Pair, Side, is_of, state_class
from penstock.making import listed
from penstock.schema import State


class Latest(State):
    """What is kept of a key: the view's row in `rows`, under 0, if there is one."""


def current(view: Side, stream: Side, *, inner: bool, function: Pair) -> Joining:
    """The parts of a handler over a view's changes and a stream. A row of the view that is gone comes as None."""
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
