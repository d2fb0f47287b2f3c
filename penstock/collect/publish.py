"""`WS /v1/streams/{stream}/publish`: events up, acknowledgements down, on one connection.

The client sends `{"seq": 1, "events": [...]}`, or `{"seq": 1, "event": {...}}`, and increases `seq` by one with each
message. The server sends:

| message | when |
|---|---|
| `{"event": "open", "window": n}` | first; at most `window` messages may be unacknowledged |
| `{"event": "ack", "seq": n, "accepted", "duplicates", "cursor"}` | messages up to `seq` are durable; `"shed"` if any |
| `{"event": "rejected", "seq": n, "errors"}` | events in that message were rejected, and became dead letters |
| `{"event": "error", "problem": {...}}` | sent last: resend everything that was not acknowledged |

The server stops reading from a client that has `window` unacknowledged messages until some of them are durable. It also
stops reading from a client that does not read its acknowledgements. So the client feels back-pressure from the disk
through its own socket, and nothing accumulates here. The server also stops reading from a client that has used up its
rate, until the rate allows more. A message that waits, for the rate or for room in the stream's queue, is not decoded
before its turn: of all the messages that one caller sends to one stream, at most one is decoded and waiting. If the
client disconnects, the wait ends and the message is dropped. With `?producer=NAME`, a message that is resent with the
same `seq`, for example on a new connection, is recognised: its events count as duplicates, even if their class has no
id field.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock.collect.audit import PUBLISH
from penstock.collect.group_commit import GroupCommit, IngressReceipt, IngressRequest
from penstock.collect.ingress import Ingress
from penstock.collect.stream_ingress import LARGE_BODY_BYTES, StreamIngress, errors_of, letters
from penstock.core.access import Caller, caller_of, subprotocol
from penstock.core.errors import BadParameter, MalformedBody, Overloaded, PenstockError, RequestError, as_problem
from penstock.core.tasks import first_of
from penstock.http.arriving import CLIENT, LOOK_S, ClientLeft, SocketClient, while_connected

SUFFIX = "/publish"
PRODUCER_CHARS_MAX = 100
SEND_S = 30.0
"""Maximum time, in seconds, that a client can leave an acknowledgement unread."""
POLICY, RESTART = 1008, 1012
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class Published(msgspec.Struct, forbid_unknown_fields=True):
    """One message that a client publishes."""

    seq: int
    event: msgspec.Raw = msgspec.Raw()
    events: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Published).decode


class _Pending(NamedTuple):
    """An accepted message, with the outcomes for its events and its dead letters."""

    seq: int
    taken: asyncio.Future[IngressReceipt] | None
    kept: asyncio.Future[IngressReceipt] | None
    errors: list[dict[str, Any]]


class _Disconnected(Exception):
    """The client has disconnected."""


class PublishEndpoint:
    """The ASGI callable for a WebSocket at `/v1/streams/{stream}/publish`. Check the Origin before calling it."""

    def __init__(self, ingress: Ingress, closing: asyncio.Event, *, window: int) -> None:
        self._ingress = ingress
        self._closing = closing
        self._window = window

    async def __call__(self, stream: str, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one publisher's connection. Raises `Forbidden`, before the connection is open, if the caller is not
        allowed to send to the stream."""
        caller = caller_of(scope)
        caller.require("produce", stream)
        first = await receive()
        if first["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept", "subprotocol": subprotocol(scope)})
        with suppress(_Disconnected, ClientLeft):
            await _close_publisher(send, await self._serve(stream, scope, receive, send))

    async def _serve(self, stream: str, scope: Message, receive: Receive, send: Send) -> int:
        """Serve a publisher until the gateway closes or an error is sent. Returns the close code."""
        try:
            producer = _producer_name(scope["query_string"])
            client = scope["extensions"][CLIENT]
            session = _Session(self._ingress.stream_ingress(stream), caller_of(scope), client, producer, receive, send)
            await session.run(self._closing, self._window)
        except PenstockError as error:
            await _send_to_publisher(send, {"event": "error", "problem": as_problem(error)})
            return POLICY if isinstance(error, RequestError) else RESTART
        return RESTART


