"""How a handler's work is cut: into shards, and into batches. Nothing here needs Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from decimal import Decimal

from penstock.analyze.inputs import Range, Reading, chunks
from penstock.app import App
from penstock.contracts import LogReader
from penstock.cursor import Positions
from penstock.declared import Handler, Stream
from penstock.rows import Rows, micros_of
from penstock.schema import fields
from penstock.settings import Settings

RERUN_ROWS_MAX = 100_000
ORDERED_ROWS_MAX = 500_000
"""Rows of several partitions are put in order in memory, so a batch has no more of them, of each stream."""


def inputs(app: App, handler: Handler) -> dict[str, Stream]:
    """The streams that a handler reads, by name: of a view its changes, as events of the handler's own class."""
    streams = {stream.name: stream for stream in (*app.streams, *app.outputs)}
    for view, row in handler.rows.items():
        streams[f"{view}.changes"] = Stream(f"{view}.changes", row, handler.where, partitions=1)
    return {name: streams[name] for name in handler.inputs}


def spread(app: App, handler: Handler, settings: Settings) -> tuple[int, dict[str, bool]]:
    """How many shards a handler has, and which of its streams are placed as they are.

    It has as many as the first stream that is placed by its key has partitions. Of a stream that is not placed so, each
    shard reads all and picks its own.
    """
    streams = inputs(app, handler)
    counts = {name: stream.partitions or settings.partitions for name, stream in streams.items()}
    placed = {name: _is_placed(stream, handler) for name, stream in streams.items()}
    shards = next((counts[name] for name in streams if placed[name]), settings.partitions)
    return shards, {name: placed[name] and counts[name] == shards for name in streams}


def _is_placed(stream: Stream, handler: Handler) -> bool:
    """Two decimals can be equal and have different texts, so they place nothing."""
    kinds = {each.name: each.base for each in fields(stream.event)}
    key = handler.key_of(stream.name)
    return key == (stream.key,) and kinds[key[0]] is not Decimal


def advance(start: Mapping[int, int], ends: Mapping[int, int], rows_max: int) -> dict[int, int]:
    """The furthest position within `rows_max` rows of `start`, each partition given its share of what waits."""
    waiting = {partition: max(0, ends[partition] - start.get(partition, 0)) for partition in ends}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(ends)
    return {
        partition: start.get(partition, 0) + max(waiting[partition] * rows_max // total, min(1, waiting[partition]))
        for partition in ends
    }


def rows_bound(placed: Mapping[str, bool], rows_max: int) -> int:
    """How many rows of each stream a batch may have at most, given how many it is allowed."""
    return min(rows_max, ORDERED_ROWS_MAX) if _needs_order(placed) else rows_max


def _needs_order(placed: Mapping[str, bool]) -> bool:
    """Whether a shard has rows of several partitions."""
    return len(placed) > 1 or not all(placed.values())


def batch_end(
    log: LogReader, placed: Mapping[str, bool], start: Positions, ends: Positions, rows_max: int
) -> Positions:
    """Where a batch from `start` ends, given that the streams end at `ends`.

    If rows of several partitions must be put in order, it ends where all stand at the same log time. So the order of a
    key's events is the same whatever the batches are.
    """
    reached = {stream: advance(start[stream], ends[stream], rows_max) for stream in placed}
    if not _needs_order(placed):
        return reached
    times = {stream: _times(log, stream, start[stream], reached[stream]) for stream in placed}
    complete = [_complete_until(times[stream], reached[stream], ends[stream]) for stream in placed]
    if None in complete:
        return start  # a stream has nothing new, and will say so by a tick
    until = min(each for each in complete if each is not None)
    return {
        stream: {
            partition: start[stream][partition] + bisect_right(column, until)
            for partition, column in times[stream].items()
        }
        for stream in placed
    }


def steps(
    log: LogReader, placed: Mapping[str, bool], start: Positions, end: Positions, rows_max: int
) -> Iterator[tuple[Positions, Positions]]:
    """Cut the way from `start` to `end`, which a run has gone, into batches of no more than about `rows_max` rows."""
    position = start
    while position != end:
        left = {stream: placed[stream] for stream in placed if position[stream] != end[stream]}
        reached = position | batch_end(log, left, position, end, rows_max)
        yield position, reached
        position = reached


def rerun(log: LogReader, reading: Reading, start: Positions, end: Positions) -> Iterator[Rows]:
    """A shard's rows between two positions once more, in pieces that bound the memory they take."""
    for first, last in steps(log, reading.placed, start, end, RERUN_ROWS_MAX):
        yield from chunks(log, reading, shard_ranges(reading.placed, reading.shard, first, last))


def _times(log: LogReader, stream: str, start: dict[int, int], end: dict[int, int]) -> dict[int, list[int]]:
    """The ingest times of rows, by partition."""
    found: dict[int, list[int]] = {}
    for partition in end:
        batches = log.read(stream, partition, start[partition], end[partition])
        found[partition] = [each for batch in batches for each in micros_of(batch.column("_ingest_time"))]
    return found


def _complete_until(times: dict[int, list[int]], reached: dict[int, int], ends: dict[int, int]) -> int | None:
    """The time up to which a stream's rows are all known. A row that is yet to come has a later time than all that are
    there; one that is there, but was not read, a later time than those of its partition that were."""
    cut = [column[-1] for partition, column in times.items() if column and reached[partition] < ends[partition]]
    return min(cut) if cut else max((column[-1] for column in times.values() if column), default=None)


def own_positions(placed: Mapping[str, bool], shard: int, positions: Positions) -> Positions:
    """Of positions, those that a shard has to do with."""
    return {
        stream: {partition: at for partition, at in positions[stream].items() if not mine or partition == shard}
        for stream, mine in placed.items()
    }


def shard_ranges(placed: Mapping[str, bool], shard: int, start: Positions, end: Positions) -> list[Range]:
    """What a shard reads between two positions: its own partition of a stream that is placed as the handler is, all of
    the others. In the order in which rows of the same time are run."""
    return [
        Range(stream, partition, start[stream][partition], stop)
        for stream in placed
        for partition, stop in sorted(end[stream].items())
        if start[stream][partition] < stop and (not placed[stream] or partition == shard)
    ]
