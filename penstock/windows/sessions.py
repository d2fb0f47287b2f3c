"""Sessions: windows of activity, which continue while successive events are no further apart than a gap. A late event
can join two sessions. Two events that are exactly one gap apart are in the same session, as in Spark. The row of a
closed session is removed when the clock that has closed it is `keep` past the session's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from penstock.core.contracts import Context
from penstock.core.operators import forget, key_value
from penstock.core.schema import MissedWindow
from penstock.windows.clock import EPOCH, TICK, WindowClock, event_time_at, late, next_multiple, offset, set_timer, stay
from penstock.windows.plan import Window, Work
from penstock.windows.served import append, oldest, take_oldest
from penstock.windows.shapes import Session

Function = Callable[..., Any]
Part = tuple[datetime, datetime, Any]
"""An open session: the times of its first and last event, and its accumulators."""


class SessionState(WindowClock):
    """The session windows' state for a key: the newest event's time, and the event time up to which sessions are
    closed. `open` contains the open sessions, in order. `changed` contains times that identify the sessions that have
    changed since they were emitted. `shown` contains the start and end of each session that has been emitted and is
    still open."""

    newest: datetime | None = None
    time: datetime | None = None
    changed: list[datetime] = []  # noqa: RUF012  # msgspec gives each instance its own
    shown: list[tuple[datetime, datetime]] = []  # noqa: RUF012


class SessionWindows:
    base = SessionState

    def __init__(self, shape: Session, work: Work) -> None:
        self.work, self.gap = work, shape.gap

    def kept(self) -> dict[str, tuple[Any, Any]]:
        return {"open": (list[tuple[datetime, datetime, self.work.sums.kind]], [])}  # type: ignore[name-defined]

    def functions(self) -> tuple[Function, Function]:
        """Return `on_event` and `on_timer` as plain functions, which a session window's handler requires."""
        time_of = self.work.time_of

        def on_event(state: Any, event: Any, ctx: Context) -> Iterator[Any]:
            return self._event(state, event, ctx.now if time_of is None else time_of(event), ctx)

        def on_timer(state: Any, ctx: Context) -> Iterator[Any]:
            return self._timer(state, ctx)

        return on_event, on_timer

    def _event(self, state: Any, event: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        if self._is_late(state, at):
            stay(state, ctx.now, self.work.remembered)
            yield late(event, at, state.time, ctx, [MissedWindow(start=at, end=at + self.gap)])
            return
        if state.key is None:
            state.key = key_value(event, self.work.key)
        if state.newest is None or at >= state.newest:
            state.newest, state.offset_us = at, offset(ctx.now, at)
            yield from self._close(state, at - self.work.late_after)
        joined = self._join(state, event, at)
        if self.work.trigger.when == "change":
            yield from self._tell(state, joined)
        elif self.work.trigger.when == "every":
            state.changed = [*(start for start in state.changed if start != joined[0]), joined[0]]
            if state.due is None and self.work.trigger.interval is not None:
                state.due = next_multiple(ctx.now, self.work.trigger.interval)
        self._set(state, ctx)

    def _is_late(self, state: Any, at: datetime) -> bool:
        """Return whether every session that an event could belong to is closed: the session that it would begin, and
        any session that it would join."""
        return state.time is not None and at + self.gap < state.time and not self._near(state, at)

    def _near(self, state: Any, at: datetime) -> list[Part]:
        """Return the open sessions to which an event with this time belongs."""
        return [session for session in state.open if session[0] <= at + self.gap and at <= session[1] + self.gap]

    def _join(self, state: Any, event: Any, at: datetime) -> Part:
        """Add an event to its session. The session can be new, and the event can join two sessions into one."""
        sums = self.work.sums
        near = self._near(state, at)
        kept = near[0][2] if near else sums.zero()
        for session in near[1:]:
            kept = sums.merge(kept, session[2])
        first, last = min([at, *(session[0] for session in near)]), max([at, *(session[1] for session in near)])
        joined = (first, last, sums.add(kept, event, at))
        others = [session for session in state.open if not first <= session[0] <= last]
        state.open = sorted([*others, joined], key=_session_start)
        return joined

    def _close(self, state: Any, time: datetime) -> Iterator[Any]:
        """Advance event time, and close the sessions that ended before `time`. A session that ends exactly at `time`
        can still grow."""
        if state.time is not None and time <= state.time:
            return
        state.time = time
        ended = [session for session in state.open if session[1] + self.gap < time]
        state.open = state.open[len(ended) :]
        if self.work.latest:
            ended = ended[-1:] if not state.open or self.work.trigger.when == "close" else []
        for session in ended:
            yield from self._tell(state, session, closed=True)
        yield from self._removed(state, time)

    def _tell(self, state: Any, part: Part, *, closed: bool = False) -> Iterator[Any]:
        """Yield a session's row, and deletions of its earlier rows."""
        first, end = part[0], part[1] + self.gap
        if not self.work.latest:
            for window in [window for window in state.shown if first <= window[0] < end and window != (first, end)]:
                yield self.work.gone(state.key, Window(start=window[0], end=window[1]))
            others = [window for window in state.shown if not first <= window[0] < end]
            state.shown = others if closed else [*others, (first, end)]
            if closed:
                append(state.served, ((first - EPOCH) // TICK, (end - EPOCH) // TICK))
        elif not closed and first != state.open[-1][0]:
            return
        yield self.work.row(state.key, Window(start=first, end=end), closed, self.work.sums.results(part[2]))

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        now, state.timer = ctx.now, None
        if state.quiet is not None and state.quiet <= now:
            yield from self._forgotten(state)
            return
        time = event_time_at(state, now) - self.work.late_after
        if state.open:
            yield from self._close(state, time)
        else:
            yield from self._removed(state, time)
        if state.due is not None and state.due <= now:
            changed, state.changed, state.due = state.changed, [], None
            for session in state.open:
                if any(session[0] <= at <= session[1] for at in changed):
                    yield from self._tell(state, session)
        self._set(state, ctx)

    def _set(self, state: Any, ctx: Context) -> None:
        closes = state.open[0][1] + self.gap + self.work.late_after + TICK if state.open else None
        removes = self._next_removal(state) if closes is None and state.served else None
        set_timer(state, ctx, ctx.now, closes, self.work.remembered, removes)

    def _next_removal(self, state: Any) -> datetime | None:
        """Return the event time when the oldest row of a key without open sessions is removed, or None if that time is
        after the year 9999."""
        try:
            return EPOCH + oldest(state.served)[1] * TICK + self.work.keep + self.work.late_after
        except OverflowError:
            return None

    def _removed(self, state: Any, time: datetime) -> Iterator[Any]:
        """Yield the deletions of the rows of closed sessions whose `keep` has passed at this event time."""
        if not state.served:
            return
        last = (time - EPOCH - self.work.keep) // TICK
        while state.served and oldest(state.served)[1] <= last:
            yield self._deletion(state)

    def _deletion(self, state: Any) -> Any:
        """Take the oldest row of a closed session out of the state, and return its deletion."""
        start, end = take_oldest(state.served)
        return self.work.gone(state.key, Window(start=EPOCH + start * TICK, end=EPOCH + end * TICK))

    def _forgotten(self, state: Any) -> Iterator[Any]:
        """Delete a quiet key, and yield the deletions of all its rows that still exist."""
        while state.served:
            yield self._deletion(state)
        if self.work.latest:
            yield self.work.gone(state.key, None)
        forget(state)


def _session_start(part: Part) -> datetime:
    return part[0]
