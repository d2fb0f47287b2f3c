"""The client's half of an MQTT session: the state that outlives the process, and the rules for when a reply can be
sent.

A QoS 2 message takes four packets. With these rules, its event is stored exactly once:

    broker                                         we
    PUBLISH id   ---->   put the event; the same transaction records the id as taken
                 <----   PUBREC id, once that is durable
    PUBREL id    ---->   record that the id is free
                 <----   PUBCOMP id, once that is durable

- After a crash before the first commit, no PUBREC was sent, so the broker sends the message again, and it is new to us.
- After a crash after the first commit, the broker may send the message again, but its id is in use, so we reply without
  putting the message again.
- PUBCOMP waits for the disk, because the broker can then reuse the id for another message. If we crashed with the id
  still recorded as in use, the other message would be treated as a copy and lost.
- An id in use is stored with a fingerprint of its message. The standard requires a reply to every PUBLISH whose id is
  in use, and no second delivery, whether or not the message is flagged as a duplicate, so we ignore the flag. But if
  the topic or payload differs, the message is not a copy: the broker has forgotten the id and reused it. Such a message
  is put.
- A freed id is kept with its fingerprint until the broker is known to have our PUBCOMP, which is when it replies to a
  ping that we sent later. The reason is that some brokers (Mosquitto, when a connection breaks while it resends its
  PUBRELs) send a message again after they have released it, which the standard forbids. A message that is flagged as a
  duplicate, and has the same id, topic and payload, is treated as such a copy. This rule applies only to ids above
  `receive_max`, so it never affects a conforming broker: if the broker reuses an id before it replies to our ping, it
  must use the lowest free id, which is not above the number of messages that it can have in flight.
- If the broker has no session for us, all ids are free. This is stored durably before we subscribe, and a new session
  sends nothing before that. (A crash in between leaves ids that look in use in a new session. The fingerprints
  distinguish the messages, unless a new message has the same id, topic and payload as an old one. The old session's
  messages are lost in that case anyway.)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from penstock.collect.sources.mqtt.packets import Publish, puback, pubcomp, pubrec
from penstock.collect.sources.mqtt.topics import Topics
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import SourceFailed

PRINTS_MAX = 1000
RECORD_BYTES = 6
_log = logging.getLogger("penstock.collect")
Answer = tuple[asyncio.Future[None] | None, bytes]
"""A reply: the future to wait for before it is sent (None: do not wait), and the packet."""


class _SessionMark(msgspec.Struct):
    """The MQTT source's mark, as JSON. The session might be subscribed to `filters`; if `confirmed`, it definitely is,
    with `qos`.

    `taken` contains six bytes for each id in use: the id and a fingerprint. If there are more than `PRINTS_MAX` ids,
    `ids` contains one bit for each possible id instead, so that the ids take at most 11,000 characters of a mark.
    `freed` is like `taken`, for ids whose PUBCOMP the broker may not have received. It is omitted if there is no room.
    """

    client: str
    filters: list[str] = []
    qos: int = 0
    confirmed: bool = False
    taken: bytes = b""
    ids: bytes = b""
    freed: bytes = b""


class MqttSession:
    """The session state that the mark stores.

    The number of ids in use depends on how many messages the broker has in flight: 10 to 100 by default, `receive_max`
    with version 5, and never more than the 65,535 possible ids.
    """

    def __init__(self, mark: str | None, client_id: str | None) -> None:
        noted = None if mark is None else _read_mark(mark)
        if noted is None or client_id not in (None, noted.client):
            noted = _SessionMark(client_id or f"penstock-{secrets.token_hex(6)}")
        self.client_id = noted.client
        self.filters: Sequence[str] = noted.filters
        self.qos = noted.qos
        self.confirmed = noted.confirmed
        self._taken = {**_packet_id_records(noted.taken), **_records_from_bits(noted.ids)}
        self._freed = _packet_id_records(noted.freed)
        self._bits = _packet_id_bits(
            self._taken
        )  # for the ids in `_taken`; computing them for each message would be slow

    def is_copy(self, packet_id: int, print_: bytes, *, dup: bool, low: int) -> bool:
        """Return whether an MQTT message is a copy of the message that holds the id. With `dup` and an id above `low`,
        also check the message that last held the id.

        If there is no fingerprint to compare, every message whose id is in use counts as a copy.
        """
        known = self._taken.get(packet_id)
        if known is not None:
            return known[2:] in (print_, b"")
        return dup and packet_id > low and self._freed.get(packet_id) == _packet_id_record(packet_id, print_)

    def is_taken(self, packet_id: int) -> bool:
        return packet_id in self._taken

    def take(self, packet_id: int, print_: bytes) -> None:
        self._freed.pop(packet_id, None)
        self._taken[packet_id] = _packet_id_record(packet_id, print_)
        _set_packet_id_bit(self._bits, packet_id, True)

    def release(self, packet_id: int) -> None:
        record = self._taken.pop(packet_id)
        _set_packet_id_bit(self._bits, packet_id, False)
        if len(record) == RECORD_BYTES:
            self._freed[packet_id] = record
        while len(self._freed) > PRINTS_MAX:
            del self._freed[next(iter(self._freed))]

    def forget(self, packet_ids: Iterable[int]) -> None:
        """Forget message ids that the broker knows to be free."""
        for packet_id in packet_ids:
            self._freed.pop(packet_id, None)

    def void(self) -> None:
        """Reset the MQTT session: the broker has no state for it."""
        self._taken.clear()
        self._freed.clear()
        self._bits = _packet_id_bits(())
        self.filters, self.confirmed = [], False

    def mark(self) -> str:
        return self._text(self._taken, self._freed)

    def mark_with(self, packet_id: int, print_: bytes) -> str:
        if len(self._taken) + (packet_id not in self._taken) > PRINTS_MAX:
            return self._text_of_bits(packet_id, True)
        freed = {other_id: record for other_id, record in self._freed.items() if other_id != packet_id}
        return self._text({**self._taken, packet_id: _packet_id_record(packet_id, print_)}, freed)

    def mark_without(self, packet_id: int) -> str:
        if len(self._taken) - 1 > PRINTS_MAX:
            return self._text_of_bits(packet_id, False)
        taken = {**self._taken}
        return self._text(taken, {**self._freed, packet_id: taken.pop(packet_id)})

    def _text(self, taken: dict[int, bytes], freed: dict[int, bytes]) -> str:
        noted = self._noted()
        records = b"".join(taken.values())
        if len(taken) > PRINTS_MAX or len(records) < RECORD_BYTES * len(taken):
            noted.ids = bytes(_packet_id_bits(taken))
        else:
            noted.taken = records
            if len(taken) + len(freed) <= PRINTS_MAX:
                noted.freed = b"".join(record for record in freed.values() if len(record) == RECORD_BYTES)
        return msgspec.json.encode(noted).decode()

    def _text_of_bits(self, packet_id: int, taken: bool) -> str:
        """Return the mark after one more id was taken or freed, in the form used when there are too many ids for
        fingerprints."""
        noted, bits = self._noted(), bytearray(self._bits)
        _set_packet_id_bit(bits, packet_id, taken)
        noted.ids = bytes(bits)
        return msgspec.json.encode(noted).decode()

    def _noted(self) -> _SessionMark:
        return _SessionMark(self.client_id, list(self.filters), self.qos, self.confirmed)


def _read_mark(mark: str) -> _SessionMark:
    try:
        return msgspec.json.decode(mark, type=_SessionMark)
    except msgspec.DecodeError:
        raise SourceFailed(
            "the position stored under this name does not belong to an MQTT source: rename this source"
        ) from None


def _packet_id_records(joined: bytes) -> dict[int, bytes]:
    records = (joined[place : place + RECORD_BYTES] for place in range(0, len(joined), RECORD_BYTES))
    return {int.from_bytes(record[:2], "big"): record for record in records}


def _records_from_bits(bits: bytes) -> dict[int, bytes]:
    ids = (8 * place + bit for place, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
    return {packet_id: _packet_id_record(packet_id, b"") for packet_id in ids}


def _packet_id_bits(taken: Iterable[int]) -> bytearray:
    bits = bytearray(8192)
    for packet_id in taken:
        _set_packet_id_bit(bits, packet_id, True)
    return bits


def _set_packet_id_bit(bits: bytearray, packet_id: int, taken: bool) -> None:
    bit = 1 << (packet_id & 7)
    bits[packet_id >> 3] = bits[packet_id >> 3] | bit if taken else bits[packet_id >> 3] & ~bit


def _packet_id_record(packet_id: int, print_: bytes) -> bytes:
    return packet_id.to_bytes(2, "big") + print_


def fingerprint(topic: str, payload: bytes) -> bytes:
    """Return a short hash of an MQTT message.

    It only has to distinguish two messages that a faulty broker sends with the same id.
    """
    return blake2b(payload, digest_size=4, key=blake2b(topic.encode(), digest_size=16).digest()).digest()


class MqttInbox:
    """Puts messages into the source writer and returns the replies to them. Lives as long as the source.

    A connection can end after a `put` and before its event is durable, and the event must not be put again on the next
    connection. Every method leaves the session unchanged if it is cancelled.
    """

    def __init__(
        self,
        source_writer: SourceWriter,
        status: SourceStatus,
        session: MqttSession,
        topics: Topics,
        *,
        retained: bool,
        low: int,
    ) -> None:
        """`low` is the highest id that a broker uses if it always takes the lowest free id."""
        self.session = session
        self._source_writer = source_writer
        self._status = status
        self._topics = topics
        self._retained = retained
        self._low = low
        self._last: asyncio.Future[None] | None = None

    async def take(self, message: Publish) -> Answer | None:
        """Put an MQTT message. Returns the reply, if the QoS needs one. It can be sent when the event is durable."""
        if message.qos == 2:
            return await self._take_once(message)
        raw = self._event(message)
        if raw is not None:
            await self._put(raw, None)
        return (self._last, puback(message.packet_id)) if message.qos else None

    async def release(self, packet_id: int) -> Answer:
        """Free a QoS 2 id. The reply waits until that is durable.

        An id that is already free was freed before a crash or a lost connection, and the broker does not know that. The
        reply waits in this case too, because the commit may still be in progress.
        """
        if self.session.is_taken(packet_id):
            self._last = await self._source_writer.note(self.session.mark_without(packet_id))
            self.session.release(packet_id)
        return self._last, pubcomp(packet_id)

    async def note(self) -> None:
        """Store the current MQTT session, and return once it is durable."""
        self._last = await self._source_writer.note(self.session.mark())
        await durable(self._last)

    async def _take_once(self, message: Publish) -> Answer:
        packet_id, print_ = message.packet_id, fingerprint(message.topic, message.payload)
        copy = self.session.is_copy(packet_id, print_, dup=message.dup, low=self._low)
        raw = None if copy else self._event(message)
        if raw is not None:
            if self.session.is_taken(packet_id):
                _log.warning("the broker reused packet id %d for a new message before releasing it", packet_id)
            await self._put(raw, self.session.mark_with(packet_id, print_))
            self.session.take(packet_id, print_)
        return self._last, pubrec(packet_id)

    async def _put(self, raw: bytes, mark: str | None) -> None:
        self._last = await self._source_writer.put(raw, mark)
        self._status.received += 1

    def _event(self, message: Publish) -> bytes | None:
        """Return the event of an MQTT message, or None if it is unwanted: a retained message, or a topic that is no
        longer declared."""
        if message.retain and not self._retained:
            return None
        return self._topics.event(message.topic, message.payload)


async def durable(done: asyncio.Future[None]) -> None:
    """Wait for the shared future of a durable event. Awaiting it directly would cancel it for all waiters when one of
    them is cancelled."""
    await asyncio.wait((done,))
    done.result()
