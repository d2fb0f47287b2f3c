"""Single rows of a log are found across gaps of any length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.reading import first_row, last_row, rows_end, rows_start
from penstock.queue import EmbeddedLog
from tests.contracts.log import batch, spec
from tests.holes import holes

SPAN = "fixes", 0
"""Rows 0 to 4 at offsets 100,000 to 100,004, and rows 5 to 9 at 300,005 to 300,009; then a gap of 50,000."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path, offsets=holes({0: 100_000, 100_005: 200_000, 300_010: 50_000}))
    log.declare(spec(partitions=1))
    log.append("fixes", 0, batch(range(10)), producer="p", sequence=1)
    assert log.ends("fixes") == {0: 350_010}
    yield log
    log.close()


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (0, 350_010, (0, 100_000), (9, 300_009)),
        (0, 300_005, (0, 100_000), (4, 100_004)),
        (100_005, 350_010, (5, 300_005), (9, 300_009)),
        (100_004, 300_006, (4, 100_004), (5, 300_005)),
        (100_005, 300_005, None, None),
        (300_010, 350_010, None, None),
    ],
)
def test_the_first_and_the_last_row_of_a_range_are_found(
    log: EmbeddedLog, start: int, end: int, first: tuple[int, int] | None, last: tuple[int, int] | None
) -> None:
    edges = [look(log, *SPAN, start, end) for look in (first_row, last_row)]
    rows = [row and (row.column("n")[0].as_py(), row.column("_offset")[0].as_py()) for row in edges]
    assert rows == [first, last]
    assert rows_start(log, *SPAN, start, end) == (first[1] if first else end)
    assert rows_end(log, *SPAN, start, end) == (last[1] + 1 if last else start)
