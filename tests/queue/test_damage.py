"""Bytes on the disk that differ from what was written: they are noticed, or they do not matter."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.core import files
from penstock.core.cursor import Span
from penstock.core.errors import Damaged, NewerFormat, StorageError
from penstock.queue import EmbeddedLog, tail
from tests.contracts.log import batch, numbers, offsets, spec
from tests.queue.conftest import EmbeddedHome
from tests.sweeps import Scene, cut_to, cuts, flips, sweep, take

FILE, WAL, TAIL = "fixes.db", "fixes.db-wal", "fixes.db-tail"
PAGE = 4096


def everything(directory: Path) -> object:
    """Return everything that a reader can learn of the stream."""
    log = EmbeddedLog(directory, read_only=True)
    try:
        ends = log.ends("fixes")
        tables = [
            pa.Table.from_batches(log.read("fixes", partition, 0, ends[partition])).to_pylist() for partition in ends
        ]
        return log.generation("fixes"), ends, tables
    finally:
        log.close()


def fill(log: EmbeddedLog) -> None:
    """Make a dozen commits of all kinds: small and larger batches, a merge, two schema versions, two partitions."""
    log.declare(spec(unique_ids=100))
    for sequence in range(4):
        log.admit("fixes", {0: batch([sequence]), 1: batch(range(100 + 20 * sequence, 110 + 20 * sequence))})
    log.declare(spec(schema=spec().schema.append(pa.field("speed", pa.float64())), unique_ids=100))
    newer = spec().schema.append(pa.field("speed", pa.float64()))
    for sequence in range(4):
        log.append("fixes", 0, batch([10 + sequence], schema=newer), producer="p", sequence=sequence)
    log.append("fixes", 1, batch(range(1000, 1150), schema=newer), producer="p", sequence=1)


@pytest.fixture
def closed(home: EmbeddedHome, tmp_path: Path) -> Scene:
    """Return a stream after a clean end: everything is in one file."""
    log = home.open()
    fill(log)
    log.close()
    assert {path.name for path in home.directory.iterdir()} == {FILE, TAIL}
    return take(home.directory, tmp_path / "scene", (FILE, TAIL), everything)


@pytest.fixture
def crashed(home: EmbeddedHome, tmp_path: Path) -> Scene:
    """Return a stream as a killed process leaves it: its commits are in the write-ahead log."""
    log = home.open()
    fill(log)
    scene = take(home.directory, tmp_path / "scene", (FILE, WAL, TAIL), everything)
    log.close()
    return scene


def test_a_flipped_bit_is_noticed_or_harmless(closed: Scene) -> None:
    """A flipped bit anywhere in the file raises a storage error, or every row is read as it was."""
    outcomes = sweep(closed, FILE, flips(len(closed.files[FILE]), 2_000))
    assert outcomes["Damaged"] > 100
    assert outcomes["same"] > 100


def test_a_cut_file_is_noticed(closed: Scene) -> None:
    """A file that has lost a page or more raises a storage error, whatever its length, zero too."""
    lengths = [*range(600), *range(600, len(closed.files[FILE]) - PAGE, 97)]
    assert sweep(closed, FILE, cut_to(lengths))["same"] == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_byte_and_every_length(closed: Scene) -> None:
    """The two guarantees above hold for every byte and every length of the file. A cut within the last page may be
    harmless: not all of that page is in use."""
    sweep(closed, FILE, flips(len(closed.files[FILE])))
    assert sweep(closed, FILE, cuts(len(closed.files[FILE])))["same"] < PAGE


def test_a_flipped_bit_in_the_write_ahead_log_is_noticed(crashed: Scene) -> None:
    """SQLite silently drops commits from the first bad frame on; the tail mark proves that they existed."""
    outcomes = sweep(crashed, WAL, flips(len(crashed.files[WAL]), 500))
    assert outcomes["Damaged"] > 400


def test_a_cut_write_ahead_log_is_noticed(crashed: Scene) -> None:
    """Any acknowledged commit that is missing at the end of the write-ahead log raises."""
    assert sweep(crashed, WAL, cuts(len(crashed.files[WAL]), 300))["same"] == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_byte_and_every_length_of_the_write_ahead_log(crashed: Scene) -> None:
    """The two guarantees above hold for every byte and every tenth length."""
    sweep(crashed, WAL, flips(len(crashed.files[WAL])))
    assert sweep(crashed, WAL, cuts(len(crashed.files[WAL]), len(crashed.files[WAL]) // 10))["same"] == 0


def test_a_damaged_tail_mark_takes_nothing_away(crashed: Scene) -> None:
    """The mark is a witness, not a part of the data: without a readable one the database alone determines the
    stream."""
    size = len(crashed.files[TAIL])
    assert sweep(crashed, TAIL, [*flips(size), *cuts(size)]).keys() == {"same"}


def test_a_writer_refuses_a_damaged_file_and_leaves_it(crashed: Scene) -> None:
    """A writer that finds commits missing changes neither the file nor its write-ahead log: both can be examined."""
    data = bytearray(crashed.files[WAL])
    data[len(data) // 2] ^= 1
    crashed.damage(WAL, bytes(data))
    log = EmbeddedLog(crashed.directory)
    with pytest.raises(Damaged, match=r"remove fixes\.db-tail"):
        log.declare(spec())
    log.close()
    assert (crashed.directory / WAL).read_bytes() == data
    assert (crashed.directory / FILE).read_bytes() == crashed.files[FILE]


def test_without_the_mark_what_is_left_is_a_clean_beginning(crashed: Scene) -> None:
    """After its removal, by which an operator accepts the loss, the stream continues from the last complete commit."""
    data = bytearray(crashed.files[WAL])
    data[len(data) // 2] ^= 1
    crashed.damage(WAL, bytes(data))
    (crashed.directory / TAIL).unlink()
    log = EmbeddedLog(crashed.directory, disk_reserve_bytes=0)
    log.declare(spec(unique_ids=100))
    kept = numbers(log, "fixes", 1)
    assert 0 < len(kept) < 190
    spans = log.admit("fixes", {1: batch([5000])}).spans
    assert (numbers(log, "fixes", 1), spans) == ([*kept, 5000], {1: [Span(1, offsets(log, "fixes", 1)[-1], 1)]})
    log.close()


@pytest.mark.usefixtures("dense")
def test_good_rows_before_a_bad_batch_are_given(home: EmbeddedHome) -> None:
    """A read returns the rows before the damage, then raises with file, partition and offset, and nothing more."""
    log = home.open()
    log.declare(spec())
    for number in range(10):
        log.append("fixes", 0, batch([number]), producer="p", sequence=number)
    log.close()
    with sqlite3.connect(home.directory / FILE) as connection:
        connection.execute("UPDATE batches SET data = CAST(data || x'00' AS BLOB) WHERE at = 6")
    connection.close()
    log = home.open()
    parts = log.read("fixes", 0, 0, 10)
    given = next(parts).column("n").to_pylist()
    with pytest.raises(Damaged) as caught:
        next(parts)
    assert given == [0, 1, 2, 3, 4, 5]
    assert caught.value.fields == {"file": str(home.directory / FILE), "partition": 0, "offset": 6}
    assert numbers(log, "fixes", 0, 7, 10) == [7, 8, 9]
    log.close()


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("statement", ["DELETE FROM batches WHERE at = 4", "UPDATE batches SET at = 40 WHERE at = 4"])
def test_a_missing_batch_is_noticed(home: EmbeddedHome, statement: str) -> None:
    """A batch that is missing or moved is damage and not a gap."""
    log = home.open()
    log.declare(spec())
    for number in range(10):
        log.append("fixes", 0, batch([number]), producer="p", sequence=number)
    log.close()
    with sqlite3.connect(home.directory / FILE) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(Damaged, match="partition 0"):
        everything(home.directory)


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"not a database at all" * 500])
def test_a_file_that_is_no_stream_is_refused_and_kept(home: EmbeddedHome, content: bytes) -> None:
    """An empty, zero-filled or foreign file under a stream's name is neither used nor overwritten."""
    log = home.open()
    path = home.directory / FILE
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"fixes\.db"):
        log.declare(spec())
    log.close()
    assert path.read_bytes() == content


