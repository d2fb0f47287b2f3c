"""`WS /v1/live`: many subscriptions on one WebSocket.

The client can subscribe and unsubscribe, acknowledge, pause and resume, set the pace of a subscription, and change its
filter. The server confirms every command except an acknowledgement, and sends each subscription's deliveries under its
id. It responds to an invalid command with an `error` message. Subscriptions take turns to send, and each has at most
one delivery waiting, so a busy subscription cannot starve the others. Large deliveries that clients have not received
yet are limited per caller and in total (`held.py`). Further deliveries are read when there is room for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.core.access import caller_of, subprotocol
from penstock.core.contracts import Channel, Delivery
from penstock.core.errors import (
    BadParameter,
    MalformedBody,
    NotFound,
    PenstockError,
    RequestError,
    TooLarge,
    as_problem,
)
from penstock.core.tasks import first_of
from penstock.http.arriving import CLIENT, ClientLeft, SocketClient, while_connected
from penstock.http.frames import MESSAGE_BYTES_MAX, WRITER, FrameWriter, delivered, framed
from penstock.http.problems import problem_response, unexpected
from penstock.serve.connections import FAREWELL_S, following
from penstock.serve.deps import Deps
from penstock.serve.held import SMALL_BYTES, Reservation
from penstock.serve.subscription import EVERY_S_MAX, WINDOW_MAX, ClientMessage, Subscription

ID_LENGTH_MAX = 128
AT_ONCE_BYTES_MAX = 64 * 1024
"""Maximum total size of deliveries sent together. Above this size, deliveries are sent one by one, as the client
receives them."""
BAD_MESSAGES_MAX = 20
"""Number of consecutive bad messages after which the connection is closed with the code POLICY."""
GONE, POLICY, RESTART = 1006, 1008, 1012
_log = logging.getLogger("penstock.serve")


_decode = msgspec.json.Decoder(ClientMessage).decode


class LiveSocket:
    """The endpoint of `WS /v1/live`."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        websocket = WebSocket(scope, receive, send)
        try:
            with self._deps.connections.one(caller_of(scope).name):
                await websocket.accept(subprotocol(scope))
                await _Session(websocket, self._deps).run()
        except PenstockError as error:
            await websocket.send_denial_response(problem_response(error))


async def no_such_socket(websocket: WebSocket) -> None:
    """Refuse a WebSocket on an unknown path."""
    error = NotFound(f"there is no WebSocket at {websocket.url.path[:200]!r}")
    await websocket.send_denial_response(problem_response(error))


