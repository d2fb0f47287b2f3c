"""`POST /v1/streams/{stream}` as a bare ASGI callable: the gateway's hottest path, so it creates no request objects.

| response | when |
|---|---|
| 200 | durable: `{"accepted", "duplicates", "rejected", "cursor", "errors", "ack"}`; with `?reply=`, also `"reply"` |
| | and `"shed"`, if events were dropped because the stream is overloaded |
| 202 | `?ack=none`: the same, but the events are not yet durable, and `cursor` and `ack` are null |
| 400 | `malformed_body`: not JSON, broken gzip; `bad_parameter` |
| 401 | the caller's key was revoked before the body was complete, or before the reply arrived |
| 403, 404 | the caller is not allowed to send to this stream or to read the reply; the stream does not exist |
| 408, 413, 415, 422 | too slow; too large; unknown content encoding; every event was rejected |
| 429, 503, 507 | overloaded or over the caller's rate, stopping, disk full; with `Retry-After` |
| 500 | the log failed; nothing was acknowledged |
| 504 | `?reply=`: the events were accepted, but no reply arrived in time |
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

import msgspec

from penstock.collect.decode import is_lines
from penstock.collect.group_commit import IngressReceipt
from penstock.collect.ingress import Ingress
from penstock.core import failpoints
from penstock.core.access import Caller, caller_of
from penstock.core.contracts import Replies
from penstock.core.errors import (
    BadParameter,
    NoReplyYet,
    PenstockError,
    RateLimited,
    StorageError,
    TooSlow,
    Unauthorized,
    as_problem,
)
from penstock.core.settings import Settings
from penstock.http.body import BodyReader, Disconnected, Receive, Unfinished
from penstock.http.deadline import Deadline
from penstock.http.edge import CLOSE, JSON, Header, encode, problem_headers
from penstock.http.pending import PendingBytes

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PREFIX = "/v1/streams/"
APART = "penstock.apart"
"""Key in the state of a request's scope: true if the fast path has found that the body does not decode as a whole."""
LINGER_S = 2.0
"""Seconds for which the rest of a refused body is read and discarded. Closing the connection at once could lose a
response in transit."""
_TAKEN = "the events were accepted, but the key of this request has been revoked or has expired"
_log = logging.getLogger("penstock.collect")


