"""The protocols passed to uvicorn: bounded WebSockets, and HTTP with live responses that are written directly.

The HTTP protocol also sends HTTP/1.0 responses without chunks. uvicorn's sans-I/O protocol for WebSockets waits for the
client before each send, and stops reading while the application has not received a message. However, it parses all
messages that have arrived in one read, however many there are. It has no limit on the pongs and fragments that it
holds, and no time limit for the rest of a message. It logs a traceback for each text message that is not UTF-8. It also
disconnects a client that is still sending, so the client might never read the reason. The subclass in this module fixes
these problems. A WebSocket refused before it is open gets a problem response.
"""

from __future__ import annotations

import asyncio
import math
import select
import sys
from collections.abc import Generator, MutableMapping, Sequence
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from penstock.core.access import CALLER, CERTIFIED, certified
from penstock.core.errors import Overloaded
from penstock.http.arriving import CLIENT
from penstock.http.edge import BoundedHttp, Edge
from penstock.http.frames import MESSAGE_BYTES_MAX, WRITER
from penstock.http.problems import MEDIA_TYPE, problem

CHUNKS = "penstock.chunks"
"""Key of the `Chunks` in the extensions of a live response's scope, for writing to the response directly."""
VERSION = "13"
FRAGMENTS_MAX = 1_000
LINGER_S = 5.0
"""The time for which a client can continue to send after an error, before its connection is closed."""
DATA = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
"""The kinds of frames that messages consist of."""
_HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""The event of a client that has closed its side; 0 on systems that report only connections closed on both sides."""
PUBLISH_SUFFIX, LIVE_SUFFIX = "/publish", "/live"
PUBLISH_BYTES_MAX = 1024 * 1024 + 64 * 1024
"""Maximum size of a publish message in bytes: the largest event with its envelope."""
OPTIONS: dict[str, Any] = {"ws_max_size": MESSAGE_BYTES_MAX + 1024, "ws_per_message_deflate": False}
"""Options that `uvicorn.Config` needs for this protocol.

The maximum size is just above Penstock's own limit, so that Penstock can send an error message in response to a message
that is slightly too large. Compression would cost 300 KiB per connection, and allow clients to send data that expands a
thousandfold.
"""


class _Chunks:
    """Implements `sse.Chunks`. Does the same as uvicorn's `send`, without a copy per connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, chunks: Sequence[bytes]) -> bool:
        cycle = self._cycle
        is_open = cycle.response_started and not (cycle.response_complete or cycle.disconnected)
        if not is_open or not cycle.chunked_encoding or cycle.flow.write_paused or cycle.transport.is_closing():
            return False
        cycle.transport.writelines(chunks)
        return True


