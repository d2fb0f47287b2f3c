"""Limits on connections before the first request and between requests.

uvicorn limits neither the size of a request head nor the time that the head takes to arrive, and it keeps silent
connections open. Here a client has `idle_s` to send the first byte of a request, `head_s` from then on to send the rest
of the head, and `body_s` to send a body that the application does not read. One timer checks all connections about once
a second. If the application reads a body, its reader (`collect/http.py`) enforces a deadline. A TLS connection is
counted as soon as it is accepted, before its handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]

from penstock.core.access import NOT_CERTIFIED, certified
from penstock.core.access.certificates import HANDSHAKE_S
from penstock.core.errors import Busy, HeadTooLarge, PenstockError, RequestError, TooSlow, Unauthorized, as_problem
from penstock.core.settings import Settings
from penstock.http.head import has_body, head_problem, head_without_upgrade
from penstock.http.pending import PendingBytes

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
PROBLEM: Header = (b"content-type", b"application/problem+json")
CLOSE: Header = (b"connection", b"close")
LOOK_S = 1.0
LINGER_S = 1.0
"""Time during which incoming bytes are discarded after the last response."""
PIPELINED_MAX = 16
"""Maximum number of requests that wait for earlier requests on the same connection. Each takes about 3 KB.

uvicorn has no such limit, and reads more requests with each response that it sends. A client that does not wait for
responses could therefore exhaust the memory.
"""
FRAMING_MAX = 8
"""Maximum number of framing bytes per byte of a chunked body. (A one-byte chunk has five framing bytes.)"""
encode = msgspec.json.Encoder().encode


class CountedConnection(Protocol):
    """A connection that can be counted by an `Edge`."""

    loop: asyncio.AbstractEventLoop
    address: str
    overdue_at: float

    def expire(self) -> None:
        """Close the connection because the expected bytes did not arrive in time."""


class Edge:
    """Keeps track of a gateway's open connections and enforces their limits. Used only in the gateway's event loop."""

    def __init__(self, settings: Settings, pending: PendingBytes | None = None) -> None:
        self.settings = settings
        self.pending = pending or PendingBytes(settings.pending_bytes_max)
        self._connections: set[CountedConnection] = set()
        self._addresses: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def enter(self, connection: CountedConnection) -> None:
        """Count a connection to the gateway. Raises `Busy` if there are too many. Even then, the connection is counted
        until `leave` is called."""
        chosen, address = self.settings, connection.address
        self._connections.add(connection)
        self._addresses[address] += 1
        if self._timer is None:
            self._arm(connection.loop)
        if len(self._connections) > chosen.sockets_max:
            raise Busy(f"all {chosen.sockets_max} connections are in use", retry_after_s=5)
        if 0 < chosen.sockets_per_address_max < self._addresses[address]:
            raise Busy(f"{address} already has {chosen.sockets_per_address_max} connections", retry_after_s=5)

    def leave(self, connection: CountedConnection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._addresses[connection.address] -= 1
        if not self._addresses[connection.address]:
            del self._addresses[connection.address]

    def replace(self, connection: CountedConnection, successor: CountedConnection) -> None:
        """Count a connection's new protocol instead of the earlier one. The number of connections stays the same."""
        self._connections.remove(connection)
        self._connections.add(successor)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._connections):
            if 0 < connection.overdue_at < now:
                connection.expire()
        self._timer = None
        if self._connections:
            self._arm(loop)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits of an `Edge`, which a subclass sets."""

    edge: Edge
    address = ""
    certified = NOT_CERTIFIED
    """The contents of the client's certificate."""
    handshake: Handshake | None = None
    """The object that counts the connection until its TLS handshake is over."""
    overdue_at = 0.0
    """The time when the connection is closed if nothing arrives; 0 while the client is not expected to send
    anything."""
    _begun: deque[Any]
    """The requests that are in progress or waiting, in order. uvicorn keeps only the last request."""
    _refused = False
    _handed_over = False
    _why: PenstockError | None = None
    """The error in the request being parsed, if one has been found."""
    _before: Any = None
    """The cycle of the request before the one that is being parsed."""
    _in_head = False
    _in_body = False
    _piece_bytes = 0
    _begun_in_piece = False
    _head_bytes = 0
    _head_pieces_bytes = 0
    """Total size in bytes of all pieces that contain part of the head. It is at least the size of the head."""
    _body_bytes = 0
    _raw_bytes = 0

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for the handshake, if it has changed since the server started."""
        return None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begun = deque()
        self.address = self.client[0] if self.client else ""
        self.certified = certified(transport)
        self.overdue_at = self.loop.time() + self.edge.settings.idle_s
        if self.handshake is not None:
            self.edge.leave(self.handshake)
        try:
            self.edge.enter(self)
        except Busy as error:
            self.refuse(error)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop pipelined requests, and tell the request in progress that the client has disconnected."""
        self.edge.leave(self)
        self.pipeline.clear()
        for cycle in self._begun:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol, which is counted from then on.

        Rejected while an earlier request is in progress, because the client would read its response as a frame.
        """
        if not self._is_free():
            self.refuse(RequestError("a WebSocket can be opened only after earlier requests have been answered"))
            return
        if has_body(self.headers):  # the code that reads frames would wait for the body, without a limit
            self.refuse(RequestError("a request that opens a WebSocket must not have a body"))
            return
        super().handle_websocket_upgrade()
        self._handed_over = True
        successor: Any = self.transport.get_protocol()
        successor.join(self.edge, self)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._piece_bytes, self._begun_in_piece = len(data), False
        self.feed(data)
        if self._refused or self._handed_over:
            return
        if self._in_body:
            self._await_body(len(data))
        elif self._in_head or self._is_free():
            self._await_head(len(data))
        else:
            self.overdue_at = 0.0

    def _is_free(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _await_head(self, size: int) -> None:
        """Start the timer for a head, or for bytes that do not belong to a head, such as empty lines.

        The first piece can also contain bytes from the previous request, so the limit can be exceeded by one piece.
        """
        settings = self.edge.settings
        if not self._head_bytes or not self.overdue_at:
            self.overdue_at = self.loop.time() + settings.head_s
        self._head_bytes += 1 if self._begun_in_piece else size
        self._head_pieces_bytes += size
        if self._head_bytes > settings.head_bytes_max:
            self._refuse_head()

    def _await_body(self, size: int) -> None:
        settings = self.edge.settings
        self._raw_bytes = self._body_bytes if self._begun_in_piece else self._raw_bytes + size
        framing = self._raw_bytes - self._body_bytes
        if framing > 2 * settings.head_bytes_max + FRAMING_MAX * self._body_bytes:
            self._refuse_head()
        elif not self._is_free():
            self.overdue_at = 0.0
        elif not self.overdue_at:
            self.overdue_at = self.loop.time() + settings.body_s

    def feed(self, data: bytes) -> None:
        """Parse received bytes of HTTP. A subclass calls the next six methods as the parser reaches each part of a
        request.

        The loop runs at most `PIPELINED_MAX` times and a few more, because each ignored upgrade is a waiting request.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                if not self._should_upgrade():
                    data = self._again_without_upgrade() + data[upgrade.args[0] :]
                    continue
                self.handle_websocket_upgrade()
            except HttpParserError:
                self.send_400_response("")
            return

    def _should_upgrade(self) -> bool:
        """Return whether the request opens a WebSocket. In HTTP/1.0, `Upgrade` has no meaning (RFC 9110, 7.8)."""
        return self.parser.get_http_version() == "1.1" and super()._should_upgrade()

    def ignores_upgrade(self) -> bool:
        """Return whether the head asks for a protocol other than WebSocket. `feed` then parses the head again, without
        `Upgrade`, so the first pass must not start a request.

        Raises an exception, to stop the parser, for CONNECT, whose body the parser does not read either.
        """
        if not self.parser.should_upgrade() or self._should_upgrade():
            return False
        if self.parser.get_method() == b"CONNECT":
            self._why = RequestError("this gateway is not a proxy, and does not support CONNECT")
            raise self._why
        return True

    def _again_without_upgrade(self) -> bytes:
        """Return the head that was just parsed, without `Upgrade`, and create a parser for it.

        After a head with `Upgrade`, httptools skips the body, so the body would be parsed as the next request.
        """
        version = self.parser.get_http_version()
        head = head_without_upgrade(self.parser.get_method(), self.url, self.headers, version)
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return head

    def begin_head(self) -> None:
        """Start a new request's head. Raises an exception, to stop the parser, if too many requests are already
        waiting."""
        self._in_head = self._begun_in_piece = True
        self._before = self.cycle
        self._raw_bytes = self._body_bytes = 0
        if len(self.pipeline) >= PIPELINED_MAX:
            self._why = Busy("too many requests are waiting on this connection")
            raise self._why

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a request header, using one function call fewer than uvicorn does. Trailers, which follow the body, are
        discarded: they must not be mistaken for headers."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def end_head(self) -> None:
        """Finish the request's head. Raises an exception, to stop the parser, if the head is invalid or too large."""
        self._in_head, self._in_body = False, True
        if self._head_pieces_bytes + self._piece_bytes > self.edge.settings.head_bytes_max:
            self._require_small_head()
        self._head_bytes = self._head_pieces_bytes = 0
        self._why = head_problem(self.url, self.headers, self.parser.get_http_version())
        if self._why is not None:
            raise self._why

    def _require_small_head(self) -> None:
        most = self.edge.settings.head_bytes_max
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > most:
            self._why = _head_too_large(most)
            raise self._why

    def begin_answer(self) -> None:
        """Record that the ASGI application will process a request, either now or after earlier requests. (Not called
        for a WebSocket.)"""
        while self._begun and self._begun[0].response_complete:
            self._begun.popleft()
        if self.cycle is not None:
            self._begun.append(self.cycle)

    def count_body(self, body: bytes) -> None:
        self._body_bytes += len(body)

    def end_body(self) -> None:
        self._in_body = False

    def on_response_complete(self) -> None:
        """Finish an HTTP response like uvicorn, but without a timer per request: the edge has one timer for all
        connections.

        Nothing is read while requests are waiting.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.overdue_at = self.loop.time() + self.edge.settings.idle_s
        if not self.pipeline:
            self.flow.resume_reading()

    def expire(self) -> None:
        """Close an overdue HTTP connection. If part of a request has arrived, send a response first."""
        if self._head_bytes or self._in_body:
            settings = self.edge.settings
            what, limit_s = ("body", settings.body_s) if self._in_body else ("head", settings.head_s)
            self.refuse(TooSlow(f"the {what} of the request did not arrive within {limit_s:g} s"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Send an HTTP error. Called by uvicorn if the bytes are not HTTP, or if this class has stopped the parser."""
        self.refuse(self._why or RequestError("this is not an HTTP/1.1 request"))

    def _refuse_head(self) -> None:
        self.refuse(_head_too_large(self.edge.settings.head_bytes_max))

    def refuse(self, error: PenstockError) -> None:
        """Reject an HTTP request: send a final response on the connection, then close the connection.

        Incoming bytes are discarded for a moment before the connection is closed, because closing it immediately could
        lose the response in transit. To the handler of the rejected request, the client appears to have disconnected.
        If an earlier request is still in progress, its response is the final response instead.
        """
        self._refused, self.overdue_at = True, 0.0
        earlier, refused = self.cycle, None
        if self._in_head or self._in_body:
            earlier, refused = self._before, None if self.cycle is self._before else self.cycle
        if refused is not None and not refused.response_complete:
            refused.disconnected = True
            refused.message_event.set()
            if self.pipeline and self.pipeline[0][0] is refused:
                self.pipeline.popleft()
        if earlier is not None and not earlier.response_complete:
            earlier.keep_alive = False
            return
        if refused is not None and refused.response_started and not refused.response_complete:
            self.transport.close()
            return
        self.transport.write(self.response(error.status, problem_headers(error), encode(as_problem(error)), False))
        self.loop.call_later(LINGER_S, self.transport.close)

    def response(self, status: int, headers: list[Header], body: bytes, keep_alive: bool) -> bytes:
        """Return a response as uvicorn would write it, with the headers that uvicorn adds to every response."""
        named = [*self.server_state.default_headers, *headers, (b"content-length", b"%d" % len(body))]
        if not keep_alive:
            named.append(CLOSE)
        return b"".join([STATUS_LINE[status], *(b"%s: %s\r\n" % header for header in named), b"\r\n", body])


