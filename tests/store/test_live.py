"""The view in memory equals the view on disk, at one version, and its changes lead from any version to the next."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.contracts import ViewSnapshot
from penstock.store import InMemoryView, ViewSpec, ViewTable, adopt, live
from tests.clocks import ManualClock, until
from tests.contracts.live_view import KEPT, LiveViewContract, OpenView, ViewHome
from tests.harness import ROOT
from tests.store.support import PLAIN, START, by_key, counts, fold, open_view, output, ranked, served
from tests.store.writer import written_spec

DEADLINE_S = 20.0
KEPT_FEW = replace(PLAIN, changes_kept=KEPT)
VALUES = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts.db"


@asynccontextmanager
async def following(path: Path, spec: ViewSpec, buffered: int = 16) -> AsyncIterator[InMemoryView]:
    table = InMemoryView(path, spec, buffered_changes=buffered)
    task = asyncio.create_task(table.run())
    try:
        yield table
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def rows(snapshot: ViewSnapshot) -> list[Any]:
    return [json.loads(row) for row in snapshot.rows]


class ViewInFile:
    """The view under test and the table that writes its file."""

    def __init__(self, path: Path, view: InMemoryView) -> None:
        self.view, self._path = view, path
        self._open()

    def _open(self) -> None:
        self._table, self._batches = ViewTable(self._path, KEPT_FEW, clock=ManualClock(START)), 0
        self._table.describe(VALUES)

    def write(self, upserts: Mapping[str, int], deletes: Sequence[str] = ()) -> None:
        table = pa.Table.from_pylist([{"k": key, "v": value} for key, value in upserts.items()], schema=VALUES)
        deleted = pa.Table.from_pylist([{"k": key} for key in deletes], schema=pa.schema([VALUES.field("k")]))
        self._table.commit(replace(output(self._batches, table), deletes=deleted))
        self._batches += 1

    async def shown(self) -> None:
        wanted = served(self._path, KEPT_FEW)
        await until(lambda: (self.view.generation, self.view.version) == (wanted.generation, wanted.version))

    async def recreate(self) -> None:
        self.close()
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()
        self._open()
        await self.shown()

    def close(self) -> None:
        self._table.close()


class TestInMemoryView(LiveViewContract):
    """Its latest two changes are in memory, the others are read from the file."""

    @pytest.fixture
    def open_home(self, path: Path) -> OpenView:
        @asynccontextmanager
        async def opened() -> AsyncIterator[ViewHome]:
            async with following(path, KEPT_FEW, buffered=2) as view:
                with closing(ViewInFile(path, view)) as home:
                    await home.shown()
                    yield home

        return opened


def test_before_the_engine_made_the_file_the_view_is_empty_at_version_0(path: Path) -> None:
    async def check() -> None:
        async with following(path, PLAIN) as table:
            assert (table.generation, table.snapshot(), table.error) == (0, ViewSnapshot(0, []), None)
            assert table.changes(0, 10) == ()
            assert not await table.wait(0, 0.05)
            waiter = asyncio.create_task(table.wait(0, DEADLINE_S))
            with open_view(path, PLAIN) as view:
                view.commit(output(0, counts(("a", 1))))
                assert await waiter
                await until(lambda: table.version == 1)
                assert table.generation == view.generation
                assert rows(table.snapshot()) == [{"k": "a", "n": 1}]

    run(check)


def test_a_load_before_serving_finds_everything_or_says_why_not(path: Path, tmp_path: Path) -> None:
    async def check() -> None:
        with open_view(path, PLAIN) as view:
            view.commit(output(0, counts(("a", 1))))
        table = InMemoryView(path, PLAIN, buffered_changes=1)
        await table.load()
        assert (table.version, table.size, table.error) == (1, 1, None)
        table.close()
        bad = tmp_path / "bad.db"
        bad.write_bytes(b"not a database" * 1_000)
        broken = InMemoryView(bad, PLAIN, buffered_changes=1)
        await broken.load()
        assert str(bad) in (broken.error or "")
        assert broken.snapshot() == ViewSnapshot(0, [])

    run(check)


def test_a_commit_wakes_everyone_who_waits_and_is_encoded_once(path: Path) -> None:
    async def check() -> None:
        with open_view(path, PLAIN) as view:
            async with following(path, PLAIN) as table:
                await until(lambda: table.generation)
                waiters = [asyncio.create_task(table.wait(0, DEADLINE_S)) for _ in range(100)]
                view.commit(output(0, counts(("a", 1), ("b", 2))))
                assert all(await asyncio.gather(*waiters))
                (change,) = table.changes(0, 10) or ()
                assert table.changes(0, 10) == (change,)
                assert json.loads(change.data)["upserts"] == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
                assert table.size == 2

    run(check)


def test_rows_are_served_in_key_order_or_in_rank_order(path: Path, tmp_path: Path) -> None:
    async def check() -> None:
        best = tmp_path / "best.db"
        with open_view(path, PLAIN) as view, open_view(best, ranked(top=3)) as ranking:
            async with following(path, PLAIN) as table, following(best, ranked(top=3)) as top:
                await until(lambda: table.generation and top.generation)
                for batch, row in enumerate([("c", 5), ("a", 5), ("d", None), ("b", 5), ("e", 1), ("c", 0)]):
                    view.commit(output(batch, counts(row)))
                    ranking.commit(output(batch, counts(row)))
                await until(lambda: table.version == view.version and top.version == ranking.version)
                assert [row["k"] for row in rows(table.snapshot())] == ["a", "b", "c", "d", "e"]
                assert [row["k"] for row in rows(top.snapshot())] == ["a", "b", "e"]
                assert rows(top.snapshot()) == served(best, ranked(top=3)).rows

    run(check)


def test_history_is_read_in_bounded_pieces_and_never_past_the_version_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HISTORY_BYTES", 100)

    async def check() -> None:
        with open_view(path, PLAIN) as view:
            for batch in range(30):
                view.commit(output(batch, counts(("a", batch))))
            table = InMemoryView(path, PLAIN, buffered_changes=4)
            try:
                await table._look()
                view.commit(output(30, counts(("a", 30))))
                assert table.version == 30
                changes = table.changes(0, 1_000)
                assert changes
                assert 1 <= len(changes) < 10
                last = table.changes(29, 1_000)
                assert last is not None
                assert [change.version for change in last] == [30]
            finally:
                table.close()

    run(check)


def test_the_buffer_is_bounded_in_bytes_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BUFFER_BYTES", 300)

    async def check() -> None:
        with open_view(path, PLAIN) as view:
            async with following(path, PLAIN, buffered=1_000) as table:
                await until(lambda: table.generation)
                for batch in range(30):
                    view.commit(output(batch, counts(("a", batch))))
                view.commit(output(30, counts(*((f"{key:050}", 1) for key in range(10)))))
                await until(lambda: table.version == 31)
                assert table._buffer_bytes == 0
                assert not table._buffer
                changes = table.changes(0, 1_000)
                assert changes
                assert changes[0].version == 1

    run(check)


def test_a_reader_far_behind_catches_up_in_bounded_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PIECE_CHANGES", 7)

    async def check() -> None:
        with open_view(path, PLAIN) as view:
            view.commit(output(0, counts(("a", 0))))
            table = InMemoryView(path, PLAIN, buffered_changes=4)
            try:
                await table._look()
                for batch in range(1, 31):
                    view.commit(output(batch, counts(("a", batch))))
                await table._look()
                assert table.version == 8
                await until_caught_up(table, 31)
                assert rows(table.snapshot()) == [{"k": "a", "n": 30}]
            finally:
                table.close()

    async def until_caught_up(table: InMemoryView, version: int) -> None:
        for _ in range(10):
            await table._look()
        assert table.version == version

    run(check)


def test_changes_that_were_trimmed_before_they_were_seen_are_made_up_by_a_reload(path: Path) -> None:
    async def check() -> None:
        spec = replace(PLAIN, changes_kept=2)
        with open_view(path, spec) as view:
            view.commit(output(0, counts(("a", 0))))
            table = InMemoryView(path, spec, buffered_changes=100)
            try:
                await table._look()
                for batch in range(1, 10):
                    view.commit(output(batch, counts((f"k{batch}", batch))))
                await table._look()
                assert (table.version, table.size) == (10, 10)
                assert table.changes(1, 10) is None
                assert [change.version for change in table.changes(8, 10) or ()] == [9, 10]
            finally:
                table.close()

    run(check)


def test_a_file_of_another_declaration_is_not_served_until_the_engine_has_adapted_it(path: Path) -> None:
    async def check() -> None:
        with open_view(path, ranked(top=3)) as view:
            view.commit(output(0, counts(("a", 1), ("b", 2))))
        async with following(path, ranked(top=1)) as table:
            await until(lambda: table.error)
            assert "earlier declaration" in (table.error or "")
            assert table.snapshot().rows == []
            with open_view(path, ranked(top=1)):
                await until(lambda: table.version)
                assert rows(table.snapshot()) == [{"k": "b", "n": 2}]
                assert table.error is None

    run(check)


def test_damage_stops_the_view_at_its_last_good_version_and_is_told(path: Path) -> None:
    async def check() -> None:
        with open_view(path, PLAIN) as view:
            view.commit(output(0, counts(("a", 1))))
            async with following(path, PLAIN, buffered=1) as table:
                await until(lambda: table.version == 1)
                view.commit(output(1, counts(("a", 2))))
                await until(lambda: table.version == 2)
                spoil(path, "UPDATE changes SET crc = crc + 1 WHERE version = 1")
                assert table.changes(0, 1) is None
                assert "change 1 is not what was written" in (table.error or "")
                spoil(path, "CREATE TRIGGER spoil AFTER INSERT ON changes BEGIN UPDATE changes SET crc = 0; END")
                view.commit(output(2, counts(("a", 3))))
                await until(lambda: "change 3" in (table.error or ""))
                assert str(path) in (table.error or "")
                assert rows(table.snapshot()) == [{"k": "a", "n": 2}]
                assert table.version == 2

    run(check)


def spoil(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("top", [0, 3])
def test_snapshots_and_changes_agree_while_another_process_writes(path: Path, top: int) -> None:
    """Snapshots are taken at random moments: each one, with the changes after it applied, gives every later one."""
    seed = Random().randrange(10**9)
    print(f"seed {seed}")
    random, spec, batches = Random(seed), written_spec(top), 400

    async def check() -> None:
        taken: list[ViewSnapshot] = []
        async with following(path, spec, buffered=8) as table:
            command = [sys.executable, "-m", "tests.store.writer", str(path), "0", str(batches), str(top)]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as writer:
                while await asyncio.to_thread(writer.poll) is None:
                    await table.wait(table.version, random.random() * 0.01)
                    taken.append(table.snapshot())
                assert writer.returncode == 0
            await until(lambda: table.version == served(path, spec).version)
            final = table.snapshot()
            assert rows(final) == served(path, spec).rows
            for old in random.sample(taken, min(len(taken), 40)):
                check_fold(table, old, final)

    def check_fold(table: InMemoryView, old: ViewSnapshot, final: ViewSnapshot) -> None:
        held, version = by_key(rows(old), spec), old.version
        while version < final.version:
            some = table.changes(version, random.randrange(1, 50))
            assert some
            assert [change.version for change in some] == list(range(version + 1, version + 1 + len(some)))
            held, version = fold(held.values(), some, spec), some[-1].version
        assert held == by_key(rows(final), spec)

    run(check)


def test_a_large_view_loads_and_reloads_without_blocking_the_loop_for_long(path: Path) -> None:
    """The load runs in a thread: the loop continues meanwhile."""
    turns = 0

    async def spin() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def check() -> None:
        with open_view(path, replace(PLAIN, keep=timedelta(days=1))) as view:
            view.commit(output(0, counts(*((f"k{number}", number) for number in range(30_000)))))
        table = InMemoryView(path, PLAIN, buffered_changes=1)
        spinner = asyncio.create_task(spin())
        try:
            await table._look()
            assert table.size == 30_000
            assert turns > 10
        finally:
            spinner.cancel()
            table.close()

    run(check)


def test_a_rebuilt_view_wakes_waiters_and_has_other_rows_of_another_generation(path: Path, tmp_path: Path) -> None:
    """The file stays the same one; an earlier cursor is not valid in it."""

    async def check() -> None:
        source = tmp_path / "made.db"
        with open_view(path, PLAIN) as view, open_view(source, PLAIN) as other:
            view.commit(output(0, counts(("a", 1), ("b", 2))))
            other.commit(output(0, counts(("a", 5))))
        async with following(path, PLAIN) as table:
            await until(lambda: table.version == 1)
            old, waiter = table.generation, asyncio.create_task(table.wait(5, DEADLINE_S))
            adopt(path, source, PLAIN, identity="one", origin="[]", epoch=1)
            assert await waiter
            await until(lambda: table.generation != old)
            assert (table.version, rows(table.snapshot())) == (2, [{"k": "a", "n": 5}])
            with open_view(path, PLAIN) as view:
                view.commit(output(1, counts(("c", 7))))
            await until(lambda: table.version == 3)
            assert rows(table.snapshot()) == [{"k": "a", "n": 5}, {"k": "c", "n": 7}]

    run(check)
