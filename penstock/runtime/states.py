"""The state of a handler's keys, for readers outside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec

from penstock.columns import place
from penstock.contracts import LogReader
from penstock.cursor import source_positions, stream_cursor
from penstock.declared import Handler
from penstock.errors import Busy, Damaged
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


class HandlerStates:
    """The state of a handler's keys as others may see it: that of the last committed batch. Safe for threads."""

    def __init__(self, handler: Handler, directory: DataDirectory, log: LogReader) -> None:
        self._handler = handler
        self._ledger = directory.handler_ledger(handler.name)
        self._open = ShardOpener(directory, handler.name)
        self._log = log
        self._codec, self._shape = Codec(handler.state), shape_of(handler.state)
        self._held: dict[int, tuple[int, Shard]] = {}
        self._generation = 0
        self._lock = Lock()

    async def get(self, key: str) -> bytes | None:
        """The state of a key, its timers and the cursor they stand at, as a JSON object; None if it has no state."""
        return await asyncio.to_thread(self._get, key)

    def all(self, key: str | None = None) -> Iterator[bytes]:
        """The state of every key, or of the one that is given: JSON objects with the key, its state and its timers."""
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
        with self._lock:
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
        if handled.generation != self._generation:
            self._held, self._generation = {}, handled.generation
        files = self._open(handled.generation, number)
        held, shard = self._held.pop(number, (NOTHING, Shard()))
        if held > version or (held < version and files.catch_up(shard, held, version) is None):
            shard = files.load(version)
        self._held[number] = (version, shard)
        return shard