class PostEndpoint:
    """The ASGI callable for posted events. Route `POST /v1/streams/{stream}` here, without middleware if speed
    matters."""

    def __init__(
        self,
        ingress: Ingress,
        settings: Settings,
        replies: Replies | None = None,
        pending: PendingBytes | None = None,
    ) -> None:
        """If `replies` is None, requests with `?reply=` are refused. If `pending` is None, a new counter is created,
        which counts only request bodies."""
        self._ingress = ingress
        self._replies = replies
        self._reply_s_max = settings.reply_s_max
        self._reader = BodyReader(
            settings.body_bytes_max, pending or PendingBytes(settings.pending_bytes_max), ingress.threads
        )
        self._deadline = Deadline(settings.body_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one POST of events. If the client disconnects before the body is complete, the request has no
        effect."""
        stream, caller = scope["path"].removeprefix(PREFIX), caller_of(scope)
        reserved = 0

        def admit(count: int) -> None:
            nonlocal reserved
            reserved = caller.reserve(count)  # other requests may have filled the queue in the meantime

        try:
            caller.require("produce", stream)
            stream_ingress = self._ingress.stream_ingress(stream)
            lines, encoding, key = self._headers(scope)
            wish = self._post_options(scope["query_string"], stream, caller)
            caller.require_room()
            body = await self._read(receive, encoding, caller.name)
            caller.require_room()
            key = None if key is None else caller.scoped(key)
            apart = scope.get("state", {}).get(APART, False)
            receipt = await stream_ingress.post(
                body, lines=lines, durable=wish.durable, key=key, who=caller.name, apart=apart, admit=admit
            )
            taken = receipt.accepted + receipt.duplicates + receipt.rejected + (receipt.shed or 0)
            caller.settle(reserved, taken)
            reserved = 0
            if receipt.duplicates and stream_ingress.decoder.has_ids and caller.sees(stream) is not None:
                receipt = msgspec.structs.replace(receipt, ack=None)  # the acknowledgement could reveal a hidden event
            answer = encode(receipt) if wish.reply is None else await self._reply(receipt, wish, caller)
        except Disconnected:
            return
        except Unfinished as refusal:
            caller.spend(1)
            await _refuse_post(refusal.error, send, receive)
        except RateLimited as error:
            await _refuse_post(error, send)  # counting this request would make the wait longer than stated
        except PenstockError as error:
            caller.settle(reserved, error.fields.get("rejected", 1))
            await _refuse_post(error, send)
        except Exception as error:
            _log.exception("a request to %s failed", scope["path"][:200])
            caller.settle(reserved, 1)
            await _refuse_post(StorageError(f"the request failed: {type(error).__name__}"), send)
        else:
            failpoints.reach("collect.before_answer")
            await _respond_to_post(send, 200 if wish.durable else 202, [JSON], answer)

    def _headers(self, scope: Scope) -> tuple[bool, bytes, str | None]:
        """Read the headers of a POST of events: whether the body is NDJSON, the content encoding, and the idempotency
        key."""
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

    def _post_options(self, query: bytes, stream: str, caller: Caller) -> _PostOptions:
        if not query:
            return _PLAIN
        given = _post_parameters(query)
        if given.get("ack", "durable") not in ("durable", "none"):
            raise BadParameter(f"ack is {given['ack'][:40]!r}; use durable or none", parameter="ack")
        durable, reply = given.get("ack") != "none", given.get("reply")
        if reply is None:
            if "timeout" in given:
                raise BadParameter("timeout requires reply=, which names the reply to wait for", parameter="timeout")
            return _PostOptions(durable)
        if not durable or self._replies is None:
            raise BadParameter("reply= needs ack=durable", parameter="reply")
        caller.require_all(reply)
        self._replies.require_target(stream, reply)
        return _PostOptions(True, reply, _reply_timeout_s(given.get("timeout", "10"), self._reply_s_max))

    async def _reply(self, receipt: IngressReceipt, wish: _PostOptions, caller: Caller) -> bytes:
        """Wait for the reply to posted events and return the complete response. The events are accepted even if no
        reply arrives, and `NoReplyYet` says so."""
        assert self._replies is not None
        assert wish.reply is not None
        target, timeout_s = wish.reply, wish.timeout_s
        answer = {name: value for name, value in msgspec.structs.asdict(receipt).items() if value is not msgspec.UNSET}
        reply = None
        if receipt.ack is not None:
            waiting = self._replies.reply(receipt.ack, target, timeout_s, caller.may_read_all)
            reply = await caller.while_valid(waiting, _TAKEN)
            if reply is None:
                raise NoReplyYet(
                    f"the events were accepted, but {target} did not reply within {timeout_s:g} s; "
                    "to get the reply later, use GET /v1/acks/ACK",
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


class _PostOptions(NamedTuple):
    """The options in a POST's query string."""

    durable: bool = True
    reply: str | None = None
    timeout_s: float = 0.0


_PLAIN = _PostOptions()
PARAMETERS = ("ack", "reply", "timeout")
KEY_CHARS_MAX = 255


def _post_parameters(query: bytes) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in PARAMETERS or name in chosen:
            problem = "appears twice" if name in chosen else f"is unknown; use one of {', '.join(PARAMETERS)}"
            raise BadParameter(f"the parameter {name[:80]!r} {problem}", parameter=name[:80])
        chosen[name] = value
    return chosen


def _reply_timeout_s(text: str, most: float) -> float:
    try:
        chosen = float(text)
    except ValueError:
        chosen = math.nan
    if not 0 < chosen <= most:
        raise BadParameter(
            f"timeout is {text[:40]!r}; use a number of seconds above 0 and up to {most:g}", parameter="timeout"
        )
    return chosen


def _idempotency_key(value: bytes) -> str:
    text = value.decode("latin-1").strip('" ')
    if not (0 < len(text) <= KEY_CHARS_MAX and text.isprintable()):
        raise BadParameter(
            f"Idempotency-Key must be 1 to {KEY_CHARS_MAX} printable characters long",
            parameter="Idempotency-Key",
        )
    return text


async def _respond_to_post(send: Send, status: int, headers: list[Header], body: bytes, *, more: bool = False) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _refuse_post(error: PenstockError, send: Send, unread: Receive | None = None) -> None:
    """Send a problem response. If the body is `unread`, the connection cannot be reused."""
    headers = problem_headers(error)
    if unread is not None:
        headers.append(CLOSE)
    await _respond_to_post(send, error.status, headers, encode(as_problem(error)), more=unread is not None)
    if unread is not None:
        await _discard_body(unread)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard_body(receive: Receive) -> None:
    """Read and discard the rest of a POST's body, for up to `LINGER_S`. The whole response has already been sent."""
    try:
        async with asyncio.timeout(LINGER_S):
            while True:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
