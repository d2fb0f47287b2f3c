"""Guarantees of the embedded log beyond the contract."""

from __future__ import annotations

import os
import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from penstock.core import failpoints
from penstock.core.contracts import Retention
from penstock.core.errors import BadCursor, DeclarationError, DiskFull, StorageError, TooLarge
from penstock.core.failpoints import Interrupted
from penstock.core.schema import OFFSET_COLUMN
from penstock.queue import EmbeddedLog, codec, merge, writer
from penstock.queue.reader import PIECE_BATCHES
from tests.contracts.log import SCHEMA, batch, numbers, offsets, spec
from tests.queue.conftest import EmbeddedHome


def batches_stored(home: EmbeddedHome) -> int:
    connection = sqlite3.connect(home.directory / "fixes.db")
    count = connection.execute("SELECT count(*) FROM batches").fetchone()[0]
    connection.close()
    return int(count)


def test_a_log_for_reading_cannot_declare(home: EmbeddedHome) -> None:
    """A reader never creates or changes a stream."""
    log = EmbeddedLog(home.directory, read_only=True)
    with pytest.raises(StorageError, match="reading only"):
        log.declare(spec())
    log.close()
    assert not home.directory.exists()


def test_a_stream_must_be_declared_before_it_is_written(home: EmbeddedHome) -> None:
    """Appending to a stream that this process has not declared raises an error that says so."""
    log = home.open()
    with pytest.raises(StorageError, match="not declared"):
        log.append("fixes", 0, batch([1]), producer="p", sequence=1)
    log.close()


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b", "x" * 300])
def test_a_name_that_leaves_the_directory_is_refused(home: EmbeddedHome, name: str) -> None:
    """A stream's name is a file's name, and nothing else."""
    log = home.open()
    with pytest.raises(DeclarationError):
        log.declare(spec(name))
    log.close()


def test_system_columns_have_fixed_types(home: EmbeddedHome) -> None:
    """A schema in which the log could not find ids or ingest times is refused."""
    log = home.open()
    with pytest.raises(DeclarationError, match="_ingest_time"):
        log.declare(spec(schema=pa.schema([pa.field("_ingest_time", pa.int64())])))
    with pytest.raises(DeclarationError, match="_id"):
        log.declare(spec(schema=pa.schema([pa.field("n", pa.int64())]), unique_ids=1))
    with pytest.raises(DeclarationError, match="two columns with the same name"):
        log.declare(spec(schema=pa.schema([pa.field("n", pa.int64()), pa.field("n", pa.int64())])))
    log.close()