def test_a_newer_format_is_refused(home: EmbeddedHome) -> None:
    """A file of a later Penstock is not interpreted."""
    log = home.open()
    log.declare(spec())
    log.close()
    with sqlite3.connect(home.directory / FILE) as connection:
        mark = msgspec.msgpack.decode(connection.execute("SELECT data FROM head WHERE name = 'format'").fetchone()[0])
        files.put_record(connection, "format", mark | {"format": files.FORMAT + 1})
    connection.close()
    with pytest.raises(NewerFormat):
        everything(home.directory)


def test_a_write_ahead_log_without_its_file_is_not_overwritten(crashed: Scene) -> None:
    """If the file is gone but its write-ahead log exists, an operator must look at it first."""
    (crashed.directory / FILE).unlink(missing_ok=True)
    for name in (WAL, TAIL):
        (crashed.directory / name).write_bytes(crashed.files[name])
    log = EmbeddedLog(crashed.directory)
    with pytest.raises(Damaged, match="put the file back"):
        log.declare(spec())
    log.close()


def test_the_mark_of_another_generation_says_nothing(tmp_path: Path) -> None:
    """A recreated stream is not checked against the mark of the previous one."""
    mark = tail.TailMark(tmp_path / "mark", 1, 7)
    mark.put(8)
    mark.close()
    assert [tail.acknowledged(tmp_path / "mark", generation) for generation in (1, 2)] == [8, 0]
    assert tail.acknowledged(tmp_path / "nothing", 1) == 0
