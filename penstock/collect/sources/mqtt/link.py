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
from penstock.collect.sources.mqtt.session import Answer, Inbox, durable
from penstock.collect.sources.mqtt.topics import bounded
from penstock.contracts import SourceStatus
from penstock.errors import PenstockError, SourceFailed

READ_BYTES = 64 * 1024
PINGS_MAX = 1000
"""Most pings that we know to be without an answer; a broker that answers none is not worth more memory."""
REASON_LENGTH_MAX = 200
"""Most that is shown of a text of the broker's."""
_PROTOCOL_ERROR, _TOO_LARGE = 0x82, 0x95
_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 1, 2

_REASONS: Mapping[int, str] = {
    0: "no reason given", 1: "the protocol version is not supported", 2: "the client id is refused",
    3: "the broker is unavailable",
    4: "bad user name or password", 5: "not authorised", 0x80: "unspecified error", 0x81: "malformed packet",
    0x82: "protocol error", 0x83: "the broker refuses", 0x84: "the protocol version is not supported",
    0x85: "the client id is refused", 0x86: "bad user name or password", 0x87: "not authorised",
    0x88: "the broker is unavailable", 0x89: "the broker is busy", 0x8A: "banned", 0x8B: "the broker is shutting down",
    0x8C: "bad authentication method", 0x8D: "the keep-alive ran out",
    0x8E: "another client has connected with this client id", 0x8F: "the topic is not valid",
    0x93: "too many messages in flight", 0x95: "packet too large", 0x96: "messages come too fast",
    0x97: "quota exceeded", 0x98: "ended by an administrator", 0x9C: "another broker is to be used",
    0x9D: "the broker has moved", 0x9F: "connections come too fast", 0xA1: "subscription ids are not supported",
    0xA2: "wildcards are not supported",
}  # fmt: skip
_FINAL = frozenset({1, 2, 4, 5, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x9C, 0x9D})
"""Refusals that another try does not mend."""


class Ended(Exception):
    """The connection is over; the text says why, for people."""


@dataclass(frozen=True)
class Wishes:
    """What a link needs to know of its source besides the login."""

    qos: int
    retained: bool
    keep_alive_s: float
    open_s: float
    close_s: float
    packet_bytes_max: int


