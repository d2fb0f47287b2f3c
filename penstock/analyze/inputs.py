"""From ranges of the log to a handler's inputs: its events, in the order to run them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.analyze.fitting import fitted
from penstock.columns import key_part, key_text, place
from penstock.contracts import LogReader
from penstock.declared import Handler
from penstock.filters import Filter
from penstock.filters.events import event_filter
from penstock.rows import Inputs, Place, Rows, coded, each_event, micros_of, packed, values
from penstock.schema import KIND_EVENT, KIND_GONE, KIND_TICK, Event, fields

CHUNK_ROWS = 50_000
PIECE_ROWS = 32_768
"""Rows whose columns are made into values at a time. Of 8,192 an event takes a tenth more time, of more no less."""
T = TypeVar("T")


class Range(NamedTuple):
    """Rows of the log: those of one partition at offsets [start, end)."""

    stream: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Reading:
    """How a handler's streams are read for one of its shards: their classes, the fields of each that have the key,
    which streams are partitioned as the handler is, the filters of those of which it takes some events only, and the
    classes of what says which row of a view is gone. Of streams that are not partitioned so, a shard reads every
    partition and picks the keys that are its own."""

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
    ) -> Reading:
        keys = {name: handler.key_of(name) for name in classes}
        conditions = {name: handler.condition_of(name) for name in classes}
        filters = {name: event_filter(classes[name], text) for name, text in conditions.items() if text is not None}
        return cls(classes, keys, placed, shard, shards, filters, handler.gone)


@dataclass(frozen=True)
class _Piece:
    """Rows of one batch of the log. `batch` has those of `rows` only, numbered from the batch's first."""

    source: Range
    first: int
    rows: Sequence[int]
    batch: pa.RecordBatch
    keys: Sequence[str | None]
    codes: Sequence[int]
    events: Iterable[Any]

    def place(self, generation: int, row: int) -> Place:
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
    keys = [piece.keys[code] for piece in pieces for code in piece.codes]
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
        return piece.place(generations[piece.source.stream], inner)

    def identify(row: int) -> str | None:
        piece, inner = find(row)
        return piece.id(inner)

    return Inputs.of(keys, events, times, identify, locate)


class Stretch:
    """Rows of one range, which is placed as the handler is: `machine.Rows`. Read and made into events while they are
    run, and again if they are run again, so memory is bound by a piece. `reached` is where the last run came to."""

    def __init__(self, log: LogReader, reading: Reading, source: Range, time: int) -> None:
        self.time = time
        self.reached = source.end
        self._log, self._reading, self._source = log, reading, source

    def pieces(self) -> Iterator[Inputs]:
        """Cut at the same rows in every run, however the log has stored them."""
        source, generation = self._source, self._log.generation(self._source.stream)
        cls = self._reading.classes[source.stream]
        self.reached = source.start
        for batch in recut(self._log.read(*source), PIECE_ROWS):
            piece = _piece(batch, cls, self._reading, source, self.reached)
            self.reached += batch.num_rows
            times = micros_of(batch.column("_ingest_time"))
            place = partial(piece.place, generation)
            yield Inputs(piece.keys, piece.codes, piece.events, times, piece.id, place)


def chunks(log: LogReader, reading: Reading, ranges: Sequence[Range]) -> Iterator[Rows]:
    """The rows of all ranges, in parts that bound the memory it takes: the next is made when the one before was run.
    Rows of several ranges must be put in order, all at once."""
    if len(ranges) != 1 or ranges[0].end - ranges[0].start <= PIECE_ROWS:
        yield read_inputs(log, reading, ranges)
        return
    (whole,) = ranges
    if reading.placed[whole.stream]:
        yield from _stretches(log, reading, whole)
        return
    for start in range(whole.start, whole.end, CHUNK_ROWS):
        yield read_inputs(log, reading, [whole._replace(start=start, end=min(start + CHUNK_ROWS, whole.end))])


def _stretches(log: LogReader, reading: Reading, whole: Range) -> Iterator[Stretch]:
    *_, last = log.read(*whole._replace(start=whole.end - 1))
    (time,) = micros_of(last.column("_ingest_time"))
    while whole.start < whole.end:
        stretch = Stretch(log, reading, whole, time)
        yield stretch
        whole = whole._replace(start=stretch.reached)


