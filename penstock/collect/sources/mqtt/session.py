"""Our half of an MQTT session: what must outlive the process, and which answer to a packet may leave when.

A message of QoS 2 goes through four packets, and these are the rules that make it count once:

    broker                                     we
    PUBLISH id   ---->   put the event; the same transaction notes the id as taken
                 <----   PUBREC id, once that is durable
    PUBREL id    ---->   note that the id is free
                 <----   PUBCOMP id, once that is durable

- A crash before the first commit: no PUBREC left, so the broker sends the message again, and we know nothing of it.
- A crash after it: the broker may send the message again, but its id is taken, so it is answered and not put.
- PUBCOMP waits for the disk since from then on the broker may give the id to another message. If we crashed with the id
  still noted as taken, that other message would pass for a copy, and be lost.
- A taken id stands with a fingerprint of its message. The standard wants every PUBLISH under a taken id answered and
  none delivered twice, whether it is flagged as a repetition or not; so we do not ask for the flag. But if topic or
  payload differ, it is no copy: the broker has lost its memory of the id and uses it anew. Such a message is put.
- A freed id is kept with its fingerprint until the broker is known to have our PUBCOMP, which is when it answers a ping
  that we sent behind it. For there are brokers (Mosquitto, when a connection breaks while it repeats its PUBRELs) that
  send a message again although they had released it, which the standard forbids. Flagged as a repetition, and equal in
  id, topic and payload, it is taken for that. No message of a broker that keeps to the standard is: to give an id away
  again before we have its answer to a ping, it must choose the lowest free one, and that is not over the number that it
  may have in flight. So this rule is for ids above `receive_max` only.
- If the broker has no session of ours, all ids are free. That is durable before we subscribe, and before that a new
  session sends nothing. (A crash just between leaves ids that look taken in a session that is new. The fingerprint
  tells their messages apart, unless one has the same id, topic and payload; the old session's messages are lost then
  anyhow.)
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
from penstock.contracts import Intake, SourceStatus
from penstock.errors import SourceFailed

PRINTS_MAX = 1000
RECORD_BYTES = 6
_log = logging.getLogger("penstock.collect")
Answer = tuple[asyncio.Future[None] | None, bytes]
"""A packet, and what must be done before it may leave (None: nothing)."""


class _Noted(msgspec.Struct):
    """The mark, as JSON. `filters` may be subscribed to at the broker; they are, with `qos`, if `confirmed`.

    `taken` has six bytes for each taken id: the id, and a fingerprint. If they are more than `PRINTS_MAX`, `ids` says
    which are taken, with a bit for each that there is, so that a mark has at most 11,000 characters of them. `freed` is
    like `taken`, for ids whose PUBCOMP the broker may not have; it is left out where there is no room.
    """

    client: str
    filters: list[str] = []
    qos: int = 0
    confirmed: bool = False
    taken: bytes = b""
    ids: bytes = b""
    freed: bytes = b""


class Session:
    """The state behind the mark. How many ids are taken is the broker's doing: as many messages as it has in flight,
    which is 10 to 100 by default and, with version 5, `receive_max`; never more than the 65,535 that there are."""

    def __init__(self, mark: str | None, client_id: str | None) -> None:
        noted = None if mark is None else _read(mark)
        if noted is None or client_id not in (None, noted.client):
            noted = _Noted(client_id or f"penstock-{secrets.token_hex(6)}")
        self.client_id = noted.client
        self.filters: Sequence[str] = noted.filters
        self.qos = noted.qos
        self.confirmed = noted.confirmed
        self._taken = {**_records(noted.taken), **_plain(noted.ids)}
        self._freed = _records(noted.freed)
        self._bits = _bits(self._taken)  # of the ids in `_taken`: making them anew for each message would be slow

    def is_copy(self, packet_id: int, print_: bytes, *, dup: bool, low: int) -> bool:
        """Whether it is the message that the id is taken by (without a fingerprint to compare, every one is), or was,
        if it is flagged so and the id is not a low one."""
        known = self._taken.get(packet_id)
        if known is not None:
            return known[2:] in (print_, b"")
        return dup and packet_id > low and self._freed.get(packet_id) == _record(packet_id, print_)

    def is_taken(self, packet_id: int) -> bool:
        return packet_id in self._taken

    def take(self, packet_id: int, print_: bytes) -> None:
        self._freed.pop(packet_id, None)
        self._taken[packet_id] = _record(packet_id, print_)
        _set(self._bits, packet_id, True)

    def release(self, packet_id: int) -> None:
        record = self._taken.pop(packet_id)
        _set(self._bits, packet_id, False)
        if len(record) == RECORD_BYTES:
            self._freed[packet_id] = record
        while len(self._freed) > PRINTS_MAX:
            del self._freed[next(iter(self._freed))]

    def forget(self, packet_ids: Iterable[int]) -> None:
        """The broker knows that these are free."""
        for packet_id in packet_ids:
            self._freed.pop(packet_id, None)

    def void(self) -> None:
        """The broker knows nothing of us."""
        self._taken.clear()
        self._freed.clear()
        self._bits = _bits(())
        self.filters, self.confirmed = [], False

    def mark(self) -> str:
        return self._text(self._taken, self._freed)

    def mark_with(self, packet_id: int, print_: bytes) -> str:
        if len(self._taken) + (packet_id not in self._taken) > PRINTS_MAX:
            return self._text_of_bits(packet_id, True)
        freed = {each: record for each, record in self._freed.items() if each != packet_id}
        return self._text({**self._taken, packet_id: _record(packet_id, print_)}, freed)

    def mark_without(self, packet_id: int) -> str:
        if len(self._taken) - 1 > PRINTS_MAX:
            return self._text_of_bits(packet_id, False)
        taken = {**self._taken}
        return self._text(taken, {**self._freed, packet_id: taken.pop(packet_id)})

    def _text(self, taken: dict[int, bytes], freed: dict[int, bytes]) -> str:
        noted = self._noted()
        records = b"".join(taken.values())
        if len(taken) > PRINTS_MAX or len(records) < RECORD_BYTES * len(taken):
            noted.ids = bytes(_bits(taken))
        else:
            noted.taken = records
            if len(taken) + len(freed) <= PRINTS_MAX:
                noted.freed = b"".join(record for record in freed.values() if len(record) == RECORD_BYTES)
        return msgspec.json.encode(noted).decode()

    def _text_of_bits(self, packet_id: int, taken: bool) -> str:
        """The mark with one more id taken or free, where they are too many for fingerprints."""
        noted, bits = self._noted(), bytearray(self._bits)
        _set(bits, packet_id, taken)
        noted.ids = bytes(bits)
        return msgspec.json.encode(noted).decode()

    def _noted(self) -> _Noted:
        return _Noted(self.client_id, list(self.filters), self.qos, self.confirmed)


def _read(mark: str) -> _Noted:
    try:
        return msgspec.json.decode(mark, type=_Noted)
    except msgspec.DecodeError:
        raise SourceFailed(
            "the position that is kept under this source's name is not one of an MQTT source: give it another name"
        ) from None


def _records(joined: bytes) -> dict[int, bytes]:
    records = (joined[place : place + RECORD_BYTES] for place in range(0, len(joined), RECORD_BYTES))
    return {int.from_bytes(record[:2], "big"): record for record in records}


def _plain(bits: bytes) -> dict[int, bytes]:
    ids = (8 * place + bit for place, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
    return {each: _record(each, b"") for each in ids}


def _bits(taken: Iterable[int]) -> bytearray:
    bits = bytearray(8192)
    for packet_id in taken:
        _set(bits, packet_id, True)
    return bits


def _set(bits: bytearray, packet_id: int, taken: bool) -> None:
    bit = 1 << (packet_id & 7)
    bits[packet_id >> 3] = bits[packet_id >> 3] | bit if taken else bits[packet_id >> 3] & ~bit


def _record(packet_id: int, print_: bytes) -> bytes:
    return packet_id.to_bytes(2, "big") + print_


def fingerprint(topic: str, payload: bytes) -> bytes:
    """Of a message. Short, for it only has to tell two messages apart that an erring broker gives the same id."""
    return blake2b(payload, digest_size=4, key=blake2b(topic.encode(), digest_size=16).digest()).digest()


class Inbox:
    """Puts messages and says how to answer them. Lives as long as the source: a connection may end between a `put` and
    its durability, and what was put must not be put again on the next.

    Every method leaves the session as it was if it is cancelled.
    """

    def __init__(
        self, intake: Intake, status: SourceStatus, session: Session, topics: Topics, *, retained: bool, low: int
    ) -> None:
        """`low`: the highest id that a broker that takes the lowest free one comes to."""
        self.session = session
        self._intake = intake
        self._status = status
        self._topics = topics
        self._retained = retained
        self._low = low
        self._last: asyncio.Future[None] | None = None

    async def take(self, message: Publish) -> Answer | None:
        """Put a message. The answer, if its QoS wants one, may leave once the event is durable."""
        if message.qos == 2:
            return await self._take_once(message)
        raw = self._event(message)
        if raw is not None:
            await self._put(raw, None)
        return (self._last, puback(message.packet_id)) if message.qos else None

    async def release(self, packet_id: int) -> Answer:
        """Free an id of QoS 2. One that is free already was so before a crash or a cut, which the broker does not know;
        its answer waits too, for the note of it may still be on its way."""
        if self.session.is_taken(packet_id):
            self._last = await self._intake.note(self.session.mark_without(packet_id))
            self.session.release(packet_id)
        return self._last, pubcomp(packet_id)

    async def note(self) -> None:
        """Return once the session as it is now is durable."""
        self._last = await self._intake.note(self.session.mark())
        await durable(self._last)

    async def _take_once(self, message: Publish) -> Answer:
        packet_id, print_ = message.packet_id, fingerprint(message.topic, message.payload)
        copy = self.session.is_copy(packet_id, print_, dup=message.dup, low=self._low)
        raw = None if copy else self._event(message)
        if raw is not None:
            if self.session.is_taken(packet_id):
                _log.warning("the broker uses packet id %d for a new message before it released it", packet_id)
            await self._put(raw, self.session.mark_with(packet_id, print_))
            self.session.take(packet_id, print_)
        return self._last, pubrec(packet_id)

    async def _put(self, raw: bytes, mark: str | None) -> None:
        self._last = await self._intake.put(raw, mark)
        self._status.received += 1

    def _event(self, message: Publish) -> bytes | None:
        """None for what nobody asked for: a retained message, or one of a topic that was taken from the list."""
        if message.retain and not self._retained:
            return None
        return self._topics.event(message.topic, message.payload)


async def durable(done: asyncio.Future[None]) -> None:
    """Wait for a future that others share. To await it as it is would cancel it for all when one is cancelled."""
    await asyncio.wait((done,))
    done.result()
