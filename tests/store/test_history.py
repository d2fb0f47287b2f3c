"""The history in a ledger's file keeps the promises of the contract, and what only a file can promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core import files
from penstock.core.errors import Damaged
from penstock.store import History
from penstock.store import history as store
from tests.contracts.history import BatchHistoryContract, HistoryHome
from tests.store.support import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


class TestHistory(BatchHistoryContract):
    @pytest.fixture
    def home(self, ledger: Ledger) -> HistoryHome:
        return ledger


def test_of_batches_that_are_forgotten_nothing_is_told(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could have been any of them."""
    monkeypatch.setattr(store, "KEPT", 10)
    for batch_id in range(50):
        ledger.commit(batch_id, 5 * batch_id + 5)
    history = History(ledger.path)
    assert [history.find("s", 0, offset) is None for offset in (0, 204, 205, 249)] == [True, True, False, False]
    history.close()


def test_a_damaged_batch_is_noticed(ledger: Ledger) -> None:
    ledger.commit(0, 5)
    ledger.spoil(0)
    with pytest.raises(Damaged, match="batch 0"):
        History(ledger.path).latest()


def test_a_file_that_is_not_there_or_has_no_history_tells_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "none.db")
    assert (history.moved(), history.latest(), history.find("s", 0, 0)) == (False, None, None)
    files.connect(tmp_path / "old.db").close()
    assert History(tmp_path / "old.db").latest() is None