def recut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `size`, but for the last."""
    held: list[pa.RecordBatch] = []
    missing = size
    for batch in batches:
        rest = batch
        while rest.num_rows >= missing:
            yield _joined([*held, rest.slice(0, missing)])
            rest, held, missing = rest.slice(missing), [], size
        if rest.num_rows:
            held, missing = [*held, rest], missing - rest.num_rows
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _picks(column: list[T], rows: Sequence[int]) -> list[T]:
    return [column[row] for row in rows]


def _pieces(log: LogReader, reading: Reading, source: Range) -> Iterator[_Piece]:
    cls, first = reading.classes[source.stream], source.start
    for batch in log.read(source.stream, source.partition, source.start, source.end):
        yield _piece(batch, cls, reading, source, first)
        first += batch.num_rows


def _piece(batch: pa.RecordBatch, cls: type[Event], reading: Reading, source: Range, first: int) -> _Piece:
    """The rows of one batch that are of this shard. Ticks are everyone's, and an event that the filter leaves out is
    the same as a tick: log time passes with it, and nothing else."""
    if source.stream.endswith(".changes"):
        batch = fitted(batch, cls)
    rows: Sequence[int] = range(batch.num_rows)
    key = reading.keys[source.stream]
    if not reading.placed[source.stream]:
        rows = _picked(batch, cls, key, reading)
        batch = batch.take(pa.array(rows, pa.int64()))
    kinds = row_kinds(batch, reading.filters.get(source.stream))
    if _has_others(kinds):
        keys, codes = coded(_spread(kinds, _texts(_but_ticks(batch, kinds), cls, key), KIND_EVENT, KIND_GONE))
        events = _events(batch, kinds, cls, reading.gone.get(source.stream))
        return _Piece(source, first, rows, batch, keys, codes, events)
    keys, codes = _coded_keys(batch, cls, key)
    return _Piece(source, first, rows, batch, keys, codes, each_event(cls, batch))


def _events(batch: pa.RecordBatch, kinds: pa.Array, cls: type[Event], gone: type[Event] | None) -> list[Any]:
    """The events of rows of several kinds; None for ticks, and for rows that are gone unless they have a class."""
    found = _spread(kinds, each_event(cls, batch.filter(pc.equal(kinds, KIND_EVENT))), KIND_EVENT)
    if gone is None:
        return found
    left = _spread(kinds, each_event(gone, batch.filter(pc.equal(kinds, KIND_GONE))), KIND_GONE)
    return [event if event is not None else other for event, other in zip(found, left, strict=True)]


def _coded_keys(
    batch: pa.RecordBatch, cls: type[Event], key: tuple[str, ...]
) -> tuple[Sequence[str | None], Sequence[int]]:
    """As `coded`; by Arrow, if they are texts already, in a third of the time."""
    if len(key) > 1 or _base(cls, key[0]) is not str:
        return coded(_texts(batch, cls, key))
    found = batch.column(key[0]).dictionary_encode(null_encoding="encode")
    return found.dictionary.to_pylist(), packed("i", found.indices)


def _texts(batch: pa.RecordBatch, cls: type[Event], key: tuple[str, ...]) -> Iterable[str | None]:
    columns = [values(cls, name, batch) for name in key]
    return map(key_part, columns[0]) if len(columns) == 1 else map(key_text, zip(*columns, strict=True))


def _base(cls: type[Event], name: str) -> Any:
    return next(each.base for each in fields(cls) if each.name == name)


def row_kinds(batch: pa.RecordBatch, chosen: Filter | None) -> pa.Array:
    """What each row is to the handler: an event that the filter leaves out is a tick."""
    kinds = batch.column("_kind")
    if chosen is None:
        return kinds
    taken = pc.or_(chosen.mask(batch), pc.not_equal(kinds, KIND_EVENT))
    return pc.if_else(taken, kinds, pa.scalar(KIND_TICK, kinds.type))


def _spread(kinds: pa.Array, values: Iterable[Any], *wanted: int) -> list[Any]:
    """The values, one for each row of the wanted kinds, with None for the others."""
    following = iter(values)
    return [next(following) if kind in wanted else None for kind in kinds.to_pylist()]


def _has_others(kinds: pa.Array) -> bool:
    """Whether there are rows that are no events: ticks, or rows of a view that are gone, which have a key and no
    event."""
    return bool(pc.any(pc.not_equal(kinds, KIND_EVENT)).as_py())


def _but_ticks(batch: pa.RecordBatch, kinds: pa.Array) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(kinds, KIND_TICK))


def _picked(batch: pa.RecordBatch, cls: type[Event], key: tuple[str, ...], reading: Reading) -> list[int]:
    """The numbers of the rows whose keys belong to the shard, and of ticks."""
    kinds = batch.column("_kind")
    texts = _texts(_but_ticks(batch, kinds), cls, key)
    belongs = [place(text, reading.shards) == reading.shard for text in texts]
    return [row for row, mine in enumerate(_spread(kinds, belongs, KIND_EVENT, KIND_GONE)) if mine is None or mine]