class _UntilClose:
    """A cycle's `send` for HTTP/1.0, which has no chunks: a response without a length ends when the connection is
    closed.

    (uvicorn does not keep HTTP/1.0 connections open, but it would send chunks.)
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._send = cycle, cycle.send
        self._endless = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._endless = b"content-length" not in names and cycle.scope["method"] != "HEAD"
            if self._endless:
                cycle.chunked_encoding, cycle.expected_content_length = False, math.inf  # type: ignore[assignment]
        elif self._endless and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]


def with_chunks(base: type[HttpToolsProtocol]) -> type[HttpToolsProtocol]:
    """Return an HTTP protocol whose live responses can be written to directly. HTTP/1.0 responses are not chunked."""

    class Live(base):  # type: ignore[valid-type, misc]
        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            if cycle.scope["http_version"] == "1.0":
                cycle.send = _UntilClose(cycle)  # type: ignore[method-assign, assignment]
            if cycle.scope["path"].endswith(LIVE_SUFFIX):
                cycle.scope.setdefault("extensions", {})[CHUNKS] = _Chunks(cycle)  # type: ignore[assignment]
            super()._start_asgi_task(cycle, app)

    return Live


class _HeldReader(StreamReader):
    """The bytes of a WebSocket connection. While `held` is true, the parser takes no further frame from them."""

    held = False

    def at_eof(self) -> Generator[None, None, bool]:
        """Return whether the stream has ended. Called by the parser before each frame."""
        while self.held:
            yield
        return (yield from super().at_eof())


class _Frames(ServerProtocol):
    """The parser of a WebSocket connection. It stops after each complete message until `parse_on` is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reader: _HeldReader = _HeldReader()
        self.parser = self.parse()
        next(self.parser)

    def parse_on(self) -> None:
        """Allow the next message to be parsed by the next call of `receive_data`."""
        self.reader.held = False

    def accept(self, request: Request) -> Response:
        """Accept a request as the library does, but respond to an unsupported version with 426 and the supported
        version (RFC 6455, 4.2.2)."""
        versions = request.headers.get_all("Sec-WebSocket-Version")
        if request.method == "GET" and versions != [VERSION]:
            response = self.reject(426, f"this gateway supports only version {VERSION} of the WebSocket protocol")
            response.headers["Upgrade"] = "websocket"
            response.headers["Sec-WebSocket-Version"] = VERSION
            return response
        return super().accept(request)

    def reject(self, status: int, text: str) -> Response:
        """Return the response for a refused WebSocket.

        In the library's response, assigning to a header adds a second header with that name, so the library's two
        headers are deleted first.
        """
        response = super().reject(status, "")
        detail = text.strip() or "this WebSocket cannot be opened"
        response.body = msgspec.json.encode(problem(status, detail))
        for name, value in (("Content-Length", str(len(response.body))), ("Content-Type", MEDIA_TYPE)):
            del response.headers[name]
            response.headers[name] = value
        return response

    def recv_frame(self, frame: Frame) -> None:
        """Process a frame, and stop the parser after the last frame of a message.

        A client can close in the middle of a message. RFC 6455 allows this, and requires the same code in the reply.
        The library would treat it as a client error.
        """
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)
        self.reader.held = frame.fin and frame.opcode in DATA and self.state in (State.CONNECTING, State.OPEN)

    def fail(self, code: int, reason: str = "") -> None:
        """Fail the connection. From now on, everything that arrives is discarded."""
        self.parse_on()
        super().fail(code, reason)


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """The WebSocket protocol for `uvicorn.Config(ws=BoundedWebSocket, **OPTIONS)`."""

    edge: Edge | None = None
    """Counts the connection, limits the bytes of messages, and calls `expire`."""
    address = ""
    overdue_at = 0.0
    """The time when the connection is closed if the message that has begun is not complete; 0 between messages, and
    while nothing is read from the client."""
    _pending_bytes = 0
    """The bytes of messages that are counted for the caller."""
    _complete_bytes = 0
    """The bytes of complete messages that the application has not finished with: at most the message that it is
    processing and the next one."""
    _taken_bytes = 0
    """The bytes of the message that the application is processing."""
    _who = ""
    conn: _Frames

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _Frames(max_size=self.config.ws_max_size, logger=self.logger)

    def join(self, edge: Edge, connection: BoundedHttp) -> None:
        """Join the edge's connections, in place of the HTTP protocol that received the handshake."""
        self.edge, self.address = edge, connection.address
        edge.replace(connection, self)

    def handle_connect(self, event: Request) -> None:
        if event.path.partition("?")[0].endswith(PUBLISH_SUFFIX):
            self.conn.max_message_size = PUBLISH_BYTES_MAX
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["state"][CERTIFIED] = certified(self.transport)
            self.scope["extensions"] |= {WRITER: self, CLIENT: self}  # type: ignore[dict-item]

    def write(self, frames: Sequence[bytes]) -> bool:
        """Implements `FrameWriter`. Does the same as uvicorn's `send`, without a copy per connection."""
        if not self.writable.is_set() or not self._is_open():
            return False
        if len(frames) == 1:
            self.transport.write(frames[0])
        else:
            self.transport.writelines(frames)
        return True

    async def drained(self) -> None:
        """Implements `FrameWriter`."""
        await self.writable.wait()
        if not self._is_open():
            raise ConnectionError("the client has disconnected")

    def has_left(self) -> bool:
        """Implements `SocketClient`. While nothing is read, the operating system knows whether the client has closed
        its side, and the event loop does not."""
        if not self._is_open():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HUNG_UP)
        return bool(poll.poll(0))

    def release(self) -> None:
        """Implements `SocketClient`."""
        if self._taken_bytes:
            self._complete_bytes -= self._taken_bytes
            self._taken_bytes = 0
            self._await_rest()

    def _is_open(self) -> bool:
        """Return whether a frame can still be sent: the handshake is over, and neither side has closed."""
        return self.conn.state is State.OPEN and not (self.close_sent or self.transport.is_closing())

    async def send(self, message: Any) -> None:
        """Send a message. Messages after the response to a refused handshake are dropped. uvicorn would log each of
        them as a server error, which would be one line for every client without a key.

        After a close, what has arrived is parsed up to the client's own close.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True
        elif message["type"] == "websocket.close" and self.conn.reader.held:
            self.conn.parse_on()
            self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.reader.discard()
        self._forget_message()
        if self.edge is not None:
            self.edge.leave(self)

    def data_received(self, data: bytes) -> None:
        if not self.disconnected:
            super().data_received(data)
            self._await_rest()

    async def receive(self) -> Any:
        """Return the next message, and then parse the following one, if it has arrived, or read it.

        The call means that the application has finished with the previous message. If the following message has already
        begun, the client's time to complete it starts only now.
        """
        self.release()
        message: Any = await self.queue.get()
        self._taken_bytes = _held_bytes(message)
        if self.read_paused and self.queue.empty():
            self._read_on()
        return message

    def _read_on(self) -> None:
        """Parse the next message among the bytes that have arrived. If none is complete, read from the client again."""
        if not self._is_open():
            return
        self.conn.parse_on()
        self.data_received(b"")
        if self.queue.empty() and self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
            self._await_rest()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Stop counting the messages of an application that has ended."""
        super().on_task_complete(task)
        self._complete_bytes = self._taken_bytes = 0
        self._await_rest()

    def _await_rest(self) -> None:
        """Count the messages that have arrived, and start the timer for the rest of an unfinished one.

        A complete message pauses reading, which stops the timer, so each message has the full time limit. A frame of
        which only the header has arrived holds no bytes, and no limit applies to it.
        """
        fragments, size = self.conn.current_size, len(self.conn.reader.buffer)
        is_open = self._is_open()
        if self.read_paused or not is_open or (fragments is None and not size):
            self.overdue_at = 0.0
        elif self.edge is not None and not self.overdue_at:
            self.overdue_at = self.loop.time() + self.edge.settings.body_s
        total = self._complete_bytes + (size + (fragments or 0) if is_open else 0)
        if total != self._pending_bytes:
            self._count_message(total)

    def _count_message(self, size: int) -> None:
        """Count the bytes of messages for the caller, and fail the connection if there is no room for more of them."""
        if self.edge is None:
            return
        caller: Any = self.scope.get(CALLER)
        pending, more = self.edge.pending, size > self._pending_bytes
        pending.count(self._who, -self._pending_bytes)
        self._who, self._pending_bytes = "" if caller is None else caller.name, size
        pending.count(self._who, size)
        try:
            if more and self._is_open():
                pending.require_room(self._who, size)
        except Overloaded as error:
            self._fail(CloseCode.TRY_AGAIN_LATER, error.message)

    def _forget_message(self) -> None:
        """Discard an unfinished message. The application may still hold complete ones, which stay counted."""
        self.overdue_at, self.frames = 0.0, []
        if self._pending_bytes != self._complete_bytes:
            self._count_message(self._complete_bytes)

    def expire(self) -> None:
        """Fail the connection because its message did not arrive in time. Called by the edge."""
        limit_s = 0.0 if self.edge is None else self.edge.settings.body_s
        self._fail(CloseCode.POLICY_VIOLATION, f"the message did not arrive within {limit_s:g} s")

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close the connection: with a reason if it is open, otherwise without one."""
        if not self._is_open():
            self._forget_message()
            self.transport.close()
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Fail the connection as RFC 6455 requires: send the reason, and read until the client closes its side too.

        The kernel resets a connection that is closed with unread bytes, and the reason would be lost. (TLS closes a
        connection differently.)
        """
        self._forget_message()
        if self.close_sent or not self.transport.can_write_eof():
            super().handle_parser_exception()
            return
        closing = self.conn.close_sent
        assert closing is not None
        self.disconnected = self.close_sent = True  # for readers and senders; the client can stay connected for a while
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closing.code, "reason": closing.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def handle_ping(self) -> None:
        """Answer a ping, unless earlier pongs are still waiting for a client that does not read. RFC 6455 allows
        this."""
        if self.writable.is_set() and not self.disconnected:
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment, unless there are too many: the size limit does not catch empty fragments."""
        if self.disconnected:  # it arrived together with the fragment over the limit
            return
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
        elif not self.transport.is_closing():
            self.conn.fail(CloseCode.POLICY_VIOLATION, "too many fragments")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Pass on a message, and stop reading until the application has received it. A text message that is not valid
        UTF-8 fails the connection. After a close, messages are dropped."""
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        message: Any = {"type": "websocket.receive", "bytes": data}
        if self.curr_msg_data_type == "text":
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self.conn.fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
                self.handle_parser_exception()
                return
        self._complete_bytes += _held_bytes(message)
        self.queue.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()


def _held_bytes(message: MutableMapping[str, Any]) -> int:
    """Return how much memory a message takes: one character beyond ASCII can make its whole text four times as
    large."""
    text: str | None = message.get("text")
    return len(message.get("bytes") or b"") if text is None else sys.getsizeof(text)
