"""The short way in: a small POST that is whole, sound and wanted goes from the parser to the log without ASGI.

An ASGI request costs uvicorn a scope, a task, an event and a coroutine for each message, which is more than Penstock's
own work on an event. So the protocol takes the common case by itself: one keep-alive request without query, encoding
or `Expect`, whose body came with its head, decodes without a rejection and finds room. Everything else, and whatever
is doubtful, goes the long way through `http.PostEndpoint`, which decides alone what is refused and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock import failpoints
from penstock.collect.decode import is_lines
from penstock.collect.door import FrontDoor
from penstock.collect.entrance import LARGE_BODY_BYTES, Entrance
from penstock.collect.http import PREFIX
from penstock.collect.intake import Receipt
from penstock.errors import Busy, PenstockError, StorageError, as_problem

_LONG_WAY = (b"content-encoding", b"transfer-encoding", b"expect", b"upgrade", b"origin")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"
_PROBLEM_HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n%s\r\n"
_CLOSE = b"connection: close\r\n"
_encode = msgspec.json.Encoder().encode


class _Silent:
    """Stands for the event that uvicorn sets when a connection ends; nobody waits for ours."""

    def set(self) -> None:
        pass


class _Answer:
    """One request on the short way. For the intake it is what waits; for uvicorn, the cycle that is under way."""

    __slots__ = ("disconnected", "keep_alive", "message_event", "protocol", "response_complete")

    def __init__(self, protocol: PostProtocol) -> None:
        self.protocol = protocol
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self.message_event = _SILENT

    def done(self) -> bool:
        return self.disconnected or self.protocol.transport.is_closing()

    def set_result(self, receipt: Receipt) -> None:
        failpoints.reach("collect.before_answer")
        body = self.protocol.encoded(receipt)
        self._send(_HEAD % (len(body), b"" if self.keep_alive else _CLOSE) + body)

    def set_exception(self, error: BaseException) -> None:
        known = error if isinstance(error, PenstockError) else StorageError("the request failed")
        body, more = _encode(as_problem(known)), b"" if self.keep_alive else _CLOSE
        if isinstance(known, Busy):
            more += b"retry-after: %d\r\n" % known.retry_after_s
        reason = HTTPStatus(known.status).phrase.encode()
        self._send(_PROBLEM_HEAD % (known.status, reason, len(body), more) + body)

    def exception(self) -> None:
        """As of a future: says that the error was seen."""

    def _send(self, data: bytes) -> None:
        self.response_complete = True
        protocol = self.protocol
        protocol.transport.write(data)
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


_SILENT = _Silent()


class PostProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the short way. Made by `post_protocol`, which gives it the entrances."""

    entrances: Mapping[bytes, Entrance]
    _latest: tuple[Receipt | None, bytes] = (None, b"")

    def encoded(self, receipt: Receipt) -> bytes:
        """A receipt as JSON. Most requests of a group share one, so the last is remembered, for all connections."""
        kind = type(self)
        if kind._latest[0] is not receipt:
            kind._latest = (receipt, _encode(receipt))
        return kind._latest[1]

    def data_received(self, data: bytes) -> None:
        self._entrance: Entrance | None = None
        super().data_received(data)
        if self._entrance is not None:
            self._take_the_long_way()  # the rest of the body is still to come, and may never

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        entrance = self.entrances.get(self.url)
        if entrance is not None and self._is_plain():
            self._entrance = entrance
            self._body = b""
        else:
            self._begin_cycle()

    def _is_plain(self) -> bool:
        free = self.cycle is None or self.cycle.response_complete
        if not free or self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return False
        return self.parser.should_keep_alive() and not any(name in _LONG_WAY for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        if self._entrance is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        entrance = self._entrance
        if entrance is None:
            super().on_message_complete()
        elif self._take(entrance):
            self._entrance = None
        else:
            self._take_the_long_way()
            super().on_message_complete()

    def _take(self, entrance: Entrance) -> bool:
        """Offer the events of a request; False, and nothing done, if there is anything to be said about them."""
        body = self._body
        if not body or len(body) > LARGE_BODY_BYTES:
            return False
        lines = any(name == b"content-type" and is_lines(value) for name, value in self.headers)
        decoded = entrance.decoder.decode(body, lines=lines)
        if decoded.rejections:
            return False
        answer = _Answer(self)
        try:
            entrance.intake.offer_for(answer, decoded.events, len(body))
        except PenstockError:
            return False
        self.cycle: Any = answer
        return True

    def _take_the_long_way(self) -> None:
        """Make the ASGI request that uvicorn would have made, with as much of the body as there is."""
        body, self._entrance = self._body, None
        self._begin_cycle()
        if body:
            super().on_body(body)

    def _begin_cycle(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()


def post_protocol(door: FrontDoor) -> type[PostProtocol]:
    """The protocol of one front door, for `uvicorn.Config(http=...)`."""
    entrances = {f"{PREFIX}{name}".encode(): door.entrance(name) for name in door.streams}
    return type("DoorProtocol", (PostProtocol,), {"entrances": entrances})
