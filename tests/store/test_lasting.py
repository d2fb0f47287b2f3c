"""Rows of windows that a handler deletes itself: `keep` does not apply to them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.store import ViewSpec, ViewTable
from tests.clocks import ManualClock
from tests.store.support import PLAIN, START, counts, open_view, output, ranked, served, window_counts, windowed

SPEC = windowed(keep=timedelta(hours=1))
DAY = 24 * 60


def write(table: ViewTable, batch: int, *rows: tuple[int, str, int], deletes: tuple[tuple[int, str], ...] = ()) -> None:
    """Commit rows and deletions as a window handler does."""
    gone = window_counts(*((minute, key, None) for minute, key in deletes)).select(["window", "k"])
    table.commit(replace(output(batch, window_counts(*rows)), deletes=gone), windows_expire=False)


def seen(path: Path, spec: ViewSpec = SPEC) -> list[tuple[str, int]]:
    return sorted((row["k"], row["n"]) for row in served(path, spec).rows)


def test_the_newest_window_of_one_key_neither_removes_nor_drops_rows_of_another(tmp_path: Path) -> None:
    path, clock = tmp_path / "v", ManualClock(START)
    with open_view(path, SPEC, clock) as table:
        write(table, 0, (1, "good", 1))
        write(table, 1, (75 * 365 * DAY, "wrong", 1))
        write(table, 2, (2, "good", 2))
        clock.move(3 * 3_600)
        assert table.expire() == 0
        assert seen(path) == [("good", 1), ("good", 2), ("wrong", 1)]
        write(table, 3, deletes=((1, "good"), (5, "never there")))
    assert seen(path) == [("good", 2), ("wrong", 1)]


def test_rows_from_before_still_expire(tmp_path: Path) -> None:
    """Earlier versions wrote them, and may have forgotten their keys."""
    path = tmp_path / "v"
    with open_view(path, SPEC) as table:
        table.commit(output(0, window_counts((1, "old", 1), (60, "old", 2), (60, "updated", 3))))
        write(table, 1, (60, "updated", 4))
        assert seen(path) == [("old", 1), ("old", 2), ("updated", 4)]
        write(table, 2, (90, "new", 5))
        assert seen(path) == [("new", 5), ("old", 2), ("updated", 4)]
        write(table, 3, (150, "new", 6))
    assert seen(path) == [("new", 5), ("new", 6), ("updated", 4)]


def test_after_a_rebuild_no_row_expires_even_if_it_has_not_changed(tmp_path: Path) -> None:
    path, rows = tmp_path / "v", window_counts((1, "same", 1), (2, "changed", 3))
    with open_view(path, SPEC) as table:
        table.commit(output(0, window_counts((1, "same", 1), (2, "changed", 2), (3, "gone", 4))))
        table.replace(rows, windows_expire=False)
        write(table, 1, (DAY, "new", 5))
        assert table.expire() == 0
    with open_view(path, SPEC):  # checks the file
        assert seen(path) == [("changed", 3), ("new", 5), ("same", 1)]


def test_rows_without_windows_expire_as_before(tmp_path: Path) -> None:
    spec, clock = replace(PLAIN, keep=timedelta(hours=1)), ManualClock(START)
    with open_view(tmp_path / "v", spec, clock) as table:
        table.commit(output(0, counts(("a", 1))), windows_expire=False)
        table.replace(counts(("a", 1), ("b", 2)), windows_expire=False)
        clock.move(3_601)
        assert table.expire() == 2


@pytest.mark.parametrize("last", [False, True])
def test_a_ranked_view_serves_the_newest_window_that_has_rows(tmp_path: Path, last: bool) -> None:
    spec, path = windowed(ranked(top=1), keep=timedelta(hours=1)), tmp_path / "v"
    with open_view(path, spec) as table:
        write(table, 0, (1, "good", 1), (1, "better", 2), (DAY, "wrong", 9))
        assert seen(path, spec) == [("wrong", 9)]
        write(table, 1, deletes=((DAY, "wrong"),))
        assert seen(path, spec) == [("better", 2)]
        if last:
            write(table, 2, deletes=((1, "good"), (1, "better")))
            assert seen(path, spec) == []
        write(table, 3 if last else 2, (2, "good", 3))
    with open_view(path, spec):
        assert seen(path, spec) == [("good", 3)]
