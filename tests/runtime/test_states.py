"""The state of handlers' keys for readers outside the engine, and the bound on its memory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from penstock.app.declared import Handler
from penstock.core.columns import partition_of
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.core.shapes import shape_of
from penstock.handlers.contracts import HandledShard
from penstock.handlers.shard import NO_VERSION, Codec, KeyState, Shard, ShardChanges
from penstock.queue import EmbeddedLog
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.states import HandlerStates, ShardCache
from penstock.store import HandlerLedger, ShardFiles
from tests.collect.support import in_loop
from tests.runtime.guarded import Reading, Seen, make_app

SHARDS = 4
KEYS = [f"k{number}" for number in range(40)]
HANDLER = make_app().handlers[0]


class Engine:
    """Writes the state of a handler as the engine does, and returns the expected state."""

    def __init__(self, root: Path, handler: Handler = HANDLER) -> None:
        self.handler = handler
        self.directory = DataDirectory(root)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams, disk_reserve_bytes=0)
        self.log.declare(StreamSpec("a", event_schema(Reading), 1))
        path = self.directory.handler_ledger(handler.name)
        self._ledger = HandlerLedger(path, SHARDS, '[{"a/0": 0}]', shape_of(Seen))
        self._codec = Codec(Seen)
        self._shards = {number: Shard() for number in range(SHARDS)}
        self._versions = dict.fromkeys(range(SHARDS), NO_VERSION)
        self.counts: dict[str, int] = {}

    def files(self, number: int) -> ShardFiles:
        folder = self.directory.handler_state(self.handler.name, self._ledger.state.generation)
        return ShardFiles(folder / str(number), self.handler.name, number)

    def count(self, *keys: str) -> None:
        """Commit one batch in which each of these keys is counted once more."""
        self.counts |= {key: self.counts.get(key, 0) + 1 for key in keys}
        touched: dict[int, HandledShard] = {}
        for number in {partition_of(key, SHARDS) for key in keys}:
            records = {
                key: self._codec.seal(key, KeyState(Seen(count=self.counts[key])), None)
                for key in keys
                if partition_of(key, SHARDS) == number
            }
            shard, base, changes = self._shards[number], self._versions[number], ShardChanges(records, {}, 0)
            shard.apply(changes)
            self._versions[number] = base + 1
            self.files(number).write_delta(base + 1, base, changes, shard.digest)
            touched[number] = HandledShard.of(shard, base + 1)
        shards = self._ledger.state.shards | touched
        self._ledger._put(msgspec.structs.replace(self._ledger.state, shards=shards))

    def renew(self) -> None:
        """Restart all state at 1, in files of the next generation, as a rebuild does."""
        keys, self.counts = list(self.counts), {}
        self._shards = {number: Shard() for number in range(SHARDS)}
        self._versions = dict.fromkeys(range(SHARDS), NO_VERSION)
        state = self._ledger.state
        self._ledger._put(msgspec.structs.replace(state, shards={}, generation=state.generation + 1))
        self.count(*keys)

    def states(self, cache: ShardCache) -> HandlerStates:
        return HandlerStates(self.handler, EmbeddedStorage(self.directory), self.log, cache)

    def shard_bytes(self, number: int) -> int:
        return self._shards[number].size

    def close(self) -> None:
        self._ledger.close()
        self.log.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.close()


async def shown(states: HandlerStates, key: str) -> int:
    content = await states.get(key)
    return 0 if content is None else int(json.loads(content)["state"]["count"])


def key_of(number: int) -> str:
    """A key in this shard."""
    return next(key for key in KEYS if partition_of(key, SHARDS) == number)


@pytest.mark.parametrize("shards_held", [0, 1, 2.5, 100])
@in_loop
async def test_answers_are_right_and_memory_is_bounded_whatever_is_evicted(engine: Engine, shards_held: float) -> None:
    """The engine continues, and replaces all state now and then."""
    engine.count(*KEYS)
    largest = max(map(engine.shard_bytes, range(SHARDS)))
    cache = ShardCache(int(largest * shards_held))
    states, chance = engine.states(cache), random.Random(5)
    for number in range(300):
        if number % 7 == 0:
            engine.count(*chance.sample(KEYS, 3))
        if number % 90 == 89:
            engine.renew()
        key = chance.choice([*KEYS, "unknown"])
        assert await shown(states, key) == engine.counts.get(key, 0)
        assert cache.size <= largest * shards_held
    assert (cache.size > 0) == (shards_held > 0)
    cache.close()


@in_loop
async def test_the_least_recently_read_shard_goes_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.count(*KEYS)
    loaded: list[int] = []
    load = ShardFiles.load

    def noted(files: ShardFiles, version: int) -> Shard:
        loaded.append(files.shard)
        return load(files, version)

    def caught_up(files: ShardFiles, shard: Shard, held: int, version: int) -> int | None:
        return None if held == NO_VERSION else 0

    monkeypatch.setattr(ShardFiles, "load", noted)
    monkeypatch.setattr(ShardFiles, "catch_up", caught_up)
    cache = ShardCache(sum(map(engine.shard_bytes, (0, 1, 2, 3))) - 1)  # three of the four
    states = engine.states(cache)
    for number in (0, 1, 2, 0, 3, 0, 2):
        assert await shown(states, key_of(number)) == 1
    assert loaded == [0, 1, 2, 3], "1 had to go for 3"
    await shown(states, key_of(1))
    assert loaded == [0, 1, 2, 3, 1]
    cache.close()


@in_loop
async def test_the_bound_is_one_for_all_handlers(engine: Engine, tmp_path: Path) -> None:
    """Nothing held for one is ever shown for another."""
    other = Engine(tmp_path / "other", replace(HANDLER, name="other"))
    engine.count(*KEYS)
    other.count(*KEYS)
    other.count(*KEYS)
    most = sum(map(engine.shard_bytes, range(SHARDS)))
    cache = ShardCache(most)
    for _ in range(2):
        for expected, owner in enumerate((engine, other), 1):
            states = owner.states(cache)
            for number in range(SHARDS):
                assert await shown(states, key_of(number)) == expected
                assert cache.size <= most
    cache.close()
    other.close()


def test_all_keys_are_listed_though_nothing_is_held(engine: Engine) -> None:
    engine.count(*KEYS)
    cache = ShardCache(0)
    states = engine.states(cache)
    assert sorted(json.loads(line)["key"] for line in states.all()) == sorted(KEYS)
    assert cache.size == 0
