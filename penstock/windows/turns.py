"""Events of a key in order of event time, for windows to which it matters.

An event waits for its turn until one of its key is `late_after` newer, or until `late_after` of log time has passed.
One that is older than an event that has had its turn is late. At most `WAITING_MAX` wait; of more, the oldest has its
turn before its time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Any

from penstock.contracts import Context
from penstock.windows.clock import Clock, late, offset
from penstock.windows.plan import Work

WAITING_MAX = 10_000
Take = Callable[[Any, Any, datetime], Iterator[Any]]
_time = itemgetter(0)


class Turns(Clock):
    """Of a key: how far its events have had their turn. Those that wait are in `waiting`: time, log time at which it
    has waited long enough, and what windows need of it."""

    time: datetime | None = None


class InTurn:
    """Gives events to `take`, each in its turn."""

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
        """Event time has come so far."""
        if state.time is not None and time < state.time:
            return
        count = bisect_right(state.waiting, time, key=_time)
        turns, state.waiting = state.waiting[:count], state.waiting[count:]
        state.time = time
        for at, _, part in turns:
            yield from self._take(state, part, at)

    def waited(self, state: Any, now: datetime) -> Iterator[Any]:
        """Log time has come so far that events have waited long enough."""
        times = [at for at, alarm, _ in state.waiting if alarm <= now]
        if times:
            yield from self.reach(state, max(times))

    def alarm(self, state: Any) -> datetime | None:
        """The log time at which some event has waited long enough."""
        return min((alarm for _, alarm, _ in state.waiting), default=None)
