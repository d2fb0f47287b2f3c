"""A view's SQLite file keeps the promises of the contract, and what only a file can promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.core.contracts import Clock, LedgerEntry
from penstock.core.errors import LedgerMismatch
from penstock.store import History, InMemoryView, StoredView, ViewReader, ViewSpec, ViewTable, ledger
from tests.contracts.views import ViewContract
from tests.store.support import PLAIN, counts, open_view, output, ranked, window_counts, windowed


@dataclass(frozen=True)
class ViewFile:
    """A `ViewHome` as a file."""

    path: Path

    def open(self, spec: ViewSpec, clock: Clock) -> ViewTable:
        return ViewTable(self.path, spec, clock=clock)

    def reader(self, spec: ViewSpec) -> ViewReader:
        return ViewReader(self.path, spec)

    def live(self, spec: ViewSpec, buffered_changes: int) -> InMemoryView:
        return InMemoryView(self.path, spec, buffered_changes=buffered_changes)

    def entry(self) -> LedgerEntry | None:
        return ledger(self.path)

    def history(self) -> History:
        return History(self.path)

    @contextmanager
    def full(self, view: StoredView) -> Iterator[None]:
        assert isinstance(view, ViewTable)
        (pages,) = view._connection.execute("PRAGMA page_count").fetchone()
        view._connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        try:
            yield
        finally:
            view._connection.execute("PRAGMA max_page_count = 1000000")


class TestViewFile(ViewContract):
    COMMIT_POINTS = ("ledger.before_commit", "ledger.after_commit")
    ASSIGN_POINTS = ("derived.before_commit", "derived.after_commit")

    def fresh(self, folder: Path) -> ViewFile:
        folder.mkdir(exist_ok=True)
        return ViewFile(folder / "counts.db")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts.db"


def test_a_lowered_bound_is_reached_a_bounded_piece_at_a_time(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        for batch in range(100):
            view.commit(output(batch, counts(("a", batch))))
    with open_view(path, replace(PLAIN, changes_kept=3)) as view:
        view.commit(output(100, counts(("a", 100))))
        assert view._state.oldest == 65
        view.commit(output(101, counts(("a", 101))))
        assert view._state.oldest == 100


@pytest.mark.parametrize("spec", [ranked(), ranked(windowed()), windowed(keep=timedelta(minutes=1))])
def test_ranking_and_expiry_read_an_index_in_its_order(path: Path, spec: ViewSpec) -> None:
    """Their cost is that of the rows they return, not of all rows."""
    with open_view(path, spec) as view:
        statements: list[str] = []
        view._connection.set_trace_callback(statements.append)
        view.commit(output(0, window_counts((1, "a", 1), (5, "b", 2))))
        view._connection.set_trace_callback(None)
        queries = [statement for statement in statements if statement.startswith("SELECT") and "FROM rows" in statement]
        assert queries
        plans = [row[3] for query in queries for row in view._connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert [plan for plan in plans if "SCAN" in plan or "TEMP B-TREE" in plan] == []
    assert any("USING" in plan and "INDEX by_" in plan for plan in plans)


def test_a_path_with_characters_that_mean_something_in_a_uri_is_just_a_path(tmp_path: Path) -> None:
    path = tmp_path / "100% of #1?mode=memory" / "view.db"
    path.parent.mkdir()
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(("a", 1))))
    assert path.exists()
    assert ledger(path) is not None


def test_a_refused_batch_names_the_file_and_says_what_to_do(path: Path) -> None:
    with open_view(path, PLAIN) as view:
        view.commit(output(0, counts(("a", 1))))
        with pytest.raises(LedgerMismatch) as caught:
            view.commit(output(3, counts()))
    for part in (str(path), "Restore the checkpoint", "remove both the view's checkpoint and its file"):
        assert part in caught.value.message
