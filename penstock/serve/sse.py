"""Server-sent events: a channel as `event`, `id` and `data` lines, which browsers resume automatically."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.core.access import caller_of
from penstock.core.contracts import Channel, Delivery, Style
from penstock.core.errors import Busy, PenstockError, as_problem
from penstock.core.tasks import first_of
from penstock.http.problems import HEADERS, unexpected
from penstock.http.protocol import CHUNKS
from penstock.serve.connections import FAREWELL_S, SLICE_BYTES, disconnected, following, no_room
from penstock.serve.deps import Deps, parameters

RETRY_MS = 1000
CHUNK = ""
"""The id under which a delivery's chunk is cached. Real ids are never empty."""
_HEADERS = HEADERS | {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
_log = logging.getLogger("penstock.serve")


class Chunks(Protocol):
    """A response body that is written directly, without ASGI's queues. Not thread-safe."""

    def write(self, chunks: Sequence[bytes]) -> bool:
        """Send chunks now.

        Returns False, with nothing sent, if earlier chunks are still unsent or the client has disconnected.
        """


class LiveEvents:
    """The ASGI application for `/v1/streams/{name}/live`, `/v1/views/{name}/live` and `/v1/query/live`."""

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
            style.take = partial(_send_events_now, chunks)
        with self._deps.connections.one(who):
            async with following(channel, since, style) as deliveries:
                unsent = [await anext(deliveries)]  # send nothing before this: a bad cursor gets an error response
                if not self._held.has_room(who, unsent[0].data):
                    raise no_room()
                await send({"type": "http.response.start", "status": 200, "headers": _raw_sse_headers()})
                if request.method == "HEAD":
                    await send({"type": "http.response.body"})
                else:
                    await self._stream(self._write_events(who, unsent, deliveries, send), receive, send)

    def _channel(self, request: Request) -> tuple[Channel, dict[str, str]]:
        """Return the channel to follow, and the parameters of the SSE request."""
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
        """Write server-sent events until the client disconnects, the gateway stops or an error occurs, then try to end
        the response.

        After an error, the response ends with an `error` event.
        """
        writing = asyncio.create_task(write)
        gone = asyncio.create_task(disconnected(receive))
        closing = asyncio.create_task(self._deps.closing.wait())
        await first_of(writing, gone, closing)
        if gone.done() and not gone.cancelled():
            return
        farewell = b""
        if writing.done() and not writing.cancelled():
            error = writing.exception()
            if isinstance(error, TimeoutError):
                _log.info(
                    "disconnected a client that read nothing from a %s for %s s",
                    self._kind,
                    self._deps.connections.stuck_s,
                )
                return
            farewell = _failure_event(error)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await send({"type": "http.response.body", "body": farewell})
        except TimeoutError:
            return

    async def _write_events(self, who: str, unsent: list[Delivery], rest: AsyncIterator[Delivery], send: Send) -> None:
        await self._send_sse_body(b"retry: %d\n\n" % RETRY_MS, send)
        while True:
            await self._deliver(who, unsent, send)
            unsent.append(await anext(rest))

    async def _deliver(self, who: str, unsent: list[Delivery], send: Send) -> None:
        """Send the only delivery in `unsent` as a server-sent event, and remove it: afterwards, nothing here refers to
        it. Raises `Busy` if there is no room to hold the delivery. In that case the response ends, and the client
        reconnects and resumes."""
        delivery = unsent.pop()
        with self._held.keep(who, delivery.data) as has_room:
            if not has_room:
                raise no_room()
            for piece in encode(delivery):
                await self._send_sse_body(piece, send)

    async def _send_sse_body(self, body: bytes, send: Send) -> None:
        await self._deps.connections.sent(send({"type": "http.response.body", "body": body, "more_body": True}))


def encode(delivery: Delivery) -> Iterator[bytes]:
    """Encode a delivery as a server-sent event, in slices of the data that all readers share.

    Slow readers therefore do not hold copies of the complete data. Line breaks are replaced with spaces: in JSON they
    can only be white space between values.
    """
    data = _sse_line(delivery.data)
    head = b"event: %b\nid: %b\ndata: " % (delivery.kind.encode(), _sse_line(delivery.cursor.encode()))
    if len(data) <= SLICE_BYTES:
        yield head + data + b"\n\n"
        return
    yield head
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]
    yield b"\n\n"


def chunk(delivery: Delivery) -> bytes | None:
    """Return a delivery as one chunk of a response, shared by all readers, or None if it must be sent in slices."""
    data = delivery.encodings.get(CHUNK)
    if data is None and len(delivery.data) <= SLICE_BYTES:
        event = b"".join(encode(delivery))
        data = delivery.encodings[CHUNK] = b"%x\r\n%b\r\n" % (len(event), event)
    return data


def _send_events_now(chunks: Chunks, deliveries: Sequence[Delivery]) -> bool:
    """Send new server-sent events immediately if they are small and nothing is waiting to be sent.

    Nothing else is being sent at that time, because a follower receives deliveries only while it waits.
    """
    pieces = [chunk(delivery) for delivery in deliveries]
    whole = [piece for piece in pieces if piece is not None]
    return len(whole) == len(pieces) and sum(map(len, whole)) <= 2 * SLICE_BYTES and chunks.write(whole)


def _sse_line(data: bytes) -> bytes:
    return data.replace(b"\r", b" ").replace(b"\n", b" ")


def _failure_event(error: BaseException | None) -> bytes:
    """Return the final event after a channel has failed. It has no id, so the client resumes from its last cursor."""
    problem = as_problem(error) if isinstance(error, PenstockError) else unexpected()
    if not isinstance(error, Busy):
        _log.error("a live channel failed: %s", error, exc_info=error)
    return b"event: error\ndata: %b\n\n" % _sse_line(msgspec.json.encode(problem, enc_hook=str))


def _raw_sse_headers() -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