class _Session:
    """One publisher's connection. One task reads and another acknowledges, with the queue of pending messages between
    them."""

    def __init__(
        self,
        stream_ingress: StreamIngress,
        caller: Caller,
        client: SocketClient,
        producer: str | None,
        receive: Receive,
        send: Send,
    ) -> None:
        self._stream_ingress = stream_ingress
        self._caller = caller
        self._client = client
        self._turn = stream_ingress.turn(caller.name)
        self._producer = producer
        self._receive = receive
        self._send = send
        self._last: int | None = None
        self._pending: deque[_Pending] = deque()
        self._moved = asyncio.Event()

    async def run(self, closing: asyncio.Event, window: int) -> None:
        """Run the publisher's session until the gateway closes. Raises `_Disconnected` or `ClientLeft` if the client
        disconnects, or the error that the client or the log caused."""
        await _send_to_publisher(self._send, {"event": "open", "window": window})
        ways = (self._read_messages(window), self._acknowledge(), _wait_for_closing(closing))
        tasks = [asyncio.create_task(way) for way in ways]
        for task in await first_of(*tasks):
            task.result()

    async def _read_messages(self, window: int) -> None:
        while True:
            while len(self._pending) >= window:
                await self._wait_for_room_in_window()
            if self._caller.wait_s():
                await while_connected(self._client, self._wait_for_rate())
            await self._take_message(await self._next_message())
            self._client.release()

    async def _wait_for_room_in_window(self) -> None:
        """Wait until messages are acknowledged. Returns after `LOOK_S` in any case, and raises `ClientLeft` if the
        client has disconnected by then."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wait_until_moved()
        except TimeoutError:
            if self._client.has_left():
                raise ClientLeft from None

    async def _next_message(self) -> bytes:
        received = await self._receive()
        if received["type"] == "websocket.disconnect":
            raise _Disconnected
        return received.get("bytes") or (received.get("text") or "").encode()

    async def _wait_for_rate(self) -> None:
        while wait_s := self._caller.wait_s():
            await asyncio.sleep(wait_s)

    async def _take_message(self, raw: bytes) -> None:
        message = self._parsed_message(raw)
        body = bytes(message.events or message.event)
        if not self._take_now(message.seq, body):
            await while_connected(self._client, self._take_in_turn(message.seq, body))
        self._moved.set()

    def _take_now(self, seq: int, body: bytes) -> bool:
        """Take a small message of valid events. Returns False, without any effect, if the message has to wait or to be
        decoded in the thread."""
        if len(body) > LARGE_BODY_BYTES or self._caller.wait_s():
            return False
        decoded = self._stream_ingress.decoder.decode_whole(body)
        if decoded is None:
            return False
        taken: asyncio.Future[IngressReceipt] = asyncio.get_running_loop().create_future()
        request = IngressRequest(decoded.events, len(body), PUBLISH, key=self._key(seq))
        if decoded.events and not self._stream_ingress.group_commit.offer_for(taken, request):
            return False
        self._caller.spend(len(decoded.events))
        self._pending.append(_Pending(seq, taken if decoded.events else None, None, []))
        return True

    async def _take_in_turn(self, seq: int, body: bytes) -> None:
        """Take a message when it is the only one of its caller and stream that is past its wait for the rate.

        One event is counted against the rate before the message is decoded, and its events as soon as their number is
        known.
        """
        async with self._turn:
            await self._wait_for_rate()
            self._caller.spend(1)
            decoded = await self._stream_ingress.decode(body, who=self._caller.name)
            self._caller.settle(1, len(decoded.events) + len(decoded.rejections))
            kept = taken = None
            if decoded.rejections:
                dead = IngressRequest(letters(decoded.rejections), len(body), PUBLISH)
                kept = await _offer_published(self._stream_ingress.dead_letters, dead)
                self._stream_ingress.count_rejected(len(decoded.rejections), PUBLISH)
            if decoded.events:
                request = IngressRequest(
                    decoded.events, len(body), PUBLISH, key=self._key(seq), indexes=decoded.indexes
                )
                taken = await _offer_published(self._stream_ingress.group_commit, request)
            self._pending.append(_Pending(seq, taken, kept, errors_of(decoded)))

    def _key(self, seq: int) -> str | None:
        """Return the key of a message's events, which an `Idempotency-Key` of `PRODUCER/SEQ` gives them too."""
        return None if self._producer is None else self._caller.scoped(f"{self._producer}/{seq}")

    def _parsed_message(self, raw: bytes) -> Published:
        try:
            message = _decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise MalformedBody(f'a message must be {{"seq": 1, "events": [...]}}: {error}') from None
        if bool(message.event) == bool(message.events):
            raise BadParameter("a message must have either `event` or `events`, but not both", parameter="events")
        if message.seq < 0 or (self._last is not None and message.seq != self._last + 1):
            expected = "0 or more" if self._last is None else str(self._last + 1)
            raise BadParameter(f"seq is {message.seq}; expected {expected}", parameter="seq")
        self._last = message.seq
        return message

    async def _acknowledge(self) -> None:
        """Wait until the oldest published message is durable, then acknowledge all messages that are durable by
        then."""
        while True:
            while not self._pending:
                await self._wait_until_moved()
            await _await_publish_settled(self._pending[0])
            accepted = duplicates = shed = 0
            cursor, seq = None, 0
            while self._pending and _is_publish_settled(self._pending[0]):
                done = self._pending[0]
                if done.kept is not None:
                    done.kept.result()
                    await _send_to_publisher(self._send, {"event": "rejected", "seq": done.seq, "errors": done.errors})
                if done.taken is not None:
                    receipt = done.taken.result()
                    accepted, duplicates = accepted + receipt.accepted, duplicates + receipt.duplicates
                    shed += receipt.shed or 0
                    cursor = receipt.cursor or cursor
                seq = done.seq
                self._pending.popleft()
            ack = {"event": "ack", "seq": seq, "accepted": accepted, "duplicates": duplicates, "cursor": cursor}
            ack |= {"shed": shed} if shed else {}
            await _send_to_publisher(self._send, ack)
            self._moved.set()

    async def _wait_until_moved(self) -> None:
        self._moved.clear()
        await self._moved.wait()


