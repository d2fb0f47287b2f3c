"""A writer that starts remembers the same ids as the one before it."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from penstock.queue import EmbeddedLog
from penstock.queue import recall as recalling
from penstock.queue.committer import to_us
from penstock.queue.ids import MARKS, RecentIds
from penstock.queue.reader import StreamFileReader
from penstock.queue.recall import recall
from tests.contracts.log import SCHEMA, batch, offsets, spec
from tests.queue.conftest import EmbeddedHome

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOUR_US = 3_600_000_000
MIB = 1024 * 1024


@contextmanager
def reading(home: EmbeddedHome) -> Iterator[StreamFileReader]:
    reader = StreamFileReader(home.directory / "fixes.db")
    try:
        yield reader
    finally:
        reader.close()


def index_of(log: EmbeddedLog) -> RecentIds:
    return log._writers["fixes"].writer._ids


@pytest.fixture(params=[1, 100, recalling.CHUNK_ROWS])
def chunk_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pieces of any size give the same result."""
    monkeypatch.setattr(recalling, "CHUNK_ROWS", request.param)
    return int(request.param)


@pytest.mark.usefixtures("chunk_rows")
@pytest.mark.parametrize("limit", [10, 100_000])
def test_recalled_is_what_was_known(home: EmbeddedHome, limit: int) -> None:
    """Compares ids, their order and their positions, with events without an id among them, and some that came twice."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = home.open()
    log.declare(spec(unique_ids=limit))
    number, moment = 0, START
    while number < 3_000:
        count = chance.choice([1, 1, 1, 5, 500])
        moment += timedelta(microseconds=chance.randrange(1, 1_000))
        names = [chance.choice([None, f"id-{index}", f"id-{index}", f"id-{index // 2}"]) for index in range(count)]
        names = [name and f"{name}-{chance.choice([number, number // 1_000])}" for name in names]
        names = [name and name + "x" * 100 * name.endswith("7") for name in names]
        rows = batch(range(number, number + count), ids=names, at=moment)
        log.admit("fixes", {chance.choice([0, 0, 0, 1]): rows})
        number += count
    known = index_of(log)
    with reading(home) as reader:
        recalled = recall(reader, limit, HOUR_US)
    assert list(recalled._order) == list(known._order)
    assert recalled._known == known._known
    assert sum(mark.count for mark in recalled._marks) == len(recalled)
    log.close()


def test_long_ids_are_known_after_a_restart(home: EmbeddedHome) -> None:
    """This holds for events that were admitted and for those that a producer appended."""
    ids = [f"{number}" + "\xe9" * 200 for number in range(4)]
    log = home.open()
    log.declare(spec(unique_ids=10))
    log.admit("fixes", {0: batch([0, 1], ids=ids[:2], at=START)})
    log.append("fixes", 0, batch([2, 3], ids=ids[2:], at=START), producer="me", sequence=1)
    for _ in range(2):
        again = log.admit("fixes", {1: batch(range(5), ids=[*ids, "new" * 50], at=START)})
        assert again.duplicates[1][:4] == [0, 1, 2, 3]
        log.close()
        log = home.open()
        log.declare(spec(unique_ids=10))
    log.close()


@pytest.mark.usefixtures("chunk_rows")
def test_partitions_that_were_filled_at_once_are_recalled_together(home: EmbeddedHome) -> None:
    """With events of one moment in both partitions, the newest moments are known completely, whatever the limit cuts
    off."""
    log = home.open()
    log.declare(spec(unique_ids=10_000))
    for number in range(300):
        at = START + timedelta(seconds=number)
        log.admit("fixes", {0: batch([number * 2], at=at), 1: batch([number * 2 + 1], at=at)})
    with reading(home) as reader:
        recalled = recall(reader, 100, HOUR_US)
    assert recalled._known == {f"id-{n}": index_of(log)._known[f"id-{n}"] for n in range(500, 600)}
    log.close()


@pytest.mark.usefixtures("chunk_rows")
def test_recalled_ids_are_forgotten_when_they_would_have_been(home: EmbeddedHome) -> None:
    """Events some minutes apart share a chunk but not an age: each is remembered for its time and little more."""
    log = home.open()
    log.declare(spec(unique_ids=10_000, unique_for=HOUR))
    for number in range(200):
        log.admit("fixes", {number % 2: batch([number], at=START + timedelta(minutes=number))})
    log.close()
    little = HOUR_US * 2 // MARKS
    for later in (0, 1, 20, 59):
        now_us = to_us(START + timedelta(minutes=199 + later))
        with reading(home) as reader:
            recalled = recall(reader, 10_000, HOUR_US)
        recalled.sift({}, {}, now_us)
        surely = {f"id-{n}" for n in range(200) if to_us(START + timedelta(minutes=n)) >= now_us - HOUR_US}
        perhaps = {f"id-{n}" for n in range(200) if to_us(START + timedelta(minutes=n)) >= now_us - HOUR_US - little}
        assert surely <= recalled._known.keys() <= perhaps


@pytest.mark.usefixtures("chunk_rows")
def test_a_clock_that_was_set_back_makes_nobody_unknown(home: EmbeddedHome) -> None:
    """Events stored before the step and after it are known, and those after it are the newer ones."""
    log = home.open()
    log.declare(spec(unique_ids=10_000, partitions=1))
    for number in range(40):
        minutes = number if number < 20 else number - 15
        log.admit("fixes", {0: batch([number], at=START + timedelta(minutes=minutes))})
    expected = {f"id-{number}": offset for number, offset in enumerate(offsets(log, "fixes", 0))}
    log.close()
    with reading(home) as reader:
        assert (recall(reader, 10_000, HOUR_US)._known, len(expected)) == (expected, 40)


def test_recall_keeps_the_newest_of_a_repeated_id(home: EmbeddedHome) -> None:
    """An id that was forgotten and came again is remembered from its second occurrence on."""
    log = home.open()
    log.declare(spec(unique_ids=0))
    for number in (1, 2, 3, 4, 1):
        log.admit("fixes", {0: batch([number], at=START + timedelta(minutes=number))})
    log.admit("fixes", {0: batch([1], at=START + timedelta(minutes=30))})
    log.close()
    log = home.open()
    log.declare(spec(unique_ids=2))
    late = START + timedelta(minutes=31)
    assert log.admit("fixes", {0: batch([1, 4, 3], at=late)}).duplicates == {0: [0, 1]}
    log.close()


def test_events_without_an_id_take_no_place_of_one_that_has(home: EmbeddedHome) -> None:
    """The same number of last ids is known after a restart as before it, however many events without an id are between
    them."""
    log = home.open()
    log.declare(spec(unique_ids=5))
    for number in range(10):
        names = [f"id-{number}", *[None] * 50]
        log.admit("fixes", {0: batch(range(51), ids=names, at=START + timedelta(seconds=number))})
    log.close()
    log = home.open()
    log.declare(spec(unique_ids=5))
    sent = log.admit("fixes", {0: batch([9, 5, 4], at=START + timedelta(minutes=1))})
    assert sent.duplicates == {0: [0, 1]}
    log.close()


def test_recall_holds_a_few_chunks_and_not_the_log(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides the index, memory is that of the pieces being read, although the events have 48 MiB."""
    monkeypatch.setattr(recalling, "CHUNK_ROWS", 1_024)
    log = home.open()
    log.declare(spec(unique_ids=10**6))
    for number in range(48):
        rows = batch(range(number * 1_024, (number + 1) * 1_024), at=START + timedelta(seconds=number))
        rows = rows.set_column(SCHEMA.get_field_index("text"), SCHEMA.field("text"), pa.array(["x" * 1_024] * 1_024))
        log.admit("fixes", {number % 2: rows})
    log.close()
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        with reading(home) as reader:
            recalled = recall(reader, 10**6, HOUR_US)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert len(recalled) == 48 * 1_024
    assert peak - kept + counted.max_memory() < 16 * MIB
