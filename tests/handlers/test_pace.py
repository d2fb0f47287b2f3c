"""A batch of a backlog takes a few seconds, however slow the handler is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.cursor import Positions
from penstock.handlers.pace import BATCH_S, FIRST_ROWS, GROWTH_MAX, ROWS_MIN, Pace


def at(row: int) -> Positions:
    return {"fixes": {0: row}}


@settings(deadline=None)
@given(st.floats(1e-7, 1e-2), st.integers(1, 10_000_000))
def test_batches_come_to_take_as_long_as_they_should(row_s: float, rows_max: int) -> None:
    pace, now, position = Pace(rows_max), 0.0, 0
    for _ in range(12):
        before, rows = pace.rows, pace.begin(at(position), now)
        assert rows <= min(rows_max, max(GROWTH_MAX * before, ROWS_MIN))
        position += rows
        pace.planned(at(position), rows, now)
        now += rows * row_s
    settled = pace.begin(at(position), now)
    bounded = settled in (rows_max, ROWS_MIN) or abs(settled * row_s - BATCH_S) < BATCH_S / 100
    assert bounded, settled * row_s


def test_a_batch_with_little_in_it_says_nothing_of_the_pace() -> None:
    """The same holds for one that was not run to its end, or one that waits for another stream and has no rows."""
    pace = Pace(1_000_000)
    assert pace.begin(at(0), 0.0) == FIRST_ROWS
    pace.planned(at(10), 10, 0.0)
    assert pace.begin(at(10), 100.0) == FIRST_ROWS
    pace.planned(at(10), 0, 100.0)
    assert pace.begin(at(10), 100.01) == FIRST_ROWS
    pace.planned(at(FIRST_ROWS), FIRST_ROWS, 100.0)
    assert pace.begin(at(10), 1000.0) == FIRST_ROWS
    pace.planned(at(FIRST_ROWS), FIRST_ROWS, 1000.0)
    assert pace.begin(at(FIRST_ROWS), 1000.0 + 2 * BATCH_S) == FIRST_ROWS // 2
