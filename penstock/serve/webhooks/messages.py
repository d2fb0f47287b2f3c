"""From deliveries of a channel to messages of a webhook: split by key, each with its bytes.

A message is `{"type", "timestamp", "stream" or "view", "cursor", "data"}`; `data` is what other transports deliver.
With `batch` 1 there is one event or row in each, and its key is its lane. With more there are several, in order, and
all go one after the other: one lane for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.contracts import Delivery
from penstock.serve.channels.pieces import join
from penstock.serve.webhooks.model import Message

SNAPSHOT_ROWS_MAX = 1_000
MESSAGE_BYTES_MAX = 256 * 1024
"""A message of several events or rows ends when it has so many bytes; one event may be larger."""
ONE_LANE = b"*"
BATCH_MAX = 1_000
_LANE_BYTES, _DIGEST_BYTES = 12, 6


class _Data(msgspec.Struct):
    events: list[msgspec.Raw] = []
    upserts: list[msgspec.Raw] = []
    deletes: list[msgspec.Raw] = []
    rows: list[msgspec.Raw] = []


_decode = msgspec.json.Decoder(_Data).decode
Made = tuple[Message, bytes]


@dataclass(frozen=True)
class Splitter:
    """How the deliveries of one webhook become messages. `key` are the columns whose values make a lane; without them,
    all is one lane."""

    kind: str
    of: str
    key: tuple[str, ...] = ()
    batch: int = 1

    def split(self, delivery: Delivery, first: int, now: datetime, before: str) -> list[Made]:
        """The messages of a delivery, numbered from `first`. Marks that carry no data give none.

        Only the last one has the cursor of the delivery. The others have the one `before` it: who goes on from there
        misses nothing.
        """
        pieces = list(self._pieces(delivery))
        head, last = self._head(delivery, now, before), self._head(delivery, now, delivery.cursor)
        heads = [head] * (len(pieces) - 1) + [last]
        return [
            self._message(number, lane, start + data + b"}")
            for number, (start, (lane, data)) in enumerate(zip(heads, pieces, strict=False), first)
        ]

    def _pieces(self, delivery: Delivery) -> Iterator[tuple[bytes | None, bytes]]:
        if delivery.kind == "reset":
            yield None, delivery.data
        elif delivery.kind == "snapshot":
            parts = list(_chunks(_decode(delivery.data).rows, SNAPSHOT_ROWS_MAX)) or [[]]
            for number, rows in enumerate(parts, 1):
                yield None, b'{"rows":%b,"part":%d,"parts":%d}' % (join([*map(bytes, rows)]), number, len(parts))
        elif delivery.kind == "change" and self.kind == "stream":
            yield from self._events(_decode(delivery.data).events)
        elif delivery.kind == "change":
            yield from self._rows(_decode(delivery.data))

    def _events(self, events: Sequence[msgspec.Raw]) -> Iterator[tuple[bytes, bytes]]:
        for chunk in _chunks(events, self.batch):
            yield self._lane(chunk[0]), b'{"events":%b}' % join([*map(bytes, chunk)])

    def _rows(self, data: _Data) -> Iterator[tuple[bytes, bytes]]:
        rows = [(False, row) for row in data.upserts] + [(True, row) for row in data.deletes]
        for chunk in _chunks(rows, self.batch):
            upserts = join([bytes(row) for deleted, row in chunk if not deleted])
            deletes = join([bytes(row) for deleted, row in chunk if deleted])
            yield self._lane(chunk[0][1]), b'{"upserts":%b,"deletes":%b}' % (upserts, deletes)

    def _lane(self, item: msgspec.Raw) -> bytes:
        if self.batch > 1 or not self.key:
            return ONE_LANE
        found: dict[str, Any] = msgspec.json.decode(item)
        if any(column not in found for column in self.key):
            return ONE_LANE
        values = msgspec.json.encode([found[column] for column in self.key])
        return blake2b(values, digest_size=_LANE_BYTES).digest()

    def _head(self, delivery: Delivery, now: datetime, cursor: str) -> bytes:
        known = {
            "type": f"{self.kind}.{delivery.kind}",
            "timestamp": now.astimezone(UTC),
            self.kind: self.of,
            "cursor": cursor,
        }
        return msgspec.json.encode(known)[:-1] + b',"data":'

    def _message(self, number: int, lane: bytes | None, body: bytes) -> Made:
        digest = blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()
        return Message(number, digest, len(body), lane), body


def _chunks(items: Sequence[Any], most: int) -> Iterator[list[Any]]:
    """Runs of at most so many, each ended early once it has its bytes."""
    chunk, size = list[Any](), 0
    for item in items:
        chunk.append(item)
        size += memoryview(item[1] if isinstance(item, tuple) else item).nbytes
        if len(chunk) >= most or size >= MESSAGE_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def lane_key(kind: str, key: tuple[str, ...], select: str | None) -> tuple[str, ...]:
    """The columns that make a lane, as far as they come through. A view's key always does. A stream's does if `select`
    names it as it is; if it is made of something else, the order of all is the one that is right for each."""
    if kind == "view" or select is None:
        return key
    chosen = {_unquoted(each) for each in _items(select)}
    return key if all(column in chosen for column in key) else ()


def _items(select: str) -> list[str]:
    """The items of a select list: split at commas that stand in no bracket and no text."""
    found, depth, quote = [""], 0, ""
    for letter in select:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        if letter == "," and not quote and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def _unquoted(name: str) -> str:
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in '"`' else name
