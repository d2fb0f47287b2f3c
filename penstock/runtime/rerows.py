"""The rows of a view that a handler keeps, as a run over the log makes them: for a rebuild."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.columns import to_batch
from penstock.declared import Handler, Keeper
from penstock.machine import Effects, latest
from penstock.rows import from_micros, to_events
from penstock.schema import SYSTEM_COLUMNS, event_schema

FILE = "rows.arrow"


class Rerows:
    """All rows that there are, by key. For a handler that keeps no view it has nothing to do."""

    def __init__(self, handler: Handler) -> None:
        self._keeper = handler if isinstance(handler, Keeper) else None
        self._rows: dict[Any, Any] = {}

    def see(self, effects: Effects) -> None:
        """Take what a part of the log has led to."""
        if self._keeper is None:
            return
        key, first = attrgetter(*self._keeper.view.key), len(self._keeper.emits) - 2
        for each in latest(self._keeper, effects.emitted):
            if each.output == first:
                self._rows[key(each.event)] = each.event
            elif each.output > first:
                self._rows.pop(key(each.event), None)

    def write(self, folder: Path) -> None:
        if self._keeper is not None:
            with pa.OSFile(str(folder / FILE), "wb") as file, pa.ipc.new_file(file, self._batch().schema) as writer:
                writer.write_batch(self._batch())

    def read(self, folder: Path) -> None:
        if self._keeper is not None:
            key = attrgetter(*self._keeper.view.key)
            with pa.memory_map(str(folder / FILE)) as file:
                table = pa.ipc.open_file(file).read_all()
            events = [each for batch in table.to_batches() for each in to_events(self._keeper.row, batch)]
            self._rows = {key(each): each for each in events}

    def table(self) -> pa.Table:
        """As the view's file takes them."""
        return pa.Table.from_batches([self._batch()]).drop(list(SYSTEM_COLUMNS))

    def _batch(self) -> pa.RecordBatch:
        assert self._keeper is not None
        rows = list(self._rows.values())
        if not rows:
            return pa.RecordBatch.from_pylist([], event_schema(self._keeper.row))
        empty: list[str | None] = [None] * len(rows)
        return to_batch(self._keeper.row, rows, ids=empty, keys=empty, now=from_micros(0))
