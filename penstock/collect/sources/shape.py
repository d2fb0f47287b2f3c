"""What a message of a broker becomes: its payload, with the named levels of its topic or subject as fields."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_raw = msgspec.json.Decoder(msgspec.Raw)


def merged(payload: bytes, fields: Mapping[str, str], value: str | None) -> bytes:
    """A JSON object with the fields added, or else the payload in the field `value`; as it is where neither can be.

    The payload's bytes stay as they are, so that no number loses a digit, and what is no JSON is still none: it ends as
    a dead letter. Fields come last, so they win over those of the payload: they are what a broker grants rights to.
    """
    stripped = payload.strip(b" \t\r\n")
    if stripped.startswith(b"{"):
        if not fields or not stripped.endswith(b"}") or len(stripped) < 2:
            return payload
        inside = stripped[1:-1].strip(b" \t\r\n")
        return _object(inside, fields)
    if value is None:
        return payload
    found = stripped if _is_json(stripped) else _quoted(payload)
    return payload if found is None else _object(msgspec.json.encode(value) + b":" + found, fields)


def _object(inside: bytes, fields: Mapping[str, str]) -> bytes:
    more = msgspec.json.encode(fields)[1:-1] if fields else b""
    return b"{" + inside + (b"," if inside and more else b"") + more + b"}"


def _is_json(raw: bytes) -> bool:
    try:
        _raw.decode(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(payload: bytes) -> bytes | None:
    try:
        return msgspec.json.encode(payload.decode())
    except UnicodeDecodeError:
        return None
