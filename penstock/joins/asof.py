"""A stream with a table whose rows change: each event with the row that was valid at its time.

A row of the table is valid from its event time on, until the next one of the same key. An event waits for rows that
may still come for the table's `late_after`: until a row of its key is so much newer than it, or so much log time has
passed. A row that comes later than that is told if an event of its time or a later one was answered without it, and
counts from then on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from operator import attrgetter
from typing import Any

import msgspec

from penstock.contracts import Context
from penstock.joins.bounds import Bounds
from penstock.joins.telling import MOMENT, TIMER, Joining, Pair, Side, is_of, missed, safely, state_class
from penstock.making import forget, listed
from penstock.schema import State


class Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of the table: the time from which on it is valid, its number, and the log time at which it came."""

    time: datetime
    number: int
    came: datetime


class Waiting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that waits for rows that may still come: its time and its number."""

    time: datetime
    number: int


class Table(State):
    """What is kept of a key: the versions of its row and the events that wait, each in order of event time; the rows
    and events themselves are in `rows` and `events`, by number. `came` has the log time at which each event that waits
    came.

    `floor` is the time before which versions were given up. All rows before `over` are there, but for late ones. Events
    up to `told` were answered. `timer` is when the timer is set for, `forget` when a key without rows is forgotten.
    """

    versions: list[Version] = msgspec.field(default_factory=list)
    waiting: list[Waiting] = msgspec.field(default_factory=list)
    came: dict[int, datetime] = msgspec.field(default_factory=dict)
    floor: datetime | None = None
    over: datetime | None = None
    told: datetime | None = None
    next: int = 0
    timer: datetime | None = None
    forget: datetime | None = None


class AsOfJoin:
    """The two functions of the handler."""

    def __init__(
        self, event: Side, table: Side, *, inner: bool, keep: timedelta, function: Pair, bounds: Bounds
    ) -> None:
        self.event, self.table, self.inner, self.bounds = event, table, inner, bounds
        self.keep = max(keep, table.late_after)
        self.function = function
        self._time_of_event = attrgetter(str(event.event.__time_field__))
        self._time_of_row = attrgetter(str(table.event.__time_field__))

    def joining(self) -> Joining:
        held = {"events": dict[int, self.event.event], "rows": dict[int, self.table.event]}  # type: ignore[name-defined]
        is_row = is_of(self.table, self.event)

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            return self._row(state, event, ctx) if is_row(event, ctx) else self._event(state, event, ctx)

        def on_timer(state: Any, ctx: Context) -> Any:
            return self._timer(state, ctx)

        return Joining(state_class(Table, held), on_event, on_timer)

    def _event(self, state: Any, event: Any, ctx: Context) -> Iterator[Any]:
        late, time = self.table.late_after, self._time_of_event(event)
        if not late or (state.over is not None and time < state.over) or _is_forgotten(state, time):
            yield from self._answered(state, event, time, ctx)
        else:
            number, state.next = state.next, state.next + 1
            state.events[number], state.came[number] = event, ctx.now
            insort(state.waiting, Waiting(time, number), key=_turn)
            surplus = max(0, len(state.waiting) - self.bounds.waiting)
            yield from self._release(state, state.waiting[:surplus], ctx)
        self._set(state, ctx)

    def _row(self, state: Any, row: Any, ctx: Context) -> Iterator[Any]:
        time = self._time_of_row(row)
        if state.told is not None and time <= state.told:
            yield missed(ctx, self.table, "late", time, row, state.told - time)
        if not _is_forgotten(state, time):
            number, state.next = state.next, state.next + 1
            state.rows[number] = row
            insort(state.versions, Version(time, number, ctx.now), key=_turn)
        over = time - self.table.late_after
        state.over = over if state.over is None else max(state.over, over)
        yield from self._release(state, state.waiting[: bisect_left(state.waiting, state.over, key=_time)], ctx)
        self._prune(state, ctx.now)
        self._set(state, ctx)

    def _release(self, state: Any, turns: list[Waiting], ctx: Context) -> Iterator[Any]:
        """Answer events that wait."""
        for each in turns:
            del state.waiting[bisect_left(state.waiting, _turn(each), key=_turn)]
            del state.came[each.number]
            yield from self._answered(state, state.events.pop(each.number), each.time, ctx, waited=True)

    def _answered(self, state: Any, event: Any, time: datetime, ctx: Context, waited: bool = False) -> Iterator[Any]:
        """What the function makes of an event and the row that is valid at its time."""
        if _is_forgotten(state, time):
            yield missed(ctx, self.event, "forgotten", time, event, state.floor - time)
            return
        state.told = time if state.told is None else max(state.told, time)
        place = bisect_right(state.versions, time, key=_time) - 1
        row = state.rows[state.versions[place].number] if place >= 0 else None
        if row is None and self.inner:
            return
        if waited:
            yield from safely(self.function, (event, row), ctx, self.event, time)
        else:
            yield from listed(self.function(event, row))

    def _prune(self, state: Any, now: datetime) -> None:
        """Give up versions that are no longer needed: those after which a newer one has been valid, and there, for
        `keep`; and the oldest ones over the bound. The newest stays, and with it the one that is valid now."""
        versions, gone = state.versions, max(0, len(state.versions) - self.bounds.versions)
        while gone + 1 < len(versions) and max(versions[gone + 1].time, versions[gone + 1].came) + self.keep <= now:
            gone += 1
        for each in versions[:gone]:
            del state.rows[each.number]
        if gone:
            del versions[:gone]
            state.floor = versions[0].time

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Log time has come so far that some events have waited long enough."""
        state.timer = None
        last = ctx.now - self.table.late_after
        waited = [number for number, _ in takewhile(lambda each: each[1] < last, state.came.items())]
        turns = [Waiting(self._time_of_event(state.events[number]), number) for number in waited]
        yield from self._release(state, sorted(turns, key=_turn), ctx)
        if state.forget is not None and state.forget <= ctx.now:
            forget(state)
        else:
            self._set(state, ctx, state.forget)

    def _set(self, state: Any, ctx: Context, until: datetime | None = None) -> None:
        """Have the timer call when the next event has waited long enough; or when a key without rows is forgotten."""
        alarm = None
        state.forget = None
        if state.came:
            alarm = next(iter(state.came.values())) + self.table.late_after + MOMENT
        elif not state.versions:
            alarm = state.forget = until or ctx.now + self.bounds.remember
        if alarm is not None and (state.timer is None or alarm < state.timer):
            state.timer = alarm
            ctx.timer(TIMER, alarm)


def _is_forgotten(state: Any, time: datetime) -> bool:
    return state.floor is not None and time < state.floor


def _time(each: Any) -> datetime:
    time: datetime = each.time
    return time


def _turn(each: Any) -> tuple[datetime, int]:
    return each.time, each.number
