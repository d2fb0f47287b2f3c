"""Cursors: opaque strings that name a position, the same in every transport.

A cursor carries the *generation* of the file it points into, a random number given when the file is made. A cursor
from another data directory, or from before a rebuild, is so told from one of ours and answered with a `reset`. That of
a view also carries what of it was in *sight*: who is shown other rows than when it got the cursor has another copy to
keep, and is answered in the same way.

An acknowledgement is such a text too, and signed: it leads to events, so nobody may make one up.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated

import msgspec

from penstock.errors import BadCursor, NotFound

Positions = dict[str, dict[int, int]]
"""The next offset of each partition of each stream."""
SIGHT_BYTES = 8
MAC_BYTES = 16
"""Of an acknowledgement: half of a SHA-256, which leaves 128 bits to guess."""
LENGTH_MAX = 20_000
"""A stream may have 1,024 partitions, at up to 12 bytes each before base64."""


class StreamCursor(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The next offset to read, for each partition."""

    generation: int
    offsets: dict[int, int]


class ViewCursor(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    """The last version that was seen, and of which part of the view: see `narrowed`."""

    generation: int
    version: int
    sight: bytes = b""


class QueryCursor(msgspec.Struct, frozen=True, array_like=True, tag="q"):
    """The last result that was seen, by a digest of what was in it."""

    digest: bytes


Natural = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Events that stand side by side in one partition."""

    partition: Natural
    first: Natural
    count: Annotated[int, msgspec.Meta(ge=1, lt=2**48)]


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Where the events of one request stand in the log: those that it repeats as well as those that were new."""

    stream: str
    generation: int
    spans: Annotated[tuple[Span, ...], msgspec.Meta(min_length=1)]


Cursor = StreamCursor | ViewCursor | QueryCursor
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Cursor] = msgspec.msgpack.Decoder(StreamCursor | ViewCursor | QueryCursor)
_ack_decoder = msgspec.msgpack.Decoder(Ack)


def stream_cursor(generation: int, offsets: Mapping[int, int]) -> str:
    return encode(StreamCursor(generation, dict(offsets)))


def view_cursor(generation: int, version: int, sight: bytes = b"") -> str:
    return encode(ViewCursor(generation, version, sight))


def narrowed(sight: bytes, *texts: str | None) -> bytes:
    """What is in sight behind one condition more of the app or the operator: a digest of all of them, in every process
    the same. A reader's own filter does not count: what it asks for is its own affair."""
    return blake2b(sight + msgspec.json.encode(texts), digest_size=SIGHT_BYTES).digest()


def of_part(text: str, *texts: str | None) -> str:
    """The cursor of a part of what a cursor is of."""
    cursor = decode(text)
    if not isinstance(cursor, ViewCursor):
        return text
    return view_cursor(cursor.generation, cursor.version, narrowed(cursor.sight, *texts))


def encode(cursor: Cursor) -> str:
    return _text(cursor)


def _text(value: Cursor) -> str:
    return _base64(_encoder.encode(value))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> Cursor:
    if len(text) > LENGTH_MAX:
        raise BadCursor("this cursor is too long to be one of ours")
    try:
        return _decoder.decode(_bytes(text))
    except _UNREADABLE:
        raise BadCursor(f"{text[:80]!r} is not a cursor; use one from an answer, or 'earliest' or 'latest'") from None


class AckSigner:
    """Turns acknowledgements into texts that only the owner of a key can make, and back: the encoded `Ack` and an
    HMAC-SHA256 of it. Thread-safe."""

    def __init__(self, key: bytes | None = None) -> None:
        """Without a key it has a random one: then it reads only what it signed itself."""
        self._key = secrets.token_bytes(32) if key is None else key

    def sign(self, ack: Ack) -> str:
        data = _encoder.encode(ack)
        return _base64(data + self._mac(data))

    def read(self, text: str) -> Ack:
        """Return the acknowledgement. Raises `NotFound`, with the same words, for one that is malformed, forged or
        altered."""
        try:
            signed = _bytes(text[:LENGTH_MAX])
            data, mac = signed[:-MAC_BYTES], signed[-MAC_BYTES:]
            # the decoder of base64 skips what it does not know: so the text must be as it would be written
            if hmac.compare_digest(self._mac(data), mac) and _base64(signed) == text:
                return _ack_decoder.decode(data)
        except _UNREADABLE:
            pass
        raise NotFound(f"{text[:80]!r} is no acknowledgement; use the `ack` of an answer")

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:MAC_BYTES]


_UNREADABLE = (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError)


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def source_positions(text: str) -> Positions:
    """What a ledger entry's `start` or `end` says: for each stream, the next offset of each partition.

    The text is the JSON of Spark's offsets: a list of `{"STREAM/PARTITION": offset}`, one for each source of the query.
    A stream that a query reads twice counts by the lower of the two.
    """
    found: Positions = {}
    for source in msgspec.json.decode(text, type=list[dict[str, int]]):
        for name, offset in source.items():
            stream, _, partition = name.rpartition("/")
            known = found.setdefault(stream, {})
            known[int(partition)] = min(offset, known.get(int(partition), offset))
    return found
