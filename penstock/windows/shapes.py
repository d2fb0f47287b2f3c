"""What a window is and when its result is told: frozen values, and the few functions that make them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True)
class Timed:
    """Windows of a length of event time. One begins at each multiple of `every` since 1970; with `every` below `size`
    they overlap."""

    size: timedelta
    every: timedelta


@dataclass(frozen=True)
class Counted:
    """Windows of a number of events of a key, in order of event time. One begins with each `every`th of them."""

    size: int
    every: int


@dataclass(frozen=True)
class Session:
    """Windows that go on while no two events are further apart than `gap`."""

    gap: timedelta


@dataclass(frozen=True)
class Hybrid:
    """Windows that end with their `count`th event, or when they have lasted for `within`: whichever comes first. One
    begins with the first event after the last one."""

    count: int
    within: timedelta


Shape = Timed | Counted | Session | Hybrid


def tumbling(size: timedelta | int) -> Timed | Counted:
    """Windows side by side: of a length of time, or of a number of events."""
    return Timed(size, size) if isinstance(size, timedelta) else Counted(size, size)


def sliding(size: timedelta | int, *, every: timedelta | int) -> Timed | Counted:
    """Windows that overlap: the last 30 minutes, each 5 seconds; or the last 100 events, each 10 of them."""
    if isinstance(size, timedelta) and isinstance(every, timedelta):
        return Timed(size, every)
    return Counted(size, every)  # type: ignore[arg-type]  # a mixture is refused by `check`


def session(gap: timedelta) -> Session:
    """Windows of activity, which end when nothing comes for the length of `gap`."""
    return Session(gap)


def hybrid(count: int, within: timedelta) -> Hybrid:
    """Windows of a number of events, or of a length of time since the first of them, whichever is reached first."""
    return Hybrid(count, within)


@dataclass(frozen=True)
class Trigger:
    """When the rows of windows are told: at each `change`, `every` so often while there are changes, or once, at the
    `close` of the window. A window that closes is told in any case."""

    when: Literal["change", "every", "close"]
    interval: timedelta | None = None


on_change = Trigger("change")
on_close = Trigger("close")


def every(interval: timedelta) -> Trigger:
    """Tell what has changed once in each such interval of log time, and what closes when it closes."""
    return Trigger("every", interval)