class Link:
    """Reads, answers and pings, each in a task, until one of them ends. Belongs to one connection.

    Answers leave in the order of the packets they answer, each once what it confirms is durable. At most `receive_max`
    wait, and as many are about to leave; past that the socket is not read. Nor is it while the intake is full. Pings
    are sent all the same, so that the broker keeps the connection; its silence counts only while we listen.
    """

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        login: Login,
        wishes: Wishes,
        inbox: Inbox,
        filters: list[str],
        status: SourceStatus,
    ) -> None:
        self._reader, self._writer = streams
        self._login, self._wishes, self._filters = login, wishes, filters
        self._inbox, self._session, self._status = inbox, inbox.session, status
        self._answers: asyncio.Queue[Answer] = asyncio.Queue(login.receive_max)
        self._greeted: asyncio.Future[ConnAck] = asyncio.get_running_loop().create_future()
        self._pings: deque[list[int]] = deque(maxlen=PINGS_MAX)
        self._listening = False
        self._heard = True

    async def run(self) -> None:
        """Ends by `Ended`, by an `OSError`, or by an error that another connection does not mend."""
        self._writer.write(packets.connect(self._login))
        answering = asyncio.create_task(self._answer())
        tasks = [answering, asyncio.create_task(self._read()), asyncio.create_task(self._ping())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            _raise_worst([error for each in done if (error := each.exception())])
        except asyncio.CancelledError:
            await self._finish(tasks[1:], answering)
            raise
        finally:
            await _cancelled(tasks)
            self._writer.transport.abort()

    async def _finish(self, others: list[asyncio.Task[None]], answering: asyncio.Task[None]) -> None:
        """Told to stop: read no more, but answer what was taken, so that it does not come again."""
        await _cancelled(others)
        joined = asyncio.create_task(self._answers.join())
        await asyncio.wait((joined, answering), timeout=self._wishes.close_s, return_when=asyncio.FIRST_COMPLETED)
        await _cancelled([joined])
        self._writer.write(packets.disconnect(self._login.version))
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._wishes.close_s):
                while await self._reader.read(READ_BYTES):
                    """To close with bytes unread would reset the connection, and our last answers with it."""

    async def _read(self) -> None:
        decoder = PacketDecoder(self._login.version, self._wishes.packet_bytes_max)
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
                    f"a message of {error.size} bytes on {str(error.topic)[:REASON_LENGTH_MAX]!r} is over "
                    f"packet_bytes_max, {self._wishes.packet_bytes_max}: the broker keeps it until that is raised"
                ) from None

    async def _handle(self, packet: Packet) -> None:
        if isinstance(packet, ConnAck) == self._greeted.done():
            raise MalformedPacket("a connection begins with one ConnAck")
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
            raise _refused("the broker ended the connection", packet.code, packet.properties)

    async def _greet(self, packet: ConnAck) -> None:
        if packet.code:
            raise _refused("the broker refused the connection", packet.code, packet.properties)
        self._greeted.set_result(packet)
        if not packet.session_present:
            self._session.void()
        await self._subscribe()

    async def _subscribe(self) -> None:
        """Ask for our topics, and give up those of an earlier declaration, which the session still has.

        What the session may have is durable before it is asked for, and that it has it once it said so. A session of
        3.1.1 that has it is not asked again: each time, the broker would send all retained messages once more.
        """
        session, version = self._session, self._login.version
        if version != 5 and session.confirmed and (session.filters, session.qos) == (self._filters, self._wishes.qos):
            self._connected()
            return
        surplus = bounded([each for each in session.filters if each not in self._filters])
        if not session.confirmed or session.filters != self._filters or session.qos != self._wishes.qos:
            session.filters, session.confirmed = [*self._filters, *surplus], False
            await self._inbox.note()
        if surplus:
            self._writer.write(packets.unsubscribe(version, _UNSUBSCRIBE_ID, surplus))
        qos, retained = self._wishes.qos, self._wishes.retained
        self._writer.write(packets.subscribe(version, _SUBSCRIBE_ID, self._filters, qos, retained=retained))

    async def _subscribed(self, packet: SubAck) -> None:
        if packet.packet_id != _SUBSCRIBE_ID or len(packet.codes) != len(self._filters):
            raise MalformedPacket("a SubAck does not fit what was asked for")
        for topic, code in zip(self._filters, packet.codes, strict=True):
            if code >= 0x80:
                reason = _REASONS.get(code, f"reason 0x{code:02x}")
                raise SourceFailed(f"the broker refuses the topic {topic!r}: {reason}; ask its administrator for it")
            if code < self._wishes.qos:
                raise SourceFailed(f"the broker gives the topic {topic!r} with QoS {code} at most: declare qos={code}")
        session = self._session
        if not session.confirmed:
            session.filters, session.qos, session.confirmed = self._filters, self._wishes.qos, True
            await self._inbox.note()
        self._connected()

    def _connected(self) -> None:
        self._status.state, self._status.error = "connected", None

    async def _answer(self) -> None:
        """Many answers wait for the same commit: they leave in one write."""
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
        """When the broker answers, it has what was sent before: so it knows that these ids are free."""
        self._writer.write(packets.PINGREQ)
        self._pings.append(freed)

    async def _ping(self) -> None:
        """Twice in the time that was agreed on, whatever else is sent."""
        await asyncio.wait((self._greeted,), timeout=self._wishes.open_s)
        if not self._greeted.done():
            raise Ended(f"the broker did not answer in {self._wishes.open_s:g} s")
        agreed = self._greeted.result().properties.get(packets.SERVER_KEEP_ALIVE)
        keep_alive_s = agreed if isinstance(agreed, int) and agreed else self._wishes.keep_alive_s
        while True:
            self._send_ping([])
            self._heard = False
            await asyncio.sleep(keep_alive_s / 2)
            if self._listening and not self._heard:
                raise Ended(f"the broker answered nothing for {keep_alive_s / 2:g} s")


def _refused(what: str, code: int, properties: Properties) -> Exception:
    """The error that fits a reason: final, or worth another try."""
    more = properties.get(packets.REASON_STRING) or properties.get(packets.SERVER_REFERENCE)
    sentence = f"{what}: {_REASONS.get(code, f'reason 0x{code:02x}')}"
    if isinstance(more, str):
        sentence += f" ({more[:REASON_LENGTH_MAX]!r})"
    return SourceFailed(f"{sentence}; {_remedy(code)}") if code in _FINAL else Ended(sentence)


def _remedy(code: int) -> str:
    if code in (1, 0x84):
        return "declare another version (3 or 5)"
    if code in (2, 0x85):
        return "declare another client_id"
    return "check address, username and password"


def _raise_worst(errors: list[BaseException]) -> None:
    """What ends the source goes before what ends the connection."""
    raise next((each for each in errors if isinstance(each, PenstockError)), errors[0])


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