class Handshake(asyncio.Protocol):
    """A connection from the time it is accepted until its TLS handshake ends and its protocol takes over.

    A server with its own TLS context reports a connection only after the handshake. A connection over the limit is
    closed without a response, because nothing can be sent before TLS is established. (`loop.start_tls` would be too
    late: uvloop begins to read at once, and the first bytes would be lost.)
    """

    overdue_at = 0.0
    """Always 0: the handshake has its own deadline."""

    def __init__(self, factory: Callable[[], BoundedHttp], context: ssl.SSLContext) -> None:
        self.loop = asyncio.get_running_loop()
        self.address = ""
        self._protocol = factory()
        self._context = context

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        try:
            self._protocol.edge.enter(self)
        except Busy:
            transport.abort()
            return
        over: asyncio.Future[None] = self.loop.create_future()
        over.add_done_callback(self._end)
        self._protocol.handshake = self
        context = self._protocol.tls() or self._context
        secure = SSLProtocol(
            self.loop, self._protocol, context, over, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
        )
        transport.set_protocol(secure)
        secure.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting a connection that was refused because of the limit."""
        self._protocol.edge.leave(self)

    def expire(self) -> None:
        """Never called, because `overdue_at` is 0."""

    def _end(self, over: asyncio.Future[None]) -> None:
        over.cancelled() or over.exception()  # retrieve the exception: a failed handshake is the client's problem
        self._protocol.edge.leave(self)


def _head_too_large(most: int) -> HeadTooLarge:
    return HeadTooLarge(f"the head of a request can contain at most {most} bytes", bytes_max=most)


def problem_headers(error: PenstockError) -> list[Header]:
    """Return the HTTP headers for an error: its media type, `Retry-After` if a retry can help, and `WWW-Authenticate`
    for 401."""
    headers = [PROBLEM]
    if isinstance(error, Busy):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