class _Session:
    """One WebSocket connection: a task that reads commands, and a task per subscription. The tasks take turns to
    send."""

    def __init__(self, websocket: WebSocket, deps: Deps) -> None:
        self._websocket = websocket
        self._deps = deps
        self._caller = caller_of(websocket.scope)
        self._subscriptions: dict[str, Subscription] = {}
        self._writer: FrameWriter = websocket.scope["extensions"][WRITER]
        self._client: SocketClient = websocket.scope["extensions"][CLIENT]
        self._turn = asyncio.Lock()  # wakes waiters in order of arrival
        self._over = asyncio.Event()
        self._held = deps.connections.held
        self._ops: dict[str, Callable[[ClientMessage], Awaitable[None]]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "filter": self._filter,
            "ack": self._ack,
            "pause": self._pause,
            "resume": self._resume,
            "pace": self._pace,
            "ping": self._ping,
        }

    async def run(self) -> None:
        """Serve the WebSocket until the client disconnects, stops reading or misbehaves, or the gateway closes."""
        reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._deps.closing.wait())
        over = asyncio.create_task(self._over.wait())
        try:
            await first_of(reading, closing, over)
        finally:
            await self._end_subscriptions(*self._subscriptions)
        misbehaved = not reading.cancelled() and _websocket_outcome(reading)
        if self._deps.closing.is_set() or misbehaved:
            await self._close_websocket(POLICY if misbehaved else RESTART)

    async def _close_websocket(self, code: int) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._websocket.close(code)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            return

    async def _read(self) -> bool:
        """Execute a WebSocket client's commands. Returns False once the client has disconnected, or True once it has
        sent too many bad messages."""
        bad = 0
        while bad < BAD_MESSAGES_MAX:
            received = await self._websocket.receive()
            if received["type"] == "websocket.disconnect":
                return False
            try:
                await self._execute_command(received.get("text") or received.get("bytes") or "")
                bad = 0
            except _Refused as refused:
                bad += 1
                await self._send(refused.id, "error", problem=as_problem(refused.error) | refused.about)
        return True

    async def _execute_command(self, raw: str | bytes) -> None:
        message = _parse_command(raw)
        try:
            obey = self._ops.get(message.op)
            if obey is None:
                raise BadParameter(f"there is no op {message.op[:80]!r}; use {', '.join(self._ops)}")
            await obey(message)
        except PenstockError as error:
            raise _Refused(message.id, error, message.op) from error

    async def _ping(self, message: ClientMessage) -> None:
        await self._send(None, "pong")

    async def _subscribe(self, message: ClientMessage) -> None:
        id = _subscription_id(message)
        if id in self._subscriptions:
            raise BadParameter(f"the id {id!r} is already used by another subscription on this connection")
        most = self._deps.settings.subscriptions_max
        if len(self._subscriptions) >= most:
            raise BadParameter(f"a connection can have at most {most} subscriptions")
        if message.window is not None and not 1 <= message.window <= WINDOW_MAX:
            raise BadParameter(f"window must be an integer from 1 to {WINDOW_MAX}")
        await self._paid()
        chosen = Subscription(message, self._channel(message))
        self._subscriptions[id] = chosen
        self._start_subscription(id, chosen)

    def _start_subscription(self, id: str, chosen: Subscription) -> None:
        chosen.start(self._follow(id, chosen), partial(self._take, id, chosen))

    async def _paid(self) -> None:
        """Count a subscription as a request.

        A caller over its rate limit is not refused: the subscription, and the caller's later commands, wait. Raises
        `WebSocketDisconnect` if the client disconnects in the meantime.
        """
        if self._caller.wait_s():
            try:
                await while_connected(self._client, self._wait_for_rate())
            except ClientLeft:
                raise WebSocketDisconnect(GONE) from None
        self._caller.spend(1)

    async def _wait_for_rate(self) -> None:
        while wait_s := self._caller.wait_s():
            await asyncio.sleep(wait_s)

    def _channel(self, message: ClientMessage) -> Channel:
        named = {"view": message.view, "stream": message.stream, "query": message.query}
        chosen = [(kind, name) for kind, name in named.items() if name is not None]
        if len(chosen) != 1:
            raise BadParameter("subscribe to exactly one view, stream or query")
        channel = self._deps.channel(*chosen[0], self._caller)
        if message.where is None and message.select is None:
            return channel
        return channel.through(message.where, message.select)

    async def _unsubscribe(self, message: ClientMessage) -> None:
        id = _subscription_id(message)
        self._known_subscription(id)
        await self._end_subscriptions(id)
        await self._send(id, "unsubscribed")

    async def _filter(self, message: ClientMessage) -> None:
        """Switch a subscription to another filter: a stream continues, a view starts with a new snapshot."""
        id = _subscription_id(message)
        await self._paid()
        chosen = self._known_subscription(id)
        asked = msgspec.structs.replace(chosen.asked, where=message.where, select=message.select)
        channel = self._channel(asked)
        await chosen.stop()
        chosen.turn_to(channel, keep_cursor=asked.stream is not None)
        await self._send(id, "filtered")
        self._start_subscription(id, chosen)

    async def _ack(self, message: ClientMessage) -> None:
        self._known_subscription(_subscription_id(message)).acknowledge(message.cursor or "")

    async def _pause(self, message: ClientMessage) -> None:
        id = _subscription_id(message)
        self._known_subscription(id).pause()
        await self._send(id, "paused")

    async def _resume(self, message: ClientMessage) -> None:
        id = _subscription_id(message)
        self._known_subscription(id).resume()
        await self._send(id, "resumed")

    async def _pace(self, message: ClientMessage) -> None:
        id, every_s = _subscription_id(message), message.every_s or 0.0
        chosen = self._known_subscription(id)
        if not 0 <= every_s <= EVERY_S_MAX:
            raise BadParameter(f"every_s must be a number of seconds from 0 to {EVERY_S_MAX:g}")
        chosen.pace(every_s)
        await self._send(id, "paced")

    def _known_subscription(self, id: str) -> Subscription:
        subscription = self._subscriptions.get(id)
        if subscription is None:
            raise NotFound(f"there is no subscription {id!r} on this connection")
        return subscription

    async def _end_subscriptions(self, *ids: str) -> None:
        await asyncio.gather(*(self._subscriptions.pop(id).stop() for id in ids))

    async def _follow(self, id: str, chosen: Subscription) -> None:
        """Run one subscription in its task. If the subscription fails, the client gets the error, and other
        subscriptions continue."""
        try:
            problem = await self._deliver(id, chosen)
            self._subscriptions.pop(id, None)
            await self._send(id, "error", problem=problem)
        except WebSocketDisconnect:
            return

    async def _deliver(self, id: str, chosen: Subscription) -> dict[str, Any]:
        """Send a subscription's deliveries until the channel ends, and return the reason.

        A large delivery that must wait is dropped. It is read again later, from the cursor of the last delivery sent.
        """
        wanted = 0
        try:
            while True:
                if chosen.begun:
                    await chosen.ready()
                async with (
                    self._held.reserved(self._caller.name, wanted) as reservation,
                    following(chosen.channel, chosen.cursor, chosen.style) as deliveries,
                ):
                    wanted = await self._pass_on(id, chosen, deliveries, reservation)
        except RequestError as error:
            return as_problem(error)
        except PenstockError as error:
            _log.error("a subscription failed: %s", error, exc_info=error)
            return as_problem(error)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            _log.error("a subscription failed: %s", error, exc_info=error)
        return unexpected()

    async def _pass_on(
        self, id: str, chosen: Subscription, deliveries: AsyncIterator[Delivery], reservation: Reservation
    ) -> int:
        """Send a subscription's deliveries until a large one cannot be sent now, and return the size of that
        delivery."""
        while not (wanted := await self._send_next(id, chosen, deliveries, reservation)):
            await chosen.ready()
        return wanted

    async def _send_next(
        self, id: str, chosen: Subscription, deliveries: AsyncIterator[Delivery], reservation: Reservation
    ) -> int:
        """Send a subscription's next delivery and return 0, or return the size of a large one that cannot be sent now.

        Afterwards, nothing here refers to the delivery any more, because the next one may not arrive for hours.
        """
        delivery = await anext(deliveries)  # fails on a bad cursor, before `subscribed` is sent
        size, kind, cursor = len(delivery.data), delivery.kind, delivery.cursor
        if size <= SMALL_BYTES:
            self._held.give_back(reservation)
            await self._begin(id, chosen)
            await chosen.ready()  # it may have been paused while there was nothing to send
            await self._send(id, kind, delivery)
            chosen.sent(kind, cursor)
            return 0
        data = delivered(delivery, id)
        del delivery  # only the frame is counted while it is sent
        if await self._send_large(id, chosen, data, partial(chosen.sent, kind, cursor), reservation):
            return 0
        del data
        await self._begin(id, chosen)
        return size

    async def _begin(self, id: str, chosen: Subscription) -> None:
        """Send `subscribed` to the client, once."""
        if not chosen.begun:
            await self._send(id, "subscribed")
            chosen.begun = True

    async def _send_large(
        self, id: str, chosen: Subscription, data: bytes, sent: Callable[[], None], reservation: Reservation
    ) -> bool:
        """Send the frame of a large delivery, call `sent`, and wait until the client has received the frame.

        Returns False without sending the frame if the subscription is paused, or if there is no room to hold the frame
        while it is being sent.
        """
        with self._held.keep(self._caller.name, data, reservation) as has_room:
            if not has_room:
                return False
            await self._begin(id, chosen)
            if not chosen.is_ready:
                return False
            async with self._turn:
                await self._write_frame(data)
            sent()
            await self._websocket_drained()
        return True

    async def _websocket_drained(self) -> None:
        try:
            await self._deps.connections.sent(self._writer.drained())
        except (TimeoutError, ConnectionError) as error:
            self._over.set()
            raise WebSocketDisconnect(GONE) from error

    async def _send(
        self, id: str | None, event: str, delivery: Delivery | None = None, problem: dict[str, Any] | None = None
    ) -> None:
        """Send one WebSocket message after all earlier ones. A client that does not receive it in time is treated as
        disconnected."""
        async with self._turn:
            await self._write_frame(framed(id, event, delivery, problem))

    async def _write_frame(self, data: bytes) -> None:
        """Write a frame as soon as all earlier ones are sent. Called when it is this task's turn."""
        while not self._writer.write([data]):
            await self._websocket_drained()

    def _take(self, id: str, chosen: Subscription, deliveries: Sequence[Delivery]) -> bool:
        """Send a subscription's new deliveries immediately if no other task is sending and nothing is waiting to be
        sent."""
        if self._turn.locked() or not chosen.is_free:
            return False
        frames = [delivered(delivery, id) for delivery in deliveries]
        if (len(frames) > 1 and sum(map(len, frames)) > AT_ONCE_BYTES_MAX) or not self._writer.write(frames):
            return False
        chosen.cursor = deliveries[-1].cursor
        return True


def _websocket_outcome(reading: asyncio.Task[bool]) -> bool:
    """Return the result of the reading task; False if the client disconnected before it received a response."""
    try:
        return reading.result()
    except WebSocketDisconnect:
        return False


class _Refused(Exception):
    """A WebSocket command that was refused. The client gets an error message, with the command's id if it has one.

    The message names the command, so that clients do not mistake it for the end of the subscription.
    """

    def __init__(self, id: str | None, error: PenstockError, op: str | None = None) -> None:
        super().__init__(str(error))
        self.id = id
        self.error = error
        self.about = {} if op is None else {"op": op[:80]}


def _parse_command(raw: str | bytes) -> ClientMessage:
    if len(raw) > MESSAGE_BYTES_MAX:
        raise _Refused(None, TooLarge(f"the message is too large; the limit is {MESSAGE_BYTES_MAX} bytes"))
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _Refused(None, MalformedBody(f"this is not a valid message: {error}")) from error


def _subscription_id(message: ClientMessage) -> str:
    if not message.id or len(message.id) > ID_LENGTH_MAX:
        raise BadParameter(f"a subscription needs an id of 1 to {ID_LENGTH_MAX} characters")
    return message.id
