"""Long responses, sent in slices and counted as held until the client has received them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.core.access import caller_of
from penstock.core.errors import Unauthorized
from penstock.serve.connections import SLICE_BYTES, Connections, no_room

_log = logging.getLogger("penstock.serve")


def sliced_response(
    body: bytes,
    connections: Connections,
    headers: Mapping[str, str],
    *,
    end: bytes = b"",
    media_type: str = "application/json",
) -> Response:
    """Return a response with `body`, which other responses can share, followed by `end`. A long response is sent in
    slices."""
    if len(body) <= SLICE_BYTES:
        return Response(body + end, headers=headers, media_type=media_type)
    return _Sliced(body, end, connections, headers, media_type)


class _Sliced(Response):
    """A long response. It counts as a live connection, and its unsent bytes count as held for the client.

    This bounds the memory used for clients that do not read. Such clients are disconnected, as is a client whose key is
    revoked or expires.
    """

    def __init__(
        self, body: bytes, end: bytes, connections: Connections, headers: Mapping[str, str], media_type: str
    ) -> None:
        length = {"Content-Length": str(len(body) + len(end))}
        super().__init__(None, headers={**headers, **length}, media_type=media_type)
        self._body, self._end, self._connections = body, end, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response.

        Raises `Busy` before anything is sent if there is no slot or no room. Stops when the caller's key becomes
        invalid.
        """
        caller = caller_of(scope)
        who = caller.name
        with self._connections.one(who), self._connections.held.keep(who, self._body) as kept:
            if not kept:
                raise no_room()
            try:
                await caller.while_valid(self._send(send), "the key for a long response was revoked or has expired")
            except Unauthorized as error:  # the status has been sent already: close the connection without the rest
                _log.info("%s; the response was cut off", error)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            for start in range(0, len(self._body), SLICE_BYTES):
                piece = self._body[start : start + SLICE_BYTES]
                await self._connections.sent(send({"type": "http.response.body", "body": piece, "more_body": True}))
            await self._connections.sent(send({"type": "http.response.body", "body": self._end}))
        except TimeoutError:
            _log.info("disconnected a client that read none of a long response for %s s", self._connections.stuck_s)
