"""Time in the windows of a key: what is late, when the timer calls, and when a quiet key is forgotten.

Event time comes from a key's events. It also passes without them: as fast as log time, from the newest event on. So the
last window of a key that falls silent closes, `late_after` later than it would by the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.contracts import Context
from penstock.making import event_text
from penstock.schema import Event, MissedWindow, State

TIMER = "time"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


class Late(Event):
    """An event that came too late for windows of its key: its time, how far the key's events had made time come, by how
    much it is behind that, the windows that it missed, oldest first (of many, the newest), and what it was, as JSON."""

    key: str
    at: datetime
    watermark: datetime
    late_s: float
    windows: list[MissedWindow]
    event: str


class Clock(State):
    """What every sort of window keeps of a key: its value, the difference of log time and event time, what the timer is
    set for, when changes are told next, and when the key is forgotten."""

    key: Any = None
    offset_us: int = 0
    timer: datetime | None = None
    due: datetime | None = None
    quiet: datetime | None = None


def late(event: Any, at: datetime, watermark: datetime, ctx: Context, missed: Sequence[MissedWindow] = ()) -> Late:
    late_s = (watermark - at).total_seconds()
    return Late(key=ctx.key, at=at, watermark=watermark, late_s=late_s, windows=[*missed], event=event_text(event))


def offset(now: datetime, at: datetime) -> int:
    """How far log time is ahead of event time, in microseconds."""
    return (now - at) // TICK


def reached(state: Any, now: datetime) -> datetime:
    """How far event time has come at a log time, if no event says otherwise."""
    ahead: timedelta = state.offset_us * TICK
    return now - ahead


def next_multiple(now: datetime, interval: timedelta) -> datetime:
    """The first multiple of an interval since 1970 that is after now."""
    return EPOCH + ((now - EPOCH) // interval + 1) * interval


def set_timer(state: Any, ctx: Context, now: datetime, closes: datetime | None, remembered: timedelta) -> None:
    """Have the timer call when something is due: a window that `closes` then in event time, changes that are to be
    told, or, if there is nothing more to close, the end of the time for which the key is remembered."""
    if closes is None:
        state.quiet = state.quiet or now + remembered
        at = state.quiet
    else:
        state.quiet = None
        at = closes + state.offset_us * TICK
    call(state, ctx, now, at if state.due is None else min(at, state.due))


def call(state: Any, ctx: Context, now: datetime, at: datetime | None) -> None:
    """Have the timer call then, or as soon as it can."""
    if at is not None and at <= now:
        at = now + TICK
    if at != state.timer:
        state.timer = at
        ctx.timer(TIMER, at)
