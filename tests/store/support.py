"""Helpers shared by the store's tests: a clock that is set by hand, small batches, and a client that applies
changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core import files
from penstock.core.contracts import Output, ViewChange
from penstock.store import Done, History, ViewSpec, ViewTable, history
from penstock.store.reader import ViewReader
from tests.clocks import ManualClock

START = datetime(2024, 5, 1, 12, tzinfo=UTC)
PLAIN = ViewSpec("counts", ("k",), None, None, None, changes_kept=1_000, changes_bytes=1 << 20)
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
WINDOWED = pa.schema([("window", WINDOW), ("k", pa.string()), ("n", pa.int64())])


def ranked(spec: ViewSpec = PLAIN, top: int = 3) -> ViewSpec:
    return replace(spec, top=top, by="n")


def windowed(spec: ViewSpec = PLAIN, **options: Any) -> ViewSpec:
    return replace(spec, key=("window", "k"), **options)


def window(minute: int) -> dict[str, datetime]:
    """Return the window that ends `minute` minutes after START."""
    end = START + timedelta(minutes=minute)
    return {"start": end - timedelta(minutes=1), "end": end}


def counts(*rows: tuple[str, int | None]) -> pa.Table:
    return pa.Table.from_pylist([{"k": key, "n": number} for key, number in rows], schema=COUNTS)


def window_counts(*rows: tuple[int, str, int | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"window": window(minute), "k": key, "n": number} for minute, key, number in rows], schema=WINDOWED
    )


def output(batch_id: int, table: pa.Table, *, epoch: int = 1) -> Output:
    """Return the output of batch N, which reads the offsets from 10 N to 10 N + 10."""
    return Output(batch_id, position(batch_id * 10), position(batch_id * 10 + 10), epoch, table)


def position(offset: int) -> str:
    return json.dumps({"events": {"0": offset}})


def open_view(path: Path, spec: ViewSpec, clock: ManualClock | None = None) -> closing[ViewTable]:
    return closing(ViewTable(path, spec, clock=clock or ManualClock(START)))


@dataclass
class Served:
    """The content that a reader of the file finds."""

    generation: int
    version: int
    rows: list[Any]


@contextmanager
def reader(path: Path, spec: ViewSpec) -> Iterator[ViewReader]:
    with closing(ViewReader(path, spec)) as opened:
        yield opened


def served(path: Path, spec: ViewSpec) -> Served:
    with reader(path, spec) as opened:
        loaded = opened.load()
    assert loaded is not None
    return Served(loaded.generation, loaded.version, [json.loads(row) for row in loaded.rows.in_order()])


def changes(path: Path, spec: ViewSpec, after: int) -> list[ViewChange]:
    """Return all changes above a version, directly from the file."""
    with reader(path, spec) as opened:
        loaded = opened.load()
        assert loaded is not None
        piece = opened.steps(loaded.generation, after, limit=100_000, bytes_max=1 << 30)
    assert not piece.more
    return [ViewChange(step.version, step.data) for step in piece.steps]


def key_of(row: Any, spec: ViewSpec) -> str:
    return json.dumps({name: row[name] for name in spec.key})


def fold(rows: Iterable[Any], steps: Sequence[ViewChange], spec: ViewSpec) -> dict[str, Any]:
    """Return the rows by key of a client that took a snapshot and then applied these changes, as the API returns
    them."""
    held = {key_of(row, spec): row for row in rows}
    for step in steps:
        body = json.loads(step.data)
        assert body["upserts"] or body["deletes"], "a change that changes nothing"
        for key in body["deletes"]:
            del held[json.dumps(key)]
        for row in body["upserts"]:
            held[key_of(row, spec)] = row
    return held


def by_key(rows: Iterable[Any], spec: ViewSpec) -> dict[str, Any]:
    return {key_of(row, spec): row for row in rows}


class Ledger:
    """A file with a history, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = files.connect(path)
        with files.transaction(self._connection, path):
            self._connection.execute(history.TABLE)

    def commit(self, batch_id: int, *ends: int) -> None:
        end = json.dumps([{f"s/{partition}": offset for partition, offset in enumerate(ends)}])
        with files.transaction(self._connection, self.path):
            history.add(self._connection, batch_id, Done(1000 * batch_id, end, {"out": {0: 10 * batch_id}}))

    def open(self) -> History:
        return History(self.path)

    def spoil(self, batch_id: int) -> None:
        with files.transaction(self._connection, self.path):
            self._connection.execute("UPDATE batches SET data = x'00' WHERE batch_id = ?", (batch_id,))
