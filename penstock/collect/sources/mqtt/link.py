"""One connection to an MQTT broker, from CONNECT to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from penstock.collect.sources.mqtt import packets
from penstock.collect.sources.mqtt.decoder import MalformedPacket, PacketDecoder, PacketTooLarge
from penstock.collect.sources.mqtt.packets import (
    ConnAck,
    Disconnect,
    Login,
    Packet,
    PingResp,
    Properties,
    Publish,
    PubRel,
    SubAck,
)
from penstock.collect.sources.mqtt.session import Answer, MqttInbox, durable
from penstock.collect.sources.mqtt.topics import bounded
from penstock.core.contracts import SourceStatus
from penstock.core.errors import PenstockError, SourceFailed
from penstock.core.tasks import cancel_all

READ_BYTES = 64 * 1024
PINGS_MAX = 1000
"""Maximum number of unanswered pings to track, to bound memory if the broker does not reply to pings."""
REASON_LENGTH_MAX = 200
"""Maximum number of characters shown of a string sent by the broker."""
_PROTOCOL_ERROR, _TOO_LARGE = 0x82, 0x95
_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 1, 2

_REASONS: Mapping[int, str] = {
    0: "no reason given", 1: "the protocol version is not supported", 2: "the client id is refused",
    3: "the broker is unavailable",
    4: "bad user name or password", 5: "not authorised", 0x80: "unspecified error", 0x81: "malformed packet",
    0x82: "protocol error", 0x83: "a reason specific to this broker", 0x84: "the protocol version is not supported",
    0x85: "the client id is refused", 0x86: "bad user name or password", 0x87: "not authorised",
    0x88: "the broker is unavailable", 0x89: "the broker is busy", 0x8A: "banned", 0x8B: "the broker is shutting down",
    0x8C: "bad authentication method", 0x8D: "keep-alive timeout",
    0x8E: "another client has connected with this client id", 0x8F: "the topic is not valid",
    0x93: "too many messages in flight", 0x95: "packet too large", 0x96: "message rate too high",
    0x97: "quota exceeded", 0x98: "ended by an administrator", 0x9C: "use another broker",
    0x9D: "the broker has moved", 0x9F: "connection rate exceeded", 0xA1: "subscription ids are not supported",
    0xA2: "wildcards are not supported",
}  # fmt: skip
_FINAL = frozenset({1, 2, 4, 5, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x9C, 0x9D})
"""Refusals that a retry cannot fix."""


class Ended(Exception):
    """The connection to the MQTT broker has ended. The message tells users why."""


@dataclass(frozen=True)
class ConnectionOptions:
    """The options that a connection needs in addition to the login."""

    qos: int
    retained: bool
    keep_alive_s: float
    open_s: float
    close_s: float
    packet_bytes_max: int


class MqttConnection:
    """Reads, replies and pings in three tasks until one of them ends. Belongs to one connection.

    Replies are sent in the order of the broker's packets, each one as soon as the event that it confirms is durable. At
    most `receive_max` replies wait for their events, and at most as many again wait to be sent; beyond that, the socket
    is not read. The socket is also not read while the source buffer is full. Pings are still sent, so that the broker
    keeps the connection. The broker's silence is measured only while we are reading.
    """

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        login: Login,
        wishes: ConnectionOptions,
        inbox: MqttInbox,
        filters: list[str],
        status: SourceStatus,
    ) -> None:
        self._reader, self._writer = streams
        self._login, self._options, self._filters = login, wishes, filters
        self._inbox, self._session, self._status = inbox, inbox.session, status
        self._answers: asyncio.Queue[Answer] = asyncio.Queue(login.receive_max)
        self._greeted: asyncio.Future[ConnAck] = asyncio.get_running_loop().create_future()
        self._pings: deque[list[int]] = deque(maxlen=PINGS_MAX)
        self._listening = False
        self._heard = True

    async def run(self) -> None:
        """Run the connection to the broker. Raises `Ended`, an `OSError`, or an error that reconnecting cannot fix."""
        self._writer.write(packets.connect(self._login))
        answering = asyncio.create_task(self._answer())
        tasks = [answering, asyncio.create_task(self._read()), asyncio.create_task(self._ping())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            _raise_worst([error for task in done if (error := task.exception())])
        except asyncio.CancelledError:
            await self._finish(tasks[1:], answering)
            raise
        finally:
            await cancel_all(tasks)
            self._writer.transport.abort()

    async def _finish(self, others: list[asyncio.Task[None]], answering: asyncio.Task[None]) -> None:
        """Stop reading from the broker, but reply to the messages already accepted, so that they are not sent again."""
        await cancel_all(others)
        joined = asyncio.create_task(self._answers.join())
        await asyncio.wait((joined, answering), timeout=self._options.close_s, return_when=asyncio.FIRST_COMPLETED)
        await cancel_all([joined])
        self._writer.write(packets.disconnect(self._login.version))
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._options.close_s):
                while await self._reader.read(READ_BYTES):
                    """closing with bytes unread would reset the connection and lose our last replies"""

    async def _read(self) -> None:
        decoder = PacketDecoder(self._login.version, self._options.packet_bytes_max)
        while True:
            self._listening = self._heard = True
            chunk = await self._reader.read(READ_BYTES)
            self._listening = False
            if not chunk:
                raise Ended("the broker closed the connection")
            try:
                for packet in decoder.feed(chunk):
                    await self._handle(packet)
            except MalformedPacket as error:
                self._writer.write(packets.disconnect(self._login.version, _PROTOCOL_ERROR))
                raise Ended(f"the broker sent a malformed packet: {error}") from None
            except PacketTooLarge as error:
                self._writer.write(packets.disconnect(self._login.version, _TOO_LARGE))
                raise SourceFailed(
                    f"a message of {error.size} bytes on {str(error.topic)[:REASON_LENGTH_MAX]!r} exceeds "
                    f"packet_bytes_max ({self._options.packet_bytes_max}); the broker keeps it until you raise the "
                    f"limit"
                ) from None

    async def _handle(self, packet: Packet) -> None:
        if isinstance(packet, ConnAck) == self._greeted.done():
            raise MalformedPacket("a connection must begin with one ConnAck")
        if isinstance(packet, Publish):
            answer = await self._inbox.take(packet)
            if answer is not None:
                await self._answers.put(answer)
        elif isinstance(packet, PubRel):
            await self._answers.put(await self._inbox.release(packet.packet_id))
        elif isinstance(packet, ConnAck):
            await self._greet(packet)
        elif isinstance(packet, SubAck):
            await self._subscribed(packet)
        elif isinstance(packet, PingResp):
            self._session.forget(self._pings.popleft() if self._pings else ())
        elif isinstance(packet, Disconnect):
            raise _refusal_error("the broker ended the connection", packet.code, packet.properties)

    async def _greet(self, packet: ConnAck) -> None:
        if packet.code:
            raise _refusal_error("the broker refused the connection", packet.code, packet.properties)
        self._greeted.set_result(packet)
        if not packet.session_present:
            self._session.void()
        await self._subscribe()

    async def _subscribe(self) -> None:
        """Subscribe to our MQTT topics, and unsubscribe from any topics that the session still has from an earlier
        declaration.

        The filters that the session may have are stored durably before the request is sent, and the confirmation is
        stored when it arrives. A 3.1.1 session that already has the filters is not subscribed again, because the broker
        would send all retained messages again each time.
        """
        session, version = self._session, self._login.version
        if version != 5 and session.confirmed and (session.filters, session.qos) == (self._filters, self._options.qos):
            self._connected()
            return
        surplus = bounded([topic_filter for topic_filter in session.filters if topic_filter not in self._filters])
        if not session.confirmed or session.filters != self._filters or session.qos != self._options.qos:
            session.filters, session.confirmed = [*self._filters, *surplus], False
            await self._inbox.note()
        if surplus:
            self._writer.write(packets.unsubscribe(version, _UNSUBSCRIBE_ID, surplus))
        qos, retained = self._options.qos, self._options.retained
        self._writer.write(packets.subscribe(version, _SUBSCRIBE_ID, self._filters, qos, retained=retained))

    async def _subscribed(self, packet: SubAck) -> None:
        if packet.packet_id != _SUBSCRIBE_ID or len(packet.codes) != len(self._filters):
            raise MalformedPacket("a SubAck does not match the subscription")
        for topic, code in zip(self._filters, packet.codes, strict=True):
            if code >= 0x80:
                reason = _REASONS.get(code, f"reason 0x{code:02x}")
                raise SourceFailed(
                    f"the broker refuses the topic {topic!r}: {reason}; ask its administrator for access"
                )
            if code < self._options.qos:
                raise SourceFailed(f"the broker grants the topic {topic!r} only with QoS {code}: declare qos={code}")
        session = self._session
        if not session.confirmed:
            session.filters, session.qos, session.confirmed = self._filters, self._options.qos, True
            await self._inbox.note()
        self._connected()

    def _connected(self) -> None:
        self._status.state, self._status.error = "connected", None

    async def _answer(self) -> None:
        """Send replies to the broker. Replies that wait for the same commit are sent in one write."""
        while True:
            waiting = [await self._answers.get()]
            while not self._answers.empty():
                waiting.append(self._answers.get_nowait())
            ready: list[bytes] = []
            for done, packet in waiting:
                if done is not None and not done.done():
                    self._writer.write(b"".join(ready))
                    ready.clear()
                    await durable(done)
                elif done is not None:
                    done.result()
                ready.append(packet)
            self._writer.write(b"".join(ready))
            freed = [packet_id for _, packet in waiting if (packet_id := packets.freed_by(packet))]
            if freed:
                self._send_ping(freed)
            await self._writer.drain()
            for _ in waiting:
                self._answers.task_done()

    def _send_ping(self, freed: list[int]) -> None:
        """Ping the broker, and remember the freed ids until it replies.

        The broker's reply proves that it has received everything sent before the ping, so it knows that these ids are
        free.
        """
        self._writer.write(packets.PINGREQ)
        self._pings.append(freed)

    async def _ping(self) -> None:
        """Ping the broker twice per keep-alive interval, whatever else is sent."""
        await asyncio.wait((self._greeted,), timeout=self._options.open_s)
        if not self._greeted.done():
            raise Ended(f"the broker did not respond within {self._options.open_s:g} s")
        agreed = self._greeted.result().properties.get(packets.SERVER_KEEP_ALIVE)
        keep_alive_s = agreed if isinstance(agreed, int) and agreed else self._options.keep_alive_s
        while True:
            self._send_ping([])
            self._heard = False
            await asyncio.sleep(keep_alive_s / 2)
            if self._listening and not self._heard:
                raise Ended(f"the broker sent nothing for {keep_alive_s / 2:g} s")


def _refusal_error(what: str, code: int, properties: Properties) -> Exception:
    """Return the error for an MQTT reason code: a permanent error, or one after which a retry may succeed."""
    more = properties.get(packets.REASON_STRING) or properties.get(packets.SERVER_REFERENCE)
    sentence = f"{what}: {_REASONS.get(code, f'reason 0x{code:02x}')}"
    if isinstance(more, str):
        sentence += f" ({more[:REASON_LENGTH_MAX]!r})"
    return SourceFailed(f"{sentence}; {_refusal_remedy(code)}") if code in _FINAL else Ended(sentence)


def _refusal_remedy(code: int) -> str:
    if code in (1, 0x84):
        return "declare a different version (3 or 5)"
    if code in (2, 0x85):
        return "declare a different client_id"
    return "check address, username and password"


def _raise_worst(errors: list[BaseException]) -> None:
    """Raise the connection's first error. An error that ends the source takes precedence over one that ends the
    connection."""
    raise next((error for error in errors if isinstance(error, PenstockError)), errors[0])
