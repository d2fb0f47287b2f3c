"""The clock of a key: it decides which events are late, when timers fire, when the rows of closed windows are removed,
and when a quiet key is deleted.

Event time comes from a key's events. After the newest event, it advances without events, at the same speed as log time.
So a key's last window closes even if there are no further events, but `late_after` later than it would by the wall
clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.core.contracts import Context
from penstock.core.operators import event_text
from penstock.core.schema import Event, MissedWindow, State

TIMER = "time"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


class Late(Event):
    """An event that arrived too late for windows of its key. `at` is its time, `watermark` is the key's event time when
    the event arrived, and `late_s` is how far behind the event was. `windows` contains the windows that it missed,
    oldest first (only the newest ones if there are many), and `event` is the event as JSON."""

    key: str
    at: datetime
    watermark: datetime
    late_s: float
    windows: list[MissedWindow]
    event: str


class WindowClock(State):
    """The state that all kinds of windows share. `key` is the key's value, and `offset_us` is the offset of log time
    from event time. `timer` is the time for which the timer is set, `due` is the time when changes are next emitted,
    and `quiet` is the time when the key is deleted. `served` contains the closed windows whose rows have not been
    removed yet (see `windows.served`)."""

    key: Any = None
    offset_us: int = 0
    timer: datetime | None = None
    due: datetime | None = None
    quiet: datetime | None = None
    served: bytearray = bytearray()  # msgspec gives each instance its own


def late(event: Any, at: datetime, watermark: datetime, ctx: Context, missed: Sequence[MissedWindow] = ()) -> Late:
    late_s = (watermark - at).total_seconds()
    return Late(key=ctx.key, at=at, watermark=watermark, late_s=late_s, windows=[*missed], event=event_text(event))


def offset(now: datetime, at: datetime) -> int:
    """Return how far log time is ahead of event time, in microseconds."""
    return (now - at) // TICK


def event_time_at(state: Any, now: datetime) -> datetime:
    """Return the event time that corresponds to a log time, given the key's offset."""
    ahead: timedelta = state.offset_us * TICK
    return now - ahead


def next_multiple(now: datetime, interval: timedelta) -> datetime:
    """Return the first multiple of a window's interval, counted from 1970, that is after `now`."""
    return EPOCH + ((now - EPOCH) // interval + 1) * interval


def set_timer(
    state: Any,
    ctx: Context,
    now: datetime,
    closes: datetime | None,
    remembered: timedelta,
    removes: datetime | None = None,
) -> None:
    """Set a window's timer for whatever is due next: a window that `closes` at an event time, or changes to be emitted.
    If no window is left to close, the removal of a row, at the event time `removes`, and the deletion of the key take
    the place of the window. The deletion is due when the key has been remembered for `remembered`, which is always
    after the removal of its last row."""
    if closes is None:
        state.quiet = state.quiet or now + remembered
        at = state.quiet if removes is None else min(state.quiet, removes + state.offset_us * TICK)
    else:
        state.quiet = None
        at = closes + state.offset_us * TICK
    call(state, ctx, now, at if state.due is None else min(at, state.due))


def stay(state: Any, now: datetime, remembered: timedelta) -> None:
    """Put off the deletion of a quiet key that has received an event. The current timer fires earlier, and sets the new
    timer: so many late events of a key cost no more than one timer."""
    if state.quiet is not None:
        state.quiet = now + remembered


def call(state: Any, ctx: Context, now: datetime, at: datetime | None) -> None:
    """Set a window's timer for `at`, or for the earliest possible time if `at` has passed."""
    if at is not None and at <= now:
        at = now + TICK
    if at != state.timer:
        state.timer = at
        ctx.timer(TIMER, at)
