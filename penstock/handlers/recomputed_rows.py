"""The rows of a handler's view, computed from the log for a rebuild."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pyarrow as pa

from penstock.app.declared import Handler, ViewHandler
from penstock.core.columns import to_batch
from penstock.core.schema import SYSTEM_COLUMNS, event_schema
from penstock.core.times import from_micros
from penstock.handlers.machine import Effects, latest
from penstock.handlers.rows import to_events


class RecomputedRows:
    """All current rows of a handler's view, by key. Does nothing for a handler without a view."""

    def __init__(self, handler: Handler) -> None:
        self._view_handler = handler if isinstance(handler, ViewHandler) else None
        self._rows: dict[Any, Any] = {}

    def see(self, effects: Effects) -> None:
        """Apply the effects of running the handler over a part of the log."""
        if self._view_handler is None:
            return
        key, first = attrgetter(*self._view_handler.view.key), len(self._view_handler.emits) - 2
        for emission in latest(self._view_handler, effects.emitted):
            if emission.output == first:
                self._rows[key(emission.event)] = emission.event
            elif emission.output > first:
                self._rows.pop(key(emission.event), None)

    def stored(self) -> pa.Table | None:
        """Return all recomputed rows in the format that `restore` accepts, or None if the handler has no view."""
        return None if self._view_handler is None else pa.Table.from_batches([self._batch()])

    def restore(self, stored: pa.Table | None) -> None:
        """Replace the recomputed rows with the rows that `stored` returned in another run."""
        if self._view_handler is not None and stored is not None:
            key = attrgetter(*self._view_handler.view.key)
            events = [event for batch in stored.to_batches() for event in to_events(self._view_handler.row, batch)]
            self._rows = {key(event): event for event in events}

    def table(self) -> pa.Table:
        """Return the recomputed rows in the format of the view's file."""
        return pa.Table.from_batches([self._batch()]).drop(list(SYSTEM_COLUMNS))

    def _batch(self) -> pa.RecordBatch:
        assert self._view_handler is not None
        rows = list(self._rows.values())
        if not rows:
            return pa.RecordBatch.from_pylist([], event_schema(self._view_handler.row))
        empty: list[str | None] = [None] * len(rows)
        return to_batch(self._view_handler.row, rows, ids=empty, keys=empty, now=from_micros(0))
