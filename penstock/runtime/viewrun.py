"""Run a view's query over the log in passes, and write the results to separate files. Used by rebuilds, and by the
engine when it adopts a rebuilt view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from penstock.analyze.session import Session
from penstock.analyze.streaming import read_columns, stream_view
from penstock.analyze.streaming_query import SparkQuery
from penstock.app.app import App
from penstock.app.declared import View
from penstock.app.graph import log_inputs
from penstock.core.clock import WallClock
from penstock.core.contracts import BlockingLogReader, LedgerEntry, LogReader, Output
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import BadCursor, PenstockError
from penstock.core.settings import Settings
from penstock.runtime.changes import newest_time
from penstock.runtime.events import open_log
from penstock.runtime.late import LateEvents
from penstock.runtime.storage import Storage
from penstock.runtime.views import view_spec

EPOCH = 0
"""Epoch of the batches in a rebuild. It is older than any owner's epoch, so the engine can continue after them."""
Tell = Callable[[int], None]


class LogClock(WallClock):
    """Clock that shows the log time of the current batch, for `keep` and for the batch history. Rows expire and events
    are recorded as if the view had existed when the events arrived."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._now = datetime.now(UTC)

    def set(self, end: Positions) -> None:
        """Set the rebuild's clock to the log time of the newest event before `end`."""
        self._now = newest_time(self._log, end) or datetime.now(UTC)

    def now(self) -> datetime:
        return self._now


class ViewRun:
    """Runs one view over a data directory's log, in its `NextView`. Needs a Spark session, whose workers read the log
    that `opener` opens. Blocks."""

    def __init__(
        self,
        spark: Session,
        app: App,
        view: View,
        storage: Storage,
        settings: Settings,
        opener: Callable[[], BlockingLogReader],
    ) -> None:
        self.spark, self.app, self.view, self.settings, self.opener = spark, app, view, settings, opener
        next_view = storage.next_view(view.name)
        self.checkpoint = next_view.checkpoint
        self.log = open_log(app, storage)
        self.clock = LogClock(self.log)
        self.table = next_view.table(view_spec(view, settings), self.clock)
        self.late_log = next_view.late_log(settings.disk_reserve_bytes)
        self.late = LateEvents(app, view, self.checkpoint, self.log, self.late_log)
        self._clean = False

    def advance(self, origin: Positions, tell: Tell = lambda _: None) -> int:
        """Run the view over everything that is currently in the log, and return the number of events read. `tell` is
        called from time to time with the number of events read since `origin`."""
        before = self._read() or origin
        columns, rows_max = read_columns(self.spark, self.app, self.view, self.opener), self.settings.batch_events_max
        built = stream_view(self.spark, self.app, self.view, columns, self.opener, rows_max=rows_max)
        self.table.describe(built.columns)
        self.late.fit(built)
        query = SparkQuery(self.view, self.checkpoint, self, EPOCH, self.late)
        try:
            query.run_to_end(built.frame, clean=self._clean, poll=lambda: tell(self.events(origin)))
        except PenstockError:
            self._require_kept(origin)
            raise
        self._require_kept(origin)
        self._clean = True
        return self._rows_between(before, self._read())

    def last(self) -> LedgerEntry | None:
        return self.table.last()

    def commit(self, output: Output) -> bool:
        """Implement `contracts.Sink.commit` at the log time of the batch."""
        self.clock.set(source_positions(output.end))
        return self.table.commit(output)

    def events(self, origin: Positions) -> int:
        """Return the number of log rows that the view read since a position."""
        return self._rows_between(origin, self._read())

    def _read(self) -> Positions:
        last = self.table.last()
        return source_positions(last.end) if last is not None else {}

    def _rows_between(self, start: Positions, end: Positions) -> int:
        return sum(self.log.rows_between(stream, start.get(stream, {}), offsets) for stream, offsets in end.items())

    def _require_kept(self, origin: Positions) -> None:
        """Raise an error if the log was trimmed while it was being read for the view."""
        last = self.table.last()
        read = source_positions(last.end) if last is not None else origin
        for stream, starts in read_starts(self.log, self.app, self.view).items():
            if any(start > read.get(stream, {}).get(partition, 0) for partition, start in starts.items()):
                raise BadCursor(
                    f"the rebuild of view {self.view.name} still has to read events of {stream} that are no longer "
                    f"kept: rebuild the view again, or let the stream keep more events"
                )

    def close(self) -> None:
        """Close the view's files."""
        self.table.close()
        self.late_log.close()
        self.log.close()


def read_starts(log: LogReader, app: App, view: View) -> dict[str, Mapping[int, int]]:
    """Return the first kept offset in each partition of each stream that a view reads."""
    return {name: log.starts(name) for name in dict.fromkeys(log_inputs(app, view))}
