"""Streams of view changes, with increasing log times and with ticks for the handlers that read them.

A handler that reads a view and a stream processes both in order of log time, so it must know the current log time of
each. A view that does not change would block the handler. Therefore a tick is appended to the view's stream of changes
when the other stream is ahead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pyarrow as pa

from penstock.app.app import App
from penstock.app.declared import View
from penstock.core.columns import DELETE, SNAPSHOT, UPSERT, change_schema, from_json_rows, json_rows, tick_batch
from penstock.core.contracts import BlockingLogReader, Log, LogReader, StreamSpec
from penstock.core.cursor import Positions
from penstock.core.errors import PenstockError, ViewError
from penstock.core.failpoints import reach
from penstock.core.lossless import table_of
from penstock.core.reading import last_row
from penstock.core.schema import KIND_EVENT
from penstock.core.times import from_micros, micros_of, to_micros
from penstock.core.wakeups import SURE_S, BlockingWatch
from penstock.store import ChangeBatch, ChangeStep, Gap, StoredViewReader

log = logging.getLogger("penstock.engine")
PULSE_S = 0.05
"""Shortest time between two checks of the streams, no matter how fast they grow."""
PRODUCER, SNAPSHOT_PRODUCER = "versions", "snapshots"
PIECE_CHANGES, PIECE_BYTES = 100, 8 * 1024 * 1024
"""Maximum number of changes, and of bytes, read from a view's file at once."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SOON = timedelta(microseconds=1)


