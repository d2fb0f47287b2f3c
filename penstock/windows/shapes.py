"""Window shapes and triggers as frozen values, and the functions that create them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True)
class Timed:
    """Windows with a fixed length of event time. A window begins at each multiple of `every`, counted from 1970. If
    `every` is less than `size`, windows overlap."""

    size: timedelta
    every: timedelta


@dataclass(frozen=True)
class Counted:
    """Windows with a fixed number of events for each key, in order of event time. A window begins every `every`
    events."""

    size: int
    every: int


@dataclass(frozen=True)
class Session:
    """Windows that continue while successive events are at most `gap` apart."""

    gap: timedelta


@dataclass(frozen=True)
class Hybrid:
    """Windows that end with their `count`th event or when they have lasted for `within`, whichever comes first. The
    next event begins a new window."""

    count: int
    within: timedelta


Shape = Timed | Counted | Session | Hybrid


def tumbling(size: timedelta | int) -> Timed | Counted:
    """Create tumbling windows, by length of time or by number of events."""
    return Timed(size, size) if isinstance(size, timedelta) else Counted(size, size)


def sliding(size: timedelta | int, *, every: timedelta | int) -> Timed | Counted:
    """Create overlapping windows, such as the last 30 minutes every 5 seconds, or the last 100 events every 10
    events."""
    if isinstance(size, timedelta) and isinstance(every, timedelta):
        return Timed(size, every)
    return Counted(size, every)  # type: ignore[arg-type]  # `check` refuses a mixture


def session(gap: timedelta) -> Session:
    """Create windows of activity, which end when there are no events for longer than `gap`."""
    return Session(gap)


def hybrid(count: int, within: timedelta) -> Hybrid:
    """Create windows that end after a number of events, or a length of time after their first event, whichever comes
    first."""
    return Hybrid(count, within)


@dataclass(frozen=True)
class Trigger:
    """A trigger, which decides when a window's row is emitted: on each `change`, once in `every` interval with changes,
    or once at the `close` of the window. The final row of a closed window is always emitted."""

    when: Literal["change", "every", "close"]
    interval: timedelta | None = None


on_change = Trigger("change")
on_close = Trigger("close")


def every(interval: timedelta) -> Trigger:
    """Emit a window's changes once in each interval of log time, and closed windows when they close."""
    return Trigger("every", interval)
