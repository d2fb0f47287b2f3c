"""Joins of a stream with a rollup. Each event is joined with its key's rows for one unit of time, in a range before the
event.

In log order, an event sees the rows that the rollup had when the event arrived: rows arrive as the rollup's changes,
and rows that the rollup deletes are also deleted here. So an event sees the same rows in a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from penstock.core.contracts import Context
from penstock.core.deletes import gone_class
from penstock.core.operators import listed, made_class, time_of
from penstock.core.schema import State
from penstock.core.shapes import DECLARED
from penstock.joins.output import Joining, Pair, Side, is_of, missed
from penstock.rollups.calendar import to_instant, to_time

RANGE_COLUMNS = {"per", "start"}
"""The columns of a rollup's rows that determine a range."""
_MICROSECOND = timedelta(microseconds=1)


class Buckets(State):
    """The state of a key in a join with a rollup: `rows` contains the rollup's rows for one unit, by their start in
    microseconds since 1970. Rows up to `floor` were dropped at the limit."""

    floor: int | None = None


class RangeJoin:
    """The functions of a handler that joins a stream with a rollup. Each key stores its newest `rows_max` rows."""

    def __init__(self, rollup: Side, stream: Side, *, per: str, within: timedelta, inner: bool, rows_max: int) -> None:
        self.rollup, self.stream, self.per, self.inner, self.rows_max = rollup, stream, per, inner, rows_max
        self._within = within // _MICROSECOND
        self._time_of = time_of([stream.event])

    def joining(self, function: Pair, view_key: tuple[str, ...]) -> Joining:
        is_event, gone = is_of(self.stream, self.rollup), gone_class(self.rollup.event, frozenset(view_key))
        answered: Callable[..., Any] = self._answered

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            if isinstance(event, gone):
                self._remove(state, event)
            elif is_event(event, ctx):
                return answered(state, event, ctx, function)
            else:
                self._take(state, event)
            return None

        def on_timer(state: Any, ctx: Context) -> Any:
            return None

        return Joining(self._state_class(), on_event, on_timer)

    def _state_class(self) -> Any:
        """Create the state class, marked with the unit: stored rows for a different unit must not be used."""
        hints: dict[str, Any] = {DECLARED: Literal[self.per], "rows": dict[int, self.rollup.event]}  # type: ignore[name-defined]
        return made_class(Buckets, "Buckets", hints, {DECLARED: self.per, "rows": {}})

    def _take(self, state: Any, row: Any) -> None:
        """Store a rollup's row, replacing its previous version, if it is for this join's unit."""
        if row.per != self.per:
            return
        state.rows[to_instant(row.start)] = row
        if len(state.rows) > self.rows_max:
            oldest = min(state.rows)
            del state.rows[oldest]
            state.floor = oldest if state.floor is None else max(state.floor, oldest)

    def _remove(self, state: Any, gone: Any) -> None:
        if gone.per == self.per:
            state.rows.pop(to_instant(gone.start), None)
            if not state.rows:
                state.floor = None

    def _answered(self, state: Any, event: Any, ctx: Context, function: Pair) -> Any:
        """Return the function's results for an event and the rows in its range, in order of time."""
        at = to_instant(ctx.now if self._time_of is None else self._time_of(event))
        after = at - self._within
        if state.floor is not None and after < state.floor:
            by = (state.floor - after) * _MICROSECOND
            return [missed(ctx, self.stream, "forgotten", to_time(at), event, by)]
        rows = [state.rows[start] for start in sorted(state.rows) if after < start <= at]
        return None if self.inner and not rows else listed(function(event, rows))
