"""What those share who make a handler of a declaration: patterns, windows, rollups and joins."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, get_args

import msgspec

from penstock.schema import Event, fields

TEXT_CHARS_MAX = 2_000
"""Of an event, or an error, in what is told of one that was missed."""
SPAN_MAX = timedelta(days=36_525)
"""A hundred years: the longest time that is waited for, or remembered. Much more, added to a time, would leave the
calendar, which ends with the year 9999."""
KeyFields = str | tuple[str, ...]
"""The key of a declaration: the name of a field of the events, or those of several."""
Full = Literal["drop_oldest", "refuse_new"]
"""What is given up when a key has more than it may."""


def made_class(
    base: type, name: str, hints: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """A class of states or events, as one that is written: with these types of its fields, and their defaults."""
    space = {"__annotations__": dict(hints), "__module__": base.__module__, **(defaults or {})}
    return type(base)(name, (base,), space, **options)


def time_of(classes: Sequence[type[Event]]) -> Callable[[Any], datetime] | None:
    """How the time of an event of these classes is had; None if one of them has none, and log time counts."""
    names = {cls.__time_field__ for cls in classes}
    if None in names:
        return None
    return attrgetter(str(*names)) if len(names) == 1 else lambda event: getattr(event, type(event).__time_field__)


def given_key(given: Any) -> Any:
    """The key that a user gave, a name or several. What is neither is left as it is: `check` tells of it."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        return given
    return given[0] if len(given) == 1 else tuple(given)


def key_names(key: KeyFields) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


def is_key(key: Any, known: Iterable[str]) -> bool:
    """Whether a key names some of the known fields, each once."""
    names = key_names(key)
    return bool(names) and all(isinstance(name, str) for name in names) and sorted({*names} & {*known}) == sorted(names)


def key_hint(key: KeyFields, hints: Mapping[str, Any]) -> Any:
    """The type of a key's value, given those of the fields: of several fields a tuple."""
    if isinstance(key, tuple):
        return tuple.__class_getitem__(tuple(hints[name] for name in key))
    return hints[key]


def key_value(event: Any, key: KeyFields) -> Any:
    """The value of an event's key: of several fields a tuple."""
    return tuple([getattr(event, name) for name in key]) if isinstance(key, tuple) else getattr(event, key)


def key_columns(key: KeyFields, value: Any) -> dict[str, Any]:
    """The columns of a row that have the key, given its value."""
    return dict(zip(key, value, strict=True)) if isinstance(key, tuple) else {key: value}


def is_name(name: Any) -> bool:
    """Whether a field, made of a declaration, may be called so."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def is_span(value: Any) -> bool:
    """Whether it is a time that can be waited for."""
    return isinstance(value, timedelta) and timedelta(0) < value <= SPAN_MAX


def bounds_faults(bounds: Any, *counts: str) -> list[str]:
    """What is wrong with the bounds of a key, of which these are numbers; all have `full` and `remember`."""
    found = [
        f"bounds: {name} must be a whole number of at least 1"
        for name in counts
        if not isinstance(getattr(bounds, name), int) or getattr(bounds, name) < 1
    ]
    if bounds.full not in get_args(Full):
        found.append(f"bounds: full is {bounds.full!r}; use 'drop_oldest' or 'refuse_new'")
    if not is_span(bounds.remember):
        found.append(f"bounds: remember must be a timedelta above zero, of at most {SPAN_MAX.days} days")
    return found


def unlike(name: str, classes: Sequence[type[Event]]) -> str | None:
    """What a field is in each of these classes, as far as they have it; None if it is the same in all. Raises as
    `fields` does."""
    kinds = [(cls.__name__, each.base) for cls in classes for each in fields(cls) if each.name == name]
    if all(kind == kinds[0][1] for _, kind in kinds):
        return None
    return " and ".join(f"{kind.__name__ if isinstance(kind, type) else kind} in {cls}" for cls, kind in kinds)


def listed(made: Any) -> Sequence[Any]:
    """What a user's function made: an event, several, or none."""
    if made is None:
        return ()
    return (made,) if isinstance(made, Event) else tuple(made)


def event_text(event: Any) -> str:
    """An event, or several, as JSON for people: cut off where it is long."""
    return msgspec.json.encode(event, enc_hook=str).decode()[:TEXT_CHARS_MAX]


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]


def forget(state: Any) -> None:
    """Make a key's state as that of one that was never seen: then nothing is kept of it."""
    fresh = type(state)()
    for name in state.__struct_fields__:
        setattr(state, name, getattr(fresh, name))
