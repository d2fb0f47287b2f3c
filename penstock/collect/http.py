"""`POST /v1/streams/{stream}` as a bare ASGI callable: the hottest path of the gateway, so it makes no request objects.

| answer | when |
|---|---|
| 200 | durable: `{"accepted", "duplicates", "rejected", "cursor", "errors"}` |
| 202 | `?ack=none`: the same, but the events are only on their way and `cursor` is null |
| 400 | `malformed_body`: not JSON, broken gzip; `bad_parameter`; a body that came too slowly |
| 404, 413, 415, 422 | no such stream; too large; unknown content encoding; every event was rejected |
| 429, 503, 507 | overloaded, stopping, disk full; with `Retry-After` |
| 500 | the log failed; nothing was acknowledged |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast
from urllib.parse import parse_qs

import msgspec

from penstock import failpoints
from penstock.collect.body import BodyReader, Disconnected, Receive, Unfinished
from penstock.collect.deadline import Deadline
from penstock.collect.decode import is_lines
from penstock.collect.door import FrontDoor
from penstock.errors import BadParameter, Busy, PenstockError, RequestError, StorageError, as_problem
from penstock.settings import Settings

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

PREFIX = "/v1/streams/"
BODY_S = 30.0
"""How long a body may take from its first byte to its last; it is given up within twice this time."""
LINGER_S = 2.0
"""How long the rest of a refused body is read and thrown away: closing at once would lose the answer on its way."""
_JSON: Header = (b"content-type", b"application/json")
_PROBLEM: Header = (b"content-type", b"application/problem+json")
_CLOSE: Header = (b"connection", b"close")
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger("penstock.collect")


class PostEndpoint:
    """The ASGI callable. Route `POST /v1/streams/{stream}` here, without middleware if speed matters."""

    def __init__(self, door: FrontDoor, settings: Settings, *, body_s: float = BODY_S) -> None:
        self._door = door
        self._reader = BodyReader(settings.body_bytes_max, settings.pending_bytes_max, door.threads)
        self._deadline = Deadline(body_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A client that goes away before its body is complete leaves nothing behind."""
        try:
            entrance = self._door.entrance(scope["path"].removeprefix(PREFIX))
            lines, durable, encoding = self._options(scope)
            body = await self._read(receive, encoding)
            receipt = await entrance.post(body, lines=lines, durable=durable)
        except Disconnected:
            return
        except Unfinished as refusal:
            await _refuse(refusal.error, send, receive)
        except PenstockError as error:
            await _refuse(error, send)
        except Exception as error:
            _log.exception("a request to %s failed", scope["path"][:200])
            await _refuse(StorageError(f"the request failed: {type(error).__name__}"), send)
        else:
            failpoints.reach("collect.before_answer")
            await _respond(send, 200 if durable else 202, [_JSON], _encode(receipt))

    def _options(self, scope: Scope) -> tuple[bool, bool, bytes]:
        """Whether the body is NDJSON, whether to wait for the disk, and the content encoding."""
        lines, encoding = False, b""
        for name, value in scope["headers"]:
            if name == b"content-type":
                lines = value != b"application/json" and is_lines(value)
            elif name == b"content-length":
                self._reader.require_length(value)
            elif name == b"content-encoding":
                encoding = value
        query = scope["query_string"]
        return lines, not query or _wants_durable(query), encoding

    async def _read(self, receive: Receive, encoding: bytes) -> bytes:
        task = cast("asyncio.Task[object]", asyncio.current_task())
        deadline = self._deadline
        deadline.enter(task)
        try:
            return await self._reader.read(receive, encoding)
        except asyncio.CancelledError:
            if deadline.expired(task):
                late = RequestError(f"the body did not arrive within {deadline.limit_s:g} s")
                raise Unfinished(late) from None
            raise
        finally:
            deadline.leave(task)


def _wants_durable(query: bytes) -> bool:
    chosen = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("ack", ["durable"])[-1]
    if chosen not in ("durable", "none"):
        raise BadParameter(f"ack is {chosen[:40]!r}; use durable or none", parameter="ack")
    return chosen == "durable"


async def _respond(send: Send, status: int, headers: list[Header], body: bytes, *, more: bool = False) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _refuse(error: PenstockError, send: Send, unread: Receive | None = None) -> None:
    """Answer with a problem. If the body is `unread`, its connection cannot be used again."""
    headers = [_PROBLEM]
    if isinstance(error, Busy):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if unread is not None:
        headers.append(_CLOSE)
    await _respond(send, error.status, headers, _encode(as_problem(error)), more=unread is not None)
    if unread is not None:
        await _discard(unread)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    """Read on for a moment without keeping anything. The client has the whole answer meanwhile."""
    try:
        async with asyncio.timeout(LINGER_S):
            while True:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
