"""Reads the state of a handler's keys, outside the engine."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from penstock.app.declared import Handler
from penstock.core.columns import key_text, partition_of
from penstock.core.contracts import LogReader
from penstock.core.cursor import source_positions, stream_cursor
from penstock.core.errors import BadParameter, Busy, Damaged
from penstock.core.shapes import shape_of
from penstock.core.state_value import shown
from penstock.core.times import from_micros
from penstock.handlers.contracts import HandlerLedgerEntry
from penstock.handlers.shard import NO_VERSION, Codec, Shard
from penstock.runtime.storage import Storage

TRIES = 3


def asked_key(handler: Handler, text: str) -> str:
    """Return the requested key in the form that the handler writes. A key with several fields is a JSON array of their
    values, which may contain spaces and unquoted numbers. Raises `BadParameter` for a malformed array."""
    names = handler.key_of(handler.inputs[0])
    if len(names) == 1:
        return text
    try:
        given = msgspec.json.decode(text, type=list[str | int | bool])
    except msgspec.MsgspecError:
        given = []
    if len(given) != len(names):
        example = json.dumps([f"a {name}" for name in names])
        raise BadParameter(
            f"the key of {handler.name} has the fields {', '.join(names)}; pass a JSON array of their values, such as "
            f"{example}"
        )
    return key_text(given) or ""


class ShardCache:
    """Caches the shards of all handlers in up to `bytes_max` of memory; the least recently read shards are dropped
    first. A shard larger than that is not cached, so each read loads it again.

    Not thread-safe: in an event loop, use it in `thread`, which runs one load at a time and keeps slow loads off the
    shared threads.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[str, int], tuple[int, int, Shard]] = OrderedDict()
        self.thread = ThreadPoolExecutor(1, "states")

    @property
    def size(self) -> int:
        return sum(shard.size for _, _, shard in self._held.values())

    def take(self, handler: str, generation: int, number: int) -> tuple[int, Shard]:
        """Remove a handler's shard from the cache and return it with its version, or return an empty shard if the cache
        has no shard from this generation."""
        held, version, shard = self._held.pop((handler, number), (generation, NO_VERSION, Shard()))
        return (version, shard) if held == generation else (NO_VERSION, Shard())

    def put(self, handler: str, generation: int, number: int, version: int, shard: Shard) -> None:
        self._held[handler, number] = generation, version, shard
        size = self.size
        while size > self._bytes_max:
            _, (_, _, oldest) = self._held.popitem(last=False)
            size -= oldest.size

    def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)


class HandlerStates:
    """The state of a handler's keys as of its last committed batch. No other state is visible outside the handler."""

    def __init__(self, handler: Handler, storage: Storage, log: LogReader, cache: ShardCache) -> None:
        self._handler = handler
        self._storage = storage
        self._log = log
        self._codec, self._shape = Codec(handler.state), shape_of(handler.state)
        self._cache = cache

    async def get(self, key: str) -> bytes | None:
        """Return a handler key's state, its timers and the cursor after them, as a JSON object, or None if the key has
        no state."""
        return await asyncio.get_running_loop().run_in_executor(
            self._cache.thread, self._get, asked_key(self._handler, key)
        )

    def all(self, key: str | None = None) -> Iterator[bytes]:
        """Yield the state of every key, or only of `key`, as JSON objects with the key, its state and its timers.
        Blocks; must not run at the same time as `get`."""
        key = None if key is None else asked_key(self._handler, key)
        handled = self._read()
        for number in sorted(handled.shards) if handled is not None else ():
            assert handled is not None
            for record_key, record in sorted(self._shard(number, handled).records.items()):
                if key in (None, record_key):
                    yield msgspec.json.encode({"key": record_key} | self._shown(record), enc_hook=shown)

    def _read(self) -> HandlerLedgerEntry | None:
        handled = self._storage.handled(self._handler.name)
        if handled is not None and handled.shape != self._shape:
            raise Busy(
                f"the state of {self._handler.name} was stored with a different version of its class; it can be read "
                "once the engine is ready"
            )
        return handled

    def _shown(self, record: bytes) -> dict[str, Any]:
        entry = self._codec.decode(record)
        timers = {name: from_micros(at) for name, at in (entry.timers or {}).items()}
        return {"state": entry.state, "timers": timers}

    def _get(self, key: str) -> bytes | None:
        handled, record = self._find(key, TRIES)
        if handled is None or record is None:
            return None
        first = self._handler.inputs[0]
        cursor = stream_cursor(self._log.generation(first), source_positions(handled.end)[first])
        return msgspec.json.encode(self._shown(record) | {"cursor": cursor}, enc_hook=shown)

    def _find(self, key: str, tries: int) -> tuple[HandlerLedgerEntry | None, bytes | None]:
        """Return the ledger and the key's record. A file can disappear during the search, when newer files replace it;
        the search then starts again."""
        handled = self._read()
        number = partition_of(key, handled.count) if handled is not None else 0
        if handled is None or number not in handled.shards:
            return handled, None
        try:
            return handled, self._shard(number, handled).records.get(key)
        except Damaged:
            if tries <= 1:
                raise
            return self._find(key, tries - 1)

    def _shard(self, number: int, handled: HandlerLedgerEntry) -> Shard:
        """Return a handler's shard as it was when the ledger was read. A cached shard is brought up to date."""
        version = handled.shards[number].version
        store = self._storage.shard(self._handler.name, handled.generation, number)
        held, shard = self._cache.take(self._handler.name, handled.generation, number)
        if held > version or (held < version and store.catch_up(shard, held, version) is None):
            shard = store.load(version)
        self._cache.put(self._handler.name, handled.generation, number, version, shard)
        return shard
