"""The MQTT 3.1.1 and 5 packets that a subscriber sends and receives, as values, and the encoding of outgoing packets.

No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LENGTH_MAX = 268_435_455
"""The largest packet length that either version can encode."""
TEXT_BYTES_MAX = 65_535
PINGREQ = b"\xc0\x00"

SUBSCRIPTION_ID, SESSION_EXPIRY, SERVER_KEEP_ALIVE, REASON_STRING = 0x0B, 0x11, 0x13, 0x1F
SERVER_REFERENCE, RECEIVE_MAXIMUM, USER_PROPERTY = 0x1C, 0x21, 0x26
Properties = Mapping[int, int | str | bytes]
"""MQTT 5 properties, by number."""


@dataclass(frozen=True, slots=True)
class ConnAck:
    session_present: bool
    code: int
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publish:
    """An MQTT message. `packet_id` is 0 for QoS 0, which has none."""

    topic: str
    payload: bytes
    qos: int
    packet_id: int
    dup: bool
    retain: bool


@dataclass(frozen=True, slots=True)
class PubRel:
    packet_id: int


@dataclass(frozen=True, slots=True)
class SubAck:
    packet_id: int
    codes: Sequence[int]


@dataclass(frozen=True, slots=True)
class UnsubAck:
    packet_id: int


@dataclass(frozen=True, slots=True)
class PingResp:
    pass


@dataclass(frozen=True, slots=True)
class Disconnect:
    code: int
    properties: Properties = field(default_factory=dict)


Packet = ConnAck | Publish | PubRel | SubAck | UnsubAck | PingResp | Disconnect


@dataclass(frozen=True)
class Login:
    """The fields of a CONNECT packet. The session is always persistent; `receive_max` and `session_expiry_s` are for
    version 5."""

    version: int
    client_id: str
    username: str | None
    password: str | None = field(repr=False)
    keep_alive_s: int
    session_expiry_s: int
    receive_max: int


def connect(login: Login) -> bytes:
    v5 = login.version == 5
    flags = (login.username is not None) << 7 | (login.password is not None) << 6
    parts = [_packet_text("MQTT"), struct.pack("!BBH", 5 if v5 else 4, flags, login.keep_alive_s)]
    if v5:
        chosen = struct.pack("!BIBH", SESSION_EXPIRY, login.session_expiry_s, RECEIVE_MAXIMUM, login.receive_max)
        parts.append(_packet_varint(len(chosen)) + chosen)
    parts += [_packet_text(text) for text in (login.client_id, login.username, login.password) if text is not None]
    return _framed_packet(0x10, *parts)


def subscribe(version: int, packet_id: int, filters: Sequence[str], qos: int, *, retained: bool) -> bytes:
    """Encode a SUBSCRIBE. In version 5, `retained` asks the broker to send retained messages for subscriptions that are
    new to the session; otherwise it never sends them."""
    options = qos | ((1 if retained else 2) << 4 if version == 5 else 0)
    return _framed_packet(
        0x82,
        packet_id.to_bytes(2, "big"),
        _no_properties(version),
        *(_packet_text(topic_filter) + bytes([options]) for topic_filter in filters),
    )


def unsubscribe(version: int, packet_id: int, filters: Sequence[str]) -> bytes:
    return _framed_packet(0xA2, packet_id.to_bytes(2, "big"), _no_properties(version), *map(_packet_text, filters))


def puback(packet_id: int) -> bytes:
    return struct.pack("!BBH", 0x40, 2, packet_id)


def pubrec(packet_id: int) -> bytes:
    return struct.pack("!BBH", 0x50, 2, packet_id)


def pubcomp(packet_id: int) -> bytes:
    return struct.pack("!BBH", 0x70, 2, packet_id)


def freed_by(packet: bytes) -> int | None:
    """Return the packet id that one of our replies frees, or None."""
    return int.from_bytes(packet[2:], "big") if packet[0] == 0x70 else None


def disconnect(version: int, code: int = 0) -> bytes:
    return bytes([0xE0, 1, code]) if version == 5 and code else b"\xe0\x00"


def _framed_packet(first: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return bytes([first]) + _packet_varint(len(content)) + content


def _no_properties(version: int) -> bytes:
    return b"\0" if version == 5 else b""


def _packet_text(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def _packet_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
