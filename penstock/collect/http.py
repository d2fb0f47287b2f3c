"""`POST /v1/streams/{stream}` as a bare ASGI callable: the hottest path of the gateway, so it makes no request objects.

| answer | when |
|---|---|
| 200 | durable: `{"accepted", "duplicates", "rejected", "cursor", "errors", "ack"}`; with `?reply=`, also `"reply"` |
| | and `"shed"`, if some were given up because the stream is overloaded |
| 202 | `?ack=none`: the same, but the events are only on their way, and `cursor` and `ack` are null |
| 400 | `malformed_body`: not JSON, broken gzip; `bad_parameter` |
| 401 | the caller's key was revoked before the body was complete, or before the reply came |
| 403, 404 | the caller may not send to this stream, or not read the reply; there is no such stream |
| 408, 413, 415, 422 | too slow; too large; unknown content encoding; every event was rejected |
| 429, 503, 507 | overloaded or over the caller's rate, stopping, disk full; with `Retry-After` |
| 500 | the log failed; nothing was acknowledged |
| 504 | `?reply=`: the events are taken, but what they cause did not come in time |
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

import msgspec

from penstock import failpoints
from penstock.access import Caller, caller_of
from penstock.collect.body import BodyReader, Disconnected, Receive, Unfinished
from penstock.collect.deadline import Deadline
from penstock.collect.decode import is_lines
from penstock.collect.door import FrontDoor
from penstock.collect.edge import CLOSE, JSON, Header, encode, problem_headers
from penstock.collect.intake import Receipt
from penstock.contracts import Replies
from penstock.errors import (
    BadParameter,
    NoReplyYet,
    PenstockError,
    RateLimited,
    StorageError,
    TooSlow,
    Unauthorized,
    as_problem,
)
from penstock.settings import Settings

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PREFIX = "/v1/streams/"
LINGER_S = 2.0
"""How long the rest of a refused body is read and thrown away: closing at once would lose the answer on its way."""
_TAKEN = "the events are taken, but the key that they were sent with is revoked or expired"
_log = logging.getLogger("penstock.collect")


class PostEndpoint:
    """The ASGI callable. Route `POST /v1/streams/{stream}` here, without middleware if speed matters."""

    def __init__(self, door: FrontDoor, settings: Settings, replies: Replies | None = None) -> None:
        """Without `replies`, a request that asks for one is refused."""
        self._door = door
        self._replies = replies
        self._reply_s_max = settings.reply_s_max
        self._reader = BodyReader(settings.body_bytes_max, settings.pending_bytes_max, door.threads)
        self._deadline = Deadline(settings.body_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A client that goes away before its body is complete leaves nothing behind."""
        stream, caller = scope["path"].removeprefix(PREFIX), caller_of(scope)
        reserved = 0

        def admit(count: int) -> None:
            nonlocal reserved
            reserved = caller.reserve(count)  # others of the caller may have come first while this body was on its way

        try:
            caller.require("produce", stream)
            entrance = self._door.entrance(stream)
            lines, encoding, key = self._headers(scope)
            wish = self._wish(scope["query_string"], stream, caller)
            caller.require_room()
            body = await self._read(receive, encoding, caller.name)
            caller.require_room()
            key = None if key is None else caller.scoped(key)
            receipt = await entrance.post(body, lines=lines, durable=wish.durable, key=key, admit=admit)
            taken = receipt.accepted + receipt.duplicates + receipt.rejected + (receipt.shed or 0)
            caller.settle(reserved, taken)
            reserved = 0
            if receipt.duplicates and entrance.decoder.has_ids and caller.sees(stream) is not None:
                receipt = msgspec.structs.replace(receipt, ack=None)  # it would tell of an event that may be hidden
            answer = encode(receipt) if wish.reply is None else await self._reply(receipt, wish, caller)
        except Disconnected:
            return
        except Unfinished as refusal:
            caller.spend(1)
            await _refuse(refusal.error, send, receive)
        except RateLimited as error:
            await _refuse(error, send)  # counting it would make a lie of how long to wait
        except PenstockError as error:
            caller.settle(reserved, error.fields.get("rejected", 1))
            await _refuse(error, send)
        except Exception as error:
            _log.exception("a request to %s failed", scope["path"][:200])
            caller.settle(reserved, 1)
            await _refuse(StorageError(f"the request failed: {type(error).__name__}"), send)
        else:
            failpoints.reach("collect.before_answer")
            await _respond(send, 200 if wish.durable else 202, [JSON], answer)

    def _headers(self, scope: Scope) -> tuple[bool, bytes, str | None]:
        """Whether the body is NDJSON, the content encoding, and the key that tells the request from all others."""
        lines, encoding, key = False, b"", None
        for name, value in scope["headers"]:
            if name == b"content-type":
                lines = value != b"application/json" and is_lines(value)
            elif name == b"content-length":
                self._reader.require_length(value)
            elif name == b"content-encoding":
                encoding = value
            elif name == b"idempotency-key":
                key = _idempotency_key(value)
        return lines, encoding, key

    def _wish(self, query: bytes, stream: str, caller: Caller) -> _Wish:
        if not query:
            return _PLAIN
        given = _parameters(query)
        if given.get("ack", "durable") not in ("durable", "none"):
            raise BadParameter(f"ack is {given['ack'][:40]!r}; use durable or none", parameter="ack")
        durable, reply = given.get("ack") != "none", given.get("reply")
        if reply is None:
            if "timeout" in given:
                raise BadParameter(
                    "timeout says how long to wait for a reply; name one with reply=", parameter="timeout"
                )
            return _Wish(durable)
        if not durable or self._replies is None:
            raise BadParameter("a reply can be waited for with ack=durable only", parameter="reply")
        caller.require_all(reply)
        self._replies.require_target(stream, reply)
        return _Wish(True, reply, _seconds(given.get("timeout", "10"), self._reply_s_max))

    async def _reply(self, receipt: Receipt, wish: _Wish, caller: Caller) -> bytes:
        """The answer with what the events caused. They are taken in any case: so is said if it does not come."""
        assert self._replies is not None
        assert wish.reply is not None
        target, timeout_s = wish.reply, wish.timeout_s
        answer = {name: each for name, each in msgspec.structs.asdict(receipt).items() if each is not msgspec.UNSET}
        reply = None
        if receipt.ack is not None:
            waiting = self._replies.reply(receipt.ack, target, timeout_s, caller.may_read_all)
            reply = await caller.while_valid(waiting, _TAKEN)
            if reply is None:
                raise NoReplyYet(
                    f"the events are taken, but {target} had nothing of them after {timeout_s:g} s; "
                    "GET /v1/acks/ACK tells it later",
                    **answer,
                )
        return encode(answer | {"reply": reply})

    async def _read(self, receive: Receive, encoding: bytes, who: str) -> bytes:
        task = cast("asyncio.Task[object]", asyncio.current_task())
        deadline = self._deadline
        deadline.enter(task)
        try:
            return await self._reader.read(receive, encoding, who)
        except Unauthorized as over:
            raise Unfinished(over) from None
        except asyncio.CancelledError:
            if deadline.expired(task):
                late = TooSlow(f"the body did not arrive within {deadline.limit_s:g} s")
                raise Unfinished(late) from None
            raise
        finally:
            deadline.leave(task)


