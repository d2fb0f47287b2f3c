"""Server messages as WebSocket frames. Server frames are not masked, so equal messages are encoded and stored only
once. Readers that get the same message with the same id share its bytes, no matter how many of them have yet to receive
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.core.contracts import Delivery

WRITER = "penstock.frames"
"""Key of the `FrameWriter` in the extensions of a WebSocket's scope."""
MESSAGE_BYTES_MAX = 64 * 1024
"""Maximum size of a client's message on `/v1/live`, in bytes."""
IDS_MAX = 4
"""Maximum number of ids for which a delivery's frame is cached; a large frame is cached for only one id."""
LARGE = 64 * 1024
_TEXT = b"\x81"


class FrameWriter(Protocol):
    """A WebSocket that accepts complete frames. Used in only one event loop."""

    def write(self, frames: Sequence[bytes]) -> bool:
        """Send WebSocket frames immediately.

        Returns False, and sends nothing, if earlier frames are still unsent or the client has disconnected.
        """

    async def drained(self) -> None:
        """Wait until `write` would accept frames. Raises `ConnectionError` if it never will."""


def encode(
    id: str | None, event: str, delivery: Delivery | None = None, problem: dict[str, Any] | None = None
) -> bytes:
    """Encode a server message for a WebSocket. The data of a delivery is inserted unchanged, because it was encoded
    once for all readers."""
    parts = [] if id is None else [b'"id":' + msgspec.json.encode(id)]
    parts.append(b'"event":' + msgspec.json.encode(event))
    if delivery is not None:
        parts.append(b'"cursor":' + msgspec.json.encode(delivery.cursor))
        parts.append(b'"data":' + delivery.data)
    if problem is not None:
        parts.append(b'"data":' + msgspec.json.encode(problem, enc_hook=str))
    return b"{" + b",".join(parts) + b"}"


def frame(text: bytes) -> bytes:
    """Return a message as one WebSocket frame (RFC 6455)."""
    size = len(text)
    if size < 126:
        return _TEXT + size.to_bytes(1, "big") + text
    if size < 65536:
        return _TEXT + b"\x7e" + size.to_bytes(2, "big") + text
    return _TEXT + b"\x7f" + size.to_bytes(8, "big") + text


def delivered(delivery: Delivery, id: str) -> bytes:
    """Return the WebSocket frame for a delivery with an id. Readers with the same delivery and id get the same
    object."""
    data = delivery.encodings.get(id)
    if data is None:
        data = frame(encode(id, delivery.kind, delivery))
        if len(delivery.encodings) < (IDS_MAX if len(data) <= LARGE else 1):
            delivery.encodings[id] = data
    return data


def framed(id: str | None, event: str, delivery: Delivery | None, problem: dict[str, Any] | None) -> bytes:
    """Return the WebSocket frame for any message."""
    if id is not None and delivery is not None:
        return delivered(delivery, id)
    return frame(encode(id, event, delivery, problem))
