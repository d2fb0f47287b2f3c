"""Long gaps between the offsets of the embedded log, also before the first row of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.core.columns import tick_batch
from penstock.core.contracts import Retention
from penstock.core.cursor import Span
from penstock.queue import EmbeddedLog
from tests.contracts.log import SCHEMA, batch, numbers, offsets, spec
from tests.holes import holes

LONG = 150_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path, disk_reserve_bytes=0, offsets=holes({0: LONG, LONG + 5: LONG, 2 * LONG + 10: LONG}))
    log.declare(spec(unique_ids=100))
    yield log
    log.close()


def test_an_append_stands_at_its_first_row(log: EmbeddedLog) -> None:
    """Not at the gap before it; also when it is repeated."""
    for _ in range(2):
        assert log.append("fixes", 0, batch([1, 2]), producer="p", sequence=1) == (0, LONG)
    assert log.append("fixes", 1, batch([]), producer="p", sequence=2) == (1, 0)
    assert offsets(log, "fixes", 0) == [LONG, LONG + 1]


def test_rows_are_counted_from_anywhere_in_a_gap(log: EmbeddedLog) -> None:
    log.append("fixes", 0, batch(range(10)), producer="p", sequence=1)
    end = log.ends("fixes")[0]
    assert end == 3 * LONG + 10
    places = [0, 1, LONG - 1, LONG, LONG + 3, LONG + 5, LONG + 7, 2 * LONG + 5, 2 * LONG + 9, 2 * LONG + 10, end]
    given = offsets(log, "fixes", 0)
    for number, start in enumerate(places):
        for stop in places[number:]:
            expected = sum(start <= offset < stop for offset in given)
            assert log.rows_between("fixes", {0: start}, {0: stop}) == expected
            assert len(numbers(log, "fixes", 0, start, stop)) == expected


def test_an_admission_tells_the_gap_before_its_first_row(log: EmbeddedLog) -> None:
    admission = log.admit("fixes", {0: batch(range(7)), 1: batch([])})
    assert list(admission.spans[0]) == [Span(0, LONG, 5), Span(0, 2 * LONG + 5, 2)]
    assert admission.ends == {0: 2 * LONG + 7, 1: 0}


def test_ids_before_a_long_gap_are_remembered_after_a_restart(log: EmbeddedLog, tmp_path: Path) -> None:
    """Though nothing is known of the time of the rows before it while only the gap was read."""
    log.admit("fixes", {0: batch(range(5)), 1: batch(range(5, 9))})
    log.close()
    again = EmbeddedLog(tmp_path, disk_reserve_bytes=0)
    again.declare(spec(unique_ids=100))
    assert again.admit("fixes", {0: batch(range(9))}).duplicates == {0: list(range(9))}
    again.close()


def test_kept_events_are_counted_after_a_trim(log: EmbeddedLog) -> None:
    """Neither gaps nor ticks are events."""
    long_ago = datetime.now(UTC) - timedelta(days=2)
    log.append("fixes", 0, batch(range(6), at=long_ago), producer="p", sequence=1)
    log.append("fixes", 1, tick_batch(SCHEMA, datetime.now(UTC)), producer="p", sequence=1)
    assert log.events_kept("fixes") == log.events_appended("fixes") == 6
    log.append("fixes", 0, batch(range(6, 10)), producer="p", sequence=2)
    assert log.events_kept("fixes") == log.events_appended("fixes") == 10
    log.trim("fixes", Retention(timedelta(days=1), 2**40, {}))
    assert (log.events_appended("fixes"), numbers(log, "fixes", 0)) == (10, [6, 7, 8, 9])
    assert log.events_kept("fixes") == 4
