"""Who waits for a view or handler to have taken an event."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock import files
from penstock.cursor import Span
from penstock.errors import Damaged
from penstock.runtime import acks
from penstock.runtime.acks import Places, Progress
from penstock.store import Done, History
from penstock.store import history as store
from tests.collect.support import in_loop, until


class Ledger:
    """A file with a history, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = files.connect(path)
        with files.transaction(self._connection, path):
            self._connection.execute(store.TABLE)

    def commit(self, batch_id: int, *ends: int) -> None:
        end = json.dumps([{f"s/{partition}": offset for partition, offset in enumerate(ends)}])
        with files.transaction(self._connection, self.path):
            store.add(self._connection, batch_id, Done(1000 * batch_id, end, {"out": {0: 10 * batch_id}}))

    def spoil(self, batch_id: int) -> None:
        with files.transaction(self._connection, self.path):
            self._connection.execute("UPDATE batches SET data = x'00' WHERE batch_id = ?", (batch_id,))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def event(partition: int, offset: int) -> Places:
    return Places("s", [Span(partition, offset, 1)])


def test_the_batch_of_an_event_is_found_and_the_one_before_it(ledger: Ledger) -> None:
    for batch_id in range(20):
        ledger.commit(batch_id, 5 * batch_id + 5, 2)
    history = History(ledger.path)
    for offset in range(100):
        found = history.find("s", 0, offset)
        assert found is not None
        assert found.done.at_us == 1000 * (offset // 5)
        assert (found.before is None) == (offset < 5)
    assert history.find("s", 0, 100) is None
    assert history.find("s", 1, 1) == history.find("s", 0, 0)
    assert history.find("t", 0, 0) is None
    history.close()


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


@in_loop
async def test_all_who_wait_are_told_whoever_looks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who looks first may be one who does not wait at all."""
    monkeypatch.setattr(acks, "POLL_MIN_S", 60.0)
    monkeypatch.setattr(acks, "POLL_MAX_S", 60.0)
    ledger = Ledger(tmp_path / "ledger.db")
    progress = Progress(History(ledger.path))
    waiting = [asyncio.create_task(progress.wait(event(0, offset))) for offset in (0, 4, 5)]
    await asyncio.sleep(0)
    ledger.commit(0, 5)
    assert progress.reached(event(0, 3))
    await until(lambda: waiting[0].done() and waiting[1].done())
    assert not waiting[2].done()
    ledger.commit(1, 6)
    assert progress.reached(event(0, 5))
    await waiting[2]
    progress.history.close()


@in_loop
async def test_who_waits_is_told_though_nobody_else_asks(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    progress = Progress(History(ledger.path))
    waiting = asyncio.create_task(progress.wait(event(1, 7)))
    await asyncio.sleep(0.01)
    ledger.commit(0, 5, 7)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    ledger.commit(1, 5, 8)
    await until(waiting.done)
    progress.history.close()


def test_places_know_their_events() -> None:
    places = Places("s", [Span(0, 5, 3), Span(1, 0, 1), Span(0, 20, 1)])
    found = [(partition, offset) for partition in (0, 1, 2) for offset in range(25) if (partition, offset) in places]
    assert found == [(0, 5), (0, 6), (0, 7), (0, 20), (1, 0)]
    assert sorted(places.ends()) == [(0, 5), (0, 20), (1, 0), (1, 0)]
