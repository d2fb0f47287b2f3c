"""The streams of views' changes: what a view changed, with log times that rise, and ticks for handlers that read it.

A handler that reads a view beside a stream takes both in the order of log time, so it must know how far each has come.
A view that has nothing to say would hold it up: so a tick is appended here whenever the stream has gone ahead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa

from penstock.app import App
from penstock.columns import DELETE, SNAPSHOT, UPSERT, change_schema, from_json_rows, json_rows, tick_batch
from penstock.contracts import Log, LogReader, StreamSpec
from penstock.declared import View
from penstock.errors import PenstockError, ViewError
from penstock.failpoints import reach
from penstock.lossless import table_of
from penstock.rows import from_micros, micros_of, to_micros
from penstock.schema import KIND_EVENT
from penstock.store import Gap, Piece, Step, ViewReader

log = logging.getLogger("penstock.engine")
PULSE_S = 0.05
PRODUCER, SNAPSHOT_PRODUCER = "versions", "snapshots"
PIECE_CHANGES, PIECE_BYTES = 100, 8 * 1024 * 1024
"""Most changes that are read from a view's file in one go."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SOON = timedelta(microseconds=1)


class ChangePublisher:
    """Writes the stream VIEW.changes from the changes that the view's file keeps, each under its version. May be called
    from any thread; blocks for the disk.

    A version that is in the stream stays as it is, so a crash between a commit and its publication loses nothing and
    repeats nothing. A new stream begins with a snapshot: the rows that the view has by then.
    """

    def __init__(self, view: View, columns: pa.Schema, reader: ViewReader, log: Log) -> None:
        self.view, self.columns, self.name = view, columns, view.changes.name
        self._schema = change_schema(columns)
        self._reader, self._log = reader, log
        self._lock = threading.Lock()
        log.declare(StreamSpec(self.name, self._schema, 1))
        self._latest = last_time(log, self.name) or _LONG_AGO
        self._published = log.last_sequence(self.name, 0, PRODUCER)
        self.written: datetime | None = None

    def publish(self) -> None:
        """Append what the view has changed since the last call, whoever made it. Raises `ViewError` if some of it is no
        longer kept: then the stream cannot go on."""
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
        """Append the rows once more, as a snapshot, for a reader that is new and finds the beginning trimmed."""
        with self._lock:
            if self._log.starts(self.name)[0] > 0:
                self._append_snapshot(SNAPSHOT_PRODUCER)

    def tick(self, until: datetime) -> None:
        """Say that nothing more comes up to that time, unless a later one has been said."""
        with self._lock:
            if until > self._latest:
                self._latest = until
                tick = tick_batch(self._schema, until)
                self._log.append(self.name, 0, tick, producer="ticks", sequence=to_micros(until))

    def close(self) -> None:
        """Let go of the view's file."""
        with self._lock:
            self._reader.close()

    def _next(self, after: int) -> Piece:
        try:
            generation = self._reader.generation()
            return self._reader.steps(generation, after, limit=PIECE_CHANGES, bytes_max=PIECE_BYTES)
        except Gap:
            raise ViewError(
                f"view {self.view.name}: its change {after + 1} is no longer kept, so {self.name} cannot go on. Remove "
                f"what reads it, run `penstock purge`, and declare it again",
                view=self.view.name,
            ) from None

    def _append_snapshot(self, producer: str) -> int:
        """Append all rows; returns the version that they are of."""
        found = self._reader.table()
        if found is None:
            return 0
        if found.table.num_rows:
            self._append(self._marked(found.table, SNAPSHOT, found.version), producer, found.version)
        return found.version

    def _changed(self, step: Step) -> pa.Table:
        """The rows that a change set, then the keys of those that it deleted."""
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

    def _require_own_key(self, step: Step) -> None:
        """Refuse a change that deletes rows by another key, as a rebuild with another `key` makes one: columns of the
        key would be null, and no reader could tell which rows went. All deletes of a change have the same key."""
        names = tuple(msgspec.json.decode(step.delta.deletes[0])) if step.delta.deletes else self.view.key
        if set(names) != set(self.view.key):
            raise ViewError(
                f"view {self.view.name}: its change {step.version} deletes rows by the key {', '.join(names)}, which "
                f"is now {', '.join(self.view.key)}, so {self.name} cannot go on. Remove what reads it, run "
                "`penstock purge`, and declare it again",
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
        """Append rows at the log time that it is now: later than all that are there."""
        self._latest = self.written = max(self._latest + _SOON, datetime.now(UTC))
        place = self._schema.get_field_index("_ingest_time")
        times = pa.repeat(pa.scalar(self._latest, self._schema.field(place).type), rows.num_rows)
        stamped = rows.set_column(place, self._schema.field(place), times).combine_chunks()
        (batch,) = stamped.to_batches() or (pa.RecordBatch.from_pylist([], self._schema),)
        self._log.append(self.name, 0, batch, producer=producer, sequence=sequence)


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

    def __init__(self, app: App, changes: Mapping[str, ChangePublisher], log: LogReader) -> None:
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
