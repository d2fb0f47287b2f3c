"""Server-sent events: a channel as a stream of `event`, `id` and `data` lines that a browser resumes by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.access import caller_of
from penstock.contracts import Channel, Delivery, Style
from penstock.errors import Busy, PenstockError, as_problem
from penstock.serve.connections import FAREWELL_S, SLICE_BYTES, first_of, following, no_room
from penstock.serve.deps import Deps, parameters
from penstock.serve.problems import HEADERS, unexpected

RETRY_MS = 1000
CHUNKS = "penstock.chunks"
"""Where the protocol puts its `Chunks` among the extensions of a request's scope."""
CHUNK = ""
"""Under which the chunk is kept with a delivery; an id has at least a character."""
_HEADERS = HEADERS | {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
_log = logging.getLogger("penstock.serve")


class Chunks(Protocol):
    """The body of a response, past the queues of ASGI. Belongs to one event loop."""

    def write(self, chunks: Sequence[bytes]) -> bool:
        """Send chunks now; False, and nothing sent, if the client has yet to take earlier ones, or has gone."""


class LiveEvents:
    """The ASGI application of `GET /v1/{streams|views}/{name}/live`."""

    def __init__(self, deps: Deps, kind: str) -> None:
        self._deps = deps
        self._kind = kind
        self._held = deps.connections.held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        channel, given = self._channel(request)
        since = request.headers.get("last-event-id") or given.get("since")
        style, who = Style(), caller_of(scope).name
        if (chunks := scope.get("extensions", {}).get(CHUNKS)) is not None:
            style.take = partial(_take, chunks)
        with self._deps.connections.one(who):
            async with following(channel, since, style) as deliveries:
                first = await anext(deliveries)  # a bad cursor is answered as a problem, so nothing is sent before
                if not self._held.has_room(who, first.data):
                    raise no_room()
                await send({"type": "http.response.start", "status": 200, "headers": _raw_headers()})
                if request.method == "HEAD":
                    await send({"type": "http.response.body"})
                else:
                    await self._stream(self._write(who, first, deliveries, send), receive, send)

    def _channel(self, request: Request) -> tuple[Channel, dict[str, str]]:
        """What is followed, and the parameters of the request."""
        items, caller = request.query_params.multi_items(), caller_of(request.scope)
        if self._kind == "query":
            given = parameters(items, "since", "sql")
            return self._deps.channel("query", given.get("sql", ""), caller), given
        channel = self._deps.channel(self._kind, request.path_params["name"], caller)
        given = parameters(items, "since", "where", "select")
        if "where" in given or "select" in given:
            channel = channel.through(given.get("where"), given.get("select"))
        return channel, given

    async def _stream(self, write: Coroutine[Any, Any, None], receive: Receive, send: Send) -> None:
        """Write until the client goes, the gateway closes, or something fails; then say good-bye if it can be heard."""
        writing = asyncio.create_task(write)
        gone = asyncio.create_task(_disconnected(receive))
        closing = asyncio.create_task(self._deps.closing.wait())
        await first_of(writing, gone, closing)
        if gone.done() and not gone.cancelled():
            return
        farewell = b""
        if writing.done() and not writing.cancelled():
            error = writing.exception()
            if isinstance(error, TimeoutError):
                _log.info(
                    "a reader of %s took nothing for %s s and was let go", self._kind, self._deps.connections.stuck_s
                )
                return
            farewell = _failure(error)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await send({"type": "http.response.body", "body": farewell})
        except TimeoutError:
            return

    async def _write(self, who: str, first: Delivery, rest: AsyncIterator[Delivery], send: Send) -> None:
        await self._put(b"retry: %d\n\n" % RETRY_MS, send)
        delivery = first
        while True:
            await self._deliver(who, delivery, send)
            delivery = await anext(rest)

    async def _deliver(self, who: str, delivery: Delivery, send: Send) -> None:
        """Send one delivery. `Busy` if there is no room to hold it until the client has taken it: the stream ends, and
        the client comes back to where it was."""
        with self._held.keep(who, delivery.data) as has_room:
            if not has_room:
                raise no_room()
            for piece in encode(delivery):
                await self._put(piece, send)

    async def _put(self, body: bytes, send: Send) -> None:
        await self._deps.connections.sent(send({"type": "http.response.body", "body": body, "more_body": True}))


def encode(delivery: Delivery) -> Iterator[bytes]:
    """One event, in slices of the data that all readers share, so that a slow one holds no copy of it.

    In JSON a line break can only be white space between values, so none is needed.
    """
    data = _one_line(delivery.data)
    head = b"event: %b\nid: %b\ndata: " % (delivery.kind.encode(), _one_line(delivery.cursor.encode()))
    if len(data) <= SLICE_BYTES:
        yield head + data + b"\n\n"
        return
    yield head
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]
    yield b"\n\n"


def chunk(delivery: Delivery) -> bytes | None:
    """One event as a chunk of a response, the same object for all who ask; None if it is to go out in slices."""
    found = delivery.made.get(CHUNK)
    if found is None and len(delivery.data) <= SLICE_BYTES:
        event = b"".join(encode(delivery))
        found = delivery.made[CHUNK] = b"%x\r\n%b\r\n" % (len(event), event)
    return found


def _take(chunks: Chunks, deliveries: Sequence[Delivery]) -> bool:
    """Send what has just come, if it is not too much and nothing is waiting to go out. Nothing else is being sent then:
    who is handed something waits for it."""
    made = [chunk(each) for each in deliveries]
    whole = [each for each in made if each is not None]
    return len(whole) == len(made) and sum(map(len, whole)) <= 2 * SLICE_BYTES and chunks.write(whole)


def _one_line(data: bytes) -> bytes:
    return data.replace(b"\r", b" ").replace(b"\n", b" ")


def _failure(error: BaseException | None) -> bytes:
    """The last event of a channel that failed. It has no id: the client comes back to where it was."""
    problem = as_problem(error) if isinstance(error, PenstockError) else unexpected()
    if not isinstance(error, Busy):
        _log.error("a live channel failed: %s", error, exc_info=error)
    return b"event: error\ndata: %b\n\n" % _one_line(msgspec.json.encode(problem, enc_hook=str))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw_headers() -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
