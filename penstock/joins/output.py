"""The output of joins: the results of the user's function and the events that were not fully processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock.core.contracts import Context
from penstock.core.emissions import check_events
from penstock.core.operators import error_text, event_text, listed, made_class
from penstock.core.schema import Event, State

TIMER = "time"
NO_TIME = timedelta(0)
MOMENT = timedelta(microseconds=1)
Pair = Callable[[Any, Any], Any]


class Missed(Event):
    """An event in `stream` that a join did not fully process. `reason` is `late` if the event arrived `by_s` seconds
    too late, or `full` if a limit was exceeded. It is `forgotten` if the table's version for the event's time is no
    longer stored, and `failed` if the function raised, or returned an invalid event, when the event's wait ended.
    `event` contains the event as JSON."""

    key: str
    stream: str
    reason: str
    at: datetime
    event: str
    by_s: float = 0.0
    error: str | None = None


class Side(NamedTuple):
    """One of a join's two inputs: its name, its event class and its `late_after`."""

    stream: str
    event: type[Event]
    late_after: timedelta


def is_of(side: Side, other: Side) -> Callable[[Any, Context], bool]:
    """Return a function that decides whether an event belongs to this side rather than to the other side. The fastest
    way is to check its class, but that does not work if both sides have the same class or one class inherits from the
    other."""
    stream, cls = side.stream, side.event
    if issubclass(cls, other.event) or issubclass(other.event, cls):
        return lambda event, ctx: ctx.stream == stream
    return lambda event, ctx: isinstance(event, cls)


class Joining(NamedTuple):
    """The parts of a join's handler."""

    state: type[State]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]


def missed(
    ctx: Context, side: Side, reason: str, at: datetime, event: Any, by: timedelta = NO_TIME, error: str | None = None
) -> Missed:
    text, by_s = event_text(event), by.total_seconds()
    return Missed(key=ctx.key, stream=side.stream, reason=reason, at=at, event=text, by_s=by_s, error=error)


def safely(function: Pair, pair: tuple[Any, Any], ctx: Context, side: Side, at: datetime) -> Iterator[Any]:
    """Yield the function's results for a joined pair whose wait has ended. If the function raises, or a result has a
    value that does not fit its type, yield a `failed` report instead, because the current event is not the cause."""
    try:
        events = listed(function(*pair))
        check_events(events)
    except Exception as error:
        text = error_text(error)
        events = (missed(ctx, side, "failed", at, next(event for event in pair if event is not None), error=text),)
    yield from events


def set_timer(state: Any, alarm: datetime, ctx: Context) -> None:
    """Set a key's timer for `alarm`, unless it is already set for an earlier time. If that time is past, the timer has
    failed: it is not called again, but `state.timer` has its old value. It is then set for a new time in the future."""
    timer, now = state.timer, ctx.now
    if timer is not None and timer <= now:
        alarm = max(alarm, now + MOMENT)
    elif timer is not None and timer <= alarm:
        return
    state.timer = alarm
    ctx.timer(TIMER, alarm)


def state_class(base: type[State], held: dict[str, Any]) -> type[State]:
    """Create a join's state class with additional fields for the stored events. `held` contains their types, by
    name."""
    cls: type[State] = made_class(base, base.__name__, held, {field: {} for field in held})
    return cls
