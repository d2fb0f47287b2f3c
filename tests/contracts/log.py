"""Promises of every log, one suite for each contract: inherited by the tests of each implementation, fakes included."""

from __future__ import annotations

import base64
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from penstock import Event
from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import AdmissionLog, BlockingLogReader, ChangeWatch, Log, LogReader, Retention, StreamSpec
from penstock.core.errors import BadCursor, DeclarationError, NotFound, StorageError
from penstock.core.event_shape import event_spec
from penstock.core.schema import OFFSET_COLUMN, event_schema
from tests.harness import wait_for

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0
INGEST = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("_id", pa.string()),
        pa.field("_key", pa.string()),
        pa.field("_ingest_time", INGEST),
        pa.field("_kind", pa.int8()),
    ]
)


def spec(
    name: str = "fixes",
    *,
    schema: pa.Schema = SCHEMA,
    partitions: int = 2,
    unique_ids: int = 0,
    unique_for: timedelta = timedelta(hours=24),
) -> StreamSpec:
    return StreamSpec(name, schema, partitions, unique_ids, unique_for)


def batch(
    numbers: Sequence[int],
    *,
    ids: Sequence[str | None] | None = None,
    at: datetime | None = None,
    schema: pa.Schema = SCHEMA,
) -> pa.RecordBatch:
    """Return a batch with one row for each number; every other column is derived from it."""
    moment = at or datetime.now(UTC)
    names = ids if ids is not None else [f"id-{number}" for number in numbers]
    rows = [
        {"n": n, "text": f"row {n}", "_id": name, "_key": str(n % 7), "_ingest_time": moment, "_kind": 0}
        for n, name in zip(numbers, names, strict=True)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def numbers(log: LogReader, stream: str, partition: int, start: int | None = None, end: int | None = None) -> list[int]:
    """Return the column `n` of a range; without a range, of everything kept."""
    start = log.starts(stream)[partition] if start is None else start
    end = log.ends(stream)[partition] if end is None else end
    values = [value for part in log.read(stream, partition, start, end) for value in part.column("n").to_pylist()]
    assert len(values) == log.rows_between(stream, {partition: start}, {partition: end})
    return values


def table(log: LogReader, stream: str, partition: int) -> pa.Table:
    """Return everything kept of a partition, as it was written."""
    read = log.read(stream, partition, log.starts(stream)[partition], log.ends(stream)[partition])
    return pa.Table.from_batches(read).drop([OFFSET_COLUMN])


def offsets(log: LogReader, stream: str, partition: int) -> list[int]:
    """Return the offsets of all rows kept of a partition."""
    read = log.read(stream, partition, log.starts(stream)[partition], log.ends(stream)[partition])
    return [offset for part in read for offset in part.column(OFFSET_COLUMN).to_pylist()]


def counts(log: LogReader, stream: str) -> dict[int, int]:
    """Return the number of rows kept of each partition."""
    return {partition: log.rows_between(stream, {}, {partition: end}) for partition, end in log.ends(stream).items()}


BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


class Order(Event):
    order: str
    text: str
    cents: int


class NamedOrder(Event, renamed={"text": "body"}):
    order: str
    body: str
    cents: int
    currency: str = "EUR"


class UnsaidOrder(Event):
    order: str
    body: str
    cents: int
    currency: str
    vat: int


class CountedOrder(Event, version=2):
    order: str
    body: str
    amount: float
    currency: str

    @staticmethod
    def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        cents = fields.pop("cents")
        return {**fields, "amount": cents / 100}


class AdmissionHome(Protocol):
    """The storage of the log under test. It outlives the logs that are opened on it."""

    def open(self) -> AdmissionLog:
        """Open it for writing; the one opened before has been closed."""

    def trim(self, log: AdmissionLog, stream: str, before: Mapping[int, int]) -> None:
        """Delete rows of this log below these offsets: all of them if they are whole batches."""


class LogHome(AdmissionHome, Protocol):
    """The storage of a log with all of its behaviour."""

    def open(self) -> Log:
        """As for an `AdmissionHome`."""

    def opener(self) -> Callable[[], BlockingLogReader]:
        """A picklable way to open it for reading, in any process."""


class LogChanges:
    """The stream `fixes` as something to watch. Each change writes one number."""

    def __init__(self, log: BlockingLogReader, write: Callable[[int], object]) -> None:
        self._log, self._write, self._numbers = log, write, count(1)

    def watch(self, wake: Callable[[], None]) -> ChangeWatch:
        return self._log.watch("fixes", wake)

    def change(self) -> None:
        self._write(next(self._numbers))


class EmptyStreamContract:
    """Promises of a `LogReader` about a stream without rows. Inherit this and define the fixture `empty`."""

    @pytest.fixture
    def empty(self) -> LogReader:
        """A log in which the stream `fixes` has no rows."""
        raise NotImplementedError

    def test_a_stream_without_rows_begins_where_it_ends(self, empty: LogReader) -> None:
        starts = empty.starts("fixes")
        assert starts == empty.ends("fixes") == dict.fromkeys(starts, 0)
        assert empty.rows_between("fixes", {}, starts) == 0
        assert [list(empty.read("fixes", partition, 0, 0)) for partition in starts] == [[] for _ in starts]

    @pytest.mark.parametrize(("partition", "start", "end"), [(0, 0, 1), (0, 1, 1), (0, -1, 0), (99, 0, 0), (-1, 0, 0)])
    def test_a_stream_without_rows_has_no_other_range(
        self, empty: LogReader, partition: int, start: int, end: int
    ) -> None:
        with pytest.raises(BadCursor):
            list(empty.read("fixes", partition, start, end))


class WaitContract:
    """Promises of a `BlockingLogReader` about a stream without rows. Define the fixture `waiting`."""

    @pytest.fixture
    def waiting(self) -> BlockingLogReader:
        """A log in which the stream `fixes` has no rows."""
        raise NotImplementedError

    def test_wait_returns_at_once_if_the_ends_differ_already(self, waiting: BlockingLogReader) -> None:
        assert waiting.wait("fixes", {}, 10 * DEADLINE_S) == waiting.ends("fixes")

    def test_wait_gives_up_after_its_timeout_and_not_before(self, waiting: BlockingLogReader) -> None:
        """Without a change it returns the same ends when the time has passed."""
        ends, began = waiting.ends("fixes"), time.monotonic()
        assert waiting.wait("fixes", ends, 0.05) == ends
        assert time.monotonic() - began >= 0.05


class LogReaderContract(EmptyStreamContract):
    """Promises of every `LogReader`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def home(self) -> AdmissionHome:
        raise NotImplementedError

    @pytest.fixture
    def log(self, home: AdmissionHome) -> Iterator[AdmissionLog]:
        log = home.open()
        yield log
        log.close()

    @pytest.fixture
    def empty(self, log: AdmissionLog) -> LogReader:
        log.declare(spec())
        return log

    def test_a_new_stream_is_empty(self, log: AdmissionLog) -> None:
        """A declared stream has all its partitions, each from 0 to 0."""
        log.declare(spec(partitions=3))
        assert log.starts("fixes") == log.ends("fixes") == {0: 0, 1: 0, 2: 0}

    def test_what_was_written_is_read_as_written(self, log: AdmissionLog) -> None:
        """Every column of every row comes back equal, in order."""
        log.declare(spec())
        written = batch(range(10), ids=[None, *map(str, range(9))])
        log.admit("fixes", {1: written})
        assert table(log, "fixes", 1) == pa.Table.from_batches([written])
        assert counts(log, "fixes") == {0: 0, 1: 10}

    def test_offsets_rise_and_name_their_rows(self, log: AdmissionLog) -> None:
        """Each row is read by its offset alone; between offsets there is nothing; `ends` is past the last."""
        log.declare(spec())
        for number in range(0, 60, 6):
            log.admit("fixes", {0: batch(range(number, number + 6))})
        given = offsets(log, "fixes", 0)
        assert given == sorted(set(given))
        assert (len(given), log.ends("fixes")[0] > given[-1]) == (60, True)
        for number, offset in enumerate(given):
            assert numbers(log, "fixes", 0, offset, offset + 1) == [number]
        for before, after in pairwise([*given, log.ends("fixes")[0]]):
            assert numbers(log, "fixes", 0, before + 1, after) == []

    def test_every_range_is_read_exactly(self, log: AdmissionLog) -> None:
        """Any [start, end) gives exactly its rows, wherever batches and gaps begin and end."""
        log.declare(spec(partitions=1))
        offset, sizes = 0, [1, 1, 5, 2, 11, 1, 3, 8]
        for size in sizes:
            log.admit("fixes", {0: batch(range(offset, offset + size))})
            offset += size
        given, last = offsets(log, "fixes", 0), log.ends("fixes")[0]
        rows_and_gaps = [(offset, offset + 1, (offset + after) // 2) for offset, after in pairwise([0, *given, last])]
        bounds = sorted({0, last}.union(*rows_and_gaps))
        for number, start in enumerate(bounds):
            for end in bounds[number:]:
                within = [number for number, offset in enumerate(given) if start <= offset < end]
                assert numbers(log, "fixes", 0, start, end) == within

    def test_a_range_that_is_not_kept_is_refused(self, log: AdmissionLog) -> None:
        """Offsets past the end, below zero, turned round, or of no partition raise BadCursor, and give no rows."""
        log.declare(spec())
        log.admit("fixes", {0: batch(range(4))})
        past = log.ends("fixes")[0] + 1
        for partition, start, end in ((0, 0, past), (0, past, past), (0, -1, 2), (0, 3, 2), (2, 0, 0), (-1, 0, 0)):
            with pytest.raises(BadCursor):
                list(log.read("fixes", partition, start, end))

    def test_an_unknown_stream_is_not_found(self, log: AdmissionLog) -> None:
        """Reading a stream that nobody declared raises NotFound."""
        for name in ("nothing", "../nothing", ""):
            with pytest.raises(NotFound):
                log.ends(name)

    def test_a_range_that_is_not_kept_any_more_is_refused(self, home: AdmissionHome, log: AdmissionLog) -> None:
        """The rows from the new start on are read as before; a range that begins below it gives none of its rows."""
        log.declare(spec())
        for number in range(10):
            log.admit("fixes", {0: batch([number]), 1: batch([number])})
        before, end = offsets(log, "fixes", 0), log.ends("fixes")[0]
        home.trim(log, "fixes", {0: before[5]})
        start = log.starts("fixes")[0]
        assert 0 < start <= before[5]
        kept = [number for number, offset in enumerate(before) if offset >= start]
        assert (numbers(log, "fixes", 0), numbers(log, "fixes", 1)) == (kept, list(range(10)))
        for first, last in ((0, end), (start - 1, end), (0, start)):
            with pytest.raises(BadCursor):
                list(log.read("fixes", 0, first, last))

    def test_rows_are_counted_from_the_first_kept_one_if_no_start_is_given(
        self, home: AdmissionHome, log: AdmissionLog
    ) -> None:
        log.declare(spec())
        for number in range(10):
            log.admit("fixes", {0: batch([number]), 1: batch([number])})
        home.trim(log, "fixes", {0: offsets(log, "fixes", 0)[5]})
        ends, kept = log.ends("fixes"), len(numbers(log, "fixes", 0))
        assert kept < 10
        assert log.rows_between("fixes", {}, ends) == kept + 10
        assert log.rows_between("fixes", {1: offsets(log, "fixes", 1)[7]}, ends) == kept + 3
        assert log.rows_between("fixes", {}, {0: ends[0]}) == kept
        assert log.rows_between("fixes", ends, ends) == 0


class AdmissionContract(LogReaderContract):
    """Promises of every `AdmissionLog`. Inherit this and define the fixture `home`."""

    def test_an_admit_tells_the_offsets_of_its_rows_and_the_ends_after_them(self, log: AdmissionLog) -> None:
        log.declare(spec(unique_ids=1_000))
        log.admit("fixes", {0: batch([1, 2])})
        seen = log.admit("fixes", {0: batch([2, *range(10, 200), 1]), 1: batch([10])})
        span_offsets = [offset for span in seen.spans[0] for offset in range(span.first, span.first + span.count)]
        assert span_offsets == offsets(log, "fixes", 0)[2:]
        assert {span.partition for span in seen.spans[0]} == {0}
        assert (list(seen.spans[1]), seen.ends) == ([], log.ends("fixes"))

    def test_admit_leaves_out_what_was_seen(self, home: AdmissionHome) -> None:
        """An id of an earlier admit, or of an earlier row of the same one, is a duplicate; after reopening too."""
        log = home.open()
        log.declare(spec(unique_ids=100))
        first = log.admit("fixes", {0: batch([1, 2, 1]), 1: batch([3, 2])})
        assert (first.spans[0][0].first, first.duplicates) == (offsets(log, "fixes", 0)[0], {0: [2], 1: [1]})
        for turn in range(2):
            seen = log.admit("fixes", {0: batch([3, 10 + turn]), 1: batch([1])})
            assert (seen.spans[0][0].first, seen.duplicates) == (offsets(log, "fixes", 0)[-1], {0: [0], 1: [0]})
            log.close()
            log = home.open()
            log.declare(spec(unique_ids=100))
        assert (numbers(log, "fixes", 0), numbers(log, "fixes", 1)) == ([1, 2, 10, 11], [3])
        log.close()

    def test_a_duplicate_names_the_event_that_it_repeats(self, home: AdmissionHome) -> None:
        """Of an earlier admit or of the same one, in this partition or another; after reopening too."""
        log = home.open()
        log.declare(spec(unique_ids=100))
        log.admit("fixes", {0: batch([1, 2], ids=["id-1", None]), 1: batch([3])})
        first, third = (offsets(log, "fixes", partition)[0] for partition in (0, 1))
        for turn in range(2):
            fresh = 10 + turn
            seen = log.admit("fixes", {0: batch([3, fresh, 1]), 1: batch([fresh, 1])})
            assert seen.duplicates == {0: [0, 2], 1: [0, 1]}
            newest = offsets(log, "fixes", 0)[-1]
            assert seen.originals == {0: [(1, third), (0, first)], 1: [(0, newest), (0, first)]}
            log.close()
            log = home.open()
            log.declare(spec(unique_ids=100))
        log.close()

    def test_events_without_id_are_never_duplicates(self, log: AdmissionLog) -> None:
        """Null is not an id: such rows are all taken."""
        log.declare(spec(unique_ids=100))
        for _ in range(2):
            assert log.admit("fixes", {0: batch([1, 1], ids=[None, None])}).duplicates[0] == []
        assert numbers(log, "fixes", 0) == [1, 1, 1, 1]

    def test_admit_without_unique_ids_takes_all(self, log: AdmissionLog) -> None:
        """A stream whose ids need not be unique takes the same id again."""
        log.declare(spec(unique_ids=0))
        for _ in range(2):
            log.admit("fixes", {0: batch([1]), 1: batch([1])})
        assert counts(log, "fixes") == {0: 2, 1: 2}

    def test_marks_are_durable_with_the_rows_they_come_with(self, home: AdmissionHome) -> None:
        """The last mark of each source is there after reopening; a mark may come without rows, rows without a mark."""
        log = home.open()
        log.declare(spec())
        assert log.marks("fixes") == {}
        log.admit("fixes", {0: batch([1])}, {"a": "1", "b": "7"})
        log.admit("fixes", {}, {"a": "2"})
        log.admit("fixes", {1: batch([2])})
        for _ in range(2):
            assert dict(log.marks("fixes")) == {"a": "2", "b": "7"}
            assert (numbers(log, "fixes", 0), numbers(log, "fixes", 1)) == ([1], [2])
            log.close()
            log = home.open()
            log.declare(spec())
        log.close()

    def test_a_mark_counts_though_all_its_rows_are_duplicates(self, log: AdmissionLog) -> None:
        log.declare(spec(unique_ids=100))
        log.admit("fixes", {0: batch([1])}, {"a": "1"})
        assert log.admit("fixes", {0: batch([1])}, {"a": "2"}).duplicates == {0: [0]}
        assert dict(log.marks("fixes")) == {"a": "2"}
        assert counts(log, "fixes")[0] == 1

    def test_ids_are_forgotten_by_age(self, log: AdmissionLog) -> None:
        """An id is free again once events have come in that are more than `unique_for` younger."""
        log.declare(spec(unique_ids=100, unique_for=timedelta(hours=1)))
        start = datetime(2024, 1, 1, tzinfo=UTC)
        taken = []
        for minutes in (0, 59, 119, 181):
            admission = log.admit("fixes", {0: batch([1], at=start + timedelta(minutes=minutes))})
            taken.append(not admission.duplicates[0])
        assert taken == [True, False, True, True]

    def test_the_latest_ids_are_remembered(self, home: AdmissionHome) -> None:
        """At least the last `unique_ids` ids are known, and that there are many more does not matter."""
        log = home.open()
        log.declare(spec(unique_ids=50))
        for number in range(0, 500, 5):
            log.admit("fixes", {number % 2: batch(range(number, number + 5))})
        for _ in range(2):
            seen = log.admit("fixes", {0: batch(range(450, 500))})
            assert seen.duplicates[0] == list(range(50))
            log.close()
            log = home.open()
            log.declare(spec(unique_ids=50))
        log.close()

    def test_a_batch_of_another_schema_is_not_admitted(self, log: AdmissionLog) -> None:
        """Nothing is stored that the stream's schema does not describe."""
        log.declare(spec())
        with pytest.raises(DeclarationError):
            log.admit("fixes", {0: pa.record_batch({"n": [1]})})
        assert log.ends("fixes") == {0: 0, 1: 0}

    def test_another_number_of_partitions_is_refused(self, log: AdmissionLog) -> None:
        log.declare(spec(partitions=2))
        with pytest.raises(DeclarationError, match="partitions"):
            log.declare(spec(partitions=3))
        assert log.starts("fixes") == {0: 0, 1: 0}


class LogContract(AdmissionContract, WaitContract):
    """Promises of every `Log`. Inherit this and define the fixture `home`."""

    @pytest.fixture
    def waiting(self, log: Log) -> BlockingLogReader:
        log.declare(spec())
        return log

    @pytest.fixture
    def home(self) -> LogHome:
        raise NotImplementedError

    @pytest.fixture
    def log(self, home: LogHome) -> Iterator[Log]:
        log = home.open()
        yield log
        log.close()

    def test_what_was_appended_is_read_as_written(self, log: Log) -> None:
        """Every column of every row comes back equal, in order."""
        log.declare(spec())
        written = batch(range(10), ids=[None, *map(str, range(9))])
        assert log.append("fixes", 1, written, producer="p", sequence=1) == (1, offsets(log, "fixes", 1)[0])
        assert table(log, "fixes", 1) == pa.Table.from_batches([written])
        assert counts(log, "fixes") == {0: 0, 1: 10}

    def test_rows_generation_and_ends_survive_reopening(self, home: LogHome) -> None:
        """A log that was closed and opened again is the same log."""
        first = home.open()
        first.declare(spec())
        first.append("fixes", 0, batch(range(5)), producer="p", sequence=1)
        generation, ends = first.generation("fixes"), first.ends("fixes")
        first.close()
        again = home.open()
        again.declare(spec())
        assert (again.generation("fixes"), again.ends("fixes")) == (generation, ends)
        assert numbers(again, "fixes", 0) == list(range(5))
        again.close()

    def test_a_repeated_append_changes_nothing(self, home: LogHome) -> None:
        """A sequence not above the producer's last returns that append's position, after reopening too."""
        log = home.open()
        log.declare(spec())
        log.append("fixes", 0, batch([1, 2]), producer="p", sequence=4)
        position = log.append("fixes", 0, batch([3]), producer="p", sequence=7)
        for _ in range(2):
            for sequence in (7, 6, 4):
                again = log.append("fixes", 0, batch([9]), producer="p", sequence=sequence)
                assert again == position == (0, offsets(log, "fixes", 0)[2])
            log.close()
            log = home.open()
            log.declare(spec())
        assert numbers(log, "fixes", 0) == [1, 2, 3]
        log.close()

    def test_sequences_are_of_one_producer_and_one_partition(self, log: Log) -> None:
        """The same sequence of another producer, or in another partition, is a different append."""
        log.declare(spec())
        for partition, producer in ((0, "a"), (1, "a"), (0, "b")):
            log.append("fixes", partition, batch([1]), producer=producer, sequence=1)
        assert counts(log, "fixes") == {0: 2, 1: 1}

    def test_an_empty_append_counts(self, log: Log) -> None:
        """An append without rows only advances its producer's sequence."""
        log.declare(spec())
        assert log.append("fixes", 0, batch([]), producer="p", sequence=1) == (0, 0)
        log.append("fixes", 0, batch([1]), producer="q", sequence=1)
        assert log.append("fixes", 0, batch([2]), producer="p", sequence=1) == (0, 0)
        assert numbers(log, "fixes", 0) == [1]

    def test_marks_are_bounded(self, log: Log) -> None:
        """A mark that is too long, or one source too many, is refused, and nothing of that call is written."""
        log.declare(spec())
        with pytest.raises(StorageError, match="characters"):
            log.admit("fixes", {0: batch([1])}, {"a": "x" * 100_000})
        with pytest.raises(StorageError, match="stable names"):
            log.admit("fixes", {0: batch([1])}, {f"source-{number}": "" for number in range(1000)})
        assert (log.ends("fixes")[0], dict(log.marks("fixes"))) == (0, {})

    def test_trim_drops_what_is_old_and_not_needed(self, log: Log) -> None:
        """Old events below the floor may be deleted; young ones, and those at the floor or above, stay readable."""
        log.declare(spec())
        old, young = datetime.now(UTC) - timedelta(days=2), datetime.now(UTC)
        for partition in (0, 1):
            for number in range(10):
                moment = old if number < 6 else young
                log.append("fixes", partition, batch([number], at=moment), producer="p", sequence=number)
        before = {partition: offsets(log, "fixes", partition) for partition in (0, 1)}
        starts = log.trim("fixes", Retention(timedelta(days=1), 2**40, {0: before[0][3]}))
        assert starts == log.starts("fixes")
        assert starts[0] <= before[0][3]
        assert starts[1] <= before[1][6]
        assert starts[0] + starts[1] > 0
        for partition in (0, 1):
            left = [number for number, offset in enumerate(before[partition]) if offset >= starts[partition]]
            assert numbers(log, "fixes", partition) == left
            if starts[partition]:
                with pytest.raises(BadCursor):
                    list(log.read("fixes", partition, 0, log.ends("fixes")[partition]))

    def test_ends_never_go_back(self, home: LogHome) -> None:
        """A stream that was trimmed empty continues at its old end, after reopening too, and remembers its
        producers."""
        log = home.open()
        log.declare(spec())
        moment = datetime.now(UTC) - timedelta(days=2)
        first = log.append("fixes", 0, batch(range(10), at=moment), producer="p", sequence=1)
        ends = dict(log.ends("fixes"))
        assert log.trim("fixes", Retention(timedelta(days=1), 0, {})) == ends
        log.close()
        log = home.open()
        log.declare(spec())
        assert (log.starts("fixes"), log.ends("fixes")) == (ends, ends)
        assert log.append("fixes", 0, batch([11]), producer="p", sequence=1) == first
        assert log.append("fixes", 0, batch([11]), producer="p", sequence=2) == (0, offsets(log, "fixes", 0)[0])
        assert numbers(log, "fixes", 0) == [11]
        log.close()

    def test_merging_changes_no_row(self, log: Log) -> None:
        """After merging, every range gives the same rows as before; readers in progress do not notice."""
        log.declare(spec())
        for number in range(300):
            log.append("fixes", number % 2, batch([number]), producer="p", sequence=number)
        ends = log.ends("fixes")
        under_way = log.read("fixes", 0, 0, ends[0])
        before = [list(log.read("fixes", partition, 0, ends[partition])) for partition in (0, 1)]
        while log.merge("fixes"):
            pass
        after = [list(log.read("fixes", partition, 0, ends[partition])) for partition in (0, 1)]
        assert [pa.Table.from_batches(batches) for batches in after] == [
            pa.Table.from_batches(batches) for batches in before
        ]
        assert pa.Table.from_batches(under_way) == pa.Table.from_batches(before[0])
        given = offsets(log, "fixes", 1)
        for row in range(0, 150, 7):
            assert numbers(log, "fixes", 1, given[row]) == list(range(1, 300, 2))[row:]

    def test_a_random_history_equals_its_model(self, home: LogHome) -> None:
        """Appends, admits, merges, trims and reopenings in any order leave what plain lists would."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        log = home.open()
        log.declare(spec(unique_ids=10_000))
        model: list[list[int]] = [[], []]
        for step in range(150):
            partition = chance.randrange(2)
            action = chance.choice(["append", "admit", "admit", "merge", "trim", "reopen", "read"])
            fresh = [step * 100 + index for index in range(chance.randrange(1, 20))]
            if action == "append":
                log.append("fixes", partition, batch(fresh), producer="p", sequence=step)
                model[partition] += fresh
            elif action == "admit":
                kept = numbers(log, "fixes", partition)
                old = chance.sample(kept, min(3, len(kept)))
                assert log.admit("fixes", {partition: batch(fresh + old)}).duplicates[partition] == [
                    len(fresh) + index for index in range(len(old))
                ]
                model[partition] += fresh
            elif action == "merge":
                log.merge("fixes")
            elif action == "trim":
                ends = log.ends("fixes")
                log.trim("fixes", Retention(timedelta(0), 0, {partition: ends[partition] // 3 for partition in (0, 1)}))
            elif action == "reopen":
                log.close()
                log = home.open()
                log.declare(spec(unique_ids=10_000))
            given = offsets(log, "fixes", partition)
            left = model[partition][len(model[partition]) - len(given) :]
            start = chance.randrange(log.starts("fixes")[partition], log.ends("fixes")[partition] + 1)
            rest = [number for number, offset in zip(left, given, strict=True) if offset >= start]
            assert numbers(log, "fixes", partition, start) == rest
        log.close()

    def test_wait_returns_as_soon_as_ends_differ(self, log: Log) -> None:
        """An append wakes it long before its timeout."""
        log.declare(spec())
        assert self._woken(log, log) == log.ends("fixes") != {0: 0, 1: 0}

    def test_a_reader_of_its_own_is_woken_too(self, home: LogHome, log: Log) -> None:
        """A reader that shares nothing with the writer but the log waits as well."""
        log.declare(spec())
        reader = home.opener()()
        assert self._woken(log, reader) == log.ends("fixes") != {0: 0, 1: 0}
        reader.close()

    def test_a_watch_may_be_armed_before_the_stream_exists(self, log: Log) -> None:
        heard: list[bool] = []
        watch = log.watch("fixes", lambda: heard.append(True))
        assert watch.arm()
        log.declare(spec())
        wait_for(lambda: heard, DEADLINE_S)
        watch.close()

    def _woken(self, writer: Log, reader: BlockingLogReader) -> object:
        results: list[object] = []
        waiting = threading.Thread(target=lambda: results.append(reader.wait("fixes", {0: 0, 1: 0}, 10 * DEADLINE_S)))
        waiting.start()
        writer.append("fixes", 1, batch([1]), producer="p", sequence=1)
        waiting.join(DEADLINE_S)
        assert not waiting.is_alive()
        return results[0]

    def test_another_process_reads_while_this_one_writes(self, home: LogHome, log: Log) -> None:
        """Rows are visible to every process once their append has returned."""
        log.declare(spec())
        log.append("fixes", 0, batch(range(100)), producer="p", sequence=1)
        program = (
            "import base64, pickle, sys\n"
            "from tests.contracts.log import numbers\n"
            "log = pickle.loads(base64.b64decode(sys.argv[1]))()\n"
            "print(sum(numbers(log, 'fixes', 0)))\n"
            "log.close()\n"
        )
        opener = base64.b64encode(pickle.dumps(home.opener())).decode()
        command = [sys.executable, "-c", program, opener]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert (done.returncode, done.stdout) == (0, "4950\n"), done.stderr

    def test_a_changed_schema_reads_old_rows_in_the_new_one(self, log: Log) -> None:
        """Added columns are null in old rows, removed ones are gone, order follows the new schema."""
        log.declare(spec())
        log.append("fixes", 0, batch([1, 2]), producer="p", sequence=1)
        changed = pa.schema([SCHEMA.field("_ingest_time"), pa.field("speed", pa.float64()), *list(SCHEMA)[2:4]])
        changed = changed.append(SCHEMA.field("n"))
        log.declare(spec(schema=changed))
        row = {"n": 3, "speed": 1.5, "_id": "three"}
        log.append("fixes", 0, pa.RecordBatch.from_pylist([row], schema=changed), producer="p", sequence=2)
        rows = table(log, "fixes", 0)
        assert rows.schema.equals(changed)
        assert rows["n"].to_pylist() == [1, 2, 3]
        assert rows["speed"].to_pylist() == [None, None, 1.5]

    def test_a_column_that_comes_back_has_its_old_values(self, log: Log) -> None:
        """Removing a column deletes no stored values, and neither does merging."""
        log.declare(spec())
        for number in range(200):
            log.append("fixes", 0, batch([number]), producer="p", sequence=number)
        log.declare(spec(schema=SCHEMA.remove(1)))
        while log.merge("fixes"):
            pass
        log.declare(spec())
        rows = table(log, "fixes", 0)
        assert rows["text"].to_pylist() == [f"row {number}" for number in range(200)]

    def test_old_events_are_read_as_the_new_version_of_their_class(self, log: Log) -> None:
        """A renamed field keeps its values, an added one has its default, and no required field is null; a class
        with `migrate` supplies the rest. Offsets, ids and ticks stay unchanged."""
        log.declare(StreamSpec.of("orders", event_spec(Order), 1))
        orders = to_batch(Order, [Order(order="a", text="x", cents=100)], ids=["a"], keys=["a"], now=BEGIN)
        log.append("orders", 0, orders, producer="p", sequence=1)
        log.append("orders", 0, tick_batch(event_schema(Order), BEGIN), producer="ticks", sequence=1)
        for cls, expected in (
            (NamedOrder, {"order": "a", "body": "x", "cents": 100, "currency": "EUR"}),
            (CountedOrder, {"order": "a", "body": "x", "amount": 1.0, "currency": "EUR"}),
        ):
            log.declare(StreamSpec.of("orders", event_spec(cls), 1))
            rows = table(log, "orders", 0)
            assert rows.schema.equals(event_schema(cls))
            first, tick = rows.drop_columns(["_key", "_ingest_time"]).to_pylist()
            assert first == {**expected, "_id": "a", "_kind": 0}
            assert {name for name, value in tick.items() if value is not None} == {"_kind"}

    def test_a_class_that_old_events_do_not_fit_is_refused(self, log: Log) -> None:
        """Nothing is changed, and events are still read as the previous class."""
        log.declare(StreamSpec.of("orders", event_spec(NamedOrder), 1))
        event = NamedOrder(order="a", body="x", cents=1)
        orders = to_batch(NamedOrder, [event], ids=["a"], keys=["a"], now=BEGIN)
        log.append("orders", 0, orders, producer="p", sequence=1)
        for cls, says in ((Order, "'body'"), (UnsaidOrder, "UnsaidOrder.vat is new")):
            with pytest.raises(DeclarationError, match=says):
                log.declare(StreamSpec.of("orders", event_spec(cls), 1))
        log.declare(StreamSpec.of("orders", event_spec(CountedOrder), 1))
        with pytest.raises(DeclarationError, match="run the newer code"):
            log.declare(StreamSpec.of("orders", event_spec(NamedOrder), 1))
        assert table(log, "orders", 0)["amount"].to_pylist() == [0.01]

    def test_what_cannot_be_read_later_cannot_be_declared(self, log: Log) -> None:
        """Another type for a column, even one removed since is refused."""
        log.declare(spec())
        retyped = SCHEMA.set(0, pa.field("n", pa.string()))
        with pytest.raises(DeclarationError, match="column n is now string"):
            log.declare(spec(schema=retyped))
        log.declare(spec(schema=SCHEMA.remove(0)))
        with pytest.raises(DeclarationError, match="column n is now string"):
            log.declare(spec(schema=retyped))

    def test_a_batch_of_another_schema_is_refused(self, log: Log) -> None:
        """Nothing is stored that the stream's schema does not describe."""
        log.declare(spec())
        with pytest.raises(DeclarationError):
            log.append("fixes", 0, pa.record_batch({"n": [1]}), producer="p", sequence=1)
        assert log.ends("fixes") == {0: 0, 1: 0}
