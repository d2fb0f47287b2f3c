"""Windows by time, side by side or overlapping.

Events go to panes, one for each slide: open ones, to which events may still come, of which the newest has fields of its
own in the state, and closed ones, which stand in two stacks (`stacks.py`). A window is closed when its last pane is,
and is the sum of its panes. So an event is added once, whatever the number of windows that it belongs to. If its pane
is closed when it comes, it has missed the windows that are closed, and counts in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from penstock.contracts import Context
from penstock.making import forget, key_value
from penstock.schema import MissedWindow
from penstock.windows.clock import EPOCH, Clock, late, next_multiple, offset, reached, set_timer
from penstock.windows.plan import Kept, Window, Work
from penstock.windows.shapes import Timed
from penstock.windows.stacks import Stacks

Function = Callable[..., Any]
W = TypeVar("W", Window, MissedWindow)
MISSED_MAX = 100
"""Windows that are told of an event that missed them."""


class TimedState(Clock):
    """Of a key: the newest pane, from `begin` to `end`, with its `number` and what it `holds`; other open panes; the
    number of the first pane that is not closed, and the event time at which it is; the sum `held` of the closed panes
    that are in one window with the newest; the first pane that has changed since changes were told; and, with `latest`,
    the end of the last window that has events, until one without is closed."""

    begin: datetime | None = None
    end: datetime | None = None
    number: int | None = None
    closed: int | None = None
    closes: datetime | None = None
    changed: int | None = None
    last: int | None = None


class TimedWindows:
    """The functions of the handler."""

    base = TimedState

    def __init__(self, shape: Timed, work: Work) -> None:
        self.work, self.every, self.late_after = work, shape.every, work.late_after
        self.panes = shape.size // shape.every
        self.stacks = Stacks(work.sums)
        self._size, self._made, self._results = shape.size, work.row, work.sums.results
        self._decays = work.latest and self.panes > 1

    def kept(self) -> dict[str, tuple[Any, Any]]:
        """The fields of the state that depend on the aggregates: type and default."""
        kind, stack = self.work.sums.kind, self.stacks.store
        pair = (stack.kind, stack.empty)
        some = (kind | None, None)
        return {"holds": some, "older": (dict[int, kind], {}), "front": pair, "back": pair, "total": some, "held": some}  # type: ignore[valid-type]

    def functions(self) -> tuple[Function, Function]:
        """Plain functions, as a handler's are. The first lines are what is done for nearly every event."""
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
        """An event that is not simply one more of the newest pane."""
        number, now, sums, when = (at - EPOCH) // self.every, ctx.now, self.work.sums, self.work.trigger.when
        if state.closed is not None and number < state.closed:
            return self._late(state, event, at, number, ctx)
        if state.key is None:
            state.key = key_value(event, self.work.key)
        told: list[Any] = []
        if state.closes is None or at >= state.closes:
            told += self._close(state, (at - self.late_after - EPOCH) // self.every)
        if state.number is None or number > state.number:
            self._open(state, number, offset(now, at))
        if number == state.number:
            state.holds = sums.add(state.holds, event, at)
        else:
            before = state.older.get(number)
            state.older[number] = sums.add(sums.zero() if before is None else before, event, at)
            self._hold(state)
        if when == "change":
            told += self._told(state, number)
        elif when == "every":
            self._change(state, number, now)
        self._set(state, ctx, now)
        return told

    def _late(self, state: Any, event: Any, at: datetime, number: int, ctx: Context) -> Sequence[Any]:
        """An event whose pane is closed: that of a window of each pane from its own on, as many as a window has."""
        sums, when, after = self.work.sums, self.work.trigger.when, number + self.panes
        missed = range(number, min(after, state.closed))[-MISSED_MAX:]
        told = [
            late(event, at, self._begin(state.closed), ctx, [self._window(MissedWindow, each + 1) for each in missed])
        ]
        if after <= state.closed:
            return told
        self.stacks.put(state, number, lambda kept: sums.add(sums.merge(kept, sums.zero()), event, at), sums.zero)
        self._hold(state)
        if when == "change":
            told += self._told(state, number)
        elif when == "every":
            self._change(state, state.closed, ctx.now)
        self._set(state, ctx, ctx.now)
        return told

    def _open(self, state: Any, number: int, offset_us: int) -> None:
        """Begin a pane that is newer than all others."""
        if state.number is not None:
            state.older[state.number] = state.holds
        state.number, state.holds, state.offset_us = number, self.work.sums.zero(), offset_us
        state.begin = self._begin(number)
        state.end = state.begin + self.every
        self._hold(state)

    def _hold(self, state: Any) -> None:
        """Sum up what the newest pane shares a window with, so that this is not done for each event."""
        if self.work.trigger.when == "change" and state.number is not None:
            state.held = self._sum(state, state.number + 1 - self.panes, state.number - 1)

    def _sum(self, state: Any, first: int, last: int) -> Kept | None:
        """What is kept of the panes from one number to another, both included, as far as there are any."""
        found = self.stacks.since(state, first)
        for number in sorted(state.older):
            if first <= number <= last:
                found = state.older[number] if found is None else self.work.sums.merge(found, state.older[number])
        if state.number is not None and first <= state.number <= last:
            found = state.holds if found is None else self.work.sums.merge(found, state.holds)
        return found

    def _close(self, state: Any, closed: int) -> list[Any]:
        """Event time has come so far that panes before that number are closed: gives the rows of windows that end with
        them."""
        if state.closed is not None and closed <= state.closed:
            return []
        told, waits = self._ended(state, closed), state.number is not None
        if self.work.latest:
            told = told[-1:] if not waits or self.work.trigger.when == "close" else []
        state.closed, state.closes = closed, self._begin(closed + 1) + self.late_after
        if state.changed is not None and state.changed < closed:
            state.changed = closed
        if waits:
            self._hold(state)
        if state.last is not None and closed > state.last and self._shows_closed(state):
            told, state.last = [self.work.gone(state.key, self._window(Window, closed))], None
        return told

    def _ended(self, state: Any, closed: int) -> list[Any]:
        """All rows of windows that end with a pane before that number, which are closed with it."""
        told: list[Any] = []
        stacks, end = self.stacks, state.closed
        while True:
            if not (state.front or state.back):
                end = min(state.older, default=closed if state.number is None else state.number)
            if end >= closed:
                return told
            kept = self._taken(state, end)
            if kept is not None:
                stacks.push(state, (end, kept))
            end += 1
            told.append(self._row(state, end, stacks.whole(state), True))
            stacks.evict(state, end + 1 - self.panes)
            if self._decays:
                state.last = end

    def _taken(self, state: Any, number: int) -> Kept | None:
        """What is kept of an open pane, which is none any more."""
        if number != state.number:
            found: Kept | None = state.older.pop(number, None)
            return found
        found, state.holds = state.holds, None
        state.number = state.begin = state.end = state.held = None
        return found

    def _told(self, state: Any, number: int) -> Iterator[Any]:
        """The rows of the windows that a change in a pane has changed, as far as their last pane has begun."""
        if state.number is None:
            return
        last = min(state.number, number + self.panes - 1)
        for each in range(state.number if self.work.latest else max(number, state.closed), last + 1):
            held = self._sum(state, each + 1 - self.panes, each)
            if held is not None:
                yield self._row(state, each + 1, held, False)

    def _change(self, state: Any, number: int, now: datetime) -> None:
        """Note that a pane has changed, to be told later."""
        state.changed = number if state.changed is None else min(state.changed, number)
        if state.due is None and self.work.trigger.interval is not None:
            state.due = next_multiple(now, self.work.trigger.interval)

    def _timer(self, state: Any, ctx: Context) -> Sequence[Any]:
        now, state.timer = ctx.now, None
        if state.quiet is not None and state.quiet <= now:
            forget(state)
            return ()
        told: list[Any] = []
        if self._waits(state) or state.last is not None:
            told += self._close(state, (reached(state, now) - self.late_after - EPOCH) // self.every)
        if state.due is not None and state.due <= now:
            changed, state.changed, state.due = state.changed, None, None
            if changed is not None and state.number is not None:
                for number in range(changed, state.number + 1):
                    told += self._told_once(state, number)
        self._set(state, ctx, now)
        return told

    def _told_once(self, state: Any, number: int) -> Iterator[Any]:
        held = self._sum(state, number + 1 - self.panes, number)
        if held is not None and (not self.work.latest or number == state.number):
            yield self._row(state, number + 1, held, False)

    def _shows_closed(self, state: Any) -> bool:
        """Whether the row of a key is that of its newest closed window, and not of one that is still open."""
        return self.work.trigger.when == "close" or not self._waits(state)

    def _waits(self, state: Any) -> bool:
        return state.number is not None or bool(state.older) or self.stacks.holds(state)

    def _set(self, state: Any, ctx: Context, now: datetime) -> None:
        if state.front or state.back:
            closes = state.closes
        else:
            next_pane = min(state.older, default=state.number)
            gone = state.last if self._shows_closed(state) else None
            ends = [each + 1 for each in (next_pane, gone) if each is not None]
            closes = self._begin(min(ends)) + self.late_after if ends else None
        set_timer(state, ctx, now, closes, self.work.remembered)

    def _begin(self, number: int) -> datetime:
        return EPOCH + number * self.every

    def _row(self, state: Any, end: int, kept: Any, closed: bool) -> Any:
        return self._made(state.key, self._window(Window, end), closed, self._results(kept))

    def _window(self, kind: type[W], end: int) -> W:
        """The window that ends where the pane of that number begins."""
        ended = self._begin(end)
        return kind(start=ended - self._size, end=ended)