async def _offer_published(group_commit: GroupCommit, request: IngressRequest) -> asyncio.Future[IngressReceipt]:
    """Offer a published message's events, waiting as long as it takes for room in the queue. Nothing is read from the
    client in the meantime. A cancelled call offers nothing."""
    while True:
        try:
            return group_commit.offer(request)
        except Overloaded:
            await group_commit.room()


async def _await_publish_settled(pending: _Pending) -> None:
    waits = [future for future in (pending.taken, pending.kept) if future is not None]
    if waits:
        await asyncio.wait(waits)


def _is_publish_settled(pending: _Pending) -> bool:
    return all(future is None or future.done() for future in (pending.taken, pending.kept))


async def _wait_for_closing(closing: asyncio.Event) -> None:
    await closing.wait()


async def _send_to_publisher(send: Send, message: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await send({"type": "websocket.send", "text": _encode(message).decode()})
    except (TimeoutError, OSError, RuntimeError):
        raise _Disconnected from None


async def _close_publisher(send: Send, code: int) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await send({"type": "websocket.close", "code": code})
    except (TimeoutError, OSError, RuntimeError):
        return


def _producer_name(query: bytes) -> str | None:
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    unknown = [name for name, _ in given if name != "producer"]
    if unknown or len(given) > 1:
        problem = "the only allowed parameter is producer, and it can appear only once"
        raise BadParameter(problem, parameter=(unknown or ["producer"])[0][:80])
    if not given:
        return None
    name = given[0][1]
    if not (0 < len(name) <= PRODUCER_CHARS_MAX and name.isprintable()):
        raise BadParameter(
            f"producer must be a name of 1 to {PRODUCER_CHARS_MAX} printable characters", parameter="producer"
        )
    return name
