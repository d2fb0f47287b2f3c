"""Transfers a shard's output for a batch from the worker to the driver.

Small output goes through Spark, one row per payload. Large output goes through the outbox in the shard's store, and
Spark receives only its location. So a batch can emit any amount of output without Java or the driver holding it in
memory. The outbox need not be durable: if it is lost, the batch runs again and rewrites it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from penstock.handlers.contracts import OpenShard, ShardStore

INLINE_BYTES_MAX = 4 * 1024 * 1024
STORED = -2
"""Used instead of an output number, in a row that contains the location of the payloads."""


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """The position of an output's payload in a handler's outbox."""

    output: int
    start: int
    size: int


class StoredPayloads(msgspec.Struct, array_like=True, frozen=True):
    """The payloads in the outbox of one version of a handler shard."""

    generation: int
    version: int
    payloads: list[Payload]


class ShardOutbox:
    """Collects a handler shard's payloads, and returns the rows for the driver. Only large output is written to the
    store."""

    def __init__(self, store: ShardStore, generation: int, version: int) -> None:
        self._store, self._generation, self._version = store, generation, version
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._stored: list[Payload] = []

    def add(self, output: int, payload: bytes) -> None:
        self._held.append((output, payload))
        self._held_bytes += len(payload)
        if self._held_bytes > INLINE_BYTES_MAX:
            self._write()

    def rows(self) -> list[tuple[int, bytes]]:
        if not self._stored:
            return self._held
        self._write()
        stored = StoredPayloads(self._generation, self._version, self._stored)
        return [(STORED, msgspec.msgpack.encode(stored))]

    def _write(self) -> None:
        """Move the payloads from memory to the store. The first write by this object begins a new outbox."""
        payloads = [payload for _, payload in self._held]
        spans = self._store.append_outbox(self._version, payloads, begin=not self._stored)
        self._stored += [Payload(output, *span) for (output, _), span in zip(self._held, spans, strict=True)]
        self._held, self._held_bytes = [], 0


class ShardInbox:
    """The driver's side: the payloads from a batch's shards, by output and shard."""

    def __init__(self, rows: Iterable[tuple[int, int, bytes]], open_shard: OpenShard) -> None:
        self._open_shard = open_shard
        self._held: dict[int, dict[int, list[pa.Buffer]]] = {}
        self._outboxes: list[tuple[ShardStore, int]] = []
        for shard, output, payload in rows:
            if output == STORED:
                self._open(shard, msgspec.msgpack.decode(payload, type=StoredPayloads))
            else:
                self._put(shard, output, pa.py_buffer(payload))

    def _open(self, shard: int, stored: StoredPayloads) -> None:
        store = self._open_shard(stored.generation, shard)
        self._outboxes.append((store, stored.version))
        content = store.read_outbox(stored.version)
        for payload in stored.payloads:
            self._put(shard, payload.output, content.slice(payload.start, payload.size))

    def _put(self, shard: int, output: int, payload: pa.Buffer) -> None:
        self._held.setdefault(output, {}).setdefault(shard, []).append(payload)

    def pop(self, output: int) -> list[tuple[int, list[pa.Buffer]]]:
        """Remove and return an output's payloads by shard, in order."""
        return sorted(self._held.pop(output, {}).items())

    def __bool__(self) -> bool:
        return bool(self._held)

    def clear(self) -> None:
        """Delete the outboxes after the batch is done."""
        for store, version in self._outboxes:
            store.drop_outbox(version)
