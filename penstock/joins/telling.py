"""What a join emits: what the user's function makes, and what was not joined to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from penstock.contracts import Context
from penstock.schema import Event, State

TIMER = "time"
TEXT_CHARS_MAX = 2_000
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


class Joining(NamedTuple):
    """The parts of a handler."""

    state: type[State]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]


def missed(
    ctx: Context, side: Side, reason: str, at: datetime, event: Any, by: timedelta = NO_TIME, error: str | None = None
) -> Missed:
    text, by_s = _text(event), by.total_seconds()
    return Missed(key=ctx.key, stream=side.stream, reason=reason, at=at, event=text, by_s=by_s, error=error)


def safely(function: Pair, pair: tuple[Any, Any], ctx: Context, side: Side, at: datetime) -> Iterator[Any]:
    """What the function makes of a pair whose time has come. It is not the event at hand that is to blame if it fails,
    so that is told apart."""
    try:
        made = listed(function(*pair))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]
        made = (missed(ctx, side, "failed", at, next(each for each in pair if each is not None), error=text),)
    yield from made


def listed(made: Any) -> Sequence[Any]:
    """What a function made of a pair: an event, several, or none."""
    if made is None:
        return ()
    return (made,) if isinstance(made, Event) else tuple(made)


def state_class(base: type[State], held: dict[str, Any]) -> type[State]:
    """The class of what is kept, with fields for the events: dicts of the types given, by name."""
    space = {"__annotations__": held, "__module__": base.__module__, **{each: {} for each in held}}
    meta: Any = type(base)
    made: type[State] = meta(base.__name__, (base,), space)
    return made


def forget(state: Any) -> None:
    """Leave a key's state as if it had never been seen: then nothing is kept of it."""
    fresh = type(state)()
    for name in state.__struct_fields__:
        setattr(state, name, getattr(fresh, name))


def time_of(side: Side) -> Callable[[Any], datetime] | None:
    """How the time of an event is had; None if its class has none."""
    name = side.event.__time_field__
    return attrgetter(name) if name is not None else None


def _text(event: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()[:TEXT_CHARS_MAX]
