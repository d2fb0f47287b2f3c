"""Conversion of a broker's message to JSON: its payload, with the named levels of its topic or subject as fields."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode
_UNREADABLE = (ValueError, RecursionError)


def merged(payload: bytes, fields: Mapping[str, str], value: str | None) -> bytes:
    """Return a broker's message as a JSON object with the fields added, or the payload in the field `value`, or the
    payload unchanged.

    Values are copied byte for byte, so numbers keep all their digits. A broken object stays broken and becomes a dead
    letter. The fields override the payload's fields, because a broker grants permissions based on the topic or subject.
    """
    try:
        members = _object(payload)
    except _UNREADABLE:
        if value is None or payload.lstrip(b" \t\r\n").startswith(b"{"):
            return payload
        content = _payload_content(payload)
        return payload if content is None else msgspec.json.encode({value: content, **fields})
    return msgspec.json.encode({**members, **fields}) if fields else payload


def _payload_content(payload: bytes) -> msgspec.Raw | str | None:
    """Return a broker's payload that is not an object: unchanged if it is JSON, otherwise as a string, or None if it is
    not UTF-8."""
    try:
        return _any(payload)
    except _UNREADABLE:
        pass
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
