"""Sorts a key's events by event time, for windows that need this.

An event waits until its key gets an event that is `late_after` newer, or until `late_after` of log time has passed. An
event is late if a newer event has already been processed. At most `WAITING_MAX` events wait; beyond that limit, the
oldest event is processed early.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any

from penstock.core.contracts import Context
from penstock.windows.clock import WindowClock, late, offset
from penstock.windows.plan import Work

WAITING_MAX = 10_000
Take = Callable[[Any, Any, datetime], Iterator[Any]]
_time = itemgetter(0)


class ReorderBuffer(WindowClock):
    """The reordering state for a key: the event time up to which its events have been processed. `waiting` contains,
    for each waiting event, its time, the log time at which it has waited long enough, and the values that windows
    need."""

    time: datetime | None = None


class InEventOrder:
    """Passes events to `take` in order of event time, for the windows in `windows.counted`."""

    def __init__(self, work: Work, take: Take) -> None:
        self._late, self._part, self._take = work.late_after, work.part, take
        self.waits = bool(work.late_after) and work.time_of is not None
        self.kept: dict[str, Any] = {"waiting": (list[tuple[datetime, datetime, work.part_class]], [])}  # type: ignore[name-defined]

    def event(self, state: Any, event: Any, at: datetime, ctx: Context) -> Iterator[Any]:
        if state.time is not None and at < state.time:
            yield late(event, at, state.time, ctx)
            return
        if not self.waits:
            state.time, state.offset_us = at, offset(ctx.now, at)
            yield from self._take(state, event, at)
            return
        newest = state.waiting[-1][0] if state.waiting else at
        insort(state.waiting, (at, ctx.now + self._late, self._part(event)), key=_time)
        if at >= newest:
            newest, state.offset_us = at, offset(ctx.now, at)
        time = newest - self._late
        surplus = len(state.waiting) - WAITING_MAX
        if surplus > 0:
            time = max(time, state.waiting[surplus - 1][0])
        yield from self.reach(state, time)

    def reach(self, state: Any, time: datetime) -> Iterator[Any]:
        """Advance event time for windows, and process the waiting events up to `time`."""
        if state.time is not None and time < state.time:
            return
        count = bisect_right(state.waiting, time, key=_time)
        turns, state.waiting = state.waiting[:count], state.waiting[count:]
        state.time = time
        for at, _, part in turns:
            yield from self._take(state, part, at)

    def waited(self, state: Any, now: datetime) -> Iterator[Any]:
        """Pass the events that have waited long enough in log time to the windows."""
        times = [at for at, alarm, _ in state.waiting if alarm <= now]
        if times:
            yield from self.reach(state, max(times))

    def alarm(self, state: Any) -> datetime | None:
        """Return the log time when the next event has waited long enough."""
        return min((alarm for _, alarm, _ in state.waiting), default=None)
