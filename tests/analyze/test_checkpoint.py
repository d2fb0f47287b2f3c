"""The checkpoint and the ledger must fit each other, and a torn tail is mended without touching anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.analyze.checkpoint import Checkpoint
from penstock.contracts import LedgerEntry
from penstock.errors import Damaged, LedgerMismatch


def make(path: Path, offsets: int, commits: int) -> Checkpoint:
    """A checkpoint with batches 0 to `offsets`-1 planned and 0 to `commits`-1 committed; batch N ends at 10 * (N+1)."""
    for log, count in (("offsets", offsets), ("commits", commits)):
        (path / log).mkdir(parents=True)
        for batch in range(count):
            (path / log / str(batch)).write_text('v1\n{"batchWatermarkMs":0}\n{"s/0": ' + str(10 * (batch + 1)) + "}")
            (path / log / f".{batch}.crc").write_bytes(b"crc")
    return Checkpoint(path)


def entry(batch: int) -> LedgerEntry:
    start = json.dumps([{"s/0": 10 * batch}], separators=(",", ":")) if batch else "[]"
    return LedgerEntry(batch, start, json.dumps([{"s/0": 10 * (batch + 1)}], separators=(",", ":")), 1)


def names(checkpoint: Checkpoint, log: str) -> list[str]:
    return sorted(each.name for each in (checkpoint.path / log).iterdir())


def test_a_batch_has_the_range_that_spark_wrote_down(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 3, 2)
    assert checkpoint.range(0) == ("[]", '[{"s/0":10}]')
    assert checkpoint.range(2) == ('[{"s/0":20}]', '[{"s/0":30}]')


def test_an_incomplete_offset_file_is_damage(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 1, 0)
    (tmp_path / "offsets/0").write_text("v1\n")
    with pytest.raises(Damaged, match="offsets/0"):
        checkpoint.range(0)


@pytest.mark.parametrize("commits", [2, 3])
def test_a_checkpoint_at_or_just_behind_the_ledger_fits(tmp_path: Path, commits: int) -> None:
    make(tmp_path, 3, commits).verify("v", entry(2))


def test_a_planned_batch_beyond_the_ledger_fits(tmp_path: Path) -> None:
    make(tmp_path, 4, 3).verify("v", entry(2))


@pytest.mark.parametrize(
    ("offsets", "commits", "last", "says"),
    [
        (2, 2, entry(4), "ends at batch 1"),
        (0, 0, entry(4), "is empty"),
        (3, 3, None, "has no batch at all"),
        (6, 6, entry(2), "has committed batch 5"),
        (3, 3, LedgerEntry(2, '[{"s/0":20}]', '[{"s/0":99}]', 1), '"s/0":99'),
    ],
)
def test_a_foreign_checkpoint_is_refused_with_both_positions(
    tmp_path: Path, offsets: int, commits: int, last: LedgerEntry | None, says: str
) -> None:
    with pytest.raises(LedgerMismatch, match="ledger") as caught:
        make(tmp_path, offsets, commits).verify("v", last)
    assert says in str(caught.value)


def test_repair_drops_what_is_above_the_ledger_and_the_last_commit_only(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 4, 3)
    (tmp_path / "offsets/3").write_bytes(b"")
    dropped = checkpoint.repair(entry(2))
    assert sorted(Path(each).relative_to(tmp_path).as_posix() for each in dropped) == ["commits/2", "offsets/3"]
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
