"""Conversion of a channel's deliveries to a webhook's messages.

A message is `{"type", "timestamp", "stream" or "view", "cursor", "data"}`, with the same `data` as on other transports.
If `batch` is 1, each message contains one event or row, and the key of that event or row determines the lane. If
`batch` is larger, each message contains several events or rows, in order, and all messages share one lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.core.contracts import Delivery
from penstock.serve.channels.stream_reader import join
from penstock.serve.webhooks.model import WebhookMessage

SNAPSHOT_ROWS_MAX = 1_000
MESSAGE_BYTES_MAX = 256 * 1024
"""Size at which a message with several events or rows ends. A message with a single event can be larger."""
ONE_LANE = b"*"
BATCH_MAX = 1_000
_LANE_BYTES, _DIGEST_BYTES = 12, 6


class _Data(msgspec.Struct):
    events: list[msgspec.Raw] = []
    upserts: list[msgspec.Raw] = []
    deletes: list[msgspec.Raw] = []
    rows: list[msgspec.Raw] = []


_decode = msgspec.json.Decoder(_Data).decode
Made = tuple[WebhookMessage, bytes]


@dataclass(frozen=True)
class Splitter:
    """Splits the deliveries of one webhook into messages.

    `key` names the columns that determine the lane. Without a key, all messages share one lane.
    """

    kind: str
    of: str
    key: tuple[str, ...] = ()
    batch: int = 1

    def split(self, delivery: Delivery, first: int, now: datetime, before: str) -> list[Made]:
        """Return a delivery's webhook messages, numbered from `first`. Deliveries without data have no messages.

        Only the last message has the delivery's cursor. All other messages have the cursor `before` the delivery, so
        resuming from any of them misses nothing.
        """
        pieces = list(self._message_bodies(delivery))
        head, last = self._message_head(delivery, now, before), self._message_head(delivery, now, delivery.cursor)
        heads = [head] * (len(pieces) - 1) + [last]
        return [
            self._message(number, lane, start + data + b"}")
            for number, (start, (lane, data)) in enumerate(zip(heads, pieces, strict=False), first)
        ]

    def _message_bodies(self, delivery: Delivery) -> Iterator[tuple[bytes | None, bytes]]:
        if delivery.kind == "reset":
            yield None, delivery.data
        elif delivery.kind == "snapshot":
            parts = list(_message_chunks(_decode(delivery.data).rows, SNAPSHOT_ROWS_MAX)) or [[]]
            for number, rows in enumerate(parts, 1):
                yield None, b'{"rows":%b,"part":%d,"parts":%d}' % (join([*map(bytes, rows)]), number, len(parts))
        elif delivery.kind == "change" and self.kind == "stream":
            yield from self._event_bodies(_decode(delivery.data).events)
        elif delivery.kind == "change":
            yield from self._change_bodies(_decode(delivery.data))

    def _event_bodies(self, events: Sequence[msgspec.Raw]) -> Iterator[tuple[bytes, bytes]]:
        for chunk in _message_chunks(events, self.batch):
            yield self._lane(chunk[0]), b'{"events":%b}' % join([*map(bytes, chunk)])

    def _change_bodies(self, data: _Data) -> Iterator[tuple[bytes, bytes]]:
        rows = [(False, row) for row in data.upserts] + [(True, row) for row in data.deletes]
        for chunk in _message_chunks(rows, self.batch):
            upserts = join([bytes(row) for deleted, row in chunk if not deleted])
            deletes = join([bytes(row) for deleted, row in chunk if deleted])
            yield self._lane(chunk[0][1]), b'{"upserts":%b,"deletes":%b}' % (upserts, deletes)

    def _lane(self, item: msgspec.Raw) -> bytes:
        if self.batch > 1 or not self.key:
            return ONE_LANE
        row: dict[str, Any] = msgspec.json.decode(item)
        if any(column not in row for column in self.key):
            return ONE_LANE
        values = msgspec.json.encode([row[column] for column in self.key])
        return blake2b(values, digest_size=_LANE_BYTES).digest()

    def _message_head(self, delivery: Delivery, now: datetime, cursor: str) -> bytes:
        known = {
            "type": f"{self.kind}.{delivery.kind}",
            "timestamp": now.astimezone(UTC),
            self.kind: self.of,
            "cursor": cursor,
        }
        return msgspec.json.encode(known)[:-1] + b',"data":'

    def _message(self, number: int, lane: bytes | None, body: bytes) -> Made:
        digest = blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()
        return WebhookMessage(number, digest, len(body), lane), body


def _message_chunks(items: Sequence[Any], most: int) -> Iterator[list[Any]]:
    """Yield lists of at most `most` items. A list also ends when its items reach `MESSAGE_BYTES_MAX`."""
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
    """Return the key columns that determine the lane of a message; none if the selection drops some of them.

    A view's key is always kept. A stream's key is kept if `select` lists its columns unchanged. Without key columns, a
    single lane preserves the order of each key.
    """
    if kind == "view" or select is None:
        return key
    chosen = {_unquoted_column(column) for column in _select_items(select)}
    return key if all(column in chosen for column in key) else ()


def _select_items(select: str) -> list[str]:
    """Split a webhook's select list at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
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
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _unquoted_column(name: str) -> str:
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in '"`' else name
