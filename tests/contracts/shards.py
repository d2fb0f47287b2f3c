"""Promises of a store of shards: `ShardContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import pytest

from penstock.core.errors import Damaged
from penstock.handlers.contracts import ShardStore
from penstock.handlers.machine import Machine
from penstock.handlers.rows import Inputs, LogPosition
from penstock.handlers.shard import NO_VERSION, Shard
from tests.contracts.processes import run_apart
from tests.handlers.fleet import Fix, geofence

VEHICLES = 5
PAYLOADS = [b"one", b"", b"three" * 100]
Part = Literal["delta", "snapshot"]


class ShardHome(Protocol):
    """The storage of shard 0 of the handler `geofence`. It outlives what is opened on it, and can be pickled."""

    def open(self) -> ShardStore:
        """Open it, as any process would."""

    def damage(self, part: Part, version: int) -> Iterator[None]:
        """Damage what is stored of a version in one way after the other; in the end it is whole again."""

    def lose(self, part: Part, version: int) -> None:
        """Take away what is stored of a version."""


def batch(number: int, size: int = 20) -> Inputs:
    keys = [f"v{(number * size + row) % VEHICLES}" for row in range(size)]
    trouble = "quiet" if number % 2 else None  # every other batch leaves the timers where they are
    events = [
        Fix(fix=f"{number}-{row}", vehicle=key, x=float(row % 3), trouble=trouble) for row, key in enumerate(keys)
    ]
    times = [number * 1000 + row for row in range(size)]
    return Inputs.of(keys, events, times, lambda row: None, lambda row: LogPosition("fixes", 0, 0, number * size + row))


def write(store: ShardStore, versions: int, snapshots: tuple[int, ...] = ()) -> list[Shard]:
    """Run batches, write a delta of each; returns the shard as of each version."""
    machine, shard, kept = Machine(geofence), Shard(), []
    for version in range(versions):
        changes = machine.run(shard, batch(version)).changes
        shard.apply(changes)
        store.write_delta(version, version - 1, changes, shard.digest)
        kept.append(Shard(dict(shard.records), dict(shard.due), shard.digest, shard.time, shard.size))
        if version in snapshots:
            store.write_snapshot(version, shard, {"fixes": {0: (version + 1) * 20}})
    return kept


def same(one: Shard, other: Shard) -> bool:
    return (one.records, one.due, one.digest, one.time) == (other.records, other.due, other.digest, other.time)


def write_and_die(home: ShardHome) -> None:
    """Write three deltas and a snapshot, and end as soon as they are written."""
    write(home.open(), 3, snapshots=(1,))
    os.kill(os.getpid(), signal.SIGKILL)


class ShardContract:
    """Promises of every `ShardStore`: a shard is read as it was written, at any version, or refused."""

    def fresh(self, folder: Path) -> ShardHome:
        """Return the place of a shard without state."""
        raise NotImplementedError("each implementation has tests that inherit these")

    @pytest.fixture
    def home(self, tmp_path: Path) -> ShardHome:
        return self.fresh(tmp_path)

    @pytest.fixture
    def store(self, home: ShardHome) -> ShardStore:
        return home.open()

    @pytest.mark.parametrize("snapshots", [(), (2,), (1, 3)])
    def test_a_shard_is_loaded_at_any_version(
        self, home: ShardHome, store: ShardStore, snapshots: tuple[int, ...]
    ) -> None:
        kept = write(store, 5, snapshots)
        for opened in (store, home.open()):
            for version, expected in enumerate(kept):
                assert same(opened.load(version), expected)
            assert opened.load(NO_VERSION) == Shard()

    def test_what_was_written_is_there_after_a_kill(self, home: ShardHome, tmp_path: Path) -> None:
        assert run_apart("none", write_and_die, home) == -signal.SIGKILL
        for version, expected in enumerate(write(self.fresh(tmp_path / "other").open(), 3)):
            assert same(home.open().load(version), expected)

    def test_a_delta_that_is_written_again_replaces_the_first_one(self, store: ShardStore) -> None:
        """As after a crash before the ledger had its version."""
        (shard, _) = write(store, 2)
        changes = Machine(geofence).run(shard, batch(7)).changes
        shard.apply(changes)
        assert store.write_delta(1, 0, changes, shard.digest) > 0
        assert same(store.load(1), shard)

    def test_a_delta_may_pass_over_versions_that_changed_nothing(self, store: ShardStore) -> None:
        (shard,) = write(store, 1)
        changes = Machine(geofence).run(shard, batch(1)).changes
        shard.apply(changes)
        store.write_delta(9, 0, changes, shard.digest)
        assert same(store.load(9), shard)
        held = store.load(0)
        assert store.catch_up(held, 0, 9) == 1
        assert same(held, shard)

    def test_a_delta_builds_on_an_earlier_version_only(self, store: ShardStore) -> None:
        """A chain that leads to itself could be followed without end."""
        kept = write(store, 2)
        empty = Machine(geofence).run(Shard(), batch(0)).changes
        with pytest.raises(ValueError, match="version 1 of a shard cannot build on version 1"):
            store.write_delta(1, 1, empty, 0)
        assert same(store.load(1), kept[1])

    def test_a_shard_catches_up_by_deltas(self, store: ShardStore) -> None:
        kept = write(store, 5)
        shard = store.load(1)
        assert store.catch_up(shard, 1, 4) == 3
        assert same(shard, kept[4])

    def test_a_shard_that_cannot_catch_up_is_left_as_it_is(self, home: ShardHome, store: ShardStore) -> None:
        kept = write(store, 5)
        home.lose("delta", 3)
        shard = store.load(1)
        assert store.catch_up(shard, 1, 4) is None
        assert same(shard, kept[1])

    def test_a_version_that_is_not_there_is_refused(self, home: ShardHome, store: ShardStore) -> None:
        write(store, 5)
        home.lose("delta", 3)
        for version in (3, 4, 5):
            with pytest.raises(Damaged):
                store.load(version)

    @pytest.mark.parametrize(("part", "version"), [("delta", 0), ("snapshot", 1)])
    def test_damage_is_noticed(self, home: ShardHome, store: ShardStore, part: Part, version: int) -> None:
        kept = write(store, 2, snapshots=(1,))
        for _ in home.damage(part, version):
            with pytest.raises(Damaged, match="damaged"):
                store.load(version)
        assert same(store.load(version), kept[version])

    def test_a_timer_that_waits_comes_back_with_the_state(self, store: ShardStore) -> None:
        kept = write(store, 3)
        assert store.load(2).next_due() == min(kept[2].due.values())

    def test_snapshots_tell_where_the_log_goes_on(self, store: ShardStore) -> None:
        """The newest first; none above the version that counts."""
        kept = write(store, 5, snapshots=(1, 3, 4))
        snapshots = list(store.snapshots(3))
        assert [start for _, start in snapshots] == [{"fixes": {0: 80}}, {"fixes": {0: 40}}]
        assert same(snapshots[0][0], kept[3])
        assert same(snapshots[1][0], kept[1])

    def test_after_a_snapshot_the_state_can_still_be_had_from_the_one_before(
        self, home: ShardHome, store: ShardStore
    ) -> None:
        kept = write(store, 7, snapshots=(1, 3, 5))
        store.drop_before(5)
        assert len(list(store.snapshots(6))) == 2
        with pytest.raises(Damaged):
            store.load(2)
        for version in (3, 4, 5, 6):
            assert same(store.load(version), kept[version])
        home.lose("snapshot", 5)
        assert same(store.load(6), kept[6])

    def test_a_snapshot_is_due_after_many_deltas(self, store: ShardStore) -> None:
        machine, shard, version = Machine(geofence), Shard(), 0
        while not (version and store.snapshot_is_due(version - 1)):
            assert version < 10_000, "a restart would read all of them"
            changes = machine.run(shard, batch(version, 1)).changes
            shard.apply(changes)
            store.write_delta(version, version - 1, changes, shard.digest)
            version += 1
        store.write_snapshot(version - 1, shard, {})
        assert not store.snapshot_is_due(version - 1)

    def test_what_a_handler_begins_with_is_kept_for_good(self, store: ShardStore) -> None:
        assert store.origin() == Shard()
        (first, *_) = write(store, 1)
        store.write_origin(0, first, {})
        write(store, 5, snapshots=(2, 3, 4))
        store.drop_before(4)
        assert all(start != {} for _, start in store.snapshots(4)), "the first snapshot is still there"
        assert same(store.origin(), first)

    def test_payloads_are_read_from_the_outbox_of_their_batch(self, home: ShardHome, store: ShardStore) -> None:
        spans = store.append_outbox(7, PAYLOADS, begin=True)
        spans += store.append_outbox(7, PAYLOADS, begin=False)
        store.append_outbox(8, [b"of another batch"], begin=True)
        content = home.open().read_outbox(7)
        assert [content.slice(start, size).to_pybytes() for start, size in spans] == PAYLOADS * 2

    def test_an_outbox_that_begins_again_has_nothing_of_an_earlier_try(self, store: ShardStore) -> None:
        store.append_outbox(7, [b"of an earlier try"] * 10, begin=True)
        spans = store.append_outbox(7, PAYLOADS, begin=True)
        content = store.read_outbox(7)
        assert [content.slice(start, size).to_pybytes() for start, size in spans] == PAYLOADS
        assert b"earlier" not in content.to_pybytes()

    def test_what_was_read_of_an_outbox_stays_readable_when_it_is_dropped(self, store: ShardStore) -> None:
        spans = store.append_outbox(7, PAYLOADS, begin=True)
        content = store.read_outbox(7)
        for _ in range(2):
            store.drop_outbox(7)
        assert [content.slice(start, size).to_pybytes() for start, size in spans] == PAYLOADS
