"""The files of a handler's state keep the promises of the contract, and what only files can promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.app.declared import Handler, Where
from penstock.core.errors import Damaged
from penstock.handlers.machine import Machine
from penstock.handlers.shard import Draft, Shard
from penstock.store import state as module
from penstock.store.state import ShardFiles
from tests.contracts.shards import Part, ShardContract, batch, same, write
from tests.handlers.fleet import geofence


@dataclass(frozen=True)
class ShardFolder:
    """A `ShardHome` as a folder."""

    folder: Path

    def open(self) -> ShardFiles:
        return ShardFiles(self.folder, "geofence", 0)

    def damage(self, part: Part, version: int) -> Iterator[None]:
        """Flip each byte, and cut at each length."""
        path = self.folder / f"{version}.{part}"
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            yield
            path.write_bytes(whole[:place])
            yield
        path.write_bytes(whole)

    def lose(self, part: Part, version: int) -> None:
        (self.folder / f"{version}.{part}").unlink()


class TestShardFiles(ShardContract):
    def fresh(self, folder: Path) -> ShardFolder:
        return ShardFolder(folder / "0")


@pytest.fixture
def files(tmp_path: Path) -> ShardFiles:
    return ShardFolder(tmp_path / "0").open()


def test_a_delta_that_says_it_builds_on_itself_is_refused(files: ShardFiles) -> None:
    """A chain that leads to itself could be followed without end."""
    write(files, 2)
    content = files._read(files.folder / "1.delta")
    files._write(files.folder / "1.delta", 1, 1, content.time, 0, content.records)
    with pytest.raises(Damaged, match=r"1\.delta builds on version 1, which is not an earlier version"):
        files.load(1)
    with pytest.raises(Damaged, match="not an earlier version"):
        files.catch_up(files.load(0), 0, 1)


def test_the_file_of_another_handler_is_refused(files: ShardFiles) -> None:
    write(files, 1)
    with pytest.raises(Damaged, match="belongs to handler geofence, shard 0"):
        ShardFiles(files.folder, "other", 0).load(0)


def test_snapshots_come_in_time_and_old_files_go(files: ShardFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot before the last one stays, with its deltas: the state can be restored from there too."""
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


def test_equal_values_make_equal_records_whatever_their_type() -> None:
    """A whole number in a float field is a float from the next batch on, and is written so at once."""
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
    """Records, timers, digest and size are as before, after several changes; and the timers fire as they would have."""
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
