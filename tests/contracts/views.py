"""Promises of a view's storage: `ViewContract`, inherited by the tests of each implementation."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from penstock.core.contracts import Clock, LedgerEntry, Output, Sink, ViewChange
from penstock.core.errors import DeclarationError, DiskFull, LedgerMismatch, ViewError
from penstock.store import BatchHistory, Gap, StoredLiveView, StoredView, StoredViewReader, ViewSpec
from tests.clocks import ManualClock
from tests.contracts.processes import run_apart
from tests.contracts.sink import SinkContract, SinkHome
from tests.store.support import (
    COUNTS,
    PLAIN,
    START,
    Served,
    counts,
    output,
    position,
    ranked,
    window_counts,
    windowed,
)
from tests.store.writer import written_batch, written_spec

BATCHES = 6
EVERYTHING = 1 << 30
RANKINGS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integer": (pa.int64(), [None, -5, 0, 3, 2**62]),
    "float": (pa.float64(), [float("nan"), float("-inf"), -0.5, 2.0, 1e300]),
    "text": (pa.string(), [None, "", "a", "ab", "é"]),
    "time": (pa.timestamp("us", "UTC"), [None, START - timedelta(days=30_000), START, START + timedelta(seconds=1)]),
    "decimal": (pa.decimal128(38, 18), [None, *map(Decimal, ("-10.5", "-9", "0.000000000000000001", "12", "100"))]),
    "date": (pa.date32(), [None, START.date(), (START + timedelta(days=1)).date()]),
    "boolean": (pa.bool_(), [None, False, True]),
}
EXACT = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.float64()),
        ("whole", pa.int64()),
        ("price", pa.decimal128(38, 18)),
        ("at", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
        ("numbers", pa.list_(pa.float64())),
    ]
)
BEYOND_JSON: dict[str, dict[str, Any]] = {
    "not a number": {"n": math.nan, "numbers": [1.0, math.nan]},
    "infinite": {"n": math.inf, "numbers": [-math.inf]},
    "negative zero": {"n": -0.0},
    "large": {"n": 1e300, "whole": 2**63 - 1, "price": Decimal("12345678901234567890.123456789012345678")},
    "small": {"n": 5e-324, "whole": -(2**63), "price": Decimal("0.000000000000000001")},
    "bytes": {"data": b"\x00\xff", "at": START + timedelta(microseconds=1)},
    "null": {},
}


class ViewHome(Protocol):
    """The storage of the view under test. It outlives what is opened on it, and can be pickled."""

    def open(self, spec: ViewSpec, clock: Clock) -> StoredView:
        """Open it for writing."""

    def reader(self, spec: ViewSpec) -> StoredViewReader:
        """Open it for reading; it exists."""

    def live(self, spec: ViewSpec, buffered_changes: int) -> StoredLiveView:
        """Return it as the gateway has it."""

    def entry(self) -> LedgerEntry | None:
        """Return its ledger."""

    def history(self) -> BatchHistory:
        """Return the history of its batches."""

    def full(self, view: StoredView) -> AbstractContextManager[None]:
        """Leave almost no room for more, for the length of a block."""


@contextmanager
def opened(home: ViewHome, spec: ViewSpec, clock: Clock | None = None) -> Iterator[StoredView]:
    view = home.open(spec, clock or ManualClock(START))
    try:
        yield view
    finally:
        view.close()


@contextmanager
def reading(home: ViewHome, spec: ViewSpec) -> Iterator[StoredViewReader]:
    reader = home.reader(spec)
    try:
        yield reader
    finally:
        reader.close()


def served(home: ViewHome, spec: ViewSpec) -> Served:
    """Return the generation, version and rows that the gateway serves."""
    live = home.live(spec, 1)
    try:
        asyncio.run(live.load())
        assert live.error is None
        snapshot = live.snapshot()
        assert (snapshot.version, len(snapshot.rows)) == (live.version, live.size)
        return Served(live.generation, live.version, [json.loads(row) for row in snapshot.rows])
    finally:
        live.close()


def changes(home: ViewHome, spec: ViewSpec, after: int) -> list[ViewChange]:
    """All changes above a version, as a reader gets them. Raises `Gap` if the first of them is gone."""
    with reading(home, spec) as reader:
        batch = reader.steps(reader.generation(), after, limit=100_000, bytes_max=EVERYTHING)
    assert not batch.more
    return [ViewChange(step.version, step.data) for step in batch.steps]


def oldest(home: ViewHome, spec: ViewSpec) -> int:
    """The version of the oldest change that is kept."""
    for after in range(served(home, spec).version):
        try:
            return changes(home, spec, after)[0].version
        except Gap:
            pass
    raise AssertionError("no change is kept")


def ledger_entry(batch_id: int, inputs: dict[str, tuple[int, int]] | None = None) -> LedgerEntry:
    return LedgerEntry(batch_id, position(batch_id * 10), position(batch_id * 10 + 10), 1, inputs or {})


def exact_rows(values: dict[str, dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{"k": key, **value} for key, value in values.items()], EXACT)


def stored_rows(home: ViewHome, spec: ViewSpec) -> dict[str, str]:
    """The rows as columns, by key; as text, in which NaN equals itself and zero has its sign."""
    with reading(home, spec) as reader:
        rows = reader.table()
    assert rows is not None
    return {row["k"]: repr(row) for row in rows.table.to_pylist()}


def commit_written(home: ViewHome, first: int, top: int) -> None:
    """Commit the batches from `first` on, the same ones each time."""
    with opened(home, written_spec(top)) as view:
        for number in range(first, BATCHES):
            view.commit(written_batch(number))


def assigned_rows(number: int) -> pa.Table:
    """All rows of a derived view: one stays, one changes, and one is another each time."""
    return counts(("same", 1), ("other", number), (f"only {number}", 1))


def assign_written(home: ViewHome, first: int) -> None:
    """Assign all rows from version `first` on, the same ones each time."""
    with opened(home, PLAIN) as view:
        for number in range(first, BATCHES):
            view.assign(assigned_rows(number), ledger_entry(number, {"root": (1, number)}))


class ViewSink:
    """The view under test as the home of a sink."""

    def __init__(self, home: ViewHome) -> None:
        self._home = home

    @contextmanager
    def open(self) -> Iterator[Sink]:
        with opened(self._home, PLAIN) as view:
            view.describe(COUNTS)
            yield view

    def output(self, batch_id: int, start: int, end: int, epoch: int) -> Output:
        return Output(batch_id, position(start), position(end), epoch, counts((str(start), batch_id)))

    def written(self) -> object:
        return served(self._home, PLAIN), self._home.entry()


class ViewContract(SinkContract):
    """Promises of every `StoredView`, and of the `StoredViewReader` and the `StoredLiveView` of its rows.

    Each batch is written once, whole, and in turn; readers get what was written.
    """

    COMMIT_POINTS: tuple[str, ...]
    """Failpoints inside `commit`, before and after it counts."""
    ASSIGN_POINTS: tuple[str, ...]
    """Those inside `assign`."""

    def fresh(self, folder: Path) -> ViewHome:
        """Return the place of a view that does not exist yet."""
        raise NotImplementedError("each implementation has tests that inherit these")

    @pytest.fixture
    def home(self, tmp_path: Path) -> ViewHome:
        return self.fresh(tmp_path)

    @pytest.fixture
    def sink_home(self, home: ViewHome) -> SinkHome:
        return ViewSink(home)

    def test_a_new_view_is_empty_and_has_no_ledger(self, home: ViewHome) -> None:
        assert home.entry() is None
        with opened(home, PLAIN) as view:
            assert (view.last(), view.size, view.version) == (None, 0, 0)
            assert home.entry() is None
            assert served(home, PLAIN).rows == []

    def test_a_commit_writes_rows_a_change_and_the_ledger_together(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            assert view.commit(output(0, counts(("a", 1), ("b", 2)), epoch=7))
            assert view.last() == home.entry() == LedgerEntry(0, position(0), position(10), 7)
            assert (view.size, view.version) == (2, 1)
        assert served(home, PLAIN).rows == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
        (change,) = changes(home, PLAIN, 0)
        assert json.loads(change.data) == {"upserts": [{"k": "a", "n": 1}, {"k": "b", "n": 2}], "deletes": []}

    def test_an_empty_batch_moves_the_ledger_and_has_no_version(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            assert view.commit(output(0, counts()))
            assert view.commit(output(1, counts(("a", 1))))
            last = view.last()
            assert last is not None
            assert (last.batch_id, view.version) == (1, 1)

    def test_of_two_rows_with_one_key_in_a_batch_the_last_stands(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            view.commit(output(0, counts(("a", 1), ("b", 5), ("a", 2))))
            assert view.size == 2
        assert served(home, PLAIN).rows == [{"k": "a", "n": 2}, {"k": "b", "n": 5}]

    def test_an_empty_ledger_takes_no_checkpoint_that_is_under_way(self, home: ViewHome) -> None:
        """A view file that was lost is not filled from the middle on, which would lose rows without a sign."""
        with opened(home, PLAIN) as view:
            with pytest.raises(LedgerMismatch, match="The ledger has nothing; the new batch is batch 4"):
                view.commit(output(4, counts(("a", 1))))
            assert view.commit(Output(0, position(400), position(410), 1, counts()))

    def test_a_process_that_was_paused_while_another_took_over_writes_nothing(self, home: ViewHome) -> None:
        clock = ManualClock(START)
        spec = replace(PLAIN, keep=timedelta(hours=1))
        with opened(home, spec, clock) as paused:
            paused.commit(output(0, counts(("a", 1)), epoch=1))
            with opened(home, spec, clock) as owner:
                owner.commit(output(1, counts(("b", 1)), epoch=2))
            with pytest.raises(LedgerMismatch, match="epoch 1 is older than epoch 2"):
                paused.commit(output(1, counts(("b", 1)), epoch=1))
            with pytest.raises(LedgerMismatch, match="another process"):
                paused.commit(output(2, counts(("c", 1)), epoch=2))
            clock.time += timedelta(hours=2)
            with pytest.raises(LedgerMismatch, match="another process"):
                paused.expire()
        assert [row["k"] for row in served(home, spec).rows] == ["a", "b"]

    def test_a_restart_finds_rows_ranking_ledger_and_version(self, home: ViewHome) -> None:
        spec = ranked()
        with opened(home, spec) as view:
            view.commit(output(0, counts(("a", 1), ("b", 2), ("c", 3), ("d", 4))))
            generation, last = view.generation, view.last()
        with opened(home, spec) as view:
            assert (view.generation, view.last(), view.version, view.size) == (generation, last, 1, 4)
            assert not view.commit(output(0, counts(("a", 1))))
            view.commit(output(1, counts(("a", 9))))
        (change,) = changes(home, spec, 1)
        assert json.loads(change.data) == {"upserts": [{"k": "a", "n": 9}], "deletes": [{"k": "b"}]}

    def test_a_full_disk_leaves_nothing_and_the_next_commit_works(self, home: ViewHome) -> None:
        big = counts(*((f"key-{number:06}", number) for number in range(20_000)))
        with opened(home, PLAIN) as view:
            view.commit(output(0, counts(("a", 1))))
            with home.full(view), pytest.raises(DiskFull):
                view.commit(output(1, big))
            assert (view.size, view.version) == (1, 1)
            assert home.entry() == view.last() == ledger_entry(0)
            assert view.commit(output(1, big))
            assert view.size == 20_001
        with opened(home, PLAIN) as view:
            assert view.size == 20_001

    def test_old_changes_go_by_number_and_by_size_and_the_last_one_stays(self, home: ViewHome) -> None:
        spec = replace(PLAIN, changes_kept=5)
        with opened(home, spec) as view:
            for batch in range(20):
                view.commit(output(batch, counts(("a", batch))))
            assert [change.version for change in changes(home, spec, 15)] == [16, 17, 18, 19, 20]
            assert oldest(home, spec) == 16
        small = replace(PLAIN, changes_bytes=10)
        with opened(home, small) as view:
            view.commit(output(20, counts(("a", 20))))
            assert [change.version for change in changes(home, small, 20)] == [21]
            assert oldest(home, small) == 21
        with opened(home, small) as view:
            assert view.version == 21

    def test_rows_without_windows_go_by_the_clock_also_when_the_stream_is_idle(self, home: ViewHome) -> None:
        clock, spec = ManualClock(START), replace(PLAIN, keep=timedelta(minutes=10))
        with opened(home, spec, clock) as view:
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
        assert json.loads(changes(home, spec, 2)[0].data) == {"upserts": [], "deletes": [{"k": "a"}]}
        assert served(home, spec).rows == [{"k": "b", "n": 2}]

    def test_rows_with_windows_go_by_event_time_whatever_the_clock_says(self, home: ViewHome) -> None:
        clock, spec = ManualClock(START), windowed(keep=timedelta(minutes=10))
        with opened(home, spec, clock) as view:
            view.commit(output(0, window_counts((1, "a", 1), (2, "b", 1))))
            clock.time += timedelta(days=1)
            assert view.expire() == 0
            view.commit(output(1, window_counts((12, "c", 1), (1, "late", 1))))
            assert view.size == 2
        delta = json.loads(changes(home, spec, 1)[0].data)
        assert [row["k"] for row in delta["upserts"]] == ["c"]
        assert [key["k"] for key in delta["deletes"]] == ["a"]
        assert delta["deletes"][0]["window"] == {"start": "2024-05-01T12:00:00Z", "end": "2024-05-01T12:01:00Z"}

    def test_a_ranked_view_with_windows_serves_the_newest_window_only(self, home: ViewHome) -> None:
        spec = ranked(windowed(), top=2)
        with opened(home, spec) as view:
            view.commit(output(0, window_counts((1, "a", 5), (1, "b", 7), (1, "c", 6))))
            assert [row["k"] for row in served(home, spec).rows] == ["b", "c"]
            view.commit(output(1, window_counts((2, "d", 1), (1, "a", 99))))
            assert [row["k"] for row in served(home, spec).rows] == ["d"]
            view.commit(output(2, window_counts((1, "a", 100))))
            assert (view.version, view.size) == (2, 4)

    @pytest.mark.parametrize("kind", RANKINGS)
    def test_rows_rank_by_any_ordered_type_highest_first_and_nulls_last(self, home: ViewHome, kind: str) -> None:
        spec = ranked(top=10)
        arrow, ascending = RANKINGS[kind]
        table = pa.table({"k": [f"{place}" for place in range(len(ascending))], "n": pa.array(ascending, arrow)})
        with opened(home, spec) as view:
            view.commit(output(0, table.slice(1)))
            view.commit(output(1, table.slice(0, 1)))
        assert [row["k"] for row in served(home, spec).rows] == [f"{n}" for n in reversed(range(len(ascending)))]
        with opened(home, spec) as view:
            assert view.size == len(ascending)

    def test_equal_ranks_are_in_key_order(self, home: ViewHome) -> None:
        spec = ranked(top=3)
        with opened(home, spec) as view:
            view.commit(output(0, counts(("d", 1), ("b", 1), ("c", 1), ("a", 1))))
        assert [row["k"] for row in served(home, spec).rows] == ["a", "b", "c"]

    def test_a_change_below_the_ranking_has_no_version(self, home: ViewHome) -> None:
        spec = ranked(top=1)
        with opened(home, spec) as view:
            view.commit(output(0, counts(("a", 10), ("b", 1))))
            assert view.commit(output(1, counts(("b", 2))))
            assert view.version == 1

    def test_a_column_that_is_missing_or_has_no_order_is_the_views_fault(self, home: ViewHome) -> None:
        with opened(home, ranked()) as view:
            with pytest.raises(ViewError, match="'n' is not in its output, which has k"):
                view.commit(output(0, pa.table({"k": ["a"]})))
            with pytest.raises(ViewError, match="which cannot be sorted"):
                view.commit(output(0, pa.table({"k": ["a"], "n": [[1]]})))
            assert view.commit(output(0, counts(("a", 1))))

    def test_another_top_serves_other_rows_to_readers_who_start_over(self, home: ViewHome) -> None:
        with opened(home, ranked(top=2)) as view:
            view.commit(output(0, counts(("a", 1), ("b", 2), ("c", 3))))
            before = view.generation
        with opened(home, ranked(top=1)) as view:
            assert view.generation != before
            assert view.last() is not None
            assert served(home, ranked(top=1)).rows == [{"k": "c", "n": 3}]
            view.commit(output(1, counts(("a", 4))))
        assert served(home, ranked(top=1)).rows == [{"k": "a", "n": 4}]

    def test_another_top_is_a_change_that_leads_to_the_rows_served_after_it(self, home: ViewHome) -> None:
        rows = pa.table({"k": ["a", "b", "c"], "n": [1.5, float("inf"), 0.5]})
        with opened(home, ranked(top=1)) as view:
            view.commit(output(0, rows))
        with opened(home, ranked(top=3)) as view:
            assert view.version == 2
        (change,) = changes(home, ranked(top=3), 1)
        assert json.loads(change.data) == {"upserts": [{"k": "a", "n": 1.5}, {"k": "c", "n": 0.5}], "deletes": []}
        with opened(home, ranked(top=2)) as view:
            assert view.version == 3
        (change,) = changes(home, ranked(top=2), 2)
        assert json.loads(change.data) == {"upserts": [], "deletes": [{"k": "c"}]}
        for top in (5, 6):
            with opened(home, ranked(top=top)) as view:
                assert view.version == 4  # the second serves the same rows as the first

    def test_another_key_or_rank_column_is_refused_and_says_what_to_do(self, home: ViewHome) -> None:
        with opened(home, ranked()) as view:
            view.commit(output(0, counts(("a", 1))))
        for other in (replace(ranked(), key=("k", "n")), replace(ranked(), by="k")):
            with pytest.raises(DeclarationError, match="penstock rebuild FILE --view counts"):
                home.open(other, ManualClock(START))
        with opened(home, ranked()) as view:
            assert view.size == 1

    def test_a_keep_that_is_newly_declared_applies_to_old_rows(self, home: ViewHome) -> None:
        clock = ManualClock(START)
        with opened(home, PLAIN, clock) as view:
            view.commit(output(0, counts(("a", 1))))
        clock.time += timedelta(hours=1)
        with opened(home, replace(PLAIN, keep=timedelta(minutes=1)), clock) as view:
            assert view.expire() == 1
            assert view.size == 0

    @pytest.mark.parametrize("top", [0, 3])
    def test_after_a_kill_around_a_commit_the_same_batches_give_the_same_view(self, tmp_path: Path, top: int) -> None:
        spec, whole = written_spec(top), self.fresh(tmp_path / "whole")
        commit_written(whole, 0, top)
        for point in self.COMMIT_POINTS:
            home = self.fresh(tmp_path / point)
            assert run_apart(f"{point}@4", commit_written, home, 0, top) == -signal.SIGKILL, f"{point} is not reached"
            last = home.entry()
            assert last is not None
            assert last == ledger_entry(last.batch_id)
            assert last.batch_id in (2, 3)
            with opened(home, spec) as view:
                assert view.commit(written_batch(3)) == (last.batch_id == 2)
            commit_written(home, 4, top)
            self.require_same(home, whole, spec)

    def test_after_a_kill_around_an_assignment_the_same_rows_give_the_same_view(self, tmp_path: Path) -> None:
        whole = self.fresh(tmp_path / "whole")
        assign_written(whole, 0)
        for point in self.ASSIGN_POINTS:
            home = self.fresh(tmp_path / point)
            assert run_apart(f"{point}@4", assign_written, home, 0) == -signal.SIGKILL, f"{point} is not reached"
            last = home.entry()
            assert last is not None
            assert last in (ledger_entry(2, {"root": (1, 2)}), ledger_entry(3, {"root": (1, 3)}))
            assign_written(home, last.batch_id + 1)
            self.require_same(home, whole, PLAIN)

    def require_same(self, home: ViewHome, other: ViewHome, spec: ViewSpec) -> None:
        """Fail unless two views have the same rows, changes, ledger and history."""
        here, there = served(home, spec), served(other, spec)
        assert (here.version, here.rows) == (there.version, there.rows)
        assert changes(home, spec, 0) == changes(other, spec, 0)
        assert home.entry() == other.entry()
        histories = home.history(), other.history()
        assert histories[0].latest() == histories[1].latest()
        for history in histories:
            history.close()

    def test_an_assignment_writes_the_difference_as_one_change_with_the_ledger(self, home: ViewHome) -> None:
        entry = ledger_entry(1, {"root": (5, 6)})
        with opened(home, PLAIN) as view:
            view.assign(counts(("a", 1), ("b", 2), ("c", 3)), ledger_entry(0))
            written = view.assign(counts(("c", 4), ("d", 5), ("a", 1)), entry)
            assert (view.version, view.size, view.last(), home.entry()) == (2, 3, entry, entry)
            assert (sorted(written.rows.column("k").to_pylist()), len(written.keys)) == (["c", "d"], 2)
            assert [json.loads(key) for key in written.deletes] == [{"k": "b"}]
            assert view.served(counts(("c", 4), ("d", 5), ("a", 1))).num_rows == 3
        (change,) = changes(home, PLAIN, 1)
        delta = json.loads(change.data)
        assert sorted(row["k"] for row in delta["upserts"]) == ["c", "d"]
        assert delta["deletes"] == [{"k": "b"}]

    def test_assigned_rows_that_are_the_same_make_no_version_and_move_the_ledger(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            view.assign(counts(("a", 1)), ledger_entry(0))
            view.assign(counts(("a", 1)), ledger_entry(1))
            assert (view.version, home.entry()) == (1, ledger_entry(1))
            view.advance(ledger_entry(2))
            assert (view.version, home.entry()) == (1, ledger_entry(2))

    def test_two_assigned_rows_with_one_key_are_refused_and_nothing_is_written(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            view.assign(counts(("a", 1)), ledger_entry(0))
            with pytest.raises(ViewError):
                view.assign(counts(("a", 2), ("a", 3)), ledger_entry(1))
            assert (view.version, home.entry()) == (1, ledger_entry(0))
            view.assign(counts(("a", 4)), ledger_entry(1))
        assert served(home, PLAIN).rows == [{"k": "a", "n": 4}]

    def test_an_assignment_from_an_older_epoch_is_refused(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            view.assign(counts(("a", 1)), replace(ledger_entry(0), epoch=5))
            for write in (lambda: view.assign(counts(), ledger_entry(1)), lambda: view.advance(ledger_entry(1))):
                with pytest.raises(LedgerMismatch, match="epoch 1 is older than epoch 5"):
                    write()
            assert view.version == 1

    def test_amended_rows_are_those_that_an_assignment_would_have_given(self, tmp_path: Path) -> None:
        before, after = counts(("a", 1), ("b", 2), ("c", 3)), counts(("a", 1), ("b", 20), ("d", 4))
        homes = self.fresh(tmp_path / "assigned"), self.fresh(tmp_path / "amended")
        with opened(homes[0], PLAIN) as view:
            view.assign(before, ledger_entry(0))
            change = view.assign(after, ledger_entry(1))
        with opened(homes[1], PLAIN) as view:
            view.assign(before, ledger_entry(0))
            written = view.amend(change.rows, change, ledger_entry(1))
            assert (list(written.keys), list(written.deletes)) == (list(change.keys), list(change.deletes))
        self.require_same(*homes, PLAIN)

    def test_replaced_rows_are_one_change_and_leave_the_ledger(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            view.commit(output(0, counts(("a", 1), ("b", 2))))
            view.replace(counts(("b", 2), ("c", 3)))
            assert (view.version, view.last()) == (2, home.entry())
            assert home.entry() == ledger_entry(0)
            assert not view.commit(output(0, counts(("a", 1), ("b", 2))))
        (change,) = changes(home, PLAIN, 1)
        assert json.loads(change.data) == {"upserts": [{"k": "c", "n": 3}], "deletes": [{"k": "a"}]}

    @pytest.mark.parametrize("top", [None, 100])
    def test_values_are_read_exactly_as_they_were_written(self, home: ViewHome, top: int | None) -> None:
        spec = ranked(top=top) if top else PLAIN
        expected = {row["k"]: repr(row) for row in exact_rows(BEYOND_JSON).to_pylist()}
        with opened(home, spec) as view:
            view.describe(EXACT)
            view.commit(output(0, exact_rows(BEYOND_JSON)))
        assert stored_rows(home, spec) == expected
        with reading(home, spec) as reader:
            before = reader.table()
            with opened(home, spec) as view:
                view.commit(output(1, exact_rows({"null": BEYOND_JSON["infinite"]})))
            after = reader.table(before)
        assert after is not None
        assert {row["k"]: repr(row) for row in after.table.to_pylist()} == stored_rows(home, spec)
        assert after.change is not None
        assert after.change.rows.column("n").to_pylist() == [math.inf]

    def test_a_value_that_differs_beyond_json_is_a_change(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            view.describe(EXACT)
            view.assign(exact_rows({"a": {"n": math.nan}}), ledger_entry(0))
            view.assign(exact_rows({"a": {"n": None}}), ledger_entry(1))
            assert view.version == 2
        assert stored_rows(home, PLAIN) == {"a": repr(exact_rows({"a": {}}).to_pylist()[0])}

    def test_a_reader_has_no_rows_before_the_columns_are_described(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view:
            with reading(home, PLAIN) as reader:
                assert (reader.columns(), reader.table()) == (None, None)
            view.describe(COUNTS)
            with reading(home, PLAIN) as reader:
                assert reader.columns() == COUNTS
                rows = reader.table()
            assert rows is not None
            assert (rows.table.num_rows, rows.version, rows.ledger) == (0, 0, None)

    @pytest.mark.parametrize("values", BEYOND_JSON.values(), ids=BEYOND_JSON)
    def test_rows_are_read_by_name_after_the_columns_have_changed(self, home: ViewHome, values: dict[str, Any]) -> None:
        added = pa.field("added", pa.float64())
        now = pa.schema([added, *(field for field in reversed(EXACT) if field.name != "price")])
        with opened(home, PLAIN) as view:
            view.describe(EXACT)
            (row,) = (rows := pa.Table.from_pylist([{"k": "a", **values}], EXACT)).to_pylist()
            view.commit(output(0, rows))
            view.describe(now)
        with reading(home, PLAIN) as reader:
            served_table = reader.table()
        assert served_table is not None
        assert served_table.table.schema == now
        assert repr(served_table.table.to_pylist()) == repr([{name: row.get(name) for name in now.names}])

    def test_a_reader_is_told_of_each_commit_once(self, home: ViewHome) -> None:
        with opened(home, PLAIN) as view, reading(home, PLAIN) as reader:
            assert [reader.moved(), reader.moved()] == [True, False]
            view.commit(output(0, counts(("a", 1))))
            assert [reader.moved(), reader.moved(), reader.replaced()] == [True, False, False]

    def test_changes_come_in_order_in_bounded_pieces_or_are_told_to_be_gone(self, home: ViewHome) -> None:
        spec = replace(PLAIN, changes_kept=5)
        with opened(home, spec) as view, reading(home, spec) as reader:
            for batch in range(10):
                view.commit(output(batch, counts(("a", batch))))
            piece = reader.steps(view.generation, 5, limit=3, bytes_max=EVERYTHING)
            assert ([step.version for step in piece.steps], piece.more) == ([6, 7, 8], True)
            piece = reader.steps(view.generation, 8, limit=3, bytes_max=EVERYTHING)
            assert ([step.version for step in piece.steps], piece.more) == ([9, 10], False)
            for generation, after in ((view.generation, 4), (view.generation, 11), (view.generation + 1, 9)):
                with pytest.raises(Gap):
                    reader.steps(generation, after, limit=3, bytes_max=EVERYTHING)

    def test_a_live_view_follows_commits_and_keeps_their_changes(self, home: ViewHome) -> None:
        async def follow() -> None:
            live = home.live(PLAIN, 10)
            assert (live.generation, live.version, live.size, live.error) == (0, 0, 0, None)
            with opened(home, PLAIN) as view:
                view.commit(output(0, counts(("a", 1))))
                running = asyncio.create_task(live.run())
                assert await live.wait(0, 30)
                view.commit(output(1, counts(("a", 2), ("b", 1))))
                assert await live.wait(1, 30)
            assert (live.generation, live.version, live.size) == (view.generation, 2, 2)
            assert live.row('{"k":"a"}') == b'{"k":"a","n":2}'
            assert live.row('{"k":"z"}') is None
            latest = live.changes(1, 10)
            assert latest is not None
            assert [change.version for change in latest] == [2]
            assert live.changes(2, 10) == ()
            running.cancel()
            await asyncio.wait([running])

        asyncio.run(follow())

    def test_a_batch_is_in_the_history_with_its_ledger(self, home: ViewHome) -> None:
        history = home.history()
        assert (history.moved(), history.latest()) == (False, None)
        with opened(home, PLAIN) as view:
            for batch in range(3):
                view.commit(output(batch, counts(("a", batch))))
                assert [history.moved(), history.moved()] == [True, False]
                done, last = history.latest(), home.entry()
                assert done is not None
                assert last is not None
                assert (done.end, done.version) == (last.end, batch + 1)
        history.close()
