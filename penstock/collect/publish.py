"""`WS /v1/streams/{stream}/publish`: events up, acknowledgements down, on one connection.

The client sends `{"seq": 1, "events": [...]}`, or `{"seq": 1, "event": {...}}`, with `seq` one higher in each message.
The server sends:

| message | when |
|---|---|
| `{"event": "open", "window": n}` | first; so many messages may be unacknowledged |
| `{"event": "ack", "seq": n, "accepted", "duplicates", "cursor"}` | all up to `seq` are durable; or `"shed"`, if told |
| `{"event": "rejected", "seq": n, "errors"}` | events of that message were rejected, and are dead letters |
| `{"event": "error", "problem": {...}}` | the last word: what is not acknowledged must be sent again |

A client that has `window` messages unacknowledged is not read until some are durable, and one that does not read its
acknowledgements is not read either: so it feels the disk through its own socket, and nothing piles up here. One who has
used up its rate is read again when it has some. With
`?producer=NAME`, a message that is sent again under its `seq`, on another connection say, is known: its events are
duplicates, though their class has no id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock.access import Caller, caller_of, subprotocol
from penstock.collect.audit import PUBLISH
from penstock.collect.door import FrontDoor
from penstock.collect.entrance import Entrance, errors_of, letters
from penstock.collect.intake import Receipt, Request, StreamIntake
from penstock.errors import BadParameter, MalformedBody, Overloaded, PenstockError, RequestError, as_problem

SUFFIX = "/publish"
PRODUCER_CHARS_MAX = 100
SEND_S = 30.0
"""How long a client may leave an acknowledgement unread."""
POLICY, RESTART = 1008, 1012
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class Published(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a client."""

    seq: int
    event: msgspec.Raw = msgspec.Raw()
    events: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Published).decode


class _Pending(NamedTuple):
    """A message that was taken: what waits for its events, and for its dead letters."""

    seq: int
    taken: asyncio.Future[Receipt] | None
    kept: asyncio.Future[Receipt] | None
    errors: list[dict[str, Any]]


class _Gone(Exception):
    """The client has left."""


class PublishEndpoint:
    """The ASGI callable for a WebSocket at `/v1/streams/{stream}/publish`. Whether a page may open one, by its Origin,
    is for others to say before."""

    def __init__(self, door: FrontDoor, closing: asyncio.Event, *, window: int) -> None:
        self._door = door
        self._closing = closing
        self._window = window

    async def __call__(self, stream: str, scope: Message, receive: Receive, send: Send) -> None:
        """Raises `Forbidden` before the connection is open, if the caller may not send to the stream."""
        caller = caller_of(scope)
        caller.require("produce", stream)
        first = await receive()
        if first["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept", "subprotocol": subprotocol(scope)})
        with suppress(_Gone):
            await _close(send, await self._serve(stream, scope, receive, send))

    async def _serve(self, stream: str, scope: Message, receive: Receive, send: Send) -> int:
        """Until the gateway closes, or something is wrong, which is told. Returns the code to close with."""
        try:
            producer = _producer(scope["query_string"])
            session = _Session(self._door.entrance(stream), caller_of(scope), producer, receive, send)
            await session.run(self._closing, self._window)
        except PenstockError as error:
            await _tell(send, {"event": "error", "problem": as_problem(error)})
            return POLICY if isinstance(error, RequestError) else RESTART
        return RESTART


