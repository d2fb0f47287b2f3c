"""Server-sent events: a channel as a stream of `event`, `id` and `data` lines that a browser resumes by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from penstock.access import caller_of
from penstock.contracts import Delivery
from penstock.errors import PenstockError, as_problem
from penstock.serve.connections import FAREWELL_S, first_of, following
from penstock.serve.deps import Deps, parameters
from penstock.serve.problems import HEADERS, unexpected

RETRY_MS = 1000
SLICE_BYTES = 64 * 1024
"""A large snapshot goes out in pieces, each after the client took the one before: no reader holds a whole one."""
_HEADERS = HEADERS | {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
_log = logging.getLogger("penstock.serve")


class LiveEvents:
    """The ASGI application of `GET /v1/{streams|views}/{name}/live`."""

    def __init__(self, deps: Deps, kind: str) -> None:
        self._deps = deps
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        channel = self._deps.channel(self._kind, request.path_params["name"], caller_of(scope))
        given = parameters(request.query_params.multi_items(), "since", "where", "select")
        if "where" in given or "select" in given:
            channel = channel.through(given.get("where"), given.get("select"))
        since = request.headers.get("last-event-id") or given.get("since")
        with self._deps.connections.one():
            async with following(channel, since) as deliveries:
                first = await anext(deliveries)  # a bad cursor is answered as a problem, so nothing is sent before
                await send({"type": "http.response.start", "status": 200, "headers": _raw_headers()})
                if request.method == "HEAD":
                    await send({"type": "http.response.body"})
                else:
                    await self._stream(first, deliveries, receive, send)

    async def _stream(self, first: Delivery, rest: AsyncIterator[Delivery], receive: Receive, send: Send) -> None:
        """Write until the client goes, the gateway closes, or something fails; then say good-bye if it can be heard."""
        writing = asyncio.create_task(self._write(first, rest, send))
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

    async def _write(self, first: Delivery, rest: AsyncIterator[Delivery], send: Send) -> None:
        await self._put(b"retry: %d\n\n" % RETRY_MS, send)
        await self._deliver(first, send)
        async for delivery in rest:
            await self._deliver(delivery, send)

    async def _deliver(self, delivery: Delivery, send: Send) -> None:
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


def _one_line(data: bytes) -> bytes:
    return data.replace(b"\r", b" ").replace(b"\n", b" ")


def _failure(error: BaseException | None) -> bytes:
    """The last event of a channel that failed. It has no id: the client comes back to where it was."""
    problem = as_problem(error) if isinstance(error, PenstockError) else unexpected()
    _log.error("a live channel failed: %s", error, exc_info=error)
    return b"event: error\ndata: %b\n\n" % _one_line(msgspec.json.encode(problem, enc_hook=str))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw_headers() -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
