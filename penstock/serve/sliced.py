"""Long answers: sent slice by slice, and counted for as long as the client has yet to take them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.access import caller_of
from penstock.errors import Unauthorized
from penstock.serve.connections import SLICE_BYTES, Connections, no_room

_log = logging.getLogger("penstock.serve")


def answered(
    body: bytes,
    connections: Connections,
    headers: Mapping[str, str],
    *,
    end: bytes = b"",
    media_type: str = "application/json",
) -> Response:
    """The answer to a request: `body`, which others may be answered with as well, and `end` behind it."""
    if len(body) <= SLICE_BYTES:
        return Response(body + end, headers=headers, media_type=media_type)
    return _Sliced(body, end, connections, headers, media_type)


class _Sliced(Response):
    """A long answer. It counts as a live connection, and its bytes as held for a client: clients that do not read hold
    no more than the bound, and are let go. So is one whose key is revoked or expires."""

    def __init__(
        self, body: bytes, end: bytes, connections: Connections, headers: Mapping[str, str], media_type: str
    ) -> None:
        length = {"Content-Length": str(len(body) + len(end))}
        super().__init__(None, headers={**headers, **length}, media_type=media_type)
        self._body, self._end, self._connections = body, end, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `Busy` before anything is sent, if there is no place or no room. Broken off when the caller ends."""
        caller = caller_of(scope)
        who = caller.name
        with self._connections.one(who), self._connections.held.keep(who, self._body) as kept:
            if not kept:
                raise no_room()
            try:
                await caller.while_valid(self._send(send), "the key of a long answer is revoked or expired")
            except Unauthorized as error:  # the status is sent already: the connection ends without the rest
                _log.info("%s; it was broken off", error)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            for start in range(0, len(self._body), SLICE_BYTES):
                piece = self._body[start : start + SLICE_BYTES]
                await self._connections.sent(send({"type": "http.response.body", "body": piece, "more_body": True}))
            await self._connections.sent(send({"type": "http.response.body", "body": self._end}))
        except TimeoutError:
            _log.info("a reader of a long answer took nothing for %s s and was let go", self._connections.stuck_s)