class _Wish(NamedTuple):
    """What the query of a request asks for."""

    durable: bool = True
    reply: str | None = None
    timeout_s: float = 0.0


_PLAIN = _Wish()
PARAMETERS = ("ack", "reply", "timeout")
KEY_CHARS_MAX = 255


def _parameters(query: bytes) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in PARAMETERS or name in chosen:
            problem = "stands twice" if name in chosen else f"is none of {', '.join(PARAMETERS)}"
            raise BadParameter(f"the parameter {name[:80]!r} {problem}", parameter=name[:80])
        chosen[name] = value
    return chosen


def _seconds(text: str, most: float) -> float:
    try:
        chosen = float(text)
    except ValueError:
        chosen = math.nan
    if not 0 < chosen <= most:
        raise BadParameter(f"timeout is {text[:40]!r}; use seconds, up to {most:g}", parameter="timeout")
    return chosen


def _idempotency_key(value: bytes) -> str:
    text = value.decode("latin-1").strip('" ')
    if not (0 < len(text) <= KEY_CHARS_MAX and text.isprintable()):
        raise BadParameter(
            f"Idempotency-Key must have 1 to {KEY_CHARS_MAX} characters that can be printed",
            parameter="Idempotency-Key",
        )
    return text


async def _respond(send: Send, status: int, headers: list[Header], body: bytes, *, more: bool = False) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _refuse(error: PenstockError, send: Send, unread: Receive | None = None) -> None:
    """Answer with a problem. If the body is `unread`, its connection cannot be used again."""
    headers = problem_headers(error)
    if unread is not None:
        headers.append(CLOSE)
    await _respond(send, error.status, headers, encode(as_problem(error)), more=unread is not None)
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
