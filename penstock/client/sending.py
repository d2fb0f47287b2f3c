"""Two ways to send an outbox to the server: over a WebSocket with many messages in flight, or with one POST at a
time."""

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
from penstock.client.asking import FollowTarget
from penstock.client.client import MIB, Client
from penstock.client.errors import ConnectionLost, ServerError, from_problem
from penstock.client.flight import Flight
from penstock.client.outbox import Queued
from penstock.core.failpoints import reach
from penstock.core.tasks import first_of

FLIGHT_BYTES_MAX = 4 * MIB
"""Maximum size of the messages held in memory until they are acknowledged."""
FIRST_MESSAGES = 8
"""Maximum number of messages in flight on a new connection; each acknowledgement doubles it.

So a connection makes progress even if it breaks often.
"""
FLAWED = frozenset({"invalid_events", "malformed_body", "too_large"})
"""Errors caused by the events in a POST. The server will never accept that POST, and it must not block later
messages."""
Load = Callable[[int, int, int], Awaitable[list[Queued]]]
"""Loads the messages that follow a message number, up to a count and a total size in bytes, but at least one
message."""


@dataclass(frozen=True)
class SenderCallbacks:
    """The callbacks of an outbox's sender, which supply messages and receive their outcomes.

    `news` waits until there may be messages after the given number, and `load` returns those messages. When all
    messages up to some number are durable on the server, `acknowledge` is called with that number, and with the number
    of their events that the overloaded server dropped. Before that, `reject` is called for each message with rejected
    events, with its number and the errors.
    """

    news: Callable[[int], Awaitable[None]]
    load: Load
    acknowledge: Callable[[int, int], None]
    reject: Callable[[int, list[dict[str, Any]]], None]


class Sender(ABC):
    """A method of sending an outbox's messages. `progressed` is set when the server has acknowledged a message."""

    def __init__(self, client: Client, stream: str, name: str, desk: SenderCallbacks) -> None:
        self._client = client
        self._path = FollowTarget("stream", stream).path
        self._name = name
        self._desk = desk
        self.progressed = False

    @abstractmethod
    async def send(self) -> None:
        """Send the outbox's messages, starting with the oldest. Never returns; raises the error that ended it."""

    def _report_acknowledged(self, seq: int, shed: int) -> None:
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
                self._desk.reject(message.seq, [msgspec.to_builtins(error) for error in receipt.errors])
        reach("producer.sent")
        self._report_acknowledged(message.seq, shed)


class Socket(Sender):
    async def send(self) -> None:
        path = f"{self._path}/publish?producer={quote(self._name)}"
        connection = await self._client.dialer.dial(path, MIB)
        try:
            opened = await self._next_sender_reply(connection)
            if opened["event"] != "open":
                raise ConnectionLost("the first message is not `open`")
            await self._exchange(connection, int(opened["window"]))
        finally:
            await connection.close()

    async def _exchange(self, connection: ClientConnection, window: int) -> None:
        """Send messages and receive acknowledgements concurrently until either task ends."""
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
                        await connection.send(_sender_message(seq, bodies[seq]), text=True)
                        reach("producer.sent")

        async def listen() -> None:
            nonlocal most
            while True:
                heard = await self._next_sender_reply(connection)
                if heard["event"] == "ack":
                    most = min(2 * most, window)
                    flight.acknowledged(heard["seq"])
                    for seq in [number for number in bodies if number <= heard["seq"]]:
                        del bodies[seq]
                    room.set()
                    self._report_acknowledged(heard["seq"], int(heard.get("shed", 0)))
                elif heard["event"] == "rejected":
                    self._desk.reject(heard["seq"], heard["errors"])

        await _until_one_ends(speak(), listen())

    async def _next_sender_reply(self, connection: ClientConnection) -> dict[str, Any]:
        """Return the server's next message. If it is an `error`, raise the error that it describes."""
        try:
            heard = msgspec.json.decode(await connection.recv())
        except msgspec.DecodeError:
            raise ConnectionLost("a message is not JSON") from None
        if not isinstance(heard, dict) or not isinstance(heard.get("event"), str):
            raise ConnectionLost("the message is not valid")
        if heard["event"] == "error":
            raise from_problem(heard.get("problem"))
        if heard["event"] in ("ack", "rejected") and not isinstance(heard.get("seq"), int):
            raise ConnectionLost("an acknowledgement has no number")
        return heard


def _sender_message(seq: int, body: bytes) -> bytes:
    return b'{"seq":%d,"%b":%b}' % (seq, b"events" if body[:1] == b"[" else b"event", body)


async def _until_one_ends(*ways: Any) -> None:
    """Run a sender's coroutines concurrently until one ends. Raises its error; an error from the server takes
    precedence."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    await first_of(*tasks)
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception())]
    raise next(
        (error for error in errors if isinstance(error, ServerError)),
        errors[0] if errors else ConnectionLost("the connection ended"),
    )
