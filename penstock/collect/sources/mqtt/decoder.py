"""Decoder for the bytes that an MQTT broker sends. No I/O, no clock.

The broker is not trusted: an invalid packet raises `MalformedPacket`, and a packet over the size limit raises
`PacketTooLarge` as soon as its header has arrived, before the packet is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.collect.sources.mqtt.packets import (
    SUBSCRIPTION_ID,
    USER_PROPERTY,
    ConnAck,
    Disconnect,
    Packet,
    PingResp,
    Properties,
    Publish,
    PubRel,
    SubAck,
    UnsubAck,
)

_PUBLISH = 0x30
_U8 = frozenset({0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A})
_U16 = frozenset({0x13, 0x21, 0x22, 0x23})
_U32 = frozenset({0x02, 0x11, 0x18, 0x27})
_TEXT = frozenset({0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F})
_BINARY = frozenset({0x09, 0x16})
_NONE: Properties = {}


class MalformedPacket(ValueError):
    """The bytes are not an MQTT packet that a broker can send to a subscriber."""


class PacketTooLarge(ValueError):
    """An MQTT packet of `size` bytes exceeds the size limit; `topic` is its topic, if it is a message."""

    def __init__(self, size: int, topic: str | None) -> None:
        super().__init__(f"a packet of {size} bytes is too large")
        self.size = size
        self.topic = topic


class PacketDecoder:
    """Splits bytes from the socket into MQTT packets. Holds one packet of up to `bytes_max` bytes, and any bytes fed
    after it."""

    def __init__(self, version: int, bytes_max: int) -> None:
        self._v5 = version == 5
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Yield the MQTT packets that are complete so far. Exhaust the iterator before the next call."""
        self._buffer += data
        while (packet := self._next()) is not None:
            yield packet

    def _next(self) -> Packet | None:
        buffer = self._buffer
        if buffer and buffer[0] & 0xF0 != _PUBLISH and buffer[0] not in _OTHERS:
            raise MalformedPacket(f"a packet for a subscriber cannot begin with 0x{buffer[0]:02x}")
        header = _packet_length(buffer)
        if header is None:
            return None
        length, begin = header
        if begin + length > self._bytes_max:
            self._refuse(buffer[0], begin, length)
        if len(buffer) < begin + length:
            return None
        first, content = buffer[0], bytes(memoryview(buffer)[begin : begin + length])
        del buffer[: begin + length]
        return _decoded_packet(first, content, self._v5)

    def _refuse(self, first: int, begin: int, length: int) -> None:
        """Raise `PacketTooLarge`. For a message, wait until its topic has arrived, so that users can find the
        sender."""
        buffer = self._buffer
        if first & 0xF0 != _PUBLISH or length < 2:
            raise PacketTooLarge(begin + length, None)
        end = begin + 2 + int.from_bytes(buffer[begin : begin + 2], "big")
        if len(buffer) >= min(max(end, begin + 2), begin + length):
            raise PacketTooLarge(begin + length, bytes(buffer[begin + 2 : end]).decode(errors="replace"))


def _packet_length(buffer: bytearray) -> tuple[int, int] | None:
    """Return the length of an MQTT packet's contents and where they begin, or None if the header is incomplete."""
    value = 0
    for place in range(1, 5):
        if place >= len(buffer):
            return None
        byte = buffer[place]
        value |= (byte & 0x7F) << 7 * (place - 1)
        if byte < 0x80:
            return value, place + 1
    raise MalformedPacket("the length field of a packet is longer than four bytes")


def _decoded_packet(first: int, content: bytes, v5: bool) -> Packet:
    rest = _Bytes(content)
    if first & 0xF0 == _PUBLISH:
        return _publish(first, rest, v5)
    packet = _OTHERS[first](rest, v5)
    if rest.left:
        raise MalformedPacket(f"{type(packet).__name__} is {rest.left} bytes too long")
    return packet


