"""The relations a query can read: views, the latest events of streams, and feeds of either, as Arrow tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import from_json_rows
from penstock.core.contracts import LiveView, LogReader
from penstock.core.cursor import of_part, stream_cursor, view_cursor
from penstock.core.errors import BadCursor, Busy
from penstock.core.filters import compiled
from penstock.core.reading import rows_end
from penstock.core.schema import HIDDEN_COLUMNS, KIND_EVENT, shown
from penstock.serve.channels.stream_reader import ServedExtent, extent

PIECE_ROWS = 20_000
"""Number of view rows converted to columns at once."""
STEP_ROWS = 1_000
"""Number of rows read from the end of a stream in the first step. Later steps read more if the rows are small."""
EXTRA = ("_id", "_ingest_time")
"""The system columns that queries of a stream see, after the stream's own columns."""
TRIES_MAX = 5
Kind = Literal["view", "stream"]


@dataclass(frozen=True)
class RelationRows:
    """The rows of a relation at one instant. Equal versions have equal rows."""

    table: pa.Table
    version: Hashable
    cursor: str


class Relation(Protocol):
    """Rows that a query can read, which change over time.

    The function returned by `prepare` blocks, and is called by only one thread at a time.
    """

    @property
    def kind(self) -> Kind: ...

    @property
    def part_of(self) -> str | None:
        """The name of the relation that this feed filters, or None if this is not a feed."""

    def version(self) -> Hashable:
        """Return the version of the relation's current rows. Can block briefly."""

    def prepare(self) -> Callable[[], RelationRows]:
        """Return a function that reads the relation's current rows, to be called in a thread.

        `prepare` itself is called in the event loop.
        """


class ViewRelation:
    """All rows in a view."""

    kind: Kind = "view"
    part_of: str | None = None

    def __init__(self, name: str, view: LiveView) -> None:
        self._name, self._view = name, view

    def version(self) -> Hashable:
        return self._view.generation, self._view.version

    def prepare(self) -> Callable[[], RelationRows]:
        schema, version = self._view.schema, (self._view.generation, self._view.version)
        if schema is None:
            raise not_known(self._name)
        rows = self._view.snapshot().rows

        def read() -> RelationRows:
            """The rows are read in pieces, because a row takes up many times its size while it is being converted."""
            starts = range(0, len(rows), PIECE_ROWS)
            pieces = [from_json_rows(rows[start : start + PIECE_ROWS], schema) for start in starts]
            return RelationRows(pa.Table.from_batches(pieces, schema), version, view_cursor(*version))

        return read


class StreamRelation:
    """The latest events in a stream, by ingest time: at most `events_max` events, and about `bytes_max` bytes."""

    kind: Kind = "stream"
    part_of: str | None = None

    def __init__(
        self, name: str, log: LogReader, schema: Callable[[], pa.Schema | None], *, events_max: int, bytes_max: int
    ) -> None:
        self._name, self._log, self._schema = name, log, schema
        self._events_max, self._bytes_max = max(1, events_max), bytes_max
        self._generation: int | None = None
        self._parts: dict[int, _Part] = {}

    def version(self) -> Hashable:
        return self._log.generation(self._name), tuple(sorted(self._log.ends(self._name).items()))

    def prepare(self) -> Callable[[], RelationRows]:
        if self._schema() is None:
            raise not_known(self._name)
        return self._read

    def _read(self) -> RelationRows:
        for _ in range(TRIES_MAX):
            now = extent(self._log, self._name)
            try:
                table = self._latest(now)
            except BadCursor:  # the oldest events were deleted in the meantime
                self._parts = {}
                continue
            version = now.generation, tuple(sorted(now.ends.items()))
            return RelationRows(table, version, stream_cursor(now.generation, now.ends))
        raise Busy(f"the oldest events of {self._name} are being deleted faster than they can be read")

    def _latest(self, now: ServedExtent) -> pa.Table:
        schema = self._schema()
        assert schema is not None
        if self._generation != now.generation:
            self._generation, self._parts = now.generation, {}
        share = self._bytes_max // max(1, len(now.ends))
        for partition in now.ends:
            part = self._parts.setdefault(partition, _Part(now.ends[partition]))
            part.follow(self._log, self._name, partition, now, self._events_max, share)
        tables = [pa.Table.from_batches([batch]) for part in self._parts.values() for batch in part.batches]
        table = pa.concat_tables([shown(schema).empty_table(), *tables], promote_options="permissive")
        if "_ingest_time" in table.schema.names and len(self._parts) > 1:
            table = table.sort_by("_ingest_time")
        return table.slice(max(0, table.num_rows - self._events_max))


