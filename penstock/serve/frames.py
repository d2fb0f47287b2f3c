"""Messages of the server as WebSocket frames. A server's frames are not masked, so all who hear the same under the same
id are sent the very same bytes: made once, and held once, however many have yet to take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.contracts import Delivery

WRITER = "penstock.frames"
"""Where the protocol puts its `FrameWriter` among the extensions of a WebSocket's scope."""
IDS_MAX = 4
"""Ids under which the frame of a delivery is kept; one whose frame is large is kept under one."""
LARGE = 64 * 1024
_TEXT = b"\x81"


class FrameWriter(Protocol):
    """A connection that takes whole frames. Belongs to one event loop."""

    def write(self, frames: Sequence[bytes]) -> bool:
        """Send frames now; False, and nothing sent, if the client has yet to take earlier ones, or has gone."""

    async def drained(self) -> None:
        """Return when `write` would take something; raises `ConnectionError` if it never will."""


def encode(
    id: str | None, event: str, delivery: Delivery | None = None, problem: dict[str, Any] | None = None
) -> bytes:
    """A message of the server. The data of a delivery is put in as it is: it was encoded once, for all."""
    parts = [] if id is None else [b'"id":' + msgspec.json.encode(id)]
    parts.append(b'"event":' + msgspec.json.encode(event))
    if delivery is not None:
        parts.append(b'"cursor":' + msgspec.json.encode(delivery.cursor))
        parts.append(b'"data":' + delivery.data)
    if problem is not None:
        parts.append(b'"data":' + msgspec.json.encode(problem, enc_hook=str))
    return b"{" + b",".join(parts) + b"}"


def frame(text: bytes) -> bytes:
    """A message in one frame, as RFC 6455 has it."""
    size = len(text)
    if size < 126:
        return _TEXT + size.to_bytes(1, "big") + text
    if size < 65536:
        return _TEXT + b"\x7e" + size.to_bytes(2, "big") + text
    return _TEXT + b"\x7f" + size.to_bytes(8, "big") + text


def delivered(delivery: Delivery, id: str) -> bytes:
    """The frame of a delivery under an id: the same object for all who ask for the same."""
    found = delivery.made.get(id)
    if found is None:
        found = frame(encode(id, delivery.kind, delivery))
        if len(delivery.made) < (IDS_MAX if len(found) <= LARGE else 1):
            delivery.made[id] = found
    return found


def framed(id: str | None, event: str, delivery: Delivery | None, problem: dict[str, Any] | None) -> bytes:
    """The frame of any message."""
    if id is not None and delivery is not None:
        return delivered(delivery, id)
    return frame(encode(id, event, delivery, problem))