def _publish(first: int, rest: _Bytes, v5: bool) -> Publish:
    qos = first >> 1 & 3
    if qos == 3:
        raise MalformedPacket("a message has QoS 3")
    topic = rest.text()
    if not topic or "+" in topic or "#" in topic:
        raise MalformedPacket(f"a message has an invalid topic: {topic[:80]!r}")
    packet_id = rest.packet_id() if qos else 0
    if v5:
        rest.properties()
    return Publish(topic, rest.rest(), qos, packet_id, bool(first & 8), bool(first & 1))


def _connack(rest: _Bytes, v5: bool) -> ConnAck:
    """Decode a ConnAck.

    A broker that only supports 3.1.1 replies to a version 5 client in the 3.1.1 format, without properties.
    """
    flags, code = rest.u8(), rest.u8()
    if flags > 1:
        raise MalformedPacket("ConnAck has reserved flags set")
    return ConnAck(flags == 1, code, rest.properties() if v5 and rest.left else _NONE)


def _pubrel(rest: _Bytes, v5: bool) -> PubRel:
    packet = PubRel(rest.packet_id())
    if v5:
        _reason_code(rest)
    return packet


def _suback(rest: _Bytes, v5: bool) -> SubAck:
    packet_id = rest.packet_id()
    if v5:
        rest.properties()
    return SubAck(packet_id, tuple(rest.rest()))


def _unsuback(rest: _Bytes, v5: bool) -> UnsubAck:
    packet = UnsubAck(rest.packet_id())
    if v5:
        rest.properties()
        rest.rest()
    return packet


def _pingresp(rest: _Bytes, v5: bool) -> PingResp:
    return PingResp()


def _disconnect(rest: _Bytes, v5: bool) -> Disconnect:
    if not v5:
        raise MalformedPacket("in MQTT 3.1.1, brokers must not send a DISCONNECT packet")
    return Disconnect(*_reason_code(rest))


def _reason_code(rest: _Bytes) -> tuple[int, Properties]:
    """Decode an MQTT reason code and properties, which may both be missing at the end of a packet."""
    code = rest.u8() if rest.left else 0
    return code, rest.properties() if rest.left else _NONE


_OTHERS: Mapping[int, Callable[[_Bytes, bool], Packet]] = {
    0x20: _connack,
    0x62: _pubrel,
    0x90: _suback,
    0xB0: _unsuback,
    0xD0: _pingresp,
    0xE0: _disconnect,
}


class _Bytes:
    """The contents of one MQTT packet, consumed from the beginning."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise MalformedPacket("a packet ends too early")
        self._at += count
        return self._content[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def u8(self) -> int:
        return self.number(1)

    def packet_id(self) -> int:
        packet_id = self.number(2)
        if not packet_id:
            raise MalformedPacket("a packet has an identifier of 0")
        return packet_id

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        try:
            text = self.binary().decode()
        except UnicodeDecodeError:
            raise MalformedPacket("a string is not valid UTF-8") from None
        if "\0" in text:
            raise MalformedPacket("a string contains a NUL character")
        return text

    def varint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedPacket("a number is longer than four bytes")

    def properties(self) -> Properties:
        """Decode MQTT 5 properties, by number. If a property occurs more than once, the last value wins."""
        size = self.varint()
        if not size:
            return _NONE
        part = _Bytes(self.take(size))
        properties: dict[int, int | str | bytes] = {}
        while part.left:
            name = part.varint()
            properties[name] = part.value(name)
        return properties

    def value(self, name: int) -> int | str | bytes:
        for size, names in ((1, _U8), (2, _U16), (4, _U32)):
            if name in names:
                return self.number(size)
        if name in _TEXT:
            return self.text()
        if name in _BINARY:
            return self.binary()
        if name == SUBSCRIPTION_ID:
            return self.varint()
        if name == USER_PROPERTY:
            return self.text() + "=" + self.text()
        raise MalformedPacket(f"there is no property 0x{name:02x}")
