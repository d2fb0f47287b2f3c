"""Divides a handler's work into shards and batches. Does not need Spark."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from penstock.app.app import App
from penstock.app.declared import Handler, Stream
from penstock.core.arrays import packed
from penstock.core.contracts import LogReader
from penstock.core.cursor import Positions
from penstock.core.event_shape import EventShape, event_spec
from penstock.core.schema import OFFSET_COLUMN, fields
from penstock.core.settings import Settings
from penstock.core.times import micros_of
from penstock.handlers.inputs import InputSpec, OffsetRange, chunks
from penstock.handlers.rows import ShardRows

RERUN_ROWS_MAX = 100_000
ORDERED_ROWS_MAX = 500_000
"""Maximum rows per stream in a batch that reads several partitions. These rows are sorted in memory."""


def inputs(app: App, handler: Handler) -> dict[str, Stream]:
    """Return the streams that a handler reads, by name. A view is read through its changes, as events of the row class
    that the handler declares."""
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    for view, row in handler.rows.items():
        streams[f"{view}.changes"] = Stream(f"{view}.changes", row, handler.where, partitions=1)
    return {name: streams[name] for name in handler.inputs}


def input_shapes(app: App, handler: Handler) -> dict[str, EventShape]:
    """Return the shapes of the classes that a handler reads its inputs with. View changes have no shape."""
    streams = (*app.streams, *app.outputs)
    return {stream.name: event_spec(stream.event).shape for stream in streams if stream.name in handler.inputs}


def spread(app: App, handler: Handler, settings: Settings) -> tuple[int, dict[str, bool]]:
    """Return a handler's number of shards, and whether each of its streams is partitioned like the handler.

    The number of shards is the number of partitions of the first stream that is partitioned by the handler's key. If a
    stream is partitioned differently, each shard reads all of its rows and keeps the rows with its own keys.
    """
    streams = inputs(app, handler)
    counts = {name: stream.partitions or settings.partitions for name, stream in streams.items()}
    placed = {name: _is_placed(stream, handler) for name, stream in streams.items()}
    shards = next((counts[name] for name in streams if placed[name]), settings.partitions)
    return shards, {name: placed[name] and counts[name] == shards for name in streams}


def _is_placed(stream: Stream, handler: Handler) -> bool:
    """Return whether a stream is partitioned by the handler's key. This is never true for a decimal key, because equal
    decimals can be written differently."""
    kinds = {field.name: field.base for field in fields(stream.event)}
    key = handler.key_of(stream.name)
    return key == (stream.key,) and kinds[key[0]] is not Decimal


def advance(start: Mapping[int, int], ends: Mapping[int, int], rows_max: int) -> dict[int, int]:
    """Return a handler's position at most about `rows_max` offsets after `start`, divided among the partitions in
    proportion to their backlogs."""
    waiting = {partition: max(0, ends[partition] - start.get(partition, 0)) for partition in ends}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(ends)
    return {
        partition: start.get(partition, 0) + max(waiting[partition] * rows_max // total, min(1, waiting[partition]))
        for partition in ends
    }


def batch_stop(
    log: LogReader, stream: str, start: Mapping[int, int], ends: Mapping[int, int], rows_max: int
) -> dict[int, int]:
    """Return where a handler's batch that begins at `start` ends. Like `advance`, but counts rows instead of offsets,
    so gaps are ignored. If most offsets in the batch have no row, this queries the log for row counts about twenty
    times."""

    def rows(stops: Mapping[int, int]) -> int:
        return log.rows_between(stream, start, stops)

    stops = advance(start, ends, rows_max)
    if stops == ends or rows(stops) >= rows_max // 2:
        return stops
    if rows(ends) <= rows_max:
        return dict(ends)
    limits = range(rows_max, sum(max(0, end - start.get(partition, 0)) for partition, end in ends.items()))
    past = bisect_right(limits, rows_max, key=lambda limit: rows(advance(start, ends, limit)))
    return advance(start, ends, limits[max(0, past - 1)])


def rows_bound(placed: Mapping[str, bool], rows_max: int) -> int:
    """Return the maximum number of rows per stream in a handler's batch: `rows_max`, or less if the rows must be
    sorted."""
    return min(rows_max, ORDERED_ROWS_MAX) if _needs_order(placed) else rows_max


def _needs_order(placed: Mapping[str, bool]) -> bool:
    """Return whether a handler's shard can have rows from several partitions, which would have to be sorted."""
    return len(placed) > 1 or not all(placed.values())


