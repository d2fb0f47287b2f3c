"""Each micro-batch is written once, whole, and in turn."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.contracts import LedgerEntry, Output
from penstock.errors import DeclarationError, DiskFull, LedgerMismatch, ViewError
from penstock.store import ViewSpec, ViewTable, ledger
from tests.store.support import (
    PLAIN,
    START,
    ManualClock,
    changes,
    counts,
    open_view,
    output,
    position,
    ranked,
    served,
    window_counts,
    windowed,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts.db"


def test_a_new_view_is_empty_and_has_no_ledger(path: Path) -> None:
    assert ledger(path) is None
    with open_view(path, PLAIN) as view:
        assert (view.last(), view.size, view.version) == (None, 0, 0)
        assert ledger(path) is None
        assert served(path, PLAIN).rows == []


def test_a_commit_writes_rows_a_change_and_the_ledger_together(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        assert view.commit(output(0, counts(("a", 1), ("b", 2)), epoch=7))
        assert view.last() == ledger(path) == LedgerEntry(0, position(0), position(10), 7)
        assert (view.size, view.version) == (2, 1)
    assert served(path, PLAIN).rows == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
    (change,) = changes(path, PLAIN, 0)
    assert json.loads(change.data) == {"upserts": [{"k": "a", "n": 1}, {"k": "b", "n": 2}], "deletes": []}


def test_the_same_batch_again_changes_nothing(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        assert view.commit(output(0, counts(("a", 1))))
        assert not view.commit(output(0, counts(("a", 1)), epoch=2))
        respaced = json.dumps(json.loads(position(10)), indent=2)
        assert not view.commit(Output(0, position(0), respaced, 1, counts(("a", 1))))
        assert view.version == 1


def test_an_empty_batch_moves_the_ledger_and_has_no_version(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        assert view.commit(output(0, counts()))
        assert view.commit(output(1, counts(("a", 1))))
        last = view.last()
        assert last is not None
        assert (last.batch_id, view.version) == (1, 1)


def test_of_two_rows_with_one_key_in_a_batch_the_last_stands(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(("a", 1), ("b", 5), ("a", 2))))
        assert view.size == 2
    assert served(path, PLAIN).rows == [{"k": "a", "n": 2}, {"k": "b", "n": 5}]


MISFITS = {
    "another range": Output(1, position(10), position(21), 1, counts()),
    "another start": Output(1, position(9), position(20), 1, counts()),
    "a batch before": output(0, counts()),
    "a batch left out": output(3, counts()),
    "a hole in the range": Output(2, position(21), position(30), 1, counts()),
}


@pytest.mark.parametrize("offered", MISFITS.values(), ids=MISFITS)
def test_a_batch_that_does_not_fit_is_refused_with_both_positions(path: Path, offered: Output) -> None:
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(("a", 1))))
        view.commit(output(1, counts(("b", 1))))
        with pytest.raises(LedgerMismatch) as caught:
            view.commit(replace(offered, table=counts(("z", 9))))
        assert view.version == 2
        assert view.commit(output(2, counts(("c", 1))))
    for part in (
        f"batch 1 from {position(10)} to {position(20)}",
        f"batch {offered.batch_id} from {offered.start} to {offered.end}",
        "Restore the checkpoint",
        "remove both the view's checkpoint and its file",
        str(path),
    ):
        assert part in caught.value.message
    assert [row["k"] for row in served(path, PLAIN).rows] == ["a", "b", "c"]


def test_an_older_epoch_is_refused_by_name(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(), epoch=5))
        with pytest.raises(LedgerMismatch, match="epoch 4 is older than epoch 5"):
            view.commit(output(1, counts(("a", 1)), epoch=4))
        assert view.size == 0


def test_an_empty_ledger_takes_no_checkpoint_that_is_under_way(path: Path) -> None:
    """A view file that was lost is not filled from the middle on, which would lose rows without a sign."""
    with open_view(path, PLAIN) as view:
        with pytest.raises(LedgerMismatch, match="The ledger has nothing; offered is batch 4"):
            view.commit(output(4, counts(("a", 1))))
        assert view.commit(Output(0, position(400), position(410), 1, counts()))


def test_a_process_that_was_paused_while_another_took_over_writes_nothing(path: Path) -> None:
    clock = ManualClock()
    spec = replace(PLAIN, keep=timedelta(hours=1))
    with open_view(path, spec, clock) as paused:
        paused.commit(output(0, counts(("a", 1)), epoch=1))
        with open_view(path, spec, clock) as owner:
            owner.commit(output(1, counts(("b", 1)), epoch=2))
        with pytest.raises(LedgerMismatch, match="epoch 1 is older than epoch 2"):
            paused.commit(output(1, counts(("b", 1)), epoch=1))
        with pytest.raises(LedgerMismatch, match="another process"):
            paused.commit(output(2, counts(("c", 1)), epoch=2))
        clock.time += timedelta(hours=2)
        with pytest.raises(LedgerMismatch, match="another process"):
            paused.expire()
    assert [row["k"] for row in served(path, spec).rows] == ["a", "b"]


def test_a_restart_finds_rows_ranking_ledger_and_version(path: Path) -> None:
    spec = ranked()
    with open_view(path, spec) as view:
        view.commit(output(0, counts(("a", 1), ("b", 2), ("c", 3), ("d", 4))))
        generation, last = view.generation, view.last()
    with open_view(path, spec) as view:
        assert (view.generation, view.last(), view.version, view.size) == (generation, last, 1, 4)
        assert not view.commit(output(0, counts(("a", 1))))
        view.commit(output(1, counts(("a", 9))))
    (change,) = changes(path, spec, 1)
    assert json.loads(change.data) == {"upserts": [{"k": "a", "n": 9}], "deletes": [{"k": "b"}]}


def test_a_full_disk_leaves_nothing_and_the_next_commit_works(path: Path) -> None:
    big = counts(*((f"key-{number:06}", number) for number in range(20_000)))
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(("a", 1))))
        connection: sqlite3.Connection = view._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        with pytest.raises(DiskFull):
            view.commit(output(1, big))
        assert (view.size, view.version) == (1, 1)
        connection.execute("PRAGMA max_page_count = 1000000")
        assert view.commit(output(1, big))
        assert view.size == 20_001
    with open_view(path, PLAIN) as view:
        assert view.size == 20_001


def test_old_changes_go_by_number_and_by_size_and_the_last_one_stays(path: Path) -> None:
    spec = replace(PLAIN, changes_kept=5)
    with open_view(path, spec) as view:
        for batch in range(20):
            view.commit(output(batch, counts(("a", batch))))
        assert [change.version for change in changes(path, spec, 15)] == [16, 17, 18, 19, 20]
        assert view._state.oldest == 16
    small = replace(PLAIN, changes_bytes=10)
    with open_view(path, small) as view:
        view.commit(output(20, counts(("a", 20))))
        assert [change.version for change in changes(path, small, 20)] == [21]
        assert view._state.oldest == 21
    with open_view(path, small) as view:
        assert view.version == 21


def test_a_lowered_bound_is_reached_a_bounded_piece_at_a_time(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        for batch in range(100):
            view.commit(output(batch, counts(("a", batch))))
    with open_view(path, replace(PLAIN, changes_kept=3)) as view:
        view.commit(output(100, counts(("a", 100))))
        assert view._state.oldest == 65
        view.commit(output(101, counts(("a", 101))))
        assert view._state.oldest == 100


def test_rows_without_windows_go_by_the_clock_also_when_the_stream_is_idle(path: Path) -> None:
    clock, spec = ManualClock(), replace(PLAIN, keep=timedelta(minutes=10))
    with open_view(path, spec, clock) as view:
        view.commit(output(0, counts(("a", 1), ("b", 1))))
        clock.time = START + timedelta(minutes=5)
        view.commit(output(1, counts(("b", 2))))
        assert view.expire() == 0
        assert view.version == 2
        clock.time = START + timedelta(minutes=11)
        assert view.expire() == 1
        assert (view.size, view.version) == (1, 3)
        last = view.last()
        assert last is not None
        assert last.batch_id == 1
        assert view.commit(output(2, counts()))
    assert json.loads(changes(path, spec, 2)[0].data) == {"upserts": [], "deletes": [{"k": "a"}]}
    assert served(path, spec).rows == [{"k": "b", "n": 2}]


def test_rows_with_windows_go_by_event_time_whatever_the_clock_says(path: Path) -> None:
    clock, spec = ManualClock(), windowed(keep=timedelta(minutes=10))
    with open_view(path, spec, clock) as view:
        view.commit(output(0, window_counts((1, "a", 1), (2, "b", 1))))
        clock.time += timedelta(days=1)
        assert view.expire() == 0
        view.commit(output(1, window_counts((12, "c", 1), (1, "late", 1))))
        assert view.size == 2
    found = json.loads(changes(path, spec, 1)[0].data)
    assert [row["k"] for row in found["upserts"]] == ["c"]
    assert [key["k"] for key in found["deletes"]] == ["a"]
    assert found["deletes"][0]["window"] == {"start": "2024-05-01T12:00:00Z", "end": "2024-05-01T12:01:00Z"}


def test_a_ranked_view_with_windows_serves_the_newest_window_only(path: Path) -> None:
    spec = ranked(windowed(), top=2)
    with open_view(path, spec) as view:
        view.commit(output(0, window_counts((1, "a", 5), (1, "b", 7), (1, "c", 6))))
        assert [row["k"] for row in served(path, spec).rows] == ["b", "c"]
        view.commit(output(1, window_counts((2, "d", 1), (1, "a", 99))))
        assert [row["k"] for row in served(path, spec).rows] == ["d"]
        view.commit(output(2, window_counts((1, "a", 100))))
        assert (view.version, view.size) == (2, 4)


RANKINGS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integer": (pa.int64(), [None, -5, 0, 3, 2**62]),
    "float": (pa.float64(), [float("nan"), float("-inf"), -0.5, 2.0, 1e300]),
    "text": (pa.string(), [None, "", "a", "ab", "é"]),
    "time": (pa.timestamp("us", "UTC"), [None, START - timedelta(days=30_000), START, START + timedelta(seconds=1)]),
    "decimal": (pa.decimal128(38, 18), [None, *map(Decimal, ("-10.5", "-9", "0.000000000000000001", "12", "100"))]),
    "date": (pa.date32(), [None, START.date(), (START + timedelta(days=1)).date()]),
    "boolean": (pa.bool_(), [None, False, True]),
}


@pytest.mark.parametrize("kind", RANKINGS)
def test_rows_rank_by_any_ordered_type_highest_first_and_nulls_last(path: Path, kind: str) -> None:
    spec = ranked(top=10)
    arrow, ascending = RANKINGS[kind]
    table = pa.table({"k": [f"{place}" for place in range(len(ascending))], "n": pa.array(ascending, arrow)})
    with open_view(path, spec) as view:
        view.commit(output(0, table.slice(1)))
        view.commit(output(1, table.slice(0, 1)))
    assert [row["k"] for row in served(path, spec).rows] == [f"{n}" for n in reversed(range(len(ascending)))]
    with open_view(path, spec) as view:
        assert view.size == len(ascending)


@pytest.mark.parametrize("spec", [ranked(), ranked(windowed()), windowed(keep=timedelta(minutes=1))])
def test_ranking_and_expiry_read_an_index_in_its_order(path: Path, spec: ViewSpec) -> None:
    """Their cost is that of the rows they give, not of the rows there are."""
    with open_view(path, spec) as view:
        statements: list[str] = []
        view._connection.set_trace_callback(statements.append)
        view.commit(output(0, window_counts((1, "a", 1), (5, "b", 2))))
        view._connection.set_trace_callback(None)
        queries = [each for each in statements if each.startswith("SELECT") and "FROM rows" in each]
        assert queries
        plans = [row[3] for each in queries for row in view._connection.execute(f"EXPLAIN QUERY PLAN {each}")]
    assert [plan for plan in plans if "SCAN" in plan or "TEMP B-TREE" in plan] == []
    assert any("USING" in plan and "INDEX by_" in plan for plan in plans)


def test_a_path_with_characters_that_mean_something_in_a_uri_is_just_a_path(tmp_path: Path) -> None:
    path = tmp_path / "100% of #1?mode=memory" / "view.db"
    path.parent.mkdir()
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(("a", 1))))
    assert path.exists()
    assert ledger(path) is not None


def test_equal_ranks_are_in_key_order(path: Path) -> None:
    spec = ranked(top=3)
    with open_view(path, spec) as view:
        view.commit(output(0, counts(("d", 1), ("b", 1), ("c", 1), ("a", 1))))
    assert [row["k"] for row in served(path, spec).rows] == ["a", "b", "c"]


def test_a_change_below_the_ranking_has_no_version(path: Path) -> None:
    spec = ranked(top=1)
    with open_view(path, spec) as view:
        view.commit(output(0, counts(("a", 10), ("b", 1))))
        assert view.commit(output(1, counts(("b", 2))))
        assert view.version == 1


def test_a_column_that_is_missing_or_has_no_order_is_the_views_fault(path: Path) -> None:
    with open_view(path, ranked()) as view:
        with pytest.raises(ViewError, match="'n' is not in its output, which has k"):
            view.commit(output(0, pa.table({"k": ["a"]})))
        with pytest.raises(ViewError, match="which has no order"):
            view.commit(output(0, pa.table({"k": ["a"], "n": [[1]]})))
        assert view.commit(output(0, counts(("a", 1))))


def test_another_top_serves_other_rows_to_readers_who_start_over(path: Path) -> None:
    with open_view(path, ranked(top=2)) as view:
        view.commit(output(0, counts(("a", 1), ("b", 2), ("c", 3))))
        before = view.generation
    with open_view(path, ranked(top=1)) as view:
        assert view.generation != before
        assert view.last() is not None
        assert served(path, ranked(top=1)).rows == [{"k": "c", "n": 3}]
        view.commit(output(1, counts(("a", 4))))
    assert served(path, ranked(top=1)).rows == [{"k": "a", "n": 4}]


def test_another_top_is_a_change_that_leads_to_the_rows_served_after_it(path: Path) -> None:
    rows = pa.table({"k": ["a", "b", "c"], "n": [1.5, float("inf"), 0.5]})
    with open_view(path, ranked(top=1)) as view:
        view.commit(output(0, rows))
    with open_view(path, ranked(top=3)) as view:
        assert view.version == 2
    (change,) = changes(path, ranked(top=3), 1)
    assert json.loads(change.data) == {"upserts": [{"k": "a", "n": 1.5}, {"k": "c", "n": 0.5}], "deletes": []}
    with open_view(path, ranked(top=2)) as view:
        assert view.version == 3
    (change,) = changes(path, ranked(top=2), 2)
    assert json.loads(change.data) == {"upserts": [], "deletes": [{"k": "c"}]}
    for top in (5, 6):
        with open_view(path, ranked(top=top)) as view:
            assert view.version == 4  # the second serves the same rows as the first


def test_another_key_or_rank_column_is_refused_and_says_what_to_do(path: Path) -> None:
    with open_view(path, ranked()) as view:
        view.commit(output(0, counts(("a", 1))))
    for other in (replace(ranked(), key=("k", "n")), replace(ranked(), by="k")):
        with pytest.raises(DeclarationError, match="penstock rebuild FILE --view counts"):
            ViewTable(path, other, clock=ManualClock())
    with open_view(path, ranked()) as view:
        assert view.size == 1


def test_a_keep_that_is_newly_declared_applies_to_old_rows(path: Path) -> None:
    clock = ManualClock()
    with open_view(path, PLAIN, clock) as view:
        view.commit(output(0, counts(("a", 1))))
    clock.time += timedelta(hours=1)
    with open_view(path, replace(PLAIN, keep=timedelta(minutes=1)), clock) as view:
        assert view.expire() == 1
        assert view.size == 0
