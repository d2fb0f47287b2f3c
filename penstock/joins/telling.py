"""What a join emits: what the user's function makes, and what was not joined to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock.contracts import Context
from penstock.making import error_text, event_text, listed, made_class
from penstock.schema import Event, State

TIMER = "time"
NO_TIME = timedelta(0)
MOMENT = timedelta(microseconds=1)
Pair = Callable[[Any, Any], Any]


class Missed(Event):
    """An event of `stream` that was not joined to the end. It came too `late`, by `by_s` seconds; there was no room for
    it (`full`); the version of its time is no longer kept (`forgotten`); or, when its time had come, the function
    `failed` on it. `event` has it as JSON."""

    key: str
    stream: str
    reason: str
    at: datetime
    event: str
    by_s: float = 0.0
    error: str | None = None


class Side(NamedTuple):
    """One of the two streams: its name, its events' class and how late they may be."""

    stream: str
    event: type[Event]
    late_after: timedelta


def is_of(side: Side, other: Side) -> Callable[[Any, Context], bool]:
    """A function that tells whether an event that comes is of this side and not of the other. Its class tells it
    fastest; but not where one class is the other, or inherits from it."""
    stream, cls = side.stream, side.event
    if issubclass(cls, other.event) or issubclass(other.event, cls):
        return lambda event, ctx: ctx.stream == stream
    return lambda event, ctx: isinstance(event, cls)


class Joining(NamedTuple):
    """The parts of a handler."""

    state: type[State]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]


def missed(
    ctx: Context, side: Side, reason: str, at: datetime, event: Any, by: timedelta = NO_TIME, error: str | None = None
) -> Missed:
    text, by_s = event_text(event), by.total_seconds()
    return Missed(key=ctx.key, stream=side.stream, reason=reason, at=at, event=text, by_s=by_s, error=error)


def safely(function: Pair, pair: tuple[Any, Any], ctx: Context, side: Side, at: datetime) -> Iterator[Any]:
    """What the function makes of a pair whose time has come. It is not the event at hand that is to blame if it fails,
    so that is told apart."""
    try:
        made = listed(function(*pair))
    except Exception as error:
        text = error_text(error)
        made = (missed(ctx, side, "failed", at, next(each for each in pair if each is not None), error=text),)
    yield from made


def state_class(base: type[State], held: dict[str, Any]) -> type[State]:
    """The class of what is kept, with fields for the events: dicts of the types given, by name."""
    made: type[State] = made_class(base, base.__name__, held, {each: {} for each in held})
    return made
