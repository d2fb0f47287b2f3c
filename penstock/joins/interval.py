"""Interval joins of two streams by key, within an interval of event time. They take events in log order and emit pairs.

A pair is emitted as soon as both events have arrived. An event is kept until no further partner can arrive, because the
other stream's time for this key has passed the interval. A stream's time is `late_after` behind its newest event. This
time also advances without events: once log time has advanced by the interval plus `late_after` since an event arrived,
the other stream's time has passed that event's interval. An event that is behind its own stream's time is late: it is
not joined, and is reported. So any two events within the interval are joined unless one of them is late, and an event
that is dropped without a partner really has no partner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from penstock.core.contracts import Context
from penstock.core.operators import forget, listed, time_of
from penstock.core.schema import State
from penstock.joins.bounds import Bounds
from penstock.joins.output import MOMENT, NO_TIME, Joining, Pair, Side, is_of, missed, safely, set_timer, state_class


class Slot(msgspec.Struct, array_like=True, gc=False):
    """An event that a join stores: its time, its number, and whether it has had a partner."""

    time: datetime
    number: int
    paired: bool = False


class IntervalState(State):
    """The interval join's state for a key. 0 is the left side and 1 the right side.

    `slots_0` and `slots_1` are in order of event time. `came_0` and `came_1` contain the log times at which these
    events arrived, by number, and `held_0` and `held_1` contain the events. All times before `over_0` are past on the
    left side. `timer` is the time that the timer is set for, and `forget` is the time when the key is deleted if it
    receives no events.
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
    """The interval in which an event has partners: from `back` before the event to `ahead` after it. `outer` is true if
    an event that has no partner is emitted too, and `wait` is how long the event waits for partners in log time."""

    back: timedelta
    ahead: timedelta
    outer: bool
    wait: timedelta


class _At(NamedTuple):
    """References to one side of a key's state, while an event or timer is processed."""

    slots: list[Slot]
    came: dict[int, datetime]
    held: dict[int, Any]


class IntervalJoin:
    """The two functions of an interval join's handler."""

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

        return Joining(state_class(IntervalState, held), on_event, on_timer)

    def _event(self, state: Any, side: int, event: Any, ctx: Context) -> Iterator[Any]:
        get = self._times[side] if self._timed else None
        time = ctx.now if get is None else get(event)
        over = _join_side_past(state, side)
        if over is not None and time < over:
            yield missed(ctx, self.sides[side], "late", time, event, over - time)
        else:
            yield from self._take(state, side, event, time, ctx)
        self._set(state, ctx)

    def _take(self, state: Any, side: int, event: Any, time: datetime, ctx: Context) -> Iterator[Any]:
        """Join an event that is not late with the stored events, and store it if more partners can arrive."""
        self._reach(state, side, time - self.sides[side].late_after)
        if not self._timed:
            self._reach(state, 1 - side, time)  # log time is the same for both sides
        reach, other = self.reach[side], _join_side_state(state, 1 - side)
        first = bisect_left(other.slots, time - reach.back, key=_slot_event_time)
        partners = other.slots[first : bisect_right(other.slots, time + reach.ahead, key=_slot_event_time)]
        for slot in partners:
            slot.paired = True
            yield from listed(self.function(*self._pair(side, event, other.held[slot.number])))
        over = _join_side_past(state, 1 - side)
        if over is None or time + reach.ahead >= over:
            yield from self._keep(state, side, Slot(time, state.next, bool(partners)), event, ctx)
        elif reach.outer and not partners:
            yield from listed(self.function(*self._pair(side, event, None)))
        yield from self._let_go(state, ctx)

    def _keep(self, state: Any, side: int, slot: Slot, event: Any, ctx: Context) -> Iterator[Any]:
        at, bounds = _join_side_state(state, side), self.bounds
        if len(at.slots) >= bounds.events:
            if bounds.full == "refuse_new" or slot.time <= at.slots[0].time:
                yield missed(ctx, self.sides[side], "full", slot.time, event)
                return
            oldest = at.slots.pop(0)
            yield missed(ctx, self.sides[side], "full", oldest.time, _drop_joined_event(at, oldest))
        state.next += 1
        insort(at.slots, slot, key=_slot_event_order)
        at.came[slot.number], at.held[slot.number] = ctx.now, event

    def _reach(self, state: Any, side: int, time: datetime) -> None:
        """Record that all times before this time are past on one side of the join."""
        over = _join_side_past(state, side)
        if over is None or over < time:
            setattr(state, f"over_{side}", time)

    def _let_go(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Drop the events whose partners can no longer arrive. In an outer join, emit the dropped events that had no
        partner."""
        for side, reach in enumerate(self.reach):
            over, at = _join_side_past(state, 1 - side), _join_side_state(state, side)
            if over is None or not at.slots or at.slots[0].time + reach.ahead >= over:
                continue
            count = bisect_left(at.slots, over - reach.ahead, key=_slot_event_time)
            gone = at.slots[:count]
            del at.slots[:count]
            for slot in gone:
                event = _drop_joined_event(at, slot)
                if reach.outer and not slot.paired:
                    pair = self._pair(side, event, None)
                    yield from safely(self.function, pair, ctx, self.sides[side], slot.time)

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Join the events that have waited long enough in log time."""
        state.timer = None
        now = ctx.now
        for side, reach in enumerate(self.reach):
            at = _join_side_state(state, side)
            waited = takewhile(lambda arrival: arrival[1] + reach.wait < now, at.came.items())  # noqa: B023  # used at once
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
        """Set the timer for when the event that arrived first has waited long enough or, if no event is stored, for
        when the key is deleted."""
        alarms = [
            next(iter(came.values())) + reach.wait + MOMENT
            for came, reach in zip((state.came_0, state.came_1), self.reach, strict=True)
            if came
        ]
        state.forget = None if alarms else until or ctx.now + self.bounds.remember
        set_timer(state, min(alarms) if alarms else state.forget, ctx)

    @staticmethod
    def _pair(side: int, event: Any, partner: Any) -> tuple[Any, Any]:
        return (event, partner) if side == 0 else (partner, event)


def _join_side_past(state: Any, side: int) -> datetime | None:
    """Return the time before which all times are past on one side of a join."""
    over: datetime | None = state.over_1 if side else state.over_0
    return over


def _join_side_state(state: Any, side: int) -> _At:
    if side:
        return _At(state.slots_1, state.came_1, state.held_1)
    return _At(state.slots_0, state.came_0, state.held_0)


def _drop_joined_event(at: _At, slot: Slot) -> Any:
    del at.came[slot.number]
    return at.held.pop(slot.number)


def _slot_event_time(slot: Slot) -> datetime:
    return slot.time


def _slot_event_order(slot: Slot) -> tuple[datetime, int]:
    return slot.time, slot.number