def test_a_large_append_is_stored_in_parts(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append larger than one batch is one transaction with several batches, and is read back completely."""
    monkeypatch.setattr(codec, "BATCH_BYTES_MAX", 2_000)
    log = home.open()
    log.declare(spec())
    log.append("fixes", 0, batch(range(500)), producer="p", sequence=1)
    log.admit("fixes", {0: batch(range(500, 700)), 1: batch([1])})
    assert numbers(log, "fixes", 0) == list(range(700))
    assert batches_stored(home) > 10
    log.close()


def test_an_event_past_all_bounds_is_refused(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row cannot be split; above its bound it is refused, and nothing of its batch stays."""
    monkeypatch.setattr(codec, "BATCH_BYTES_MAX", 10)
    monkeypatch.setattr(codec, "ROW_BYTES_MAX", 20)
    log = home.open()
    log.declare(spec())
    with pytest.raises(TooLarge):
        log.append("fixes", 0, batch([1]), producer="p", sequence=1)
    assert log.ends("fixes") == {0: 0, 1: 0}
    log.close()


def test_a_failed_commit_is_forgotten(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed commit, offsets, sequences and ids are as before: the same call succeeds when retried."""
    log = home.open()
    log.declare(spec(unique_ids=100))

    def full(point: str) -> None:
        raise DiskFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.queue.committer.reach", full)
        with pytest.raises(DiskFull):
            log.admit("fixes", {0: batch([1])})
        with pytest.raises(DiskFull):
            log.append("fixes", 1, batch([2]), producer="p", sequence=1)
    assert log.admit("fixes", {0: batch([1])}).duplicates == {0: []}
    assert log.append("fixes", 1, batch([2]), producer="p", sequence=1) == (1, offsets(log, "fixes", 1)[0])
    assert (numbers(log, "fixes", 0), numbers(log, "fixes", 1)) == ([1], [2])
    log.close()


def test_a_commit_whose_caller_was_interrupted_is_known(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is interrupted once its transaction is durable has happened: a retry finds duplicates."""
    log = home.open()
    log.declare(spec(unique_ids=100))
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse("queue.after_commit=stop"))
    with pytest.raises(Interrupted):
        log.admit("fixes", {0: batch([1])})
    log.trim("fixes", Retention(timedelta(days=1), 2**40, {}))
    assert log.admit("fixes", {0: batch([1, 2])}).duplicates == {0: [0]}
    assert numbers(log, "fixes", 0) == [1, 2]
    log.close()


def test_a_second_writer_is_noticed(home: EmbeddedHome) -> None:
    """A process that finds that another one has written stops before it overwrites anything."""
    first, second = home.open(), home.open()
    for log in (first, second):
        log.declare(spec())
    first.append("fixes", 0, batch([1]), producer="p", sequence=1)
    with pytest.raises(StorageError, match="another process"):
        second.append("fixes", 0, batch([2]), producer="q", sequence=1)
    assert numbers(first, "fixes", 0) == [1]
    first.close()
    second.close()


def test_producers_are_bounded(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """One producer too many is refused; known ones continue."""
    monkeypatch.setattr(writer, "PRODUCERS_MAX", 2)
    log = home.open()
    log.declare(spec())
    for name in ("a", "b"):
        log.append("fixes", 0, batch([1]), producer=name, sequence=1)
    with pytest.raises(StorageError, match="stable names"):
        log.append("fixes", 0, batch([1]), producer="c", sequence=1)
    assert log.append("fixes", 0, batch([1]), producer="a", sequence=2) == (0, offsets(log, "fixes", 0)[2])
    log.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns of any fork beside threads
def test_a_forked_process_opens_its_own_connections(home: EmbeddedHome) -> None:
    """A child reads the log that its parent had open, and does not touch the parent's connections."""
    log = home.open()
    log.declare(spec())
    log.append("fixes", 0, batch([1, 2, 3]), producer="p", sequence=1)
    assert numbers(log, "fixes", 0) == [1, 2, 3]
    inherited = log._readers["fixes"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            right = numbers(log, "fixes", 0) == [1, 2, 3] and log._readers["fixes"] is not inherited
            status = 0 if right and not log._writers else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.append("fixes", 0, batch([4]), producer="p", sequence=2)
    assert numbers(log, "fixes", 0) == [1, 2, 3, 4]
    log.close()


def test_many_threads_read_while_one_writes_merges_and_trims(home: EmbeddedHome) -> None:
    """Readers see a consistent stream at every moment: no gap, no repeat, no error."""
    log = home.open()
    log.declare(spec(partitions=1))
    done, failures = threading.Event(), []

    def follow() -> None:
        offset, seen = 0, []
        try:
            while not (done.is_set() and offset == log.ends("fixes")[0]):
                end = log.wait("fixes", {0: offset}, 0.1)[0]
                seen += numbers(log, "fixes", 0, offset, end)
                offset = end
            assert seen == list(range(600))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=follow) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(600):
        log.append("fixes", 0, batch([number]), producer="p", sequence=number)
        if number % 150 == 149:
            log.merge("fixes")
            log.trim("fixes", Retention(timedelta(0), 0, {0: 0}))
    done.set()
    for reader in readers:
        reader.join(60)
    assert failures == []
    log.close()


def test_close_ends_a_wait(home: EmbeddedHome) -> None:
    """A thread that waits for events returns when the log is closed."""
    log = home.open()
    log.declare(spec())
    waiting = threading.Thread(target=log.wait, args=("fixes", {0: 0, 1: 0}, 600), daemon=True)
    waiting.start()
    log.close()
    waiting.join(30)
    assert not waiting.is_alive()


@pytest.mark.usefixtures("dense")
def test_merging_makes_few_small_batches_of_many(home: EmbeddedHome) -> None:
    """Many single events become a handful of batches, in bounded steps, in a tenth of the space."""
    log = home.open()
    log.declare(spec(partitions=2))
    for number in range(1_200):
        log.append("fixes", number % 2, batch([number]), producer="p", sequence=number)
    before, steps = log.size_bytes("fixes"), []
    while gone := log.merge("fixes"):
        steps.append(gone)
    assert max(steps) < PIECE_BATCHES
    assert batches_stored(home) <= 2 * merge.TAIL_MIN
    assert log.size_bytes("fixes") < before / 5
    assert numbers(log, "fixes", 1) == list(range(1, 1_200, 2))
    log.close()
    again = home.open()
    assert numbers(again, "fixes", 0) == list(range(0, 1_200, 2))
    again.close()


@pytest.mark.usefixtures("dense")
def test_large_batches_are_left_alone(home: EmbeddedHome) -> None:
    """Batches that are large enough are not rewritten, and neither is one small batch between two large ones."""
    log = home.open()
    log.declare(spec(partitions=1))
    for sequence, count in enumerate([9_000, 9_000, 1, 9_000, 9_000]):
        log.append("fixes", 0, batch(range(count)), producer="p", sequence=sequence)
    assert log.merge("fixes") == 0
    assert batches_stored(home) == 5
    log.close()


def test_size_is_held_by_dropping_the_oldest(home: EmbeddedHome) -> None:
    """Above the size, the oldest batches of all partitions are deleted first, and the file itself gets smaller."""
    log = home.open()
    log.declare(spec())
    start = datetime.now(UTC) - timedelta(minutes=30)
    for number in range(60):
        at = start + timedelta(seconds=number)
        rows = batch(range(1_000 * number, 1_000 * number + 1_000), at=at)
        log.append("fixes", number % 2, rows, producer="p", sequence=number)
    for _ in range(5):
        starts = log.trim("fixes", Retention(timedelta(days=1), 1_000_000, {}))
    assert log.size_bytes("fixes") < 1_100_000
    assert abs(starts[0] - starts[1]) <= 1_000
    assert numbers(log, "fixes", 0)[-1] == 58_999
    log.close()
    assert (home.directory / "fixes.db").stat().st_size < 1_600_000


@pytest.mark.usefixtures("dense")
def test_age_is_of_the_injected_clock(home: EmbeddedHome) -> None:
    """Retention by age takes its time from the clock that the log was given."""
    now = datetime(2024, 1, 10, tzinfo=UTC)
    log = EmbeddedLog(home.directory, disk_reserve_bytes=0, clock=lambda: now)
    log.declare(spec())
    for day in range(1, 10):
        log.append("fixes", 0, batch([day], at=datetime(2024, 1, day, tzinfo=UTC)), producer="p", sequence=day)
    assert log.trim("fixes", Retention(timedelta(days=3), 2**40, {0: 100})) == {0: 6, 1: 0}
    assert numbers(log, "fixes", 0) == [7, 8, 9]
    log.close()


def test_a_stream_without_system_columns_is_kept_by_the_clock(home: EmbeddedHome) -> None:
    """A batch without ingest times is kept by the time of its append."""
    plain = pa.schema([pa.field("n", pa.int64())])
    log = home.open()
    log.declare(spec(schema=plain))
    log.append("fixes", 0, pa.RecordBatch.from_pylist([{"n": 1}], schema=plain), producer="p", sequence=1)
    assert log.trim("fixes", Retention(timedelta(hours=1), 2**40, {})) == {0: 0, 1: 0}
    assert numbers(log, "fixes", 0) == [1]
    log.close()


def test_the_same_stream_may_be_declared_again(home: EmbeddedHome) -> None:
    """Declaring twice in one process changes nothing."""
    log = home.open()
    for _ in range(2):
        log.declare(spec(unique_ids=10))
        log.admit("fixes", {0: batch([1])})
    assert numbers(log, "fixes", 0) == [1]
    assert SCHEMA.equals(next(log.read("fixes", 0, 0, log.ends("fixes")[0])).drop_columns([OFFSET_COLUMN]).schema)
    log.close()


@pytest.mark.usefixtures("dense")
def test_a_range_that_goes_while_it_is_read_is_refused(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that retention overtakes gets all requested rows, or BadCursor, never a gap."""
    monkeypatch.setattr("penstock.queue.reader.PIECE_BATCHES", 2)
    log = home.open()
    log.declare(spec())
    for number in range(6):
        log.append("fixes", 0, batch([number]), producer="p", sequence=number)
    parts = log.read("fixes", 0, 0, 6)
    assert next(parts).column("n").to_pylist() == [0, 1]
    log.trim("fixes", Retention(timedelta(0), 0, {0: 5}))
    with pytest.raises(BadCursor):
        next(parts)
    log.close()
