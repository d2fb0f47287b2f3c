"""Reads ranges of the log as a handler's inputs: the events, in the order in which they are processed."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app.declared import Handler
from penstock.core.arrays import packed
from penstock.core.columns import key_part, key_text, partition_of
from penstock.core.contracts import LogReader
from penstock.core.filters import Filter
from penstock.core.filters.events import event_filter
from penstock.core.reading import last_row
from penstock.core.schema import KIND_EVENT, KIND_GONE, KIND_TICK, OFFSET_COLUMN, Event, fields
from penstock.core.times import micros_of
from penstock.handlers.fitting import fitted
from penstock.handlers.rows import Inputs, LogPosition, ShardRows, coded, iterate_events, values

CHUNK_ROWS = 50_000
PIECE_ROWS = 32_768
"""Number of rows whose columns are converted at a time. With 8,192 rows, an event takes 10% longer; larger values gain
nothing."""
T = TypeVar("T")


class OffsetRange(NamedTuple):
    """A range of the log that a handler reads: the rows of one partition at offsets [start, end)."""

    stream: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class InputSpec:
    """Parameters for reading a handler's streams for one of its shards.

    For each stream, they contain the event class, the key fields, and whether the stream is partitioned like the
    handler (`placed`). They also contain the filter, if there is a condition, and the class for a view's deleted rows
    (`gone`). If a stream is partitioned differently, a shard reads all of its partitions and keeps the rows with its
    own keys.
    """

    classes: Mapping[str, type[Event]]
    keys: Mapping[str, tuple[str, ...]]
    placed: Mapping[str, bool]
    shard: int
    shards: int
    filters: Mapping[str, Filter] = field(default_factory=dict)
    gone: Mapping[str, type[Event]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, handler: Handler, classes: Mapping[str, type[Event]], placed: Mapping[str, bool], shard: int, shards: int
    ) -> InputSpec:
        keys = {name: handler.key_of(name) for name in classes}
        conditions = {name: handler.condition_of(name) for name in classes}
        filters = {name: event_filter(classes[name], text) for name, text in conditions.items() if text is not None}
        return cls(classes, keys, placed, shard, shards, filters, handler.gone)


@dataclass(frozen=True)
class _Piece:
    """The rows of one log batch that belong to a shard."""

    source: OffsetRange
    offsets: Sequence[int]
    batch: pa.RecordBatch
    keys: Sequence[str | None]
    codes: Sequence[int]
    events: Iterable[Any]

    def position(self, generation: int, row: int) -> LogPosition:
        return LogPosition(self.source.stream, generation, self.source.partition, self.offsets[row])

    def id(self, row: int) -> str | None:
        event_id: str | None = self.batch.column("_id")[row].as_py()
        return event_id


def read_inputs(log: LogReader, reading: InputSpec, ranges: Sequence[OffsetRange]) -> Inputs:
    """Return a handler's rows from all ranges, sorted by ingest time. Rows with the same time keep the order of the
    ranges, which follows the handler's streams and their partitions."""
    pieces = [piece for offset_range in ranges for piece in _pieces(log, reading, offset_range)]
    ends = list(accumulate(len(piece.offsets) for piece in pieces))
    generations = {offset_range.stream: log.generation(offset_range.stream) for offset_range in ranges}
    keys = [piece.keys[code] for piece in pieces for code in piece.codes]
    events = list(chain.from_iterable(piece.events for piece in pieces))
    times = list(chain.from_iterable(micros_of(piece.batch.column("_ingest_time")) for piece in pieces))
    order: Sequence[int] = range(len(times))
    if len(ranges) > 1:
        order = sorted(order, key=times.__getitem__)
        keys, events, times = _picked_values(keys, order), _picked_values(events, order), _picked_values(times, order)

    def find(row: int) -> tuple[_Piece, int]:
        number = bisect_right(ends, order[row])
        return pieces[number], order[row] - (ends[number - 1] if number else 0)

    def locate(row: int) -> LogPosition:
        piece, inner = find(row)
        return piece.position(generations[piece.source.stream], inner)

    def identify(row: int) -> str | None:
        piece, inner = find(row)
        return piece.id(inner)

    return Inputs.of(keys, events, times, identify, locate)