class _Part:
    """The end of one partition of a queried stream, without ticks."""

    def __init__(self, end: int) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self._end = end
        self._whole = False

    def follow(
        self, log: LogReader, stream: str, partition: int, now: ServedExtent, rows_max: int, bytes_max: int
    ) -> None:
        """Add the events since the last call. The first call reads backwards from the end."""
        start, end = now.starts[partition], now.ends[partition]
        if not self._whole or end - self._end > rows_max or self._end < start:
            self._go_back(log, stream, partition, (start, end), rows_max, bytes_max)
        else:
            self.batches += [_relation_events(batch) for batch in log.read(stream, partition, self._end, end)]
        self._end, self._whole = end, True
        rows, size = sum(batch.num_rows for batch in self.batches), sum(batch.nbytes for batch in self.batches)
        while self.batches and (rows - self.batches[0].num_rows >= rows_max or size > bytes_max):
            rows, size = rows - self.batches[0].num_rows, size - self.batches[0].nbytes
            self.batches.popleft()

    def _go_back(
        self, log: LogReader, stream: str, partition: int, span: tuple[int, int], rows_max: int, bytes_max: int
    ) -> None:
        """Read towards the start, in steps that depend on the size of the batches already read."""
        self.batches.clear()
        (start, end), step, rows, size = span, STEP_ROWS, 0, 0
        while start < end and rows < rows_max and size < bytes_max:
            begin = max(start, end - step)
            batches, count = list[pa.RecordBatch](), 0
            for batch in log.read(stream, partition, begin, end):
                batches.append(_relation_events(batch))
                count += batch.num_rows
            if not count:
                end = rows_end(log, stream, partition, start, begin)
                continue
            self.batches.extendleft(reversed(batches))
            rows, size = rows + count, size + sum(batch.nbytes for batch in batches)
            end = begin
            fitting = max(1, (bytes_max - size) * rows // max(1, size))
            step = min(2 * step, rows_max - rows, fitting)


def _relation_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the events of a stream's batch, with the visible columns. They are copied, so the batch does not stay in
    memory."""
    names = [name for name in batch.schema.names if name not in HIDDEN_COLUMNS or name in EXTRA]
    return batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT)).select(names)


class FeedRelation:
    """A filtered part of another relation."""

    def __init__(self, of: Relation, where: str | None, select: str | None, *, source: str) -> None:
        """`source` is the name of the other relation."""
        self.kind: Kind = of.kind
        self.part_of: str | None = source
        self._of, self._where, self._select = of, where, select

    def version(self) -> Hashable:
        return self._of.version()

    def prepare(self) -> Callable[[], RelationRows]:
        read = self._of.prepare()

        def chosen() -> RelationRows:
            rows = read()
            cursor = of_part(rows.cursor, self._where, self._select)
            return RelationRows(seen(rows.table, self._where, self._select), rows.version, cursor)

        return chosen


def seen(table: pa.Table, where: str | None, select: str | None, claims: Mapping[str, Any] | None = None) -> pa.Table:
    """Filter the table of a relation. The filter cannot use system columns, and a selection drops them."""
    batches = [
        _part_of_relation(batch, where, select, claims)
        for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    ]
    return pa.Table.from_batches(batches)


def _part_of_relation(
    batch: pa.RecordBatch, where: str | None, select: str | None, claims: Mapping[str, Any] | None
) -> pa.RecordBatch:
    own = batch.select([name for name in batch.schema.names if name not in EXTRA])
    filtering = compiled(own.schema, where, select, claims=claims)
    mask = filtering.mask(own)
    return batch.filter(mask) if select is None else filtering.project(own.filter(mask))


def not_known(name: str) -> Busy:
    return Busy(f"the columns of {name} are not known yet: its query has not started", retry_after_s=2)
