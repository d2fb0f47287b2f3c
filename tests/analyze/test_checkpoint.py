"""Checkpoint and ledger must match, and a torn tail is repaired without changing anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.analyze.checkpoint import Checkpoint
from penstock.core.errors import Damaged
from tests.contracts.checkpoint import CheckpointHome, QueryCheckpointContract, entry


def make(path: Path, offsets: int, commits: int) -> Checkpoint:
    """Create a checkpoint with batches 0 to `offsets`-1 planned and 0 to `commits`-1 committed; batch N ends at 10 *
    (N+1)."""
    for log, count in (("offsets", offsets), ("commits", commits)):
        (path / log).mkdir(parents=True)
        for batch in range(count):
            (path / log / str(batch)).write_text('v1\n{"batchWatermarkMs":0}\n{"s/0": ' + str(10 * (batch + 1)) + "}")
            (path / log / f".{batch}.crc").write_bytes(b"crc")
    return Checkpoint(path)


class CheckpointFolder:
    """The folder of one checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self, planned: int, committed: int) -> Checkpoint:
        return make(self._path, planned, committed)

    def tear(self, batch: int) -> None:
        (self._path / "offsets" / str(batch)).write_bytes(b"")


class TestCheckpoint(QueryCheckpointContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> CheckpointHome:
        return CheckpointFolder(tmp_path / "checkpoint")


def names(checkpoint: Checkpoint, log: str) -> list[str]:
    return sorted(path.name for path in (checkpoint.path / log).iterdir())


def test_an_incomplete_offset_file_is_damage(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 1, 0)
    (tmp_path / "offsets/0").write_text("v1\n")
    with pytest.raises(Damaged, match="offsets/0"):
        checkpoint.range(0)


def test_repair_drops_what_is_above_the_ledger_and_the_last_commit_only(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 4, 3)
    (tmp_path / "offsets/3").write_bytes(b"")
    dropped = checkpoint.repair(entry(2))
    assert sorted(Path(path).relative_to(tmp_path).as_posix() for path in dropped) == ["commits/2", "offsets/3"]
    assert names(checkpoint, "offsets") == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]
    assert names(checkpoint, "commits") == [".0.crc", ".1.crc", "0", "1"]
    checkpoint.verify("v", entry(2))


def test_repair_leaves_a_foreign_checkpoint_as_it_is(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 2, 2)
    assert checkpoint.repair(entry(4)) == []
    assert names(checkpoint, "commits") == [".0.crc", ".1.crc", "0", "1"]


def test_repair_does_not_hide_damage_below_the_tail(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 4, 3)
    (tmp_path / "offsets/1").write_bytes(b"")
    checkpoint.repair(entry(2))
    assert (tmp_path / "offsets/1").exists()


def test_a_checkpoint_without_any_output_is_made_anew(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", 1, 0)
    (tmp_path / "c/offsets/0").write_bytes(b"")
    assert checkpoint.repair(None) == [str(tmp_path / "c")]
    assert not checkpoint.path.exists()
    checkpoint.verify("v", None)


def test_nothing_is_dropped_when_there_is_nothing(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "none").repair(None) == []


@pytest.mark.parametrize("span", [0, 513, 512 | 1 << 30])
def test_a_checksum_file_that_would_make_java_wait_for_ever_is_damage(tmp_path: Path, span: int) -> None:
    checkpoint, file = make(tmp_path, 3, 3), tmp_path / "state/0/0/.3.delta.crc"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"crc\0" + (512).to_bytes(4, "big") + b"\1\2\3\4")
    checkpoint.verify("v", entry(2))
    file.write_bytes(b"crc\0" + span.to_bytes(4, "big") + b"\1\2\3\4")
    with pytest.raises(Damaged, match=r"\.3\.delta\.crc"):
        checkpoint.verify("v", entry(2))
