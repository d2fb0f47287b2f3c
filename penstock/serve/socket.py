"""`WS /v1/live`: many subscriptions on one WebSocket.

The client subscribes and unsubscribes, acknowledges, pauses and resumes, sets the pace of a subscription, and changes
its filter; the server answers each, and sends the deliveries of every subscription under its id. What a client gets
wrong is answered with an `error` message. Sends take turns: each subscription has at most one delivery waiting, so a
busy one cannot starve the others. What large deliveries a client has yet to take is bounded for its caller and in all
(`held.py`): the others of it are read when there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.access import caller_of, subprotocol
from penstock.contracts import Channel, Delivery
from penstock.errors import (
    BadParameter,
    MalformedBody,
    NotFound,
    PenstockError,
    RequestError,
    TooLarge,
    as_problem,
)
from penstock.serve.connections import FAREWELL_S, first_of, following
from penstock.serve.deps import Deps
from penstock.serve.frames import WRITER, FrameWriter, delivered, framed
from penstock.serve.held import SMALL_BYTES, Reservation
from penstock.serve.problems import problem_response, unexpected
from penstock.serve.subscription import EVERY_S_MAX, WINDOW_MAX, Message, Subscription

MESSAGE_BYTES_MAX = 64 * 1024
ID_LENGTH_MAX = 128
AT_ONCE_BYTES_MAX = 64 * 1024
"""Of what comes together, so much is sent at once; more goes one by one, as the client takes it."""
BAD_MESSAGES_MAX = 20
"""Bad messages in a row before the connection is closed with POLICY."""
GONE, POLICY, RESTART = 1006, 1008, 1012
_log = logging.getLogger("penstock.serve")


_decode = msgspec.json.Decoder(Message).decode


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
    """Refuse a WebSocket to a path where there is none."""
    error = NotFound(f"there is no WebSocket at {websocket.url.path[:200]!r}")
    await websocket.send_denial_response(problem_response(error))


class _Session:
    """One connection: a task that reads commands, and one for each subscription. They send in turn."""

    def __init__(self, websocket: WebSocket, deps: Deps) -> None:
        self._websocket = websocket
        self._deps = deps
        self._caller = caller_of(websocket.scope)
        self._subscriptions: dict[str, Subscription] = {}
        self._writer: FrameWriter = websocket.scope["extensions"][WRITER]
        self._turn = asyncio.Lock()  # wakes those who wait in the order they came
        self._over = asyncio.Event()
        self._held = deps.connections.held
        self._ops: dict[str, Callable[[Message], Awaitable[None]]] = {
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
        """Serve until the client goes, takes nothing, or misbehaves, or the gateway closes."""
        reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._deps.closing.wait())
        over = asyncio.create_task(self._over.wait())
        try:
            await first_of(reading, closing, over)
        finally:
            await self._end(*self._subscriptions)
        misbehaved = not reading.cancelled() and _outcome(reading)
        if self._deps.closing.is_set() or misbehaved:
            await self._close(POLICY if misbehaved else RESTART)

    async def _close(self, code: int) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._websocket.close(code)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            return

    async def _read(self) -> bool:
        """Take commands until the client goes (False) or says nothing but nonsense (True)."""
        bad = 0
        while bad < BAD_MESSAGES_MAX:
            received = await self._websocket.receive()
            if received["type"] == "websocket.disconnect":
                return False
            try:
                await self._obey(received.get("text") or received.get("bytes") or "")
                bad = 0
            except _Refused as refused:
                bad += 1
                await self._send(refused.id, "error", problem=as_problem(refused.error) | refused.about)
        return True

    async def _obey(self, raw: str | bytes) -> None:
        message = _parse(raw)
        try:
            obey = self._ops.get(message.op)
            if obey is None:
                raise BadParameter(f"there is no op {message.op[:80]!r}; use {', '.join(self._ops)}")
            await obey(message)
        except PenstockError as error:
            raise _Refused(message.id, error, message.op) from error

    async def _ping(self, message: Message) -> None:
        await self._send(None, "pong")

    async def _subscribe(self, message: Message) -> None:
        id = _id(message)
        if id in self._subscriptions:
            raise BadParameter(f"the id {id!r} is taken by another subscription of this connection")
        most = self._deps.settings.subscriptions_max
        if len(self._subscriptions) >= most:
            raise BadParameter(f"a connection may have {most} subscriptions")
        if message.window is not None and not 1 <= message.window <= WINDOW_MAX:
            raise BadParameter(f"a window is a whole number from 1 to {WINDOW_MAX}")
        await self._paid()
        chosen = Subscription(message, self._channel(message))
        chosen.style.take = partial(self._take, id, chosen)
        self._subscriptions[id] = chosen
        chosen.task = asyncio.create_task(self._follow(id, chosen))

    async def _paid(self) -> None:
        """Count what begins to read as a request. Who is over its rate is not refused but waited for, and its further
        commands with it."""
        while wait_s := self._caller.wait_s():
            await asyncio.sleep(wait_s)
        self._caller.spend(1)

    def _channel(self, message: Message) -> Channel:
        named = {"view": message.view, "stream": message.stream, "query": message.query}
        chosen = [(kind, name) for kind, name in named.items() if name is not None]
        if len(chosen) != 1:
            raise BadParameter("say what to subscribe to: either a view or a stream, or a query")
        found = self._deps.channel(*chosen[0], self._caller)
        if message.where is None and message.select is None:
            return found
        return found.through(message.where, message.select)

    async def _unsubscribe(self, message: Message) -> None:
        id = _id(message)
        self._known(id)
        await self._end(id)
        await self._send(id, "unsubscribed")

    async def _filter(self, message: Message) -> None:
        """Go on through another filter: a stream from where it is, a view with a snapshot of what is seen now."""
        id = _id(message)
        await self._paid()
        chosen = self._known(id)
        asked = msgspec.structs.replace(chosen.asked, where=message.where, select=message.select)
        channel = self._channel(asked)
        await chosen.stop()
        chosen.turn_to(channel, keep_place=asked.stream is not None)
        await self._send(id, "filtered")
        chosen.task = asyncio.create_task(self._follow(id, chosen))

    async def _ack(self, message: Message) -> None:
        self._known(_id(message)).acknowledge(message.cursor or "")

    async def _pause(self, message: Message) -> None:
        id = _id(message)
        self._known(id).pause()
        await self._send(id, "paused")

    async def _resume(self, message: Message) -> None:
        id = _id(message)
        self._known(id).resume()
        await self._send(id, "resumed")

    async def _pace(self, message: Message) -> None:
        id, every_s = _id(message), message.every_s or 0.0
        chosen = self._known(id)
        if not 0 <= every_s <= EVERY_S_MAX:
            raise BadParameter(f"every_s is a number of seconds from 0 to {EVERY_S_MAX:g}")
        chosen.pace(every_s)
        await self._send(id, "paced")

    def _known(self, id: str) -> Subscription:
        found = self._subscriptions.get(id)
        if found is None:
            raise NotFound(f"there is no subscription {id!r} on this connection")
        return found

    async def _end(self, *ids: str) -> None:
        await asyncio.gather(*(self._subscriptions.pop(id).stop() for id in ids))

    async def _follow(self, id: str, chosen: Subscription) -> None:
        """One subscription, as a task of its own. If it fails, the client is told why and the others go on."""
        try:
            problem = await self._deliver(id, chosen)
            self._subscriptions.pop(id, None)
            await self._send(id, "error", problem=problem)
        except WebSocketDisconnect:
            return

    async def _deliver(self, id: str, chosen: Subscription) -> dict[str, Any]:
        """Send deliveries for as long as the channel gives them; returns why it stopped. A large one that has to wait
        is let go, and read again after the last that was sent."""
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
        """Send deliveries until there is one that is large and cannot go out now: returns its size."""
        while True:
            delivery = await anext(deliveries)  # a bad cursor is answered instead of `subscribed`
            if len(delivery.data) <= SMALL_BYTES:
                self._held.give_back(reservation)
                await self._begin(id, chosen)
                await chosen.ready()  # it may have been held up while there was nothing to send
                await self._send(id, delivery.kind, delivery)
            elif not await self._send_large(id, chosen, delivery, reservation):
                size = len(delivery.data)
                del delivery
                await self._begin(id, chosen)
                return size
            chosen.sent(delivery)
            await chosen.ready()

    async def _begin(self, id: str, chosen: Subscription) -> None:
        """Tell the client that its subscription has begun, if it was not told."""
        if not chosen.begun:
            await self._send(id, "subscribed")
            chosen.begun = True

    async def _send_large(self, id: str, chosen: Subscription, delivery: Delivery, reservation: Reservation) -> bool:
        """Send a delivery and wait until the client has taken it; False, and it is not sent, if the subscription is
        held up or there is no room to hold it for so long."""
        with self._held.keep(self._caller.name, delivered(delivery, id), reservation) as has_room:
            if not has_room:
                return False
            await self._begin(id, chosen)
            if not chosen.is_ready:
                return False
            await self._send(id, delivery.kind, delivery)
            await self._drained()
        return True

    async def _drained(self) -> None:
        try:
            await self._deps.connections.sent(self._writer.drained())
        except (TimeoutError, ConnectionError) as error:
            self._over.set()
            raise WebSocketDisconnect(GONE) from error

    async def _send(
        self, id: str | None, event: str, delivery: Delivery | None = None, problem: dict[str, Any] | None = None
    ) -> None:
        """Send one message when its turn comes. A client that does not take it in time has gone."""
        async with self._turn:
            while not self._writer.write([framed(id, event, delivery, problem)]):
                await self._drained()

    def _take(self, id: str, chosen: Subscription, deliveries: Sequence[Delivery]) -> bool:
        """Send what has just come, if it is no one else's turn and nothing is waiting to go out."""
        if self._turn.locked() or not chosen.is_free:
            return False
        frames = [delivered(each, id) for each in deliveries]
        if (len(frames) > 1 and sum(map(len, frames)) > AT_ONCE_BYTES_MAX) or not self._writer.write(frames):
            return False
        chosen.cursor = deliveries[-1].cursor
        return True


def _outcome(reading: asyncio.Task[bool]) -> bool:
    """What the reading task returned; False if the client went while it was being answered."""
    try:
        return reading.result()
    except WebSocketDisconnect:
        return False


class _Refused(Exception):
    """A command that is answered with an error, under its id if it has one. The answer names the command, so that it is
    not taken for the end of the subscription."""

    def __init__(self, id: str | None, error: PenstockError, op: str | None = None) -> None:
        super().__init__(str(error))
        self.id = id
        self.error = error
        self.about = {} if op is None else {"op": op[:80]}


def _parse(raw: str | bytes) -> Message:
    if len(raw) > MESSAGE_BYTES_MAX:
        raise _Refused(None, TooLarge(f"a message may have {MESSAGE_BYTES_MAX} bytes"))
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _Refused(None, MalformedBody(f"this is not a message: {error}")) from error


def _id(message: Message) -> str:
    if not message.id or len(message.id) > ID_LENGTH_MAX:
        raise BadParameter(f"a subscription needs an id of 1 to {ID_LENGTH_MAX} characters")
    return message.id
