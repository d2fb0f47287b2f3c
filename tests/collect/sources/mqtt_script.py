"""A scripted broker, packet by packet: for behaviour that a real one shows too rarely, or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.memory_log import DEADLINE_S
from tests.network import close, turns


def framed(first: int, content: bytes) -> bytes:
    length, size = bytearray(), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([first, *length, size]) + content


def connack(version: int, code: int = 0, *, session: bool = False) -> bytes:
    return framed(0x20, bytes([session, code]) + (b"\0" if version == 5 else b""))


def publish(
    version: int,
    topic: str,
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: int = 0,
    dup: bool = False,
    retain: bool = False,
) -> bytes:
    name = topic.encode()
    content = len(name).to_bytes(2, "big") + name
    if qos:
        content += packet_id.to_bytes(2, "big")
    return framed(0x30 | dup << 3 | qos << 1 | retain, content + (b"\0" if version == 5 else b"") + payload)


def pubrel(packet_id: int) -> bytes:
    return framed(0x62, packet_id.to_bytes(2, "big"))


def suback(version: int, packet_id: int, *codes: int) -> bytes:
    return framed(0x90, packet_id.to_bytes(2, "big") + (b"\0" if version == 5 else b"") + bytes(codes))


def disconnect(code: int, reason: str = "") -> bytes:
    if not reason:
        return framed(0xE0, bytes([code]))
    text = b"\x1f" + len(reason).to_bytes(2, "big") + reason.encode()
    return framed(0xE0, bytes([code, len(text)]) + text)


class Peer:
    """One connection of a client, seen from the broker."""

    def __init__(self, version: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.version = version
        self.pings = 0
        self.mute = False
        self._reader = reader
        self._writer = writer

    def send(self, *packets: bytes) -> None:
        self._writer.write(b"".join(packets))

    async def got(self) -> tuple[int, bytes]:
        """Return the next packet except pings: its first byte and its content. Packets of tests have less than 128
        bytes."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                first, size = await self._reader.readexactly(2)
                content = await self._reader.readexactly(size)
                if first == 0xC0:
                    self.pings += 1
                    if not self.mute:
                        self.send(b"\xd0\x00")
                else:
                    return first, content

    async def answer(self) -> tuple[str, int]:
        """Return the next packet, which must be an answer: its name and its id."""
        first, content = await self.got()
        return {0x40: "PUBACK", 0x50: "PUBREC", 0x70: "PUBCOMP"}[first], int.from_bytes(content, "big")

    async def quiet(self) -> bool:
        """Return whether the client sends only pings, for many times as long as an answer takes."""
        try:
            async with asyncio.timeout(0.1):
                await self.got()
        except TimeoutError:
            return True
        return False

    async def greet(self, *, session: bool, qos: int = 2) -> None:
        """Connect up to the subscription, which a version 5 client sends each time, and a version 3 client the first
        time."""
        first, _ = await self.got()
        assert first == 0x10
        self.send(connack(self.version, session=session))
        if self.version == 5 or not session:
            assert (await self.got())[0] == 0x82
            self.send(suback(self.version, 1, qos))

    def cut(self) -> None:
        self._writer.transport.abort()


class ScriptedBroker:
    def __init__(self, version: int) -> None:
        self._version = version
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []
        self.url = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self._version, reader, writer)
        self._all.append(peer)
        self._peers.put_nowait(peer)

    async def peer(self) -> Peer:
        """Wait for the next connection."""
        return await asyncio.wait_for(self._peers.get(), DEADLINE_S)

    def close(self) -> None:
        for peer in self._all:
            peer.cut()


@asynccontextmanager
async def scripted(version: int) -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker(version)
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    broker.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        await close(server)
        broker.close()
        await turns()
