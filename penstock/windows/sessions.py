"""Windows of activity: each goes on while events come no further apart than a gap, and an event may join two.

Two events that are just the gap apart are of one session, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from penstock.contracts import Context
from penstock.making import forget, key_value
from penstock.schema import MissedWindow
from penstock.windows.clock import TICK, Clock, late, next_multiple, offset, reached, set_timer
from penstock.windows.plan import Window, Work
from penstock.windows.shapes import Session

Function = Callable[..., Any]
Part = tuple[datetime, datetime, Any]
"""A session that is open: the times of its first and last event, and what is kept of all."""


class SessionState(Clock):
    """Of a key: the newest event's time, and how far event time has come: sessions that ended before that are closed.
    Its sessions are in `open`, in order; `changed` has times in those that have changed and were not told since;
    `shown` has the beginning and end of each that was told, and is not closed."""

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
        """Plain functions, as a handler's are."""
        time_of = self.work.time_of

        def on_event(state: Any, event: Any, ctx: Context) -> Iterator[Any]:
            return self._event(state, event, ctx.now if time_of is None else time_of(event), ctx)

        def on_timer(state: Any, ctx: Context) -> Iterator[Any]:
            return self._timer(state, ctx)

        return on_event, on_timer

    def _event(self, state: Any, event: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        if self._is_late(state, at):
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
            state.changed = [*(each for each in state.changed if each != joined[0]), joined[0]]
            if state.due is None and self.work.trigger.interval is not None:
                state.due = next_multiple(ctx.now, self.work.trigger.interval)
        self._set(state, ctx)

    def _is_late(self, state: Any, at: datetime) -> bool:
        """Whether every session that an event could belong to is closed: that which it would begin, and its own."""
        return state.time is not None and at + self.gap < state.time and not self._near(state, at)

    def _near(self, state: Any, at: datetime) -> list[Part]:
        """The open sessions that an event of this time belongs to."""
        return [each for each in state.open if each[0] - self.gap <= at <= each[1] + self.gap]

    def _join(self, state: Any, event: Any, at: datetime) -> Part:
        """Put an event into its session, which may be a new one, or two that it makes one."""
        sums = self.work.sums
        near = self._near(state, at)
        kept = near[0][2] if near else sums.zero()
        for each in near[1:]:
            kept = sums.merge(kept, each[2])
        first, last = min([at, *(each[0] for each in near)]), max([at, *(each[1] for each in near)])
        joined = (first, last, sums.add(kept, event, at))
        others = [each for each in state.open if not first <= each[0] <= last]
        state.open = sorted([*others, joined], key=_first)
        return joined

    def _close(self, state: Any, time: datetime) -> Iterator[Any]:
        """Event time has come so far: sessions that ended before it are closed. One that ends just then may grow."""
        if state.time is not None and time <= state.time:
            return
        state.time = time
        ended = [each for each in state.open if each[1] + self.gap < time]
        state.open = state.open[len(ended) :]
        if self.work.latest:
            ended = ended[-1:] if not state.open or self.work.trigger.when == "close" else []
        for each in ended:
            yield from self._tell(state, each, closed=True)

    def _tell(self, state: Any, part: Part, *, closed: bool = False) -> Iterator[Any]:
        """The row of a session, in place of those that it was before it grew."""
        first, end = part[0], part[1] + self.gap
        if not self.work.latest:
            for window in [each for each in state.shown if first <= each[0] < end and each != (first, end)]:
                yield self.work.gone(state.key, Window(start=window[0], end=window[1]))
            others = [each for each in state.shown if not first <= each[0] < end]
            state.shown = others if closed else [*others, (first, end)]
        elif not closed and first != state.open[-1][0]:
            return
        yield self.work.row(state.key, Window(start=first, end=end), closed, self.work.sums.results(part[2]))

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        now, state.timer = ctx.now, None
        if state.quiet is not None and state.quiet <= now:
            forget(state)
            return
        if state.open:
            yield from self._close(state, reached(state, now) - self.work.late_after)
        if state.due is not None and state.due <= now:
            changed, state.changed, state.due = state.changed, [], None
            for each in state.open:
                if any(each[0] <= at <= each[1] for at in changed):
                    yield from self._tell(state, each)
        self._set(state, ctx)

    def _set(self, state: Any, ctx: Context) -> None:
        closes = state.open[0][1] + self.gap + self.work.late_after + TICK if state.open else None
        set_timer(state, ctx, ctx.now, closes, self.work.remembered)


def _first(part: Part) -> datetime:
    return part[0]
