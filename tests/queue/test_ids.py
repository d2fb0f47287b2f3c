"""Which ids are remembered, and for how long."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from penstock.queue.committer import to_us
from penstock.queue.ids import MARKS, RecentIds
from penstock.queue.reader import StreamReader
from penstock.queue.recall import CHUNK_ROWS, recall
from tests.contracts.log import batch, spec
from tests.queue.conftest import EmbeddedHome

HOUR_US = 3_600_000_000
START = datetime(2024, 1, 1, tzinfo=UTC)


def known(recent: RecentIds, number: int, at: datetime = START) -> bool:
    return bool(recent.sift({0: batch([number])}, {0: 0}, to_us(at)).duplicates[0])


def test_exactly_the_last_ids_are_known() -> None:
    """With a limit of ten, the tenth last id is known and the eleventh last is not."""
    recent = RecentIds(10, HOUR_US)
    for number in range(100):
        recent.add({f"id-{number}": number}, to_us(START))
    assert [known(recent, number) for number in (89, 90, 99)] == [False, True, True]
    assert len(recent) == 10


def test_memory_is_bounded_by_the_limit_however_the_ids_come() -> None:
    """One at a time or thousands at once, no more than the limit are held, and the marks stay few."""
    recent = RecentIds(5_000, HOUR_US)
    for number in range(20_000):
        recent.add({str(number): number}, to_us(START) + number * 1_000_000)
    recent.add({str(number): number for number in range(20_000, 40_000)}, to_us(START) + 20_000 * 1_000_000)
    assert len(recent) == len(recent._known) == 5_000
    assert len(recent._marks) <= 2 * MARKS


def test_sifting_remembers_nothing() -> None:
    """Only ids whose events became durable are known: a commit that fails leaves no trace."""
    recent = RecentIds(10, HOUR_US)
    for _ in range(2):
        assert recent.sift({0: batch([1, 2])}, {0: 7}, to_us(START)).fresh == {"id-1": 7, "id-2": 8}


def test_a_known_id_is_not_counted_twice() -> None:
    """Adding an id again does not push out another one."""
    recent = RecentIds(3, HOUR_US)
    for _ in range(5):
        recent.add({"id-1": 1, "id-2": 2, "id-3": 3}, to_us(START))
    assert [known(recent, number) for number in (1, 2, 3)] == [True, True, True]


def test_an_event_from_the_past_does_not_make_others_old() -> None:
    """Age is measured from the newest event on, so a clock that steps back forgets nothing."""
    recent = RecentIds(10, HOUR_US)
    recent.add({"id-1": 1}, to_us(START))
    assert known(recent, 1, START - timedelta(days=30))
    assert not known(recent, 1, START + timedelta(hours=2))


def test_recalled_is_what_was_known(home: EmbeddedHome) -> None:
    """The index read back from the log holds the newest ids of all partitions together, within limit and age."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = home.open()
    log.declare(spec(unique_ids=1))
    order: list[tuple[int, int]] = []
    number, moment = 0, 0
    while number < 4 * CHUNK_ROWS:
        count = chance.choice([1, 50, 3_000])
        moment += chance.randrange(1, 1_000)
        at = START + timedelta(microseconds=moment)
        log.admit("fixes", {chance.randrange(2): batch(range(number, number + count), at=at)})
        order += [(moment, each) for each in range(number, number + count)]
        number += count
    log.close()
    reader = StreamReader(home.directory / "fixes.db")
    for limit, age in ((10, HOUR_US), (10_000, HOUR_US), (10**6, HOUR_US), (10**6, moment // 2)):
        recent = recall(reader, limit, age)
        newest = {f"id-{each}" for at, each in order[-limit:] if at >= moment - age}
        assert newest <= recent._known.keys()
        assert len(recent) <= min(limit, number)
        assert len(recent) <= len(newest) + 2 * CHUNK_ROWS
    reader.close()


def test_recall_keeps_the_newest_of_a_repeated_id(home: EmbeddedHome) -> None:
    """An id that was free and came again is remembered from its second coming on."""
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
