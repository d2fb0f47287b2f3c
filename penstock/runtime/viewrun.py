"""A view's query, run over the log in passes into files of its own: by a rebuild, and by the engine that takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from penstock.analyze.query import Query
from penstock.analyze.session import Session
from penstock.analyze.streaming import read_columns, stream_view
from penstock.app import App
from penstock.contracts import LedgerEntry, LogReader, Output
from penstock.cursor import Positions, source_positions
from penstock.declared import View
from penstock.errors import BadCursor, PenstockError
from penstock.graph import log_inputs
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.rows import from_micros, micros_of
from penstock.runtime.clock import WallClock
from penstock.runtime.events import open_log
from penstock.runtime.late import LateEvents
from penstock.runtime.nextview import NextView
from penstock.runtime.views import view_spec
from penstock.settings import Settings
from penstock.store import ViewTable

EPOCH = 0
"""Of the batches of a rebuild: older than any owner's, so that the engine goes on from them."""
Tell = Callable[[int], None]


class LogClock(WallClock):
    """The log time of the batch under way, for `keep` and for the history of batches: rows go, and events were taken,
    as if the view had been there when the events came."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._now = datetime.now(UTC)

    def set(self, end: Positions) -> None:
        """Take the time of the newest event before `end`."""
        times = [
            time
            for stream, partitions in end.items()
            for partition, offset in partitions.items()
            if offset > self._log.starts(stream)[partition]
            for batch in self._log.read(stream, partition, offset - 1, offset)
            for time in micros_of(batch.column("_ingest_time"))
        ]
        self._now = from_micros(max(times)) if times else datetime.now(UTC)

    def now(self) -> datetime:
        return self._now


class ViewRun:
    """One view over the log of a data directory, in the files of `NextView`. Needs a Spark session, whose workers read
    the log that `opener` opens; blocks."""

    def __init__(
        self, spark: Session, app: App, view: View, files: NextView, settings: Settings, opener: EmbeddedLogOpener
    ) -> None:
        self.spark, self.app, self.view, self.settings, self.opener = spark, app, view, settings, opener
        self.checkpoint = files.checkpoint.path
        self.log = open_log(app, files.directory)
        self.clock = LogClock(self.log)
        self.table = ViewTable(files.file, view_spec(view, settings), clock=self.clock)
        self.late_log = EmbeddedLog(files.late, disk_reserve_bytes=settings.disk_reserve_bytes)
        self.late = LateEvents(app, view, self.checkpoint, self.log, self.late_log)
        self._clean = False

    def advance(self, origin: Positions, tell: Tell = lambda _: None) -> int:
        """Read all that the log has now; returns how many events that were. `tell` is called now and then with how
        many there were since `origin`."""
        before = self.events(origin)
        columns, rows_max = read_columns(self.spark, self.app, self.view, self.opener), self.settings.batch_events_max
        built = stream_view(self.spark, self.app, self.view, columns, self.opener, rows_max=rows_max)
        self.table.describe(built.columns)
        self.late.fit(built)
        query = Query(self.view, self.checkpoint, self, EPOCH, self.late)
        try:
            query.run_to_end(built.frame, clean=self._clean, poll=lambda: tell(self.events(origin)))
        except PenstockError:
            self._require_kept(origin)
            raise
        self._require_kept(origin)
        self._clean = True
        return self.events(origin) - before

    def last(self) -> LedgerEntry | None:
        return self.table.last()

    def commit(self, output: Output) -> bool:
        """As a `contracts.Sink`: at the log time of the batch."""
        self.clock.set(source_positions(output.end))
        return self.table.commit(output)

    def events(self, origin: Positions) -> int:
        """How many events were read since a position."""
        last = self.table.last()
        read = source_positions(last.end) if last is not None else {}
        return sum(
            offset - origin.get(stream, {}).get(partition, 0)
            for stream, partitions in read.items()
            for partition, offset in partitions.items()
        )

    def _require_kept(self, origin: Positions) -> None:
        """Refuse a result for which the log was trimmed while it was read."""
        last = self.table.last()
        read = source_positions(last.end) if last is not None else origin
        for stream, starts in read_starts(self.log, self.app, self.view).items():
            if any(start > read.get(stream, {}).get(partition, 0) for partition, start in starts.items()):
                raise BadCursor(
                    f"events of {stream} that the rebuild of view {self.view.name} has still to read are no longer "
                    "kept: rebuild it again, or have the stream keep more"
                )

    def close(self) -> None:
        """Let go of its files."""
        self.table.close()
        self.late_log.close()
        self.log.close()


def read_starts(log: LogReader, app: App, view: View) -> dict[str, Mapping[int, int]]:
    """The first kept offset of each partition of each stream that a view reads."""
    return {name: log.starts(name) for name in dict.fromkeys(log_inputs(app, view))}