class Stretch:
    """The rows in one range of a stream that is partitioned like the handler, as `rows.ShardRows`. Rows are read and
    converted while they are processed, and again in each further run, so at most one piece is in memory. `next_offset`
    is the offset that the last run reached."""

    def __init__(self, log: LogReader, reading: InputSpec, source: OffsetRange, time: int) -> None:
        self.time = time
        self.next_offset = source.end
        self._log, self._reading, self._source = log, reading, source

    def pieces(self) -> Iterator[Inputs]:
        """Yield pieces that are cut at the same rows in every run, regardless of how the log stores the rows."""
        source, generation = self._source, self._log.generation(self._source.stream)
        cls = self._reading.classes[source.stream]
        self.next_offset = source.start
        for batch in recut(self._log.read(*source), PIECE_ROWS):
            piece = _piece(batch, cls, self._reading, source)
            self.next_offset = piece.offsets[-1] + 1
            times = micros_of(batch.column("_ingest_time"))
            position = partial(piece.position, generation)
            yield Inputs(piece.keys, piece.codes, piece.events, times, piece.id, position)
        self.next_offset = source.end


def chunks(log: LogReader, reading: InputSpec, ranges: Sequence[OffsetRange]) -> Iterator[ShardRows]:
    """Yield a handler's rows from all ranges in parts, to limit memory use: each part is read after the previous part
    has been processed. Rows from several ranges must be sorted, so they are read all at once."""
    if len(ranges) != 1 or ranges[0].end - ranges[0].start <= PIECE_ROWS:
        yield read_inputs(log, reading, ranges)
        return
    (whole,) = ranges
    if reading.placed[whole.stream]:
        yield from _stretches(log, reading, whole)
        return
    for start in range(whole.start, whole.end, CHUNK_ROWS):
        yield read_inputs(log, reading, [whole._replace(start=start, end=min(start + CHUNK_ROWS, whole.end))])


def _stretches(log: LogReader, reading: InputSpec, whole: OffsetRange) -> Iterator[Stretch]:
    last = last_row(log, *whole)
    if last is None:
        return
    (time,) = micros_of(last.column("_ingest_time"))
    while whole.start < whole.end:
        stretch = Stretch(log, reading, whole, time)
        yield stretch
        whole = whole._replace(start=stretch.next_offset)


def recut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield a handler's rows in batches of `size`; the last batch can be smaller."""
    held: list[pa.RecordBatch] = []
    missing = size
    for batch in batches:
        rest = batch
        while rest.num_rows >= missing:
            yield _joined_input([*held, rest.slice(0, missing)])
            rest, held, missing = rest.slice(missing), [], size
        if rest.num_rows:
            held, missing = [*held, rest], missing - rest.num_rows
    if held:
        yield _joined_input(held)


