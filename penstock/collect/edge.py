"""The edge: what a connection may cost before there is a request, and between requests.

uvicorn bounds neither the size of a head nor the time that it takes, and keeps a connection on which nothing comes.
Here a connection has `head_s` for a head, from its first byte; `idle_s` until there is a first byte; and `body_s` for a
body that nobody reads. One timer looks after all of them, about once a second. Bodies that are read have the deadline
of their reader (`http.py`). A connection with TLS is counted from when it is accepted, before its handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]

from penstock.access import NOT_CERTIFIED, certified
from penstock.access.certificates import HANDSHAKE_S
from penstock.collect.head import has_body, head_problem
from penstock.errors import Busy, HeadTooLarge, PenstockError, RequestError, TooSlow, Unauthorized, as_problem
from penstock.settings import Settings

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
PROBLEM: Header = (b"content-type", b"application/problem+json")
CLOSE: Header = (b"connection", b"close")
LOOK_S = 1.0
LINGER_S = 1.0
"""How long what still comes is thrown away after the last word."""
PIPELINED_MAX = 16
"""Requests of a connection that wait for those before them, at some 3 KB each. uvicorn has no limit, and reads more
with each answer that leaves: so a client that does not wait for answers would fill the memory."""
FRAMING_MAX = 8
"""What may stand around a byte of a chunked body, in bytes. (A chunk of one byte has five.)"""
encode = msgspec.json.Encoder().encode


class Counted(Protocol):
    """A connection as the edge knows it."""

    loop: asyncio.AbstractEventLoop
    address: str
    overdue_at: float

    def expire(self) -> None:
        """Give the connection up: what was waited for did not come in time."""


class Edge:
    """The open connections of one gateway, under limits. Belongs to its event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._connections: set[Counted] = set()
        self._addresses: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def enter(self, connection: Counted) -> None:
        """Count a connection. Raises `Busy` if there are too many; it is counted in any case, until it leaves."""
        chosen, address = self.settings, connection.address
        self._connections.add(connection)
        self._addresses[address] += 1
        if self._timer is None:
            self._arm(connection.loop)
        if len(self._connections) > chosen.sockets_max:
            raise Busy(f"all {chosen.sockets_max} connections are taken", retry_after_s=5)
        if 0 < chosen.sockets_per_address_max < self._addresses[address]:
            raise Busy(f"{address} has {chosen.sockets_per_address_max} connections already", retry_after_s=5)

    def leave(self, connection: Counted) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._addresses[connection.address] -= 1
        if not self._addresses[connection.address]:
            del self._addresses[connection.address]

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
    """uvicorn's HTTP protocol with the limits of an `Edge`, which is given to a subclass."""

    edge: Edge
    address = ""
    certified = NOT_CERTIFIED
    """What the client's certificate says."""
    handshake: Handshake | None = None
    """What the connection was counted as until now, if it has TLS."""
    overdue_at = 0.0
    """When the connection is given up, if what is waited for does not come; 0 while it is not for the client to act."""
    _begun: deque[Any]
    """The requests that are being answered or wait for it, in order: uvicorn knows only the last one that came."""
    _refused = False
    _handed_over = False
    _why: PenstockError | None = None
    """What is wrong with the request that is being parsed, if that is known."""
    _before: Any = None
    """The cycle of the request before the one that is being parsed."""
    _in_head = False
    _in_body = False
    _piece_bytes = 0
    _begun_in_piece = False
    _head_bytes = 0
    _head_pieces_bytes = 0
    """All of the pieces with a part of the head in them: no less than the head has."""
    _body_bytes = 0
    _raw_bytes = 0

    def tls(self) -> ssl.SSLContext | None:
        """The context for the handshake, if it is another by now than the one that the server began with."""
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
        """What was pipelined is not begun any more, and what is being answered hears that the client has gone."""
        self.edge.leave(self)
        self.pipeline.clear()
        for cycle in self._begun:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """The connection is another protocol's from here on, but still one of those that are counted. Not while a
        request before is being answered: its answer would come as a frame."""
        if not self._is_free():
            self.refuse(RequestError("a WebSocket cannot be opened before the requests in front of it are answered"))
            return
        if has_body(self.headers):  # whoever reads the frames would wait for it, without a limit
            self.refuse(RequestError("a request that opens a WebSocket has no body"))
            return
        super().handle_websocket_upgrade()
        self._handed_over, self.overdue_at = True, 0.0
        successor: Any = self.transport.get_protocol()
        successor.on_lost = lambda: self.edge.leave(self)

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
        """A head has begun, or what came is none, such as empty lines. Of the piece that it began in, who knows how
        much is of the request before: so the bound may be passed by one piece."""
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
        """Parse what came. A subclass calls the next five as the parser comes to each part of a request."""
        super().data_received(data)

    def begin_head(self) -> None:
        """Raises, for the parser to stop, if too many requests wait already."""
        self._in_head = self._begun_in_piece = True
        self._before = self.cycle
        self._raw_bytes = self._body_bytes = 0
        if len(self.pipeline) >= PIPELINED_MAX:
            self._why = Busy("too many requests wait on this connection")
            raise self._why

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn does it, a call less for each header; but trailers, which come after the body, are thrown away:
        they must not pass for what the head said."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def end_head(self) -> None:
        """Raises, for the parser to stop, if the head is too large, which may not have been seen before, or unsound."""
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
        """A request has come to be answered by ASGI, now or when those before it are. (One for a WebSocket has not.)"""
        while self._begun and self._begun[0].response_complete:
            self._begun.popleft()
        if self.cycle is not None:
            self._begun.append(self.cycle)

    def count_body(self, body: bytes) -> None:
        self._body_bytes += len(body)

    def end_body(self) -> None:
        self._in_body = False

    def on_response_complete(self) -> None:
        """As uvicorn does it, without the timer that it makes for each request in case no other follows: the edge has
        one for all. And nothing is read while requests wait."""
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
        """The time for what is waited for is over: say so, if anything has come."""
        if self._head_bytes or self._in_body:
            settings = self.edge.settings
            what, limit_s = ("body", settings.body_s) if self._in_body else ("head", settings.head_s)
            self.refuse(TooSlow(f"the {what} of the request did not come within {limit_s:g} s"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """For uvicorn: what came is not HTTP, or we have stopped the parser."""
        self.refuse(self._why or RequestError("this is not a request of HTTP/1.1"))

    def _refuse_head(self) -> None:
        self.refuse(_head_too_large(self.edge.settings.head_bytes_max))

    def refuse(self, error: PenstockError) -> None:
        """The last word on a connection. What still comes is thrown away for a moment: closing at once would lose the
        answer on its way. Whoever answers the request that is refused hears that the client has gone. If an earlier
        one is not answered yet, its answer is the last word instead."""
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
        """An answer as uvicorn would write it, with the headers that it gives to every answer."""
        named = [*self.server_state.default_headers, *headers, (b"content-length", b"%d" % len(body))]
        if not keep_alive:
            named.append(CLOSE)
        return b"".join([STATUS_LINE[status], *(b"%s: %s\r\n" % each for each in named), b"\r\n", body])


class Handshake(asyncio.Protocol):
    """A connection from its acceptance to the end of its TLS handshake; then it is that of the protocol it is for.

    A server that is given a context by itself tells nobody of a connection before the handshake is over. One that is
    too many is closed without a word: there is no TLS yet to say it in. (`loop.start_tls` would be too late: uvloop
    begins to read at once, and what came first would be lost.)
    """

    overdue_at = 0.0
    """Always: the handshake has a deadline of its own."""

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
        """The connection was one too many."""
        self._protocol.edge.leave(self)

    def expire(self) -> None:
        """Never called, as `overdue_at` is 0."""

    def _end(self, over: asyncio.Future[None]) -> None:
        over.cancelled() or over.exception()  # seen: it is the client's affair
        self._protocol.edge.leave(self)


def _head_too_large(most: int) -> HeadTooLarge:
    return HeadTooLarge(f"the head of a request has {most} bytes at most", bytes_max=most)


def problem_headers(error: PenstockError) -> list[Header]:
    """Those of a problem: its media type, how long to wait if that helps, and how to say who one is."""
    headers = [PROBLEM]
    if isinstance(error, Busy):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