class _Session:
    """One connection. Reading and acknowledging are two tasks, with the pending messages between them."""

    def __init__(self, entrance: Entrance, caller: Caller, producer: str | None, receive: Receive, send: Send) -> None:
        self._entrance = entrance
        self._caller = caller
        self._producer = None if producer is None else caller.scoped(producer)
        self._receive = receive
        self._send = send
        self._last: int | None = None
        self._pending: deque[_Pending] = deque()
        self._moved = asyncio.Event()

    async def run(self, closing: asyncio.Event, window: int) -> None:
        """Until the gateway closes; raises `_Gone`, or what is wrong with the client or the log."""
        await _tell(self._send, {"event": "open", "window": window})
        ways = (self._read(window), self._acknowledge(), _set(closing))
        tasks = [asyncio.create_task(each) for each in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _read(self, window: int) -> None:
        while True:
            while len(self._pending) >= window:
                await self._news()
            await self._room()
            received = await self._receive()
            if received["type"] == "websocket.disconnect":
                raise _Gone
            await self._take(received.get("bytes") or (received.get("text") or "").encode())

    async def _room(self) -> None:
        while wait_s := self._caller.wait_s():
            await asyncio.sleep(wait_s)

    async def _take(self, raw: bytes) -> None:
        message = self._parsed(raw)
        body = bytes(message.events or message.event)
        decoded = await self._entrance.decode(body)
        await self._room()  # other connections of the caller may have used it up while this message was on its way
        self._caller.spend(len(decoded.events) + len(decoded.rejections))
        kept = taken = None
        if decoded.rejections:
            kept = await _offer(self._entrance.dead_letters, Request(letters(decoded.rejections), len(body), PUBLISH))
            self._entrance.count_rejected(len(decoded.rejections), PUBLISH)
        if decoded.events:
            key = None if self._producer is None else f"{self._producer}/{message.seq}"
            request = Request(decoded.events, len(body), PUBLISH, key=key, places=decoded.places)
            taken = await _offer(self._entrance.intake, request)
        self._pending.append(_Pending(message.seq, taken, kept, errors_of(decoded)))
        self._moved.set()

    def _parsed(self, raw: bytes) -> Published:
        try:
            message = _decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise MalformedBody(f'a message must be {{"seq": 1, "events": [...]}}: {error}') from None
        if bool(message.event) == bool(message.events):
            raise BadParameter("a message has either `event` or `events`", parameter="events")
        if message.seq < 0 or (self._last is not None and message.seq != self._last + 1):
            expected = "0 or more" if self._last is None else str(self._last + 1)
            raise BadParameter(f"seq is {message.seq}, and must be {expected}", parameter="seq")
        self._last = message.seq
        return message

    async def _acknowledge(self) -> None:
        """Wait for the oldest message, then tell of all that are durable by then at once."""
        while True:
            while not self._pending:
                await self._news()
            await _settled(self._pending[0])
            accepted = duplicates = shed = 0
            cursor, seq = None, 0
            while self._pending and _is_settled(self._pending[0]):
                done = self._pending[0]
                if done.kept is not None:
                    done.kept.result()
                    await _tell(self._send, {"event": "rejected", "seq": done.seq, "errors": done.errors})
                if done.taken is not None:
                    receipt = done.taken.result()
                    accepted, duplicates = accepted + receipt.accepted, duplicates + receipt.duplicates
                    shed += receipt.shed or 0
                    cursor = receipt.cursor or cursor
                seq = done.seq
                self._pending.popleft()
            told = {"event": "ack", "seq": seq, "accepted": accepted, "duplicates": duplicates, "cursor": cursor}
            told |= {"shed": shed} if shed else {}
            await _tell(self._send, told)
            self._moved.set()

    async def _news(self) -> None:
        self._moved.clear()
        await self._moved.wait()


async def _offer(intake: StreamIntake, request: Request) -> asyncio.Future[Receipt]:
    """Offer, and wait for room as long as it takes: meanwhile the client is not read."""
    while True:
        try:
            return intake.offer(request)
        except Overloaded:
            await intake.room()


async def _settled(pending: _Pending) -> None:
    waits = [each for each in (pending.taken, pending.kept) if each is not None]
    if waits:
        await asyncio.wait(waits)


def _is_settled(pending: _Pending) -> bool:
    return all(each is None or each.done() for each in (pending.taken, pending.kept))


async def _set(closing: asyncio.Event) -> None:
    await closing.wait()


async def _tell(send: Send, message: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await send({"type": "websocket.send", "text": _encode(message).decode()})
    except (TimeoutError, OSError, RuntimeError):
        raise _Gone from None


async def _close(send: Send, code: int) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await send({"type": "websocket.close", "code": code})
    except (TimeoutError, OSError, RuntimeError):
        return


def _producer(query: bytes) -> str | None:
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    unknown = [name for name, _ in given if name != "producer"]
    if unknown or len(given) > 1:
        raise BadParameter("there is one parameter, producer", parameter=(unknown or ["producer"])[0][:80])
    if not given:
        return None
    name = given[0][1]
    if not (0 < len(name) <= PRODUCER_CHARS_MAX and name.isprintable()):
        raise BadParameter(f"producer is a name of 1 to {PRODUCER_CHARS_MAX} characters", parameter="producer")
    return name
