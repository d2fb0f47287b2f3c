"""A stream with a rollup: each event with the rows of its key, of one unit of time and a range before the event.

The rows are those that the rollup had when the event came, in the order of the log: they come as its changes, and what
it has removed is removed here. So a replay sees the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from penstock.contracts import Context
from penstock.evolution import DECLARED
from penstock.joins.telling import Joining, Pair, Side, is_of, missed
from penstock.kept import gone_class
from penstock.making import listed, made_class, time_of
from penstock.rollups.calendar import to_instant, to_time
from penstock.schema import State

RANGE_COLUMNS = {"per", "start"}
"""The columns of a rollup's rows that a range is found by."""
_MICROSECOND = timedelta(microseconds=1)


class Buckets(State):
    """What is kept of a key: the rollup's rows of one unit in `rows`, by their start in microseconds since 1970. Rows
    up to `floor` were given up, because there was no room for more."""

    floor: int | None = None


class RangeJoin:
    """The functions of the handler. Of a key `rows_max` rows are kept, the newest."""

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
        """With a mark of the unit: rows of another one must not be taken for its own."""
        hints: dict[str, Any] = {DECLARED: Literal[self.per], "rows": dict[int, self.rollup.event]}  # type: ignore[name-defined]
        return made_class(Buckets, "Buckets", hints, {DECLARED: self.per, "rows": {}})

    def _take(self, state: Any, row: Any) -> None:
        """Keep a row in place of the one before, if it is of the unit."""
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
        """What the function makes of an event and the rows of its range, in order of time."""
        at = to_instant(ctx.now if self._time_of is None else self._time_of(event))
        after = at - self._within
        if state.floor is not None and after < state.floor:
            by = (state.floor - after) * _MICROSECOND
            return [missed(ctx, self.stream, "forgotten", to_time(at), event, by)]
        rows = [state.rows[start] for start in sorted(state.rows) if after < start <= at]
        return None if self.inner and not rows else listed(function(event, rows))
