"""The short way in: a small POST that is whole, sound and wanted goes from the parser to the log without ASGI.

An ASGI request costs uvicorn a scope, a task, an event and a coroutine for each message, which is more than Penstock's
own work on an event. So the protocol takes the common case by itself: one keep-alive request without query, encoding,
`Expect` or `Origin`, whose body came with its head, decodes without a rejection and finds room, from a caller who is
known, may send it, and reads the answers. Everything else, and whatever is doubtful, goes the long way through ASGI,
which decides alone what is refused and how. An answer has the same bytes on either way.

A connection has at most one request on the short way; those that are pipelined behind it wait as uvicorn lets them.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from penstock import failpoints
from penstock.access import ANYONE, CERTIFIED, Caller, Gate
from penstock.collect.decode import is_lines
from penstock.collect.door import FrontDoor
from penstock.collect.edge import JSON, BoundedHttp, Edge, encode, problem_headers
from penstock.collect.entrance import LARGE_BODY_BYTES, Entrance
from penstock.collect.http import PREFIX
from penstock.collect.intake import Receipt, Request
from penstock.errors import PenstockError, StorageError, as_problem
from penstock.settings import Settings

_LONG_WAY = (
    b"content-encoding", b"transfer-encoding", b"expect", b"upgrade", b"origin", b"sec-fetch-site",
    b"idempotency-key", b"sec-websocket-protocol",
)  # fmt: skip
"""Headers that something is to be said about. The last may have a second key in it."""
_names_this_machine = re.compile(rb"(127\.0\.0\.1|localhost)(:\d+)?").fullmatch
"""Of a Host. Other names may be as good, and what is asked of an Origin is not for us to know: the long way does."""
_BEARER = b"Bearer "


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
        return self.protocol.transport.is_closing()

    def set_result(self, receipt: Receipt) -> None:
        failpoints.reach("collect.before_answer")
        self._send(self.protocol.accepted(receipt, self.keep_alive))

    def set_exception(self, error: BaseException) -> None:
        known = error if isinstance(error, PenstockError) else StorageError("the request failed")
        body = encode(as_problem(known))
        self._send(self.protocol.response(known.status, problem_headers(known), body, self.keep_alive))

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


class PostProtocol(BoundedHttp):
    """uvicorn's HTTP protocol with the short way. Made by `post_protocol`, which gives it the entrances."""

    gate: Gate
    entrances: Mapping[bytes, Entrance]
    bytes_max: int
    _entrance: Entrance | None = None
    """Where the request that is being parsed goes, if it may go the short way."""
    _caller: Caller = ANYONE
    """Whose it is, in that case."""
    _body = b""

    def tls(self) -> ssl.SSLContext | None:
        return self.gate.tls

    def accepted(self, receipt: Receipt, keep_alive: bool) -> bytes:
        return self.response(200, [JSON], encode(receipt), keep_alive)

    def feed(self, data: bytes) -> None:
        super().feed(data)
        if self._entrance is not None:
            self._entrance = None
            self._take_the_long_way()  # the rest of the body is still to come, and may never

    def on_message_begin(self) -> None:
        self.begin_head()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        self.end_head()
        entrance = self.entrances.get(self.url)
        if entrance is not None and self._is_plain() and self._caller.may("produce", entrance.stream):
            self._entrance = entrance
        else:
            self._begin_cycle()

    def _is_plain(self) -> bool:
        """Whether the head of a request leaves nothing to decide."""
        # Who leaves answers unread is made to wait by uvicorn, which reads no further. We only ever write.
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
        if self._entrance is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self.end_body()
        entrance, self._entrance = self._entrance, None
        if entrance is None:
            super().on_message_complete()
        elif not self._take(entrance):
            self._take_the_long_way()
            super().on_message_complete()

    def _take(self, entrance: Entrance) -> bool:
        """Offer the events of a request; False, and nothing done, if there is anything to be said about them."""
        body = self._body
        if len(body) > self.bytes_max:
            return False
        lines = False
        for name, value in self.headers:
            if name == b"content-type":
                lines = value != b"application/json" and is_lines(value)
        try:
            decoded = entrance.decoder.decode(body, lines=lines)
        except Exception:  # the long way will meet it too, and knows how to say it
            return False
        answer = _Answer(self)
        if decoded.rejections or not entrance.intake.offer_for(answer, Request(decoded.events, len(body))):
            return False
        self._caller.spend(len(decoded.events))
        self.cycle: Any = answer
        self._body = b""
        return True

    def _take_the_long_way(self) -> None:
        """Make the ASGI request that uvicorn would have made, with as much of the body as there is."""
        self._begin_cycle()
        body, self._body = self._body, b""
        if body:
            super().on_body(body)

    def _begin_cycle(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        self.scope["state"][CERTIFIED] = self.certified
        super().on_headers_complete()
        self.begin_answer()


def post_protocol(door: FrontDoor, settings: Settings, gate: Gate) -> type[PostProtocol]:
    """The protocol of one front door, for `uvicorn.Config(http=...)`."""
    given = {
        "edge": Edge(settings),
        "gate": gate,
        "entrances": {f"{PREFIX}{name}".encode(): door.entrance(name) for name in door.streams},
        "bytes_max": min(LARGE_BODY_BYTES, settings.body_bytes_max),
    }
    return type("DoorProtocol", (PostProtocol,), given)