def batch_end(
    log: LogReader, placed: Mapping[str, bool], start: Positions, ends: Positions, rows_max: int
) -> Positions:
    """Return the end of a handler's batch from `start`, given the ends of the streams.

    If rows from several partitions must be sorted, the batch ends where all partitions have reached the same log time,
    so the order of a key's events does not depend on batch boundaries.
    """
    stops = {stream: batch_stop(log, stream, start[stream], ends[stream], rows_max) for stream in placed}
    if not _needs_order(placed):
        return stops
    rows = {stream: _row_times(log, stream, start[stream], stops[stream]) for stream in placed}
    complete = [_complete_until(rows[stream], stops[stream], ends[stream]) for stream in placed]
    if None in complete:  # a stream has no new rows, so wait for its next tick
        return {stream: _past_gaps(rows[stream], start[stream], stops[stream]) for stream in placed}
    until = min(time for time in complete if time is not None)
    return {
        stream: {
            partition: _first_after(until, mine, stops[stream][partition]) for partition, mine in rows[stream].items()
        }
        for stream in placed
    }


def steps(
    log: LogReader, placed: Mapping[str, bool], start: Positions, end: Positions, rows_max: int
) -> Iterator[tuple[Positions, Positions]]:
    """Divide a range that the handler has already processed, from `start` to `end`, into batches of at most about
    `rows_max` rows."""
    position = start
    while position != end:
        left = {stream: placed[stream] for stream in placed if position[stream] != end[stream]}
        stops = position | batch_end(log, left, position, end, rows_max)
        yield position, stops
        position = stops


def reread_rows(log: LogReader, reading: InputSpec, start: Positions, end: Positions) -> Iterator[ShardRows]:
    """Yield a handler shard's rows between two positions again, in pieces, to limit memory use."""
    for first, last in steps(log, reading.placed, start, end, RERUN_ROWS_MAX):
        yield from chunks(log, reading, shard_ranges(reading.placed, reading.shard, first, last))


class _Rows(NamedTuple):
    """A partition's rows in a handler's batch: their ingest times in ascending order, and their offsets."""

    times: Sequence[int]
    offsets: Sequence[int]


def _row_times(log: LogReader, stream: str, start: dict[int, int], end: dict[int, int]) -> dict[int, _Rows]:
    """Return the rows between two positions, by partition."""
    rows: dict[int, _Rows] = {}
    for partition in end:
        times, offsets = array("q"), array("q")
        for batch in log.read(stream, partition, start[partition], end[partition]):
            times += micros_of(batch.column("_ingest_time"))
            offsets += packed("q", batch.column(OFFSET_COLUMN))
        rows[partition] = _Rows(times, offsets)
    return rows


def _first_after(until: int, rows: _Rows, end: int) -> int:
    """Return the offset of a partition's first row after a time, or `end` if there is none."""
    row = bisect_right(rows.times, until)
    return rows.offsets[row] if row < len(rows.offsets) else end


def _past_gaps(rows: dict[int, _Rows], start: dict[int, int], stops: dict[int, int]) -> dict[int, int]:
    """Return the handler's position after skipping the leading offsets without rows. The same rows follow as from
    `start`."""
    return {
        partition: mine.offsets[0] if mine.offsets else max(start[partition], stops[partition])
        for partition, mine in rows.items()
    }


def _complete_until(rows: dict[int, _Rows], stops: dict[int, int], ends: dict[int, int]) -> int | None:
    """Return the time up to which all of a stream's rows are known.

    A row that is appended later has a later time than every existing row. A row that exists but was not read has a
    later time than the rows that were read from its partition. Returns None if there are no new rows, or if only a gap
    was read from a partition that has more, so the time of its next row is unknown.
    """
    cut = [mine.times for partition, mine in rows.items() if stops[partition] < ends[partition]]
    if not all(cut):
        return None
    if cut:
        return min(times[-1] for times in cut)
    return max((mine.times[-1] for mine in rows.values() if mine.times), default=None)


def own_positions(placed: Mapping[str, bool], shard: int, positions: Positions) -> Positions:
    """Return the positions of the partitions that a handler shard reads."""
    return {
        stream: {partition: at for partition, at in positions[stream].items() if not mine or partition == shard}
        for stream, mine in placed.items()
    }


def shard_ranges(placed: Mapping[str, bool], shard: int, start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges that a handler shard reads between two positions: its own partition of each stream that is
    partitioned like the handler, and all partitions of the other streams. Rows with the same time run in the order of
    these ranges."""
    return [
        OffsetRange(stream, partition, start[stream][partition], stop)
        for stream in placed
        for partition, stop in sorted(end[stream].items())
        if start[stream][partition] < stop and (not placed[stream] or partition == shard)
    ]
