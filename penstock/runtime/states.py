"""The state of a handler's keys, for readers outside the engine."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.columns import key_text, place
from penstock.contracts import LogReader
from penstock.cursor import source_positions, stream_cursor
from penstock.declared import Handler
from penstock.errors import BadParameter, Busy, Damaged
from penstock.evolution import shape_of
from penstock.packed import shown
from penstock.rows import from_micros
from penstock.runtime.directory import DataDirectory
from penstock.shard import NOTHING, Codec, Shard
from penstock.store import Handled, ShardFiles, read_handled

TRIES = 3


@dataclass(frozen=True)
class ShardOpener:
    """Opens the files of a handler's shards."""

    directory: DataDirectory
    handler: str

    def __call__(self, generation: int, shard: int) -> ShardFiles:
        folder = self.directory.handler_state(self.handler, generation)
        return ShardFiles(folder / str(shard), self.handler, shard)


def asked_key(handler: Handler, text: str) -> str:
    """The key that a person asked for, as the handler writes it: of several fields, a JSON array of their values, which
    may have blanks between them and numbers without quotes. Raises BadParameter if it is no such array."""
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
            f"the key of {handler.name} has the fields {', '.join(names)}; write a JSON array of their values, such as "
            f"{example}"
        )
    return key_text(given) or ""


class ShardCache:
    """Shards of all handlers that were read, up to `bytes_max` in memory: the least recently read go first. One that is
    larger by itself is not held, so that each read loads it again.

    Not thread-safe: what belongs to an event loop uses it in `thread`, which also keeps slow loads, of which there is
    one at a time, off the threads that others share.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[str, int], tuple[int, int, Shard]] = OrderedDict()
        self.thread = ThreadPoolExecutor(1, "states")

    @property
    def size(self) -> int:
        return sum(shard.size for _, _, shard in self._held.values())

    def take(self, handler: str, generation: int, number: int) -> tuple[int, Shard]:
        """Remove a shard and return it with its version; an empty one if none is held of this generation."""
        held, version, shard = self._held.pop((handler, number), (generation, NOTHING, Shard()))
        return (version, shard) if held == generation else (NOTHING, Shard())

    def put(self, handler: str, generation: int, number: int, version: int, shard: Shard) -> None:
        self._held[handler, number] = generation, version, shard
        size = self.size
        while size > self._bytes_max:
            _, (_, _, oldest) = self._held.popitem(last=False)
            size -= oldest.size

    def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)


class HandlerStates:
    """The state of a handler's keys as others may see it: that of the last committed batch."""

    def __init__(self, handler: Handler, directory: DataDirectory, log: LogReader, cache: ShardCache) -> None:
        self._handler = handler
        self._ledger = directory.handler_ledger(handler.name)
        self._open = ShardOpener(directory, handler.name)
        self._log = log
        self._codec, self._shape = Codec(handler.state), shape_of(handler.state)
        self._cache = cache

    async def get(self, key: str) -> bytes | None:
        """The state of a key, its timers and the cursor they stand at, as a JSON object; None if it has no state."""
        return await asyncio.get_running_loop().run_in_executor(
            self._cache.thread, self._get, asked_key(self._handler, key)
        )

    def all(self, key: str | None = None) -> Iterator[bytes]:
        """The state of every key, or of the one that is given: JSON objects with the key, its state and its timers.
        Blocks; not beside `get`."""
        key = None if key is None else asked_key(self._handler, key)
        handled = self._read()
        for number in sorted(handled.shards) if handled is not None else ():
            assert handled is not None
            for each, record in sorted(self._shard(number, handled).records.items()):
                if key in (None, each):
                    yield msgspec.json.encode({"key": each} | self._shown(record), enc_hook=shown)

    def _read(self) -> Handled | None:
        handled = read_handled(self._ledger)
        if handled is not None and handled.shape != self._shape:
            raise Busy(
                f"the state of {self._handler.name} is of another version of its class until the engine is ready"
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

    def _find(self, key: str, tries: int) -> tuple[Handled | None, bytes | None]:
        """The ledger and the key's record. A file may go while it is being looked for, as newer ones take its place."""
        handled = self._read()
        number = place(key, handled.count) if handled is not None else 0
        if handled is None or number not in handled.shards:
            return handled, None
        try:
            return handled, self._shard(number, handled).records.get(key)
        except Damaged:
            if tries <= 1:
                raise
            return self._find(key, tries - 1)

    def _shard(self, number: int, handled: Handled) -> Shard:
        """A shard as it was when the ledger was read; what is held of it is brought up to date."""
        version = handled.shards[number].version
        files = self._open(handled.generation, number)
        held, shard = self._cache.take(self._handler.name, handled.generation, number)
        if held > version or (held < version and files.catch_up(shard, held, version) is None):
            shard = files.load(version)
        self._cache.put(self._handler.name, handled.generation, number, version, shard)
        return shard