def _joined_input(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _picked_values(column: list[T], rows: Sequence[int]) -> list[T]:
    return [column[row] for row in rows]


def _pieces(log: LogReader, reading: InputSpec, source: OffsetRange) -> Iterator[_Piece]:
    cls = reading.classes[source.stream]
    for batch in log.read(source.stream, source.partition, source.start, source.end):
        yield _piece(batch, cls, reading, source)


def _piece(batch: pa.RecordBatch, cls: type[Event], reading: InputSpec, source: OffsetRange) -> _Piece:
    """Return the rows of one batch that belong to this shard. Ticks belong to every shard. An event that the filter
    excludes counts as a tick: it only advances log time."""
    offsets = packed("q", batch.column(OFFSET_COLUMN))
    if source.stream.endswith(".changes"):
        batch = fitted(batch, cls)
    key = reading.keys[source.stream]
    if not reading.placed[source.stream]:
        rows = _shard_rows(batch, cls, key, reading)
        batch, offsets = batch.take(pa.array(rows, pa.int64())), array("q", [offsets[row] for row in rows])
    kinds = row_kinds(batch, reading.filters.get(source.stream))
    if _has_non_events(kinds):
        keys, codes = coded(
            _spread_by_kind(kinds, _key_texts(_without_ticks(batch, kinds), cls, key), KIND_EVENT, KIND_GONE)
        )
        events = _input_events(batch, kinds, cls, reading.gone.get(source.stream))
        return _Piece(source, offsets, batch, keys, codes, events)
    keys, codes = _coded_keys(batch, cls, key)
    return _Piece(source, offsets, batch, keys, codes, iterate_events(cls, batch))


def _input_events(batch: pa.RecordBatch, kinds: pa.Array, cls: type[Event], gone: type[Event] | None) -> list[Any]:
    """Return the handler's event for each row in a mixed batch: None for ticks, and None for deleted rows unless there
    is a class for them."""
    events = _spread_by_kind(kinds, iterate_events(cls, batch.filter(pc.equal(kinds, KIND_EVENT))), KIND_EVENT)
    if gone is None:
        return events
    left = _spread_by_kind(kinds, iterate_events(gone, batch.filter(pc.equal(kinds, KIND_GONE))), KIND_GONE)
    return [event if event is not None else other for event, other in zip(events, left, strict=True)]


def _coded_keys(
    batch: pa.RecordBatch, cls: type[Event], key: tuple[str, ...]
) -> tuple[Sequence[str | None], Sequence[int]]:
    """Return a handler's keys as `coded` does. String keys are encoded by Arrow, which takes a third of the time."""
    if len(key) > 1 or _key_field_type(cls, key[0]) is not str:
        return coded(_key_texts(batch, cls, key))
    keys = batch.column(key[0]).dictionary_encode(null_encoding="encode")
    return keys.dictionary.to_pylist(), packed("i", keys.indices)


def _key_texts(batch: pa.RecordBatch, cls: type[Event], key: tuple[str, ...]) -> Iterable[str | None]:
    columns = [values(cls, name, batch) for name in key]
    return map(key_part, columns[0]) if len(columns) == 1 else map(key_text, zip(*columns, strict=True))


def _key_field_type(cls: type[Event], name: str) -> Any:
    return next(field.base for field in fields(cls) if field.name == name)


def row_kinds(batch: pa.RecordBatch, chosen: Filter | None) -> pa.Array:
    """Return each row's kind as the handler sees it. An event that the filter excludes becomes a tick."""
    kinds = batch.column("_kind")
    if chosen is None:
        return kinds
    taken = pc.or_(chosen.mask(batch), pc.not_equal(kinds, KIND_EVENT))
    return pc.if_else(taken, kinds, pa.scalar(KIND_TICK, kinds.type))


def _spread_by_kind(kinds: pa.Array, values: Iterable[Any], *wanted: int) -> list[Any]:
    """Assign the values, in order, to the rows of the wanted kinds; all other rows get None."""
    following = iter(values)
    return [next(following) if kind in wanted else None for kind in kinds.to_pylist()]


def _has_non_events(kinds: pa.Array) -> bool:
    """Return whether any row is not an event: a tick, or a deleted row of a view, which has a key but no event."""
    return bool(pc.any(pc.not_equal(kinds, KIND_EVENT)).as_py())


def _without_ticks(batch: pa.RecordBatch, kinds: pa.Array) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(kinds, KIND_TICK))


def _shard_rows(batch: pa.RecordBatch, cls: type[Event], key: tuple[str, ...], reading: InputSpec) -> list[int]:
    """Return the numbers of the rows that are ticks or have keys that belong to the shard."""
    kinds = batch.column("_kind")
    texts = _key_texts(_without_ticks(batch, kinds), cls, key)
    belongs = [partition_of(text, reading.shards) == reading.shard for text in texts]
    return [
        row for row, mine in enumerate(_spread_by_kind(kinds, belongs, KIND_EVENT, KIND_GONE)) if mine is None or mine
    ]
