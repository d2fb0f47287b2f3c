"""What a message of a broker becomes: its payload, with the named levels of its topic or subject as fields."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode
_UNREADABLE = (ValueError, RecursionError)


def merged(payload: bytes, fields: Mapping[str, str], value: str | None) -> bytes:
    """A JSON object with the fields added, or else the payload in the field `value`; as it is where neither can be.

    Values keep their bytes, so that no number loses a digit, and an object that is broken stays so: it ends as a dead
    letter. Fields win over those of the payload, and take their place: they are what a broker grants rights to.
    """
    try:
        found = _object(payload)
    except _UNREADABLE:
        if value is None or payload.lstrip(b" \t\r\n").startswith(b"{"):
            return payload
        content = _content(payload)
        return payload if content is None else msgspec.json.encode({value: content, **fields})
    return msgspec.json.encode({**found, **fields}) if fields else payload


def _content(payload: bytes) -> msgspec.Raw | str | None:
    """What is not an object: as it is if it is JSON, else as text, if it is that."""
    try:
        return _any(payload)
    except _UNREADABLE:
        pass
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
