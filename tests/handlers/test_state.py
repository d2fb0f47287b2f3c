"""The files of a handler's state: whole or not there, and never read wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.declared import Handler, Where
from penstock.errors import Damaged
from penstock.machine import Machine
from penstock.rows import Inputs, Place
from penstock.shard import NOTHING, Draft, Shard
from penstock.store import state as module
from penstock.store.state import ShardFiles
from tests.handlers.fleet import Fix, geofence

VEHICLES = 5


def batch(number: int, size: int = 20) -> Inputs:
    keys = [f"v{(number * size + row) % VEHICLES}" for row in range(size)]
    trouble = "quiet" if number % 2 else None  # every other batch leaves the timers where they are
    events = [
        Fix(fix=f"{number}-{row}", vehicle=key, x=float(row % 3), trouble=trouble) for row, key in enumerate(keys)
    ]
    times = [number * 1000 + row for row in range(size)]
    return Inputs.of(keys, events, times, lambda row: None, lambda row: Place("fixes", 0, 0, number * size + row))


@pytest.fixture
def files(tmp_path: Path) -> ShardFiles:
    return ShardFiles(tmp_path / "0", "geofence", 0)


def write(files: ShardFiles, versions: int, snapshots: tuple[int, ...] = ()) -> list[Shard]:
    """Run batches, write a delta of each; returns the shard as of each version."""
    machine, shard, kept = Machine(geofence), Shard(), []
    for version in range(versions):
        changes = machine.run(shard, batch(version)).changes
        shard.apply(changes)
        files.write_delta(version, version - 1, changes, shard.digest)
        kept.append(Shard(dict(shard.records), dict(shard.due), shard.digest, shard.time, shard.size))
        if version in snapshots:
            files.write_snapshot(version, shard, {"fixes": {0: (version + 1) * 20}})
    return kept


def same(one: Shard, other: Shard) -> bool:
    return (one.records, one.due, one.digest, one.time) == (other.records, other.due, other.digest, other.time)


@pytest.mark.parametrize("snapshots", [(), (2,), (1, 3)])
def test_a_shard_is_loaded_at_any_version(files: ShardFiles, snapshots: tuple[int, ...]) -> None:
    kept = write(files, 5, snapshots)
    for version, expected in enumerate(kept):
        assert same(files.load(version), expected)
    assert files.load(NOTHING) == Shard()


def test_a_shard_catches_up_by_deltas(files: ShardFiles) -> None:
    kept = write(files, 5)
    shard = files.load(1)
    assert files.catch_up(shard, 1, 4) == 3
    assert same(shard, kept[4])


def test_a_shard_that_cannot_catch_up_is_left_as_it_is(files: ShardFiles) -> None:
    kept = write(files, 5)
    (files.folder / "3.delta").unlink()
    shard = files.load(1)
    assert files.catch_up(shard, 1, 4) is None
    assert same(shard, kept[1])


def test_every_flipped_byte_and_every_cut_is_noticed(files: ShardFiles) -> None:
    write(files, 2, snapshots=(1,))
    for path in (files.folder / "0.delta", files.folder / "1.snapshot"):
        version, whole = int(path.stem), path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            with pytest.raises(Damaged, match="damaged"):
                files.load(version)
            path.write_bytes(whole[:place])
            with pytest.raises(Damaged, match="damaged"):
                files.load(version)
        path.write_bytes(whole)
    files.load(1)


def test_the_file_of_another_handler_is_refused(files: ShardFiles) -> None:
    write(files, 1)
    with pytest.raises(Damaged, match="is of handler geofence, shard 0"):
        ShardFiles(files.folder, "other", 0).load(0)


def test_snapshots_come_in_time_and_old_files_go(files: ShardFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot before the last one stays, with its deltas: the state can be had from there too."""
    monkeypatch.setattr(module, "SNAPSHOT_AFTER_DELTAS", 4)
    machine, shard = Machine(geofence), Shard()
    for version in range(20):
        if version and files.snapshot_is_due(version - 1):
            files.write_snapshot(version - 1, shard, {})
            files.drop_before(version - 1)
        changes = machine.run(shard, batch(version)).changes
        shard.apply(changes)
        files.write_delta(version, version - 1, changes, shard.digest)
    snapshots = sorted(int(path.stem) for path in files.folder.glob("*.snapshot"))
    assert snapshots == [15, 19] or snapshots == [11, 15]
    assert min(int(path.stem) for path in files.folder.glob("*.delta")) == snapshots[0]
    assert same(files.load(19), shard)
    (files.folder / f"{snapshots[1]}.snapshot").unlink()
    assert same(files.load(19), shard)


def test_a_timer_that_waits_comes_back_with_the_state(files: ShardFiles) -> None:
    kept = write(files, 3)
    assert files.load(2).next_due() == min(kept[2].due.values())


def test_equal_values_make_equal_records_whatever_their_type() -> None:
    """A whole number in a field for real ones is a real one from the next batch on, and is written so at once."""
    handler = Handler("h", Where("x.py", 1), ("s",), "vehicle", geofence.state, (), _set_luck)
    shard = Shard()
    shard.apply(Machine(handler).run(shard, batch(0, 1)).changes)
    (record,) = shard.records.values()
    again = Machine(handler).codec.decode(record)
    assert Machine(handler).codec.seal("v0", again, None) == record
    assert isinstance(again.state.luck, float)


def _set_luck(state: object, event: object, ctx: object) -> None:
    state.luck = 7  # type: ignore[attr-defined]


def test_a_draft_is_taken_back_without_a_trace() -> None:
    """Records, timers, digest and size are as before, after several changes; and the timers come as they would have."""
    machine, shard = Machine(geofence), Shard()
    shard.apply(machine.run(shard, batch(0)).changes)
    before = replace(shard, records=dict(shard.records), due=dict(shard.due))
    draft = Draft(shard)
    for number in range(1, 4):
        draft.apply(machine.run(shard, batch(number)).changes)
    assert set(draft.changes.due) == set(shard.due)
    assert not same(shard, before)
    draft.revert()
    assert same(shard, before)
    assert shard.size == before.size
    assert sorted(shard.due_until(10**9)) == sorted((at, key) for key, at in before.due.items())


def test_snapshots_tell_where_the_log_goes_on(files: ShardFiles) -> None:
    """The newest first; none above the version that counts."""
    kept = write(files, 5, snapshots=(1, 3, 4))
    found = list(files.snapshots(3))
    assert [start for _, start in found] == [{"fixes": {0: 80}}, {"fixes": {0: 40}}]
    assert same(found[0][0], kept[3])


def test_what_a_handler_begins_with_is_kept_for_good(files: ShardFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.origin() == Shard()
    (first, *_) = write(files, 1)
    files.write_origin(0, first, {})
    write(files, 5, snapshots=(2, 3, 4))
    files.drop_before(4)
    assert not (files.folder / "0.snapshot").exists()
    assert same(files.origin(), first)
