"""The two ways from an outbox to the server: a WebSocket with many messages under way, and one POST at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
from websockets.asyncio.client import ClientConnection

from penstock.client.answers import Receipt
from penstock.client.asking import Target
from penstock.client.client import MIB, Client
from penstock.client.errors import Lost, ServerError, from_problem
from penstock.client.flight import Flight
from penstock.client.outbox import Queued
from penstock.failpoints import reach

FLIGHT_BYTES_MAX = 4 * MIB
"""Bytes of messages that are held in memory until they are acknowledged."""
FIRST_MESSAGES = 8
"""So many go out before the first acknowledgement of a connection, and twice as many after each one: where connections
break often, it gets somewhere before it breaks."""
FLAWED = frozenset({"invalid_events", "malformed_body", "too_large"})
"""Answers to a POST that are about its events: it will never be taken, and must not block the others."""
Load = Callable[[int, int, int], Awaitable[list[Queued]]]
"""The next messages after a number: at most so many, with at most so many bytes, or one."""


@dataclass(frozen=True)
class Desk:
    """Where messages come from, and who is told what became of them.

    `news` returns when there may be messages after a number, `load` gives the next of them. `acknowledge` is called
    with the number up to which all are durable at the server, and how many events the server gave up of them because it
    is overloaded; `reject`, before that, with what is wrong with one.
    """

    news: Callable[[int], Awaitable[None]]
    load: Load
    acknowledge: Callable[[int, int], None]
    reject: Callable[[int, list[dict[str, Any]]], None]


class Sender(ABC):
    """One of the ways. `progressed` is set when the server has acknowledged something."""

    def __init__(self, client: Client, stream: str, name: str, desk: Desk) -> None:
        self._client = client
        self._path = Target("stream", stream).path
        self._name = name
        self._desk = desk
        self.progressed = False

    @abstractmethod
    async def send(self) -> None:
        """Send from the oldest message on. Never returns; raises what ended it."""

    def _acknowledged(self, seq: int, shed: int) -> None:
        reach("producer.acknowledged")
        self.progressed = True
        self._desk.acknowledge(seq, shed)


class Post(Sender):
    async def send(self) -> None:
        seq = 0
        while True:
            await self._desk.news(seq)
            for message in await self._desk.load(seq, 100, FLIGHT_BYTES_MAX):
                await self._post(message)
                seq = message.seq

    async def _post(self, message: Queued) -> None:
        headers = {"Idempotency-Key": f"{self._name}/{message.seq}", "Content-Type": "application/json"}
        shed = 0
        try:
            answer = await self._client.ask("POST", self._path, content=message.body, headers=headers)
        except ServerError as error:
            if error.code not in FLAWED:
                raise
            self._desk.reject(message.seq, error.fields.get("errors") or [{"index": 0, "reason": error.detail}])
        else:
            receipt = msgspec.json.decode(answer, type=Receipt)
            shed = receipt.shed
            if receipt.rejected:
                self._desk.reject(message.seq, [msgspec.to_builtins(each) for each in receipt.errors])
        reach("producer.sent")
        self._acknowledged(message.seq, shed)


class Socket(Sender):
    async def send(self) -> None:
        path = f"{self._path}/publish?producer={quote(self._name)}"
        connection = await self._client.dialer.dial(path, MIB)
        try:
            opened = await self._hear(connection)
            if opened["event"] != "open":
                raise Lost("the first message is not `open`")
            await self._exchange(connection, int(opened["window"]))
        finally:
            await connection.close()

    async def _exchange(self, connection: ClientConnection, window: int) -> None:
        """Speak and listen, until one of the two ends."""
        flight, room = Flight(), asyncio.Event()
        flight.opened(window)
        bodies: dict[int, bytes] = {}
        most = min(FIRST_MESSAGES, window)

        async def speak() -> None:
            last = 0
            while True:
                await self._desk.news(last)
                while len(bodies) >= most or sum(map(len, bodies.values())) >= FLIGHT_BYTES_MAX:
                    room.clear()
                    await room.wait()
                for message in await self._desk.load(last, most - len(bodies), FLIGHT_BYTES_MAX):
                    last = message.seq
                    bodies[last] = message.body
                    for seq in flight.add(last):
                        await connection.send(_message(seq, bodies[seq]), text=True)
                        reach("producer.sent")

        async def listen() -> None:
            nonlocal most
            while True:
                heard = await self._hear(connection)
                if heard["event"] == "ack":
                    most = min(2 * most, window)
                    flight.acknowledged(heard["seq"])
                    for seq in [each for each in bodies if each <= heard["seq"]]:
                        del bodies[seq]
                    room.set()
                    self._acknowledged(heard["seq"], int(heard.get("shed", 0)))
                elif heard["event"] == "rejected":
                    self._desk.reject(heard["seq"], heard["errors"])

        await _first_of(speak(), listen())

    async def _hear(self, connection: ClientConnection) -> dict[str, Any]:
        """The next message; raises the problem of an `error`."""
        try:
            heard = msgspec.json.decode(await connection.recv())
        except msgspec.DecodeError:
            raise Lost("a message is not JSON") from None
        if not isinstance(heard, dict) or not isinstance(heard.get("event"), str):
            raise Lost("this is no message")
        if heard["event"] == "error":
            raise from_problem(heard.get("problem"))
        if heard["event"] in ("ack", "rejected") and not isinstance(heard.get("seq"), int):
            raise Lost("an acknowledgement without a number")
        return heard


def _message(seq: int, body: bytes) -> bytes:
    return b'{"seq":%d,"%b":%b}' % (seq, b"events" if body[:1] == b"[" else b"event", body)


async def _first_of(*ways: Any) -> None:
    """Run them beside each other until one ends; raises what it raised, but first of all what the server said."""
    tasks = [asyncio.ensure_future(each) for each in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [end for end in ends if isinstance(end, Exception)]
    raise next((each for each in errors if isinstance(each, ServerError)), errors[0] if errors else Lost("it ended"))
