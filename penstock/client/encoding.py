"""Encoding of events for sending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

import msgspec

from penstock.core.schema import Event, Record, fields, per_class, to_millis

Sent = Event | Mapping[str, Any]
"""An event to send: an instance of an event class, or a mapping of its JSON fields."""
_encode = msgspec.json.Encoder().encode


def encode(events: Sent | Sequence[Sent]) -> bytes:
    """Encode an event that the client sends, or a list of events, as JSON."""
    if isinstance(events, Event | Mapping):
        return _encode(_sendable_event(events))
    return _encode([_sendable_event(event) for event in events])


def _sendable_event(event: Sent) -> Any:
    return _with_epoch_numbers(event) if isinstance(event, Event) and _has_epoch(type(event)) else event


@per_class
def _has_epoch(cls: type) -> bool:
    """Return whether a field of the class, or of a record in it, is sent as milliseconds."""
    return any(field.epoch or any(map(_has_epoch, _sent_record_classes(field.base))) for field in fields(cls))


def _sent_record_classes(base: Any) -> list[type]:
    parts = get_args(base) if get_origin(base) is not None else (base,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, Record)]


def _with_epoch_numbers(value: Any) -> Any:
    """Convert an event or record, and everything in it, for sending. Epoch fields become numbers."""
    if isinstance(value, Event | Record):
        epochs = {field.name for field in fields(type(value)) if field.epoch}
        return {
            name: to_millis(field_value)
            if name in epochs and field_value is not None
            else _with_epoch_numbers(field_value)
            for name in type(value).__struct_fields__
            for field_value in [getattr(value, name)]
        }
    if isinstance(value, list):
        return [_with_epoch_numbers(element) for element in value]
    if isinstance(value, dict):
        return {name: _with_epoch_numbers(element) for name, element in value.items()}
    return value