class ChangePublisher:
    """Writes the stream VIEW.changes: copies the changes from the view's file, each with its version. Thread-safe;
    blocks for the disk.

    A version that is already in the stream is not written again, so a crash between a commit and its publication
    neither loses nor repeats a change. A new stream begins with a snapshot of the view's rows.
    """

    def __init__(self, view: View, columns: pa.Schema, reader: StoredViewReader, log: Log) -> None:
        self.view, self.columns, self.name = view, columns, view.changes.name
        self._schema = change_schema(columns)
        self._reader, self._log = reader, log
        self._lock = threading.Lock()
        log.declare(StreamSpec(self.name, self._schema, 1))
        self._latest = last_time(log, self.name) or _LONG_AGO
        self._published = log.last_sequence(self.name, 0, PRODUCER)
        self.written: datetime | None = None

    def publish(self) -> None:
        """Append all changes of the view since the last call, regardless of their cause. Raises `ViewError` if some of
        these changes are no longer kept, because the stream then cannot continue."""
        with self._lock:
            if self._published is None:
                self._published = self._append_snapshot(PRODUCER)
            more = True
            while more:
                piece = self._next(self._published)
                for step in piece.steps:
                    self._append(self._changed(step), PRODUCER, step.version)
                    reach("changes.after_append")
                    self._published = step.version
                more = piece.more

    def welcome(self) -> None:
        """Append all rows of the view again as a snapshot, for a new reader of a stream from which retention has
        deleted the first changes."""
        with self._lock:
            if self._log.starts(self.name)[0] > 0:
                self._append_snapshot(SNAPSHOT_PRODUCER)

    def tick(self, until: datetime) -> None:
        """Append a tick that promises that no change before `until` will follow. Does nothing if the stream already has
        a later time."""
        with self._lock:
            if until > self._latest:
                self._latest = until
                tick = tick_batch(self._schema, until)
                self._log.append(self.name, 0, tick, producer="ticks", sequence=to_micros(until))

    def close(self) -> None:
        """Close the view's file."""
        with self._lock:
            self._reader.close()

    def _next(self, after: int) -> ChangeBatch:
        try:
            generation = self._reader.generation()
            return self._reader.steps(generation, after, limit=PIECE_CHANGES, bytes_max=PIECE_BYTES)
        except Gap:
            raise ViewError(
                f"view {self.view.name}: change {after + 1} is no longer kept, so {self.name} cannot continue. "
                f"Remove the readers of {self.name}, run `penstock purge`, and add the readers back",
                view=self.view.name,
            ) from None

    def _append_snapshot(self, producer: str) -> int:
        """Append all rows of the view, and return their version."""
        snapshot = self._reader.table()
        if snapshot is None:
            return 0
        if snapshot.table.num_rows:
            self._append(self._marked(snapshot.table, SNAPSHOT, snapshot.version), producer, snapshot.version)
        return snapshot.version

    def _changed(self, step: ChangeStep) -> pa.Table:
        """Return the rows that a change set, and the keys of the rows that it deleted."""
        delta = step.delta
        self._require_own_key(step)
        rows = table_of(delta.rows, delta.exact, self.columns, self.view.name)
        keys = from_json_rows([key.encode() for key in delta.deletes], self.columns, self.view.key, strict=True)
        gone = pa.Table.from_arrays(
            [
                keys.column(field.name) if field.name in self.view.key else pa.nulls(keys.num_rows, field.type)
                for field in self.columns
            ],
            schema=self.columns,
        )
        marked = [self._marked(rows, UPSERT, step.version), self._marked(gone, DELETE, step.version)]
        return pa.concat_tables(marked)

    def _require_own_key(self, step: ChangeStep) -> None:
        """Reject a change that deletes rows by a different key, such as the change of a rebuild with a different `key`.
        The current key columns would be null, so readers could not tell which rows were deleted. All deletes in one
        change use the same key."""
        names = tuple(msgspec.json.decode(step.delta.deletes[0])) if step.delta.deletes else self.view.key
        if set(names) != set(self.view.key):
            raise ViewError(
                f"view {self.view.name}: change {step.version} deletes rows by the key {', '.join(names)}, but the "
                f"key is now {', '.join(self.view.key)}, so {self.name} cannot continue. Remove the readers of "
                f"{self.name}, run `penstock purge`, and add the readers back",
                view=self.view.name,
            )

    def _marked(self, rows: pa.Table, change: str, version: int) -> pa.Table:
        count = rows.num_rows
        columns = [
            *rows.columns,
            pa.repeat(pa.scalar(change), count),
            pa.repeat(pa.scalar(version, pa.int64()), count),
            pa.nulls(count, pa.string()),
            pa.array([key.decode() for key in json_rows(rows, self.view.key)], pa.string()),
            pa.nulls(count, pa.timestamp("us", "UTC")),
            pa.repeat(pa.scalar(KIND_EVENT, pa.int8()), count),
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _append(self, rows: pa.Table, producer: str, sequence: int) -> None:
        """Append rows with the current log time, which is later than that of any stored row."""
        self._latest = self.written = max(self._latest + _SOON, datetime.now(UTC))
        place = self._schema.get_field_index("_ingest_time")
        times = pa.repeat(pa.scalar(self._latest, self._schema.field(place).type), rows.num_rows)
        stamped = rows.set_column(place, self._schema.field(place), times).combine_chunks()
        (batch,) = stamped.to_batches() or (pa.RecordBatch.from_pylist([], self._schema),)
        self._log.append(self.name, 0, batch, producer=producer, sequence=sequence)


def last_time(log: LogReader, stream: str) -> datetime | None:
    """Return the newest log time of a stream, or None if it has no rows."""
    return newest_time(log, {stream: dict(log.ends(stream))})


def newest_time(log: LogReader, position: Positions) -> datetime | None:
    """Return the newest log time of the kept rows before a position, or None if there are no such rows."""
    last = [
        last_row(log, stream, partition, log.starts(stream)[partition], end)
        for stream, partitions in position.items()
        for partition, end in partitions.items()
    ]
    times = [micros_of(row.column("_ingest_time"))[0] for row in last if row is not None]
    return from_micros(max(times)) if times else None


class Pulse:
    """Thread that appends ticks to a view's changes when another stream that the same handler reads is ahead. It runs
    after each commit to such a stream, at most once per `PULSE_S`. `wake` is thread-safe."""

    def __init__(self, app: App, changes: Mapping[str, ChangePublisher], log: BlockingLogReader) -> None:
        self._changes, self._log = changes, log
        self._beside = dict(_streams_beside_views(app))
        self._seen: dict[str, Mapping[int, int]] = {}
        self._watch = BlockingWatch(*(partial(log.watch, stream) for stream in self._beside))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._append_ticks, name="pulse", daemon=True)

    def start(self) -> None:
        """Start the thread, if a handler reads a view."""
        if self._beside:
            self._thread.start()

    def wake(self) -> None:
        """Notify the thread that a view has started. Thread-safe."""
        self._watch.wake()

    def stop(self) -> None:
        self._stopping.set()
        self._watch.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _append_ticks(self) -> None:
        with self._watch as watch:
            while not self._stopping.is_set():
                watch.arm()
                try:
                    self.beat()
                except PenstockError as error:
                    log.warning("could not append a tick to the changes of views: %s", error)
                if not self._stopping.wait(PULSE_S):
                    watch.wait(SURE_S)

    def beat(self) -> None:
        """Check every stream once, and append ticks where a stream has new rows."""
        for stream, views in self._beside.items():
            ends = dict(self._log.ends(stream))
            ready = [self._changes[view] for view in views if view in self._changes]
            if len(ready) < len(views) or ends == self._seen.get(stream):
                continue
            time = last_time(self._log, stream)
            for publisher in ready if time is not None else ():
                assert time is not None
                publisher.tick(time)
            self._seen[stream] = ends


def _streams_beside_views(app: App) -> Iterable[tuple[str, frozenset[str]]]:
    """Yield each stream that a handler reads together with views, with the names of these views."""
    views: dict[str, frozenset[str]] = {}
    for handler in app.handlers:
        for name in handler.reads:
            if handler.rows and name not in handler.rows:
                views[name] = views.get(name, frozenset()) | frozenset(handler.rows)
    return views.items()
