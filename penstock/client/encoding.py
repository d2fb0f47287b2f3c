"""Events as producers send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec

from penstock.schema import Event, Record, fields, per_class, to_millis

Sent = Event | Mapping[str, Any]
"""What may be sent: an instance of an event class, or the object that its JSON is."""
_encode = msgspec.json.Encoder().encode


def encode(events: Sent | Sequence[Sent]) -> bytes:
    """The JSON of an event, or of a list of them."""
    if isinstance(events, Event | Mapping):
        return _encode(_plain(events))
    return _encode([_plain(event) for event in events])


def _plain(event: Sent) -> Any:
    return _sent(event) if isinstance(event, Event) and _has_epoch(type(event)) else event


@per_class
def _has_epoch(cls: type) -> bool:
    """Whether some field of it, or of a record in it, travels as milliseconds."""
    return any(each.epoch or any(map(_has_epoch, _records(each.base))) for each in fields(cls))


def _records(base: Any) -> list[type]:
    parts = get_args(base) if get_origin(base) is not None else (base,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, Record)]


def _sent(value: Any) -> Any:
    """An event or record with its epochs as numbers; what is inside of it too."""
    if isinstance(value, Event | Record):
        epochs = {each.name for each in fields(type(value)) if each.epoch}
        return {
            name: to_millis(found) if name in epochs and found is not None else _sent(found)
            for name in type(value).__struct_fields__
            for found in [getattr(value, name)]
        }
    if isinstance(value, list):
        return [_sent(each) for each in value]
    if isinstance(value, dict):
        return {name: _sent(each) for name, each in value.items()}
    return value
