"""Two streams by key, within an interval of event time: events in log order in, pairs out.

A pair is told as soon as both are there. An event is kept until no partner can come any more: when the other stream's
time, for this key, is past the interval. That time is `late_after` behind the newest event of the stream; and it
passes without events: when log time has moved on by the interval and `late_after` since an event came, the other
stream's time is past that event's interval. An event behind its own stream's time is late, joins nothing, and is told.
So any two events that are not late and lie within the interval meet, and one that is given up without a partner has
none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from penstock.contracts import Context
from penstock.joins.bounds import Bounds
from penstock.joins.telling import MOMENT, NO_TIME, TIMER, Joining, Pair, Side, is_of, missed, safely, state_class
from penstock.making import forget, listed, time_of
from penstock.schema import State


class Slot(msgspec.Struct, array_like=True, gc=False):
    """An event that is kept: its time, its number, and whether it has had a partner."""

    time: datetime
    number: int
    paired: bool = False


class Kept(State):
    """What is kept of a key. 0 is the left side and 1 the right one.

    `slots_0` and `slots_1` are in order of event time; `came_0` and `came_1` have the log times at which those events
    came, by number, and `held_0` and `held_1` the events. All times before `over_0` are over on the left. `timer` is
    when the timer is set for, `forget` when the key is forgotten if nothing comes.
    """

    slots_0: list[Slot] = msgspec.field(default_factory=list)
    slots_1: list[Slot] = msgspec.field(default_factory=list)
    came_0: dict[int, datetime] = msgspec.field(default_factory=dict)
    came_1: dict[int, datetime] = msgspec.field(default_factory=dict)
    over_0: datetime | None = None
    over_1: datetime | None = None
    next: int = 0
    timer: datetime | None = None
    forget: datetime | None = None


class Reach(NamedTuple):
    """Where an event's partners may be: from so long before it to so long after. Whether it is told without any; how
    long it waits for one in log time."""

    back: timedelta
    ahead: timedelta
    outer: bool
    wait: timedelta


class _At(NamedTuple):
    """One side of a key while an event or timer is at work: what is kept of it, as references into the state."""

    slots: list[Slot]
    came: dict[int, datetime]
    held: dict[int, Any]


class IntervalJoin:
    """The two functions of the handler."""

    def __init__(
        self, sides: tuple[Side, Side], within: tuple[timedelta, timedelta], how: str, function: Pair, bounds: Bounds
    ) -> None:
        before, after = within
        left, right = sides
        self.sides, self.function, self.bounds = sides, function, bounds
        self.reach = (
            Reach(before, after, how in ("left", "full"), max(after, NO_TIME) + right.late_after),
            Reach(after, before, how in ("right", "full"), max(before, NO_TIME) + left.late_after),
        )
        self._times = tuple(time_of([side.event]) for side in sides)
        self._timed = None not in self._times

    def joining(self) -> Joining:
        held = {f"held_{number}": dict[int, side.event] for number, side in enumerate(self.sides)}  # type: ignore[name-defined]
        is_left = is_of(*self.sides)

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            return self._event(state, 0 if is_left(event, ctx) else 1, event, ctx)

        def on_timer(state: Any, ctx: Context) -> Any:
            return self._timer(state, ctx)

        return Joining(state_class(Kept, held), on_event, on_timer)

    def _event(self, state: Any, side: int, event: Any, ctx: Context) -> Iterator[Any]:
        get = self._times[side] if self._timed else None
        time = ctx.now if get is None else get(event)
        over = _over(state, side)
        if over is not None and time < over:
            yield missed(ctx, self.sides[side], "late", time, event, over - time)
        else:
            yield from self._take(state, side, event, time, ctx)
        self._set(state, ctx)

    def _take(self, state: Any, side: int, event: Any, time: datetime, ctx: Context) -> Iterator[Any]:
        """Join an event that is in time with what is there, and keep it if more may come."""
        self._reach(state, side, time - self.sides[side].late_after)
        if not self._timed:
            self._reach(state, 1 - side, time)  # log time is the same for both
        reach, other = self.reach[side], _at(state, 1 - side)
        first = bisect_left(other.slots, time - reach.back, key=_time)
        partners = other.slots[first : bisect_right(other.slots, time + reach.ahead, key=_time)]
        for slot in partners:
            slot.paired = True
            yield from listed(self.function(*self._pair(side, event, other.held[slot.number])))
        over = _over(state, 1 - side)
        if over is None or time + reach.ahead >= over:
            yield from self._keep(state, side, Slot(time, state.next, bool(partners)), event, ctx)
        elif reach.outer and not partners:
            yield from listed(self.function(*self._pair(side, event, None)))
        yield from self._let_go(state, ctx)

    def _keep(self, state: Any, side: int, slot: Slot, event: Any, ctx: Context) -> Iterator[Any]:
        at, bounds = _at(state, side), self.bounds
        if len(at.slots) >= bounds.events:
            if bounds.full == "refuse_new" or slot.time <= at.slots[0].time:
                yield missed(ctx, self.sides[side], "full", slot.time, event)
                return
            oldest = at.slots.pop(0)
            yield missed(ctx, self.sides[side], "full", oldest.time, _drop(at, oldest))
        state.next += 1
        insort(at.slots, slot, key=_turn)
        at.came[slot.number], at.held[slot.number] = ctx.now, event

    def _reach(self, state: Any, side: int, time: datetime) -> None:
        """All times of a side before this one are over."""
        over = _over(state, side)
        if over is None or over < time:
            setattr(state, f"over_{side}", time)

    def _let_go(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Give up the events whose partners' time is over; tell of those that had none, if that is asked for."""
        for side, reach in enumerate(self.reach):
            over, at = _over(state, 1 - side), _at(state, side)
            if over is None or not at.slots or at.slots[0].time + reach.ahead >= over:
                continue
            count = bisect_left(at.slots, over - reach.ahead, key=_time)
            gone = at.slots[:count]
            del at.slots[:count]
            for slot in gone:
                event = _drop(at, slot)
                if reach.outer and not slot.paired:
                    pair = self._pair(side, event, None)
                    yield from safely(self.function, pair, ctx, self.sides[side], slot.time)

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Log time has come so far that some event has waited long enough."""
        state.timer = None
        now = ctx.now
        for side, reach in enumerate(self.reach):
            at = _at(state, side)
            waited = takewhile(lambda each: each[1] + reach.wait < now, at.came.items())  # noqa: B023  # used at once
            get = self._times[side] if self._timed else None
            times = [came if get is None else get(at.held[number]) for number, came in waited]
            if times:
                self._reach(state, 1 - side, max(times) + reach.ahead + MOMENT)
        yield from self._let_go(state, ctx)
        if state.forget is not None and state.forget <= now:
            forget(state)
        else:
            self._set(state, ctx, state.forget)

    def _set(self, state: Any, ctx: Context, until: datetime | None = None) -> None:
        """Have the timer call when the event that came first has waited long enough; or, if none is kept, when the key
        is to be forgotten."""
        alarms = [
            next(iter(came.values())) + reach.wait + MOMENT
            for came, reach in zip((state.came_0, state.came_1), self.reach, strict=True)
            if came
        ]
        state.forget = None if alarms else until or ctx.now + self.bounds.remember
        alarm = min(alarms) if alarms else state.forget
        if state.timer is None or alarm < state.timer:
            state.timer = alarm
            ctx.timer(TIMER, alarm)

    @staticmethod
    def _pair(side: int, event: Any, partner: Any) -> tuple[Any, Any]:
        return (event, partner) if side == 0 else (partner, event)


def _over(state: Any, side: int) -> datetime | None:
    over: datetime | None = state.over_1 if side else state.over_0
    return over


def _at(state: Any, side: int) -> _At:
    if side:
        return _At(state.slots_1, state.came_1, state.held_1)
    return _At(state.slots_0, state.came_0, state.held_0)


def _drop(at: _At, slot: Slot) -> Any:
    del at.came[slot.number]
    return at.held.pop(slot.number)


def _time(slot: Slot) -> datetime:
    return slot.time


def _turn(slot: Slot) -> tuple[datetime, int]:
    return slot.time, slot.number
