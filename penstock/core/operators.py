"""Helpers shared by the compilers that turn patterns, windows, rollups and joins into handlers."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, get_args

import msgspec

from penstock.core.schema import Event, fields

TEXT_CHARS_MAX = 2_000
"""Maximum length, in characters, of the event or the error in the report of a missed event. A longer text is
truncated."""
SPAN_MAX = timedelta(days=36_525)
"""Maximum duration in a declaration: one hundred years. Adding a much longer duration to a time could lead to a date
after the year 9999, which Python does not support."""
KeyFields = str | tuple[str, ...]
"""The key in a declaration: the name of an event field, or a tuple of several names."""
Full = Literal["drop_oldest", "refuse_new"]
"""Overflow policy for a key that has reached its limit: drop the oldest entry, or reject the new entry."""


def made_class(
    base: type, name: str, hints: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Create a state or event class with these typed fields and defaults, as a class statement would."""
    space = {"__annotations__": dict(hints), "__module__": base.__module__, **(defaults or {})}
    return type(base)(name, (base,), space, **options)


def time_of(classes: Sequence[type[Event]]) -> Callable[[Any], datetime] | None:
    """Return a function that gets the event time from an event of these classes. Returns None if any of the classes has
    no time field; log time is used in that case."""
    names = {cls.__time_field__ for cls in classes}
    if None in names:
        return None
    return attrgetter(str(*names)) if len(names) == 1 else lambda event: getattr(event, type(event).__time_field__)


def given_key(given: Any) -> Any:
    """Normalize the key in a user's declaration, which can be a single name or a sequence of names. Any other value is
    returned unchanged, for `check` to report."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        return given
    return given[0] if len(given) == 1 else tuple(given)


def key_names(key: KeyFields) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


def is_key(key: Any, known: Iterable[str]) -> bool:
    """Return whether a key consists of one or more known fields, without duplicates."""
    names = key_names(key)
    return bool(names) and all(isinstance(name, str) for name in names) and sorted({*names} & {*known}) == sorted(names)


def key_hint(key: KeyFields, hints: Mapping[str, Any]) -> Any:
    """Return the type of a key's value from the types of its fields: a tuple type for several fields."""
    if isinstance(key, tuple):
        return tuple.__class_getitem__(tuple(hints[name] for name in key))
    return hints[key]


def key_value(event: Any, key: KeyFields) -> Any:
    """Return the value of an event's key: a tuple for several fields."""
    return tuple([getattr(event, name) for name in key]) if isinstance(key, tuple) else getattr(event, key)


def key_columns(key: KeyFields, value: Any) -> dict[str, Any]:
    """Return the key columns of a row, given the key's value."""
    return dict(zip(key, value, strict=True)) if isinstance(key, tuple) else {key: value}


def is_name(name: Any) -> bool:
    """Return whether `name` is a valid field name in a class created from a declaration."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def is_span(value: Any) -> bool:
    """Return whether `value` is a valid duration: greater than zero and at most `SPAN_MAX`."""
    return isinstance(value, timedelta) and timedelta(0) < value <= SPAN_MAX


def bounds_faults(bounds: Any, *counts: str) -> list[str]:
    """Return the errors in a key's bounds. Checks `full`, `remember` and the attributes listed in `counts`."""
    faults = [
        f"bounds: {name} must be an integer of at least 1"
        for name in counts
        if not isinstance(getattr(bounds, name), int) or getattr(bounds, name) < 1
    ]
    if bounds.full not in get_args(Full):
        faults.append(f"bounds: full is {bounds.full!r}; use 'drop_oldest' or 'refuse_new'")
    if not is_span(bounds.remember):
        faults.append(f"bounds: remember must be a timedelta above zero and at most {SPAN_MAX.days} days")
    return faults


def unlike(name: str, classes: Sequence[type[Event]]) -> str | None:
    """Describe the type that a field has in each class; return None if the types are the same. Raises the same errors
    as `fields`."""
    kinds = [(cls.__name__, field.base) for cls in classes for field in fields(cls) if field.name == name]
    if all(kind == kinds[0][1] for _, kind in kinds):
        return None
    return " and ".join(f"{kind.__name__ if isinstance(kind, type) else kind} in {cls}" for cls, kind in kinds)


def listed(output: Any) -> Sequence[Any]:
    """Convert the result of a user's function in a pattern or join, which can be one event, several events or None, to
    a sequence."""
    if output is None:
        return ()
    return (output,) if isinstance(output, Event) else tuple(output)


def event_text(event: Any) -> str:
    """Render one or more events as JSON for users, truncated to TEXT_CHARS_MAX characters."""
    return msgspec.json.encode(event, enc_hook=str).decode()[:TEXT_CHARS_MAX]


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]


def forget(state: Any) -> None:
    """Reset a key's state in a compiled handler to its defaults, so that nothing is stored for the key."""
    fresh = type(state)()
    for name in state.__struct_fields__:
        setattr(state, name, getattr(fresh, name))
