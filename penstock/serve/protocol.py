"""The protocols that the gateway gives to uvicorn: its own for WebSockets, with three holes in its bounds closed, and
for HTTP one whose live answers can be written to directly, and are such as HTTP/1.0 understands.

uvicorn's sans-I/O protocol for WebSockets waits for the client before each send of ours, and reads a message only after
the one before was taken. But it answers pings and gathers fragments without looking at what has piled up already, and
writes a traceback into the log for each text that is not UTF-8. It also hangs up on a client that is still sending,
which may then never read why. What is refused before it is open is refused with a problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.access import CERTIFIED, certified
from penstock.serve.frames import WRITER
from penstock.serve.problems import MEDIA_TYPE, problem
from penstock.serve.socket import MESSAGE_BYTES_MAX
from penstock.serve.sse import CHUNKS

VERSION = "13"
FRAGMENTS_MAX = 1_000
LINGER_S = 5.0
"""How long a client that did wrong may go on sending before the connection is cut."""
PUBLISH_SUFFIX, LIVE_SUFFIX = "/publish", "/live"
PUBLISH_BYTES_MAX = 1024 * 1024 + 64 * 1024
"""A message of those who send events: one of the largest size, with what is around it."""
OPTIONS: dict[str, Any] = {"ws_max_size": MESSAGE_BYTES_MAX + 1024, "ws_per_message_deflate": False}
"""Options of `uvicorn.Config` that belong to it. Just above our own bound, so that a message somewhat too large gets an
answer. Compression would cost each connection 300 KiB, and let a client inflate a thousandfold."""


class _Chunks:
    """As `sse.Chunks`: what uvicorn's `send` would do, without a copy for each connection."""

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
    """A cycle's `send` for HTTP/1.0, which knows no chunks: an answer without a length ends with its connection.
    (uvicorn keeps no connection of HTTP/1.0, but would send chunks.)"""

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
    """An HTTP protocol whose live responses can be written to by those who have what to write; in HTTP/1.0 nothing is
    sent in chunks."""

    class Live(base):  # type: ignore[valid-type, misc]
        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            if cycle.scope["http_version"] == "1.0":
                cycle.send = _UntilClose(cycle)  # type: ignore[method-assign, assignment]
            if cycle.scope["path"].endswith(LIVE_SUFFIX):
                cycle.scope.setdefault("extensions", {})[CHUNKS] = _Chunks(cycle)  # type: ignore[assignment]
            super()._start_asgi_task(cycle, app)

    return Live


class _Frames(ServerProtocol):
    def accept(self, request: Request) -> Response:
        """As the library does it, but a version that is not ours is 426 and is told ours (RFC 6455, 4.2.2)."""
        versions = request.headers.get_all("Sec-WebSocket-Version")
        if request.method == "GET" and versions != [VERSION]:
            response = self.reject(426, f"this gateway speaks version {VERSION} of the WebSocket protocol")
            response.headers["Upgrade"] = "websocket"
            response.headers["Sec-WebSocket-Version"] = VERSION
            return response
        return super().accept(request)

    def reject(self, status: int, text: str) -> Response:
        """The answer to what does not become a WebSocket."""
        response = super().reject(status, "")
        detail = text.strip() or "this WebSocket cannot be opened"
        response.body = msgspec.json.encode(problem(status, detail))
        response.headers["Content-Length"] = str(len(response.body))
        response.headers["Content-Type"] = MEDIA_TYPE
        return response

    def recv_frame(self, frame: Frame) -> None:
        """Let a client leave in the middle of a message: RFC 6455 allows a close between fragments, and wants its code
        back. The library would call it an error of the client."""
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """For `uvicorn.Config(ws=BoundedWebSocket, **OPTIONS)`."""

    on_lost: Callable[[], None] | None = None
    """Called when the connection has ended, for whoever counts them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _Frames(max_size=self.config.ws_max_size, logger=self.logger)

    def handle_connect(self, event: Request) -> None:
        if event.path.partition("?")[0].endswith(PUBLISH_SUFFIX):
            self.conn.max_message_size = PUBLISH_BYTES_MAX
        super().handle_connect(event)
        if not self.handshake_complete:
            self.scope["state"][CERTIFIED] = certified(self.transport)
            self.scope["extensions"][WRITER] = self  # type: ignore[assignment]

    def write(self, frames: Sequence[bytes]) -> bool:
        """As a `FrameWriter`. What uvicorn's `send` would do, without a copy for each connection."""
        if not self.writable.is_set() or not self._is_open():
            return False
        if len(frames) == 1:
            self.transport.write(frames[0])
        else:
            self.transport.writelines(frames)
        return True

    async def drained(self) -> None:
        """As a `FrameWriter`."""
        await self.writable.wait()
        if not self._is_open():
            raise ConnectionError("the client has gone")

    def _is_open(self) -> bool:
        """Whether a frame may still be sent: the handshake is over, and neither side has said good-bye."""
        return self.conn.state is State.OPEN and not (self.close_sent or self.transport.is_closing())

    async def send(self, message: Any) -> None:
        """A WebSocket that is refused with an answer has had all that it will get; uvicorn would log it as an error of
        ours, a line for whoever has no key."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if not self.disconnected:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        """Fail the connection as RFC 6455 wants it: say why, and read until the client has closed it too. The kernel
        resets one that is closed with bytes unread, and what was said is lost. (TLS has a good-bye of its own.)"""
        if self.close_sent or not self.transport.can_write_eof():
            super().handle_parser_exception()
            return
        closing = self.conn.close_sent
        assert closing is not None
        self.disconnected = self.close_sent = True  # for those who would read or send; the client may stay a while
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closing.code, "reason": closing.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def handle_ping(self) -> None:
        """Answer, unless earlier answers are still waiting for a client that does not read: RFC 6455 allows that."""
        if self.writable.is_set() and not self.disconnected:
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment, unless there are too many: empty ones have no size that the bound on size could see."""
        if self.disconnected:  # it came with the one that was too many
            return
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
        elif not self.transport.is_closing():
            self.conn.fail(CloseCode.POLICY_VIOLATION, "too many fragments")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Hand on a message, unless it is a text that is none."""
        self.frames = [b"".join(self.frames)]
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
