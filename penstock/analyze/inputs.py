"""From ranges of the log to a handler's inputs: its events, in the order to run them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import place, text_of
from penstock.contracts import LogReader
from penstock.machine import Inputs, Place
from penstock.rows import micros_of, to_columns, to_events
from penstock.schema import KIND_EVENT, Event, fields

CHUNK_ROWS = 50_000
T = TypeVar("T")


class Range(NamedTuple):
    """Rows of the log: those of one partition at offsets [start, end)."""

    stream: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Reading:
    """How a handler's streams are read for one of its shards: their classes, the handler's key, and which streams are
    partitioned as the handler is. Of the others a shard reads every partition, and picks the keys that are its own."""

    classes: Mapping[str, type[Event]]
    key: str
    placed: Mapping[str, bool]
    shard: int
    shards: int


@dataclass(frozen=True)
class _Piece:
    """Rows of one batch of the log. `batch` has those of `rows` only, numbered from the batch's first."""

    source: Range
    first: int
    rows: Sequence[int]
    batch: pa.RecordBatch
    keys: list[str | None]
    events: list[Any]

    def place(self, row: int, generation: int) -> Place:
        return Place(self.source.stream, generation, self.source.partition, self.first + self.rows[row])

    def id(self, row: int) -> str | None:
        found: str | None = self.batch.column("_id")[row].as_py()
        return found


def read_inputs(log: LogReader, reading: Reading, ranges: Sequence[Range]) -> Inputs:
    """The rows of all ranges by ingest time; of the same time, in the order of the ranges, which is that of the
    handler's streams and their partitions."""
    pieces = [piece for each in ranges for piece in _pieces(log, reading, each)]
    ends = list(accumulate(len(piece.rows) for piece in pieces))
    generations = {each.stream: log.generation(each.stream) for each in ranges}
    keys = list(chain.from_iterable(piece.keys for piece in pieces))
    events = list(chain.from_iterable(piece.events for piece in pieces))
    times = list(chain.from_iterable(micros_of(piece.batch.column("_ingest_time")) for piece in pieces))
    order: Sequence[int] = range(len(times))
    if len(ranges) > 1:
        order = sorted(order, key=times.__getitem__)
        keys, events, times = _picks(keys, order), _picks(events, order), _picks(times, order)

    def find(row: int) -> tuple[_Piece, int]:
        number = bisect_right(ends, order[row])
        return pieces[number], order[row] - (ends[number - 1] if number else 0)

    def locate(row: int) -> Place:
        piece, inner = find(row)
        return piece.place(inner, generations[piece.source.stream])

    def identify(row: int) -> str | None:
        piece, inner = find(row)
        return piece.id(inner)

    return Inputs(keys, events, times, identify, locate)


def chunks(log: LogReader, reading: Reading, ranges: Sequence[Range]) -> Iterator[Inputs]:
    """The same, in pieces that bound the memory it takes. Rows of several ranges must be put in order, all at once."""
    if len(ranges) != 1:
        yield read_inputs(log, reading, ranges)
        return
    (whole,) = ranges
    for start in range(whole.start, whole.end, CHUNK_ROWS):
        yield read_inputs(log, reading, [whole._replace(start=start, end=min(start + CHUNK_ROWS, whole.end))])


def _picks(column: list[T], rows: Sequence[int]) -> list[T]:
    return [column[row] for row in rows]


def _pieces(log: LogReader, reading: Reading, source: Range) -> Iterator[_Piece]:
    cls, first = reading.classes[source.stream], source.start
    for batch in log.read(source.stream, source.partition, source.start, source.end):
        yield _piece(batch, cls, reading, source, first)
        first += batch.num_rows


def _piece(batch: pa.RecordBatch, cls: type[Event], reading: Reading, source: Range, first: int) -> _Piece:
    """The rows of one batch that are of this shard. Ticks are everyone's."""
    rows: Sequence[int] = range(batch.num_rows)
    if not reading.placed[source.stream]:
        rows = _picked(batch, cls, reading)
        batch = batch.take(pa.array(rows, pa.int64()))
    columns = to_columns(cls, _only_events(batch))
    texts = columns[reading.key]
    if next(each for each in fields(cls) if each.name == reading.key).base is not str:
        texts = list(map(text_of, texts))
    return _Piece(source, first, rows, batch, _spread(batch, texts), _spread(batch, to_events(cls, columns)))


def _only_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT)) if _has_ticks(batch) else batch


def _spread(batch: pa.RecordBatch, values: list[Any]) -> list[Any]:
    """The values, one for each event of a batch, with None where there is a tick."""
    if len(values) == batch.num_rows:
        return values
    following = iter(values)
    return [next(following) if kind == KIND_EVENT else None for kind in batch.column("_kind").to_pylist()]


def _has_ticks(batch: pa.RecordBatch) -> bool:
    return bool(pc.any(pc.not_equal(batch.column("_kind"), KIND_EVENT)).as_py())


def _picked(batch: pa.RecordBatch, cls: type[Event], reading: Reading) -> list[int]:
    """The numbers of the rows whose keys belong to the shard, and of ticks."""
    keys = to_columns(cls, _only_events(batch))[reading.key]
    belongs = [place(text_of(key), reading.shards) == reading.shard for key in keys]
    return [row for row, mine in enumerate(_spread(batch, belongs)) if mine is None or mine]
