"""Windows by number of events, tumbling or overlapping, and windows that end after a number of events or a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from penstock.core.contracts import Context
from penstock.core.operators import forget, key_value
from penstock.windows.clock import TICK, call, event_time_at, next_multiple, stay
from penstock.windows.plan import Work
from penstock.windows.reordering import InEventOrder, ReorderBuffer
from penstock.windows.shapes import Counted, Hybrid
from penstock.windows.stacks import Stacks

Function = Callable[..., Any]


class Numbered(ABC):
    """Base class for both kinds of windows by number. Windows are numbered from 1, and one window is filled at a
    time."""

    base: Any = ReorderBuffer

    def __init__(self, work: Work) -> None:
        self.work, self.turns = work, InEventOrder(work, self._take)

    def functions(self) -> tuple[Function, Function]:
        """Return `on_event` and `on_timer` as plain functions, which a window's handler requires."""
        time_of, key = self.work.time_of, self.work.key

        def on_event(state: Any, event: Any, ctx: Context) -> Iterator[Any]:
            at = ctx.now if time_of is None else time_of(event)
            if state.key is None:
                state.key = key_value(event, key)
            stay(state, ctx.now, self.work.remembered)
            return self._sifted(state, self._reorder_event(state, event, at, ctx), ctx)

        def on_timer(state: Any, ctx: Context) -> Iterator[Any]:
            state.timer = None
            if state.quiet is not None and state.quiet <= ctx.now:
                rows = [self.work.gone(state.key, None)] if self.work.latest else []
                forget(state)
                return iter(rows)
            return self._sifted(state, self._timer(state, ctx), ctx)

        return on_event, on_timer

    def _reorder_event(self, state: Any, event: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        return self.turns.event(state, event, at, ctx)

    @abstractmethod
    def _take(self, state: Any, part: Any, at: datetime) -> Iterator[Any]:
        """Add an event to its windows; events are passed in order. Yields pairs of a row and whether its window is
        closed."""

    @abstractmethod
    def _filling(self, state: Any) -> Any:
        """Return the row for the window that is being filled, or None if there is none."""

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Add the events that have waited long enough in log time to their windows."""
        yield from self.turns.waited(state, ctx.now)

    def _sifted(self, state: Any, rows: Iterator[Any], ctx: Context) -> Iterator[Any]:
        """Yield the rows of windows that must be emitted now, and set the timer for the other rows."""
        when, changed = self.work.trigger.when, False
        for row in rows:
            if isinstance(row, tuple):
                changed = True
                if row[1] or when == "change":
                    yield row[0]
            else:
                yield row
        if when == "every":
            yield from self._rows_at_intervals(state, changed, ctx)
        if changed:
            state.quiet = None
        self._set(state, ctx)

    def _rows_at_intervals(self, state: Any, changed: bool, ctx: Context) -> Iterator[Any]:
        if state.due is not None and state.due <= ctx.now:
            state.due, filling = None, self._filling(state)
            if filling is not None:
                yield filling
        elif changed and state.due is None and self.work.trigger.interval is not None:
            state.due = next_multiple(ctx.now, self.work.trigger.interval)

    def _set(self, state: Any, ctx: Context) -> None:
        """Set the timer for whichever window is due first or, for a key without open windows, for the time when the key
        is deleted."""
        times = [time for time in (self.turns.alarm(state), state.due, self._closing(state)) if time is not None]
        if times:
            state.quiet = None
            call(state, ctx, ctx.now, min(times))
        elif self._is_empty(state):
            state.quiet = state.quiet or ctx.now + self.work.remembered
            if state.timer is None or not ctx.now < state.timer <= state.quiet:
                call(state, ctx, ctx.now, state.quiet)  # otherwise the current timer fires earlier, and checks again
        else:
            state.quiet = None

    @abstractmethod
    def _is_empty(self, state: Any) -> bool:
        """Return whether no open window contains an event."""

    def _closing(self, state: Any) -> datetime | None:
        """Return the log time when the window closes without further events, or None if it does not close by itself."""
        return None


class CountedState(ReorderBuffer):
    """The counted windows' state for a key. `position` is the number of events processed so far. The fields for the
    newest pane's accumulators and for the stacks are added in `CountedWindows.kept`."""

    position: int = 0


class CountedWindows(Numbered):
    base = CountedState

    def __init__(self, shape: Counted, work: Work) -> None:
        super().__init__(work)
        self.every, self.panes = shape.every, shape.size // shape.every
        self.stacks = Stacks(work.sums)

    def kept(self) -> dict[str, tuple[Any, Any]]:
        some, stack = (self.work.sums.kind | None, None), self.stacks.store
        pair = (stack.kind, stack.empty)
        return {**self.turns.kept, "holds": some, "front": pair, "back": pair, "total": some}

    def _take(self, state: Any, part: Any, at: datetime) -> Iterator[Any]:
        sums = self.work.sums
        state.holds = sums.add(sums.zero() if state.holds is None else state.holds, part, at)
        state.position += 1
        pane, rest = divmod(state.position, self.every)
        if rest == 0:
            self.stacks.push(state, (pane - 1, state.holds))
            state.holds = None
            if pane >= self.panes:
                first = pane - self.panes
                yield self._row(state, first + 1, self.stacks.since(state, first), True), True
                self.stacks.evict(state, first + 1)
                return
        yield self._filling(state), False

    def _filling(self, state: Any) -> Any:
        first = max(0, state.position // self.every + 1 - self.panes)
        held = self.stacks.since(state, first)
        if state.holds is not None:
            held = state.holds if held is None else self.work.sums.merge(held, state.holds)
        return None if held is None else self._row(state, first + 1, held, False)

    def _is_empty(self, state: Any) -> bool:
        return state.holds is None and not self.stacks.holds(state)

    def _row(self, state: Any, number: int, kept: Any, closed: bool) -> Any:
        return self.work.row(state.key, number, closed, self.work.sums.results(kept))


class HybridState(ReorderBuffer):
    """The hybrid windows' state for a key: the number, start and event count of the window that is being filled."""

    number: int = 1
    began: datetime | None = None
    count: int = 0


class HybridWindows(Numbered):
    base = HybridState

    def __init__(self, shape: Hybrid, work: Work) -> None:
        super().__init__(work)
        self.count, self.within = shape.count, shape.within

    def kept(self) -> dict[str, tuple[Any, Any]]:
        return {**self.turns.kept, "holds": (self.work.sums.kind | None, None)}

    def _take(self, state: Any, part: Any, at: datetime) -> Iterator[Any]:
        yield from self._close(state, at)
        sums = self.work.sums
        if state.began is None:
            state.began, state.holds = at, sums.zero()
        state.holds = sums.add(state.holds, part, at)
        state.count += 1
        if state.count == self.count:
            yield from self._ended(state)
        else:
            yield self._filling(state), False

    def _reorder_event(self, state: Any, event: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        yield from self.turns.event(state, event, at, ctx)
        yield from self._close(state, state.time)

    def _close(self, state: Any, time: datetime) -> Iterator[Any]:
        """Advance event time, and close the window if its end has passed."""
        if state.began is not None and time >= state.began + self.within:
            yield from self._ended(state)

    def _ended(self, state: Any) -> Iterator[Any]:
        yield self.work.row(state.key, state.number, True, self.work.sums.results(state.holds)), True
        state.number, state.began, state.count, state.holds = state.number + 1, None, 0, None

    def _filling(self, state: Any) -> Any:
        if state.holds is None:
            return None
        return self.work.row(state.key, state.number, False, self.work.sums.results(state.holds))

    def _is_empty(self, state: Any) -> bool:
        return state.began is None

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        yield from self.turns.waited(state, ctx.now)
        time = event_time_at(state, ctx.now) - self.work.late_after
        if state.began is not None and time >= state.began + self.within:
            yield from self.turns.reach(state, time)
            yield from self._close(state, time)

    def _closing(self, state: Any) -> datetime | None:
        if state.began is None:
            return None
        over: datetime = state.began + self.within + self.work.late_after
        ahead: timedelta = state.offset_us * TICK
        return over + ahead
