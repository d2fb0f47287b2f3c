"""The random schedules of views, on files: the rows before a change, the history, and a file that is replaced."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.contracts import Channel, Output
from penstock.serve.channels.view import ViewChannel
from penstock.store import InMemoryView, ViewSpec, ViewTable
from tests.clocks import ManualClock, until
from tests.serve.fakes import run
from tests.serve.test_schedules import KEYS, SIGHTS, SMALL, Copy, Rows, follow_view, slow_threads
from tests.store.support import START, served

SPEC = ViewSpec("x", ("k",), None, 4, "v", changes_kept=6, changes_bytes=1 << 20)
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Files:
    """A view of the four highest values, its file, and its rows at every version."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.history: dict[tuple[int, int], Rows] = {(0, 0): {}}
        self._begin()

    def _begin(self) -> None:
        self._table = ViewTable(self._path, SPEC, clock=ManualClock(START))
        self._table.describe(SCHEMA)
        self._batch = 0
        self._note()

    def remake(self) -> None:
        self._table.close()
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()
        self._begin()

    def put(self, values: dict[str, int]) -> None:
        table = pa.Table.from_pylist([{"k": key, "v": value} for key, value in values.items()], schema=SCHEMA)
        self._table.commit(Output(self._batch, str(self._batch), str(self._batch + 1), 1, table))
        self._batch += 1
        self._note()

    def _note(self) -> None:
        now = served(self._path, SPEC)
        self.generation, self.version = now.generation, now.version
        self.history[now.generation, now.version] = {row["k"]: row for row in now.rows}


async def change(of: Files, chance: random.Random) -> None:
    for step in range(150):
        of.put({key: chance.randint(0, 9) for key in chance.sample(KEYS, chance.randint(1, 4))})
        if step == 75:
            of.remake()
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0, 0.001, 0.01]))


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_a_view_in_files_are_what_their_filters_show(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    slow_threads(monkeypatch, chance)

    async def main() -> None:
        files: Any = Files(tmp_path / "x.db")
        live = InMemoryView(tmp_path / "x.db", SPEC, buffered_changes=chance.choice([2, 4]))
        await live.load()
        channel = ViewChannel("x", live, SMALL, key=["k"])
        over, copies = asyncio.Event(), list[Copy]()
        running = asyncio.create_task(live.run())
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                where, select, sight = SIGHTS[number % len(SIGHTS)]
                strict = number >= len(SIGHTS) and where is not None
                seen: Channel = channel.limited(where, {}) if strict and where else channel
                copies.append(Copy(files, sight, strict=strict))
                seen = seen.through(None if strict else where, select)
                tasks.create_task(follow_view(seen, copies[-1], random.Random(seed * 100 + number), over))
            await change(files, chance)
            await until(lambda: all(copy.is_whole for copy in copies))
            over.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main())
