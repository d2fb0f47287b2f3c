"""As-of joins of a stream with a table whose rows change. Each event is joined with the row that was valid at the
event's time.

A row of the table is valid from its event time until the next row with the same key. An event waits for late rows for
the duration of the table's `late_after`: until its key gets a row that is that much newer, or until that much log time
has passed. If a row arrives after an event with the same or a later time has been joined without it, the row is
reported as late, but it is used for events that are processed afterwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from operator import attrgetter
from typing import Any

import msgspec

from penstock.core.contracts import Context
from penstock.core.operators import forget, listed
from penstock.core.schema import State
from penstock.joins.bounds import Bounds
from penstock.joins.output import MOMENT, Joining, Pair, Side, is_of, missed, safely, set_timer, state_class


class RowVersion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of an as-of join's table: the time when it becomes valid, its number, and the log time when it arrived."""

    __stored_name__ = "version"
    time: datetime
    number: int
    came: datetime


class WaitingEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that is waiting for late rows of the joined table: its time and its number."""

    __stored_name__ = "waiting"
    time: datetime
    number: int


class AsOfState(State):
    """The as-of join's state for a key: the versions of its row and the waiting events, both in order of event time.
    The rows and events themselves are in `rows` and `events`, by number. `came` contains the log time at which each
    waiting event arrived. `floor` is the time before which versions were dropped. All rows before `over` have arrived,
    except for late rows. `told` is the latest time of a processed event. `timer` is the time that the timer is set for,
    and `forget` is the time when a key without rows is deleted."""

    versions: list[RowVersion] = msgspec.field(default_factory=list)
    waiting: list[WaitingEvent] = msgspec.field(default_factory=list)
    came: dict[int, datetime] = msgspec.field(default_factory=dict)
    floor: datetime | None = None
    over: datetime | None = None
    told: datetime | None = None
    next: int = 0
    timer: datetime | None = None
    forget: datetime | None = None


class AsOfJoin:
    """The two functions of an as-of join's handler."""

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

        return Joining(state_class(AsOfState, held), on_event, on_timer)

    def _event(self, state: Any, event: Any, ctx: Context) -> Iterator[Any]:
        late, time = self.table.late_after, self._time_of_event(event)
        if not late or (state.over is not None and time < state.over) or _is_row_version_dropped(state, time):
            yield from self._answered(state, event, time, ctx)
        else:
            number, state.next = state.next, state.next + 1
            state.events[number], state.came[number] = event, ctx.now
            insort(state.waiting, WaitingEvent(time, number), key=_asof_order)
            surplus = max(0, len(state.waiting) - self.bounds.waiting)
            yield from self._release(state, state.waiting[:surplus], ctx)
        self._set(state, ctx)

    def _row(self, state: Any, row: Any, ctx: Context) -> Iterator[Any]:
        time = self._time_of_row(row)
        if state.told is not None and time <= state.told:
            yield missed(ctx, self.table, "late", time, row, state.told - time)
        if not _is_row_version_dropped(state, time):
            number, state.next = state.next, state.next + 1
            state.rows[number] = row
            insort(state.versions, RowVersion(time, number, ctx.now), key=_asof_order)
        over = time - self.table.late_after
        state.over = over if state.over is None else max(state.over, over)
        yield from self._release(state, state.waiting[: bisect_left(state.waiting, state.over, key=_asof_time)], ctx)
        self._prune(state, ctx.now)
        self._set(state, ctx)

    def _release(self, state: Any, released: list[WaitingEvent], ctx: Context) -> Iterator[Any]:
        """Join some of the waiting events."""
        for turn in released:
            del state.waiting[bisect_left(state.waiting, _asof_order(turn), key=_asof_order)]
            del state.came[turn.number]
            yield from self._answered(state, state.events.pop(turn.number), turn.time, ctx, waited=True)

    def _answered(self, state: Any, event: Any, time: datetime, ctx: Context, waited: bool = False) -> Iterator[Any]:
        """Yield the function's results for an event and the row that was valid at its time."""
        if _is_row_version_dropped(state, time):
            yield missed(ctx, self.event, "forgotten", time, event, state.floor - time)
            return
        state.told = time if state.told is None else max(state.told, time)
        place = bisect_right(state.versions, time, key=_asof_time) - 1
        row = state.rows[state.versions[place].number] if place >= 0 else None
        if row is None and self.inner:
            return
        if waited:
            yield from safely(self.function, (event, row), ctx, self.event, time)
        else:
            yield from listed(self.function(event, row))

    def _prune(self, state: Any, now: datetime) -> None:
        """Drop versions of the joined row: versions that are no longer needed, because a newer version has been valid
        and stored for `keep`, and the oldest versions beyond the limit. The newest version is always kept, and so is
        the currently valid version unless the limit is reached by newer ones. What was dropped is known by `floor`."""
        versions, gone = state.versions, max(0, len(state.versions) - self.bounds.versions)
        while gone + 1 < len(versions) and max(versions[gone + 1].time, versions[gone + 1].came) + self.keep <= now:
            gone += 1
        for version in versions[:gone]:
            del state.rows[version.number]
        if gone:
            del versions[:gone]
            state.floor = versions[0].time

    def _timer(self, state: Any, ctx: Context) -> Iterator[Any]:
        """Join the events that have waited long enough in log time, or forget a quiet key."""
        state.timer = None
        last = ctx.now - self.table.late_after
        waited = [number for number, _ in takewhile(lambda arrival: arrival[1] < last, state.came.items())]
        released = [WaitingEvent(self._time_of_event(state.events[number]), number) for number in waited]
        yield from self._release(state, sorted(released, key=_asof_order), ctx)
        if state.forget is not None and state.forget <= ctx.now:
            forget(state)
        else:
            self._set(state, ctx, state.forget)

    def _set(self, state: Any, ctx: Context, until: datetime | None = None) -> None:
        """Set the timer for when the next event has waited long enough or, if no event is waiting, for when a key
        without rows is deleted."""
        alarm = None
        state.forget = None
        if state.came:
            alarm = next(iter(state.came.values())) + self.table.late_after + MOMENT
        elif not state.versions:
            alarm = state.forget = until or ctx.now + self.bounds.remember
        if alarm is not None:
            set_timer(state, alarm, ctx)


def _is_row_version_dropped(state: Any, time: datetime) -> bool:
    return state.floor is not None and time < state.floor


def _asof_time(entry: Any) -> datetime:
    time: datetime = entry.time
    return time


def _asof_order(entry: Any) -> tuple[datetime, int]:
    return entry.time, entry.number
