"""The fast path of ingestion: a small, complete, valid and permitted POST goes from the parser to the log without ASGI.

For each ASGI request, uvicorn creates a scope, a task, an event and a coroutine per message. That costs more than
everything Penstock itself does for an event. So the protocol handles the common case itself: a keep-alive request
without a query string, content encoding, `Expect` or `Origin`. Its body has arrived together with the headers, decodes
without rejected events, and fits into the queue. Its caller is known, is allowed to send to the stream, and reads the
responses. Everything else goes through ASGI, and only the ASGI path refuses requests. Both paths return byte-identical
responses.

A connection has at most one request on the fast path; requests pipelined behind it wait in uvicorn.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from penstock.collect.decode import is_lines
from penstock.collect.group_commit import IngressReceipt, IngressRequest
from penstock.collect.http import APART, PREFIX
from penstock.collect.ingress import Ingress
from penstock.collect.stream_ingress import LARGE_BODY_BYTES, StreamIngress
from penstock.core import failpoints
from penstock.core.access import ANYONE, CERTIFIED, Caller, Gate
from penstock.core.errors import PenstockError, StorageError, as_problem
from penstock.core.settings import Settings
from penstock.http.edge import JSON, BoundedHttp, Edge, encode, problem_headers
from penstock.http.pending import PendingBytes

_LONG_WAY = (
    b"content-encoding", b"transfer-encoding", b"expect", b"upgrade", b"origin", b"sec-fetch-site",
    b"idempotency-key", b"sec-websocket-protocol",
)  # fmt: skip
"""Headers that only the ASGI path handles. The last one can contain a second key."""
_names_this_machine = re.compile(rb"(127\.0\.0\.1|localhost)(:\d+)?").fullmatch
"""Matches a Host that needs no check. The ASGI path checks other hosts, and Origins."""
_BEARER = b"Bearer "


class _Silent:
    """A stand-in for the event that uvicorn sets when a connection ends. Nothing ever waits for it."""

    def set(self) -> None:
        pass


class _FastRequest:
    """One request on the fast path. To the group commit it is an `OutcomeWaiter`, and to uvicorn it is the current
    cycle."""

    __slots__ = ("disconnected", "keep_alive", "message_event", "protocol", "response_complete")

    def __init__(self, protocol: PostProtocol) -> None:
        self.protocol = protocol
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self.message_event = _SILENT

    def done(self) -> bool:
        return self.protocol.transport.is_closing()

    def set_result(self, receipt: IngressReceipt) -> None:
        failpoints.reach("collect.before_answer")
        self._send(self.protocol.accepted(receipt, self.keep_alive))

    def set_exception(self, error: BaseException) -> None:
        known = error if isinstance(error, PenstockError) else StorageError("the request failed")
        body = encode(as_problem(known))
        self._send(self.protocol.response(known.status, problem_headers(known), body, self.keep_alive))

    def exception(self) -> None:
        """Do nothing; a future would mark its error as retrieved."""

    def _send(self, data: bytes) -> None:
        self.response_complete = True
        protocol = self.protocol
        protocol.transport.write(data)
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


_SILENT = _Silent()


class PostProtocol(BoundedHttp):
    """uvicorn's HTTP protocol with the fast path. Created by `post_protocol`, which provides the stream ingresses."""

    gate: Gate
    stream_ingresses: Mapping[bytes, StreamIngress]
    bytes_max: int
    _stream_ingress: StreamIngress | None = None
    """The stream ingress of the request being parsed, if the request can take the fast path."""
    _caller: Caller = ANYONE
    """The caller that sent the request."""
    _body = b""
    _apart = False
    """Whether the body does not decode as a whole, so that the ASGI path does not try that again."""

    def tls(self) -> ssl.SSLContext | None:
        return self.gate.tls

    def accepted(self, receipt: IngressReceipt, keep_alive: bool) -> bytes:
        return self.response(200, [JSON], encode(receipt), keep_alive)

    def feed(self, data: bytes) -> None:
        super().feed(data)
        if self._stream_ingress is not None:
            self._stream_ingress = None
            self._use_slow_path()  # the rest of the body has not arrived yet, and may never arrive

    def on_message_begin(self) -> None:
        self.begin_head()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        self.end_head()
        stream_ingress = self.stream_ingresses.get(self.url)
        if stream_ingress is not None and self._is_plain() and self._caller.may("produce", stream_ingress.stream):
            self._stream_ingress = stream_ingress
        elif not self.ignores_upgrade():
            self._begin_cycle()

    def _is_plain(self) -> bool:
        """Return whether the request line and headers allow the fast path."""
        # uvicorn stops reading from a client that leaves responses unread; the fast path only writes.
        if not self._is_free() or self.flow.write_paused or not self.gate.admits(self.certified):
            return False
        if self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return False
        gate = self.gate
        caller = gate.anyone if gate.is_open else None
        for name, value in self.headers:
            if name in _LONG_WAY:
                return False
            if name == b"host" and gate.is_open and not _names_this_machine(value):
                return False
            if name == b"authorization" and not gate.is_open:
                if caller is not None or not value.startswith(_BEARER):
                    return False
                caller = gate.remembered(value[len(_BEARER) :])
                if caller is None:
                    return False
        if caller is None or caller.wait_s() or not caller.sees_all_rows:
            return False
        self._caller = caller
        return self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.count_body(body)
        if self._stream_ingress is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self.end_body()
        stream_ingress, self._stream_ingress = self._stream_ingress, None
        if stream_ingress is None:
            if not self.ignores_upgrade():
                super().on_message_complete()
        elif not self._take(stream_ingress):
            self._use_slow_path()
            super().on_message_complete()

    def _take(self, stream_ingress: StreamIngress) -> bool:
        """Offer the events in a POST to the group commit. Returns False, without any effect, if the ASGI path must
        handle the request."""
        body = self._body
        if len(body) > self.bytes_max:
            return False
        lines = False
        for name, value in self.headers:
            if name == b"content-type":
                lines = value != b"application/json" and is_lines(value)
        try:
            decoded = stream_ingress.decoder.decode_whole(body, lines=lines)
        except Exception:  # the ASGI path gets the same error and responds with it
            return False
        if decoded is None:
            self._apart = True
            return False
        answer = _FastRequest(self)
        if not stream_ingress.group_commit.offer_for(answer, IngressRequest(decoded.events, len(body))):
            return False
        self._caller.spend(len(decoded.events))
        self.cycle: Any = answer
        self._body = b""
        return True

    def _use_slow_path(self) -> None:
        """Create the ASGI request that uvicorn would have created, with the body received so far."""
        self._begin_cycle()
        body, self._body = self._body, b""
        if body:
            super().on_body(body)

    def _begin_cycle(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        self.scope["state"] |= {CERTIFIED: self.certified, APART: self._apart}
        self._apart = False
        super().on_headers_complete()
        self.begin_answer()


def post_protocol(
    ingress: Ingress, settings: Settings, gate: Gate, pending: PendingBytes | None = None
) -> type[PostProtocol]:
    """Return the protocol class for one gateway, for `uvicorn.Config(http=...)`. `pending` counts the unfinished
    messages of its WebSockets."""
    given = {
        "edge": Edge(settings, pending),
        "gate": gate,
        "stream_ingresses": {f"{PREFIX}{name}".encode(): ingress.stream_ingress(name) for name in ingress.streams},
        "bytes_max": min(LARGE_BODY_BYTES, settings.body_bytes_max),
    }
    return type("PostProtocolOfIngress", (PostProtocol,), given)
