"""The streams of views' changes: what a view wrote, with log times that rise, and ticks for handlers that read it.

A handler that reads a view beside a stream takes both in the order of log time, so it must know how far each has come.
A view that has nothing to say would hold it up: so a tick is appended here whenever the stream has gone ahead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from penstock.app import App
from penstock.columns import tick_batch
from penstock.contracts import Log, LogReader, StreamSpec
from penstock.errors import PenstockError
from penstock.rows import from_micros, micros_of, to_micros

log = logging.getLogger("penstock.engine")
PULSE_S = 0.05
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SOON = timedelta(microseconds=1)


class Changes:
    """The stream VIEW.changes, for its only writer. May be called from any thread."""

    def __init__(self, view: str, schema: pa.Schema, log: Log) -> None:
        self.name, self.schema = f"{view}.changes", schema
        self._log = log
        self._lock = threading.Lock()
        log.declare(StreamSpec(self.name, schema, 1))
        self._latest = last_time(log, self.name) or _LONG_AGO
        self.written: datetime | None = None

    def append(self, batch: pa.RecordBatch, *, producer: str, sequence: int) -> None:
        """Append rows at the log time that it is now: later than all that are there. A batch that is there stays."""
        with self._lock:
            self._latest = self.written = max(self._latest + _SOON, datetime.now(UTC))
            place = self.schema.get_field_index("_ingest_time")
            times = pa.array([self._latest] * batch.num_rows, self.schema.field(place).type)
            stamped = batch.set_column(place, self.schema.field(place), times)
            self._log.append(self.name, 0, stamped, producer=producer, sequence=sequence)

    def tick(self, until: datetime) -> None:
        """Say that nothing more comes up to that time, unless a later one has been said."""
        with self._lock:
            if until > self._latest:
                self._latest = until
                tick = tick_batch(self.schema, until)
                self._log.append(self.name, 0, tick, producer="ticks", sequence=to_micros(until))


def last_time(log: LogReader, stream: str) -> datetime | None:
    """The newest log time of a stream; None if it has no rows."""
    starts, found = log.starts(stream), []
    for partition, end in log.ends(stream).items():
        if end > starts[partition]:
            found += [
                time
                for batch in log.read(stream, partition, end - 1, end)
                for time in micros_of(batch.column("_ingest_time"))
            ]
    return from_micros(max(found)) if found else None


class Pulse:
    """Ticks the changes of views that handlers read, when what they read beside has gone ahead. A thread of its own."""

    def __init__(self, app: App, changes: Mapping[str, Changes], log: LogReader) -> None:
        self._changes, self._log = changes, log
        self._beside = dict(_beside(app))
        self._seen: dict[str, Mapping[int, int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin, if a handler reads a view."""
        if self._beside:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PULSE_S):
            try:
                self.beat()
            except PenstockError as error:
                log.warning("no tick for the changes of views: %s", error)

    def beat(self) -> None:
        """Look once at every stream, and tick where one has new rows."""
        for stream, views in self._beside.items():
            ends = dict(self._log.ends(stream))
            ready = [self._changes[view] for view in views if view in self._changes]
            if len(ready) < len(views) or ends == self._seen.get(stream):
                continue
            time = last_time(self._log, stream)
            for each in ready if time is not None else ():
                assert time is not None
                each.tick(time)
            self._seen[stream] = ends


def _beside(app: App) -> Iterable[tuple[str, frozenset[str]]]:
    """Each stream that a handler reads beside views, with those views."""
    found: dict[str, frozenset[str]] = {}
    for handler in app.handlers:
        for name in handler.reads:
            if handler.rows and name not in handler.rows:
                found[name] = found.get(name, frozenset()) | frozenset(handler.rows)
    return found.items()
