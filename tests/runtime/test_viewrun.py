"""The sink of a view's rebuild keeps the promises of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import App, Event
from penstock.analyze.check import EmptyLog
from penstock.core.columns import to_batch
from penstock.core.contracts import Output, Sink, StreamSpec
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.next_view import EmbeddedNextView
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.viewrun import ViewRun
from penstock.runtime.views import view_spec
from penstock.store import ledger
from tests.contracts.sink import SinkContract, SinkHome
from tests.store.support import served

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Item(Event):
    k: str


class RebuildHome:
    """A view of counts that is rebuilt from a log of a hundred events. Its query is not run: that needs Spark."""

    def __init__(self, root: Path) -> None:
        self._app = App("test")
        items = self._app.stream("items", Item, partitions=1)
        self._app.view("counts", reads=items, key="k")(lambda frame: frame)
        [self._view] = self._app.views
        directory = DataDirectory(root)
        directory.make()
        self._storage, self._settings = EmbeddedStorage(directory), Settings(partitions=1, disk_reserve_bytes=0)
        log = self._storage.log(disk_reserve_bytes=0)
        log.declare(StreamSpec("items", event_schema(Item), 1))
        events = [Item(k=str(number)) for number in range(100)]
        batch = to_batch(Item, events, ids=[None] * 100, keys=[None] * 100, now=NOON)
        log.append("items", 0, batch, producer="test", sequence=0)
        log.close()
        self._next = EmbeddedNextView(directory, "counts")
        self._next.begin()

    @contextmanager
    def open(self) -> Iterator[Sink]:
        spark: Any = None
        run = ViewRun(spark, self._app, self._view, self._storage, self._settings, EmptyLog)
        run.table.describe(COUNTS)
        try:
            yield run
        finally:
            run.close()

    def output(self, batch_id: int, start: int, end: int, epoch: int) -> Output:
        rows = pa.Table.from_pylist([{"k": str(start), "n": batch_id}], COUNTS)
        return Output(batch_id, _position(start), _position(end), epoch, rows)

    def written(self) -> object:
        return served(self._next.file, view_spec(self._view, self._settings)), ledger(self._next.file)


def _position(offset: int) -> str:
    return json.dumps([{"items/0": offset}])


class TestViewRun(SinkContract):
    @pytest.fixture
    def sink_home(self, tmp_path: Path) -> SinkHome:
        return RebuildHome(tmp_path)
