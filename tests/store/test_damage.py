"""Bytes on disk that differ from what was written are detected, or make no difference: there is never a wrong row."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.core import files
from penstock.core.errors import Damaged, LedgerMismatch, NewerFormat, StorageError
from penstock.store import ViewSpec, ViewTable, ledger
from penstock.store.reader import ViewReader
from tests.clocks import ManualClock
from tests.store.support import START, changes, open_view, output, served, window_counts, windowed
from tests.sweeps import Scene, cuts, flips, sweep, take

SPEC = windowed(keep=timedelta(minutes=2))
SPECS = {"all rows": SPEC, "ranked": replace(SPEC, top=2, by="n")}
BATCHES = 4
NAME = "view.db"


def table_of(batch: int) -> Any:
    return window_counts(*((batch, f"k{key}", (key * 7 + batch) % 5) for key in range(4)))


def make(path: Path, spec: ViewSpec) -> None:
    with open_view(path, spec) as view:
        for batch in range(BATCHES):
            view.commit(output(batch, table_of(batch)))


def seen_by_reader(path: Path, spec: ViewSpec) -> object:
    with closing(ViewReader(path, spec)) as opened:
        loaded = opened.load()
        if loaded is None:
            if path.stat().st_size == 0:
                raise StorageError("it passes for a new file; that the engine finds it is a test of its own")
            return None
        piece = opened.steps(loaded.generation, 0, limit=100, bytes_max=1 << 20)
    return loaded.generation, loaded.version, loaded.rows.in_order(), piece.steps


def seen_by_engine(path: Path, spec: ViewSpec) -> object:
    """Open a copy for writing and commit the next batch: damage must not appear in later commits."""
    written = path.with_name("written.db")
    shutil.copy(path, written)
    with open_view(written, spec) as view:
        view.commit(output(BATCHES, table_of(BATCHES)))
        known = view.generation, view.last(), view.size
    return known, served(written, spec), changes(written, spec, 0)


def scenes(tmp_path: Path, spec: ViewSpec) -> Iterator[tuple[Scene, int]]:
    make(tmp_path / NAME, spec)
    for look in (seen_by_reader, seen_by_engine):
        scene = take(tmp_path, tmp_path / look.__name__, [NAME], partial(_look, look, spec))
        yield scene, len(scene.files[NAME])


def _look(look: Callable[[Path, ViewSpec], object], spec: ViewSpec, directory: Path) -> object:
    return look(directory / NAME, spec)


@pytest.mark.parametrize("kind", SPECS)
def test_a_flipped_bit_is_found_or_harmless(tmp_path: Path, kind: str) -> None:
    for scene, size in scenes(tmp_path, SPECS[kind]):
        outcomes = sweep(scene, NAME, flips(size, 200))
        assert outcomes["Damaged"] > 0


@pytest.mark.parametrize("kind", SPECS)
def test_a_file_cut_short_is_found(tmp_path: Path, kind: str) -> None:
    for scene, size in scenes(tmp_path, SPECS[kind]):
        outcomes = sweep(scene, NAME, cuts(size, 40))
        assert outcomes["Damaged"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("kind", SPECS)
def test_every_flipped_byte_and_every_length_is_found_or_harmless(tmp_path: Path, kind: str) -> None:
    for scene, size in scenes(tmp_path, SPECS[kind]):
        print(sweep(scene, NAME, flips(size)))
        print(sweep(scene, NAME, cuts(size)))


def test_a_file_cut_to_nothing_is_found_by_the_ledger(tmp_path: Path) -> None:
    """It looks like a new one, which accepts no batch but the first."""
    path = tmp_path / "view.db"
    make(path, SPEC)
    path.write_bytes(b"")
    with open_view(path, SPEC) as view, pytest.raises(LedgerMismatch, match="The ledger has nothing"):
        view.commit(output(BATCHES, table_of(BATCHES)))


def test_commits_lost_from_the_write_ahead_log_are_found_by_the_ledger(tmp_path: Path) -> None:
    """SQLite ends a damaged WAL at its last good frame. The commits after it are lost, and the next batch shows it."""
    path, torn = tmp_path / "view.db", tmp_path / "torn.db"
    with open_view(path, SPEC) as view:
        for batch in range(BATCHES):
            view.commit(output(batch, table_of(batch)))
        shutil.copy(path, torn)
        wal = path.with_name("view.db-wal").read_bytes()
    torn.with_name("torn.db-wal").write_bytes(wal[: len(wal) * 2 // 3])
    with open_view(torn, SPEC) as view:
        last = view.last()
        assert last is not None
        assert last.batch_id < BATCHES - 1
        with pytest.raises(LedgerMismatch, match=f"does not follow batch {last.batch_id}"):
            view.commit(output(BATCHES, table_of(BATCHES)))


SPOILED = {
    "a row is gone": "DELETE FROM rows WHERE key IN (SELECT key FROM rows ORDER BY rank LIMIT 1)",
    "a row is older": "UPDATE rows SET data = (SELECT min(data) FROM rows)",
    "a stamp is another": "UPDATE rows SET stamp = stamp + 1",
    "a change is gone": "DELETE FROM changes WHERE version = 2",
    "the last change is gone": "DELETE FROM changes WHERE version = (SELECT max(version) FROM changes)",
    "two changes are exchanged": "UPDATE changes SET (crc, data) = (SELECT crc, data FROM changes WHERE version = 1)",
    "the state is another": "UPDATE head SET data = zeroblob(9) WHERE name = 'state'",
    "the state is gone": "DELETE FROM head WHERE name = 'state'",
    "the shape is gone": "DELETE FROM head WHERE name = 'shape'",
    "the mark is gone": "DELETE FROM head WHERE name = 'format'",
    "a table is gone": "DROP TABLE changes",
}


@pytest.mark.parametrize("statement", SPOILED.values(), ids=SPOILED)
def test_records_that_pass_for_whole_to_sqlite_are_checked_by_us(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "view.db"
    make(path, SPECS["ranked"])
    with closing(files.connect(path)) as connection:
        assert connection.execute(statement).rowcount != 0
    before = path.read_bytes()
    with pytest.raises(StorageError, match=str(path)):
        ViewTable(path, SPECS["ranked"], clock=ManualClock(START))
    assert path.read_bytes() == before


def test_an_index_that_leads_elsewhere_is_found_before_it_is_used(tmp_path: Path) -> None:
    """Rows and counts are correct; only SQLite's own check of its indexes finds it."""
    path = tmp_path / "view.db"
    make(path, SPEC)
    with closing(files.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'by_stamp'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    cells = (page - 1) * size + 3  # the number of entries on the index's only page
    assert content[cells : cells + 2] > b"\0\1"
    content[cells : cells + 2] = b"\0\1"
    path.write_bytes(content)
    with pytest.raises(Damaged, match=str(path)):
        ViewTable(path, SPEC, clock=ManualClock(START))


def test_a_file_that_is_no_view_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    path.write_bytes(b"no database, but long enough to be looked at" * 100)
    looks: list[Callable[[], object]] = [lambda: ledger(path), lambda: ViewTable(path, SPEC, clock=ManualClock(START))]
    for look in looks:
        with pytest.raises(Damaged, match=str(path)):
            look()
    assert path.read_bytes().startswith(b"no database")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    make(path, SPEC)
    with closing(files.connect(path)) as connection:
        mark = files.get_record(connection, path, "format")
        files.put_record(connection, "format", mark | {"format": files.FORMAT + 1})
    for look in (ledger, partial(seen_by_reader, spec=SPEC), partial(open_view, spec=SPEC)):
        with pytest.raises(NewerFormat):
            look(path)
