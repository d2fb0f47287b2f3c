"""Windows by time, tumbling or overlapping.

Events go to panes, one for each slide. Open panes still accept events; the newest open pane has separate fields in the
state. Closed panes are in two stacks (`stacks.py`). A window is the sum of its panes, and is closed when its last pane
is closed. So an event is added only once, however many windows contain it. An event for a closed pane misses the closed
windows, but is added to the windows that are still open. A window has the number of the pane that follows it, and its
row is removed when the clock that has closed it has advanced by `keep`, rounded up to panes. This costs an open window
no timer: while windows are open, rows are removed when one closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from penstock.core.contracts import Context
from penstock.core.operators import forget, key_value
from penstock.core.schema import MissedWindow
from penstock.windows.clock import EPOCH, WindowClock, event_time_at, late, next_multiple, offset, set_timer, stay
from penstock.windows.plan import Kept, Window, Work
from penstock.windows.served import append_number, newest, oldest, starts_by, take_numbers
from penstock.windows.shapes import Timed
from penstock.windows.stacks import Stacks

Function = Callable[..., Any]
W = TypeVar("W", Window, MissedWindow)
MISSED_MAX = 100
"""Maximum number of missed windows that are reported for a late event."""
TIME_MIN, TIME_MAX = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
WINDOWS_CACHED = 4_096
"""Number of windows to cache: most keys have the same windows."""
REMOVED_TOGETHER = 8
"""A timer removes the rows of successive windows together, up to one eighth of those that are kept. So a key that falls
silent needs a few timers to remove its rows, and not one for each slide."""


class TimedState(WindowClock):
    """The timed windows' state for a key. The newest pane has the number `number` and the accumulators `holds`, and
    lasts from `begin` to `end`; the other open panes are in `older`. `closed` is the number of the first open pane, and
    `closes` is the event time when that pane closes. `held` is the sum of the other panes that share a window with the
    newest pane. `changed` is the first pane that has changed since changes were emitted. With `latest`, `last` is the
    end of the last closed window with events, and becomes None when a window without events is closed."""

    begin: datetime | None = None
    end: datetime | None = None
    number: int | None = None
    closed: int | None = None
    closes: datetime | None = None
    changed: int | None = None
    last: int | None = None


class TimedWindows:
    """The functions of a handler for windows by time."""

    base = TimedState

    def __init__(self, shape: Timed, work: Work) -> None:
        self.work, self.every, self.late_after = work, shape.every, work.late_after
        self.panes = shape.size // shape.every
        self.stacks = Stacks(work.sums)
        self._size, self._made, self._results = shape.size, work.row, work.sums.results
        self._decays = work.latest and self.panes > 1
        self._first = -((EPOCH - TIME_MIN - shape.size) // shape.every) - 1
        self._last = (TIME_MAX - EPOCH - work.late_after) // shape.every - self.panes - 1
        self._keep_panes = -(-work.keep // shape.every)
        self._windows = lru_cache(WINDOWS_CACHED)(self._row_window)

    def kept(self) -> dict[str, tuple[Any, Any]]:
        """Return the state's fields that depend on the aggregates, with their types and defaults."""
        kind, stack = self.work.sums.kind, self.stacks.store
        pair = (stack.kind, stack.empty)
        some = (kind | None, None)
        return {"holds": some, "older": (dict[int, kind], {}), "front": pair, "back": pair, "total": some, "held": some}  # type: ignore[valid-type]

    def functions(self) -> tuple[Function, Function]:
        """Return `on_event` and `on_timer` as plain functions, which a window's handler requires. The first lines of
        `on_event` handle almost every event."""
        add, time_of, when = self.work.sums.add, self.work.time_of, self.work.trigger.when
        tells_now, merge = when == "change", self.work.sums.merge

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            at = ctx.now if time_of is None else time_of(event)
            if state.end is None or not state.begin <= at < state.end or at >= state.closes:
                return self._event(state, event, at, ctx)
            state.holds = add(state.holds, event, at)
            if tells_now:
                held = state.holds if state.held is None else merge(state.held, state.holds)
                return (self._row(state, state.number + 1, held, False),)
            if when == "every" and (state.changed is None or state.changed > state.number):
                now = ctx.now
                self._change(state, state.number, now)
                self._set(state, ctx, now)
            return None

        def on_timer(state: Any, ctx: Context) -> Any:
            return self._timer(state, ctx)

        return on_event, on_timer

    def _event(self, state: Any, event: Any, at: datetime, ctx: Context) -> Sequence[Any]:
        """Process an event that needs more work than being added to a window's newest pane."""
        number, now, sums, when = (at - EPOCH) // self.every, ctx.now, self.work.sums, self.work.trigger.when
        if not self._first <= number <= self._last:  # its windows could not be closed, and would block their key
            raise ValueError(f"{at.isoformat()} is too close to the year 1 or the year 10000 for windows of this size")
        if state.closed is not None and number < state.closed:
            return self._late(state, event, at, number, ctx)
        if state.key is None:
            state.key = key_value(event, self.work.key)
        events: list[Any] = []
        if state.closes is None or at >= state.closes:
            events += self._close(state, (at - self.late_after - EPOCH) // self.every)
        if state.number is None or number > state.number:
            self._open(state, number, offset(now, at))
        if number == state.number:
            state.holds = sums.add(state.holds, event, at)
        else:
            before = state.older.get(number)
            state.older[number] = sums.add(sums.zero() if before is None else before, event, at)
            self._hold(state)
        if when == "change":
            events += self._changed_rows(state, number)
        elif when == "every":
            self._change(state, number, now)
        self._set(state, ctx, now)
        return events

    def _late(self, state: Any, event: Any, at: datetime, number: int, ctx: Context) -> Sequence[Any]:
        """Process an event for a closed pane. The event belongs to as many windows as a window has panes: one window
        ends with the event's pane, and one ends with each following pane."""
        sums, when, after = self.work.sums, self.work.trigger.when, number + self.panes
        missed = range(number, min(after, state.closed))[-MISSED_MAX:]
        events = [
            late(event, at, self._begin(state.closed), ctx, [self._window(MissedWindow, pane + 1) for pane in missed])
        ]
        stay(state, ctx.now, self.work.remembered)
        if after <= state.closed:
            return events
        self.stacks.put(state, number, lambda kept: sums.add(sums.merge(kept, sums.zero()), event, at), sums.zero)
        self._hold(state)
        if when == "change":
            events += self._changed_rows(state, number)
        elif when == "every":
            self._change(state, state.closed, ctx.now)
        self._set(state, ctx, ctx.now)
        return events

    def _open(self, state: Any, number: int, offset_us: int) -> None:
        """Begin a window pane that is newer than all others."""
        if state.number is not None:
            state.older[state.number] = state.holds
        state.number, state.holds, state.offset_us = number, self.work.sums.zero(), offset_us
        state.begin = self._begin(number)
        state.end = state.begin + self.every
        self._hold(state)

    def _hold(self, state: Any) -> None:
        """Compute the sum of the panes that share a window with the newest pane, so it is not recomputed for each
        event."""
        if self.work.trigger.when == "change" and state.number is not None:
            state.held = self._sum(state, state.number + 1 - self.panes, state.number - 1)

    def _sum(self, state: Any, first: int, last: int) -> Kept | None:
        """Return the merged accumulators of a window's existing panes with numbers from `first` to `last`."""
        kept = self.stacks.since(state, first)
        for number in sorted(state.older):
            if first <= number <= last:
                kept = state.older[number] if kept is None else self.work.sums.merge(kept, state.older[number])
        if state.number is not None and first <= state.number <= last:
            kept = state.holds if kept is None else self.work.sums.merge(kept, state.holds)
        return kept

    def _close(self, state: Any, closed: int) -> list[Any]:
        """Advance event time, close the panes with numbers below `closed`, and return the rows of the windows that end
        with these panes."""
        if state.closed is not None and closed <= state.closed:
            return []
        rows, waits = self._ended(state, closed), state.number is not None
        if self.work.latest:
            rows = rows[-1:] if not waits or self.work.trigger.when == "close" else []
        state.closed, state.closes = closed, self._begin(closed + 1) + self.late_after
        if state.changed is not None and state.changed < closed:
            state.changed = closed
        if waits:
            self._hold(state)
        if state.last is not None and closed > state.last and self._shows_closed(state):
            rows, state.last = [self.work.gone(state.key, None)], None
        if starts_by(state.served, closed - self._keep_panes):
            rows += self._removed(state, closed)
        return rows

    def _ended(self, state: Any, closed: int) -> list[Any]:
        """Return the rows of the windows that are now closed, because their last pane has a number below `closed`."""
        rows: list[Any] = []
        stacks, end = self.stacks, state.closed
        while True:
            if not (state.front or state.back):
                end = min(state.older, default=closed if state.number is None else state.number)
            if end >= closed:
                return rows
            kept = self._taken(state, end)
            if kept is not None:
                stacks.push(state, (end, kept))
            end += 1
            rows.append(self._row(state, end, stacks.whole(state), True))
            stacks.evict(state, end + 1 - self.panes)
            if self._decays:
                state.last = end
            elif not self.work.latest:
                append_number(state.served, end)

    def _taken(self, state: Any, number: int) -> Kept | None:
        """Remove an open window pane and return its accumulators."""
        if number != state.number:
            kept: Kept | None = state.older.pop(number, None)
            return kept
        kept, state.holds = state.holds, None
        state.number = state.begin = state.end = state.held = None
        return kept

    def _removed(self, state: Any, closed: int) -> list[Any]:
        """Return the deletions of the rows whose `keep` has passed when the panes below `closed` are closed."""
        numbers = take_numbers(state.served, closed - self._keep_panes)
        return [self.work.gone(state.key, self._windows(number)) for number in numbers]

    def _forgotten(self, state: Any) -> list[Any]:
        """Delete a quiet key, and return the deletions of all its rows that still exist."""
        rows = self._removed(state, newest(state.served)[1] + self._keep_panes) if state.served else []
        if self.work.latest and not self._decays:
            rows = [self.work.gone(state.key, None)]
        forget(state)
        return rows

    def _changed_rows(self, state: Any, number: int) -> Iterator[Any]:
        """Yield the rows of the windows that contain a changed pane, if their last pane has begun."""
        if state.number is None:
            return
        last = min(state.number, number + self.panes - 1)
        for pane in range(state.number if self.work.latest else max(number, state.closed), last + 1):
            held = self._sum(state, pane + 1 - self.panes, pane)
            if held is not None:
                yield self._row(state, pane + 1, held, False)

    def _change(self, state: Any, number: int, now: datetime) -> None:
        """Record that a pane has changed, so its windows are emitted later."""
        state.changed = number if state.changed is None else min(state.changed, number)
        if state.due is None and self.work.trigger.interval is not None:
            state.due = next_multiple(now, self.work.trigger.interval)

    def _timer(self, state: Any, ctx: Context) -> Sequence[Any]:
        now, state.timer = ctx.now, None
        if state.quiet is not None and state.quiet <= now:
            return self._forgotten(state)
        rows: list[Any] = []
        closed = (event_time_at(state, now) - self.late_after - EPOCH) // self.every
        if self._waits(state) or state.last is not None:
            rows += self._close(state, closed)
        elif starts_by(state.served, closed - self._keep_panes):
            rows += self._removed(state, closed)
        if state.due is not None and state.due <= now:
            changed, state.changed, state.due = state.changed, None, None
            if changed is not None and state.number is not None:
                for number in range(changed, state.number + 1):
                    rows += self._open_row(state, number)
        self._set(state, ctx, now)
        return rows

    def _open_row(self, state: Any, number: int) -> Iterator[Any]:
        held = self._sum(state, number + 1 - self.panes, number)
        if held is not None and (not self.work.latest or number == state.number):
            yield self._row(state, number + 1, held, False)

    def _shows_closed(self, state: Any) -> bool:
        """Return whether a key's row shows its newest closed window rather than an open window."""
        return self.work.trigger.when == "close" or not self._waits(state)

    def _waits(self, state: Any) -> bool:
        return state.number is not None or bool(state.older) or self.stacks.holds(state)

    def _set(self, state: Any, ctx: Context, now: datetime) -> None:
        if state.front or state.back:
            closes = state.closes
        else:
            next_pane = min(state.older, default=state.number)
            gone = state.last if self._shows_closed(state) else None
            ends = [pane + 1 for pane in (next_pane, gone) if pane is not None]
            closes = self._begin(min(ends)) + self.late_after if ends else None
        removes = self._next_removal(state) if closes is None and state.served else None
        set_timer(state, ctx, now, closes, self.work.remembered, removes)

    def _next_removal(self, state: Any) -> datetime | None:
        """Return the event time when the oldest rows of a key without open windows are removed, or None if that time is
        after the year 9999."""
        first, last = oldest(state.served)
        number = min(last, first + self._keep_panes // REMOVED_TOGETHER) + self._keep_panes
        try:
            return self._begin(number) + self.late_after
        except OverflowError:
            return None

    def _begin(self, number: int) -> datetime:
        return EPOCH + number * self.every

    def _row(self, state: Any, end: int, kept: Any, closed: bool) -> Any:
        return self._made(state.key, self._windows(end), closed, self._results(kept))

    def _row_window(self, end: int) -> Window:
        return self._window(Window, end)

    def _window(self, kind: type[W], end: int) -> W:
        """Return the window that ends where the pane with number `end` begins."""
        ended = self._begin(end)
        return kind(start=ended - self._size, end=ended)
