"""Describe the events that retention has dropped from the streams that a rebuild reads."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.contracts import LogReader
from penstock.core.reading import first_row
from penstock.core.times import from_micros, micros_of


def missing(
    log: LogReader, starts: Mapping[str, Mapping[int, int]], began: Mapping[str, Mapping[int, int]]
) -> list[str]:
    """Return a line for each stream that has lost its first events: the first kept event comes after the position where
    a view or handler `began`, or after the stream's very first event if `began` does not contain the stream. The number
    of missing events is an upper bound, because there may have been fewer events than offsets."""
    lines = []
    for stream, partitions in starts.items():
        first = began.get(stream, {})
        gone = {number: start - first.get(number, 0) for number, start in partitions.items()}
        gone = {number: count for number, count in gone.items() if count > 0}
        if gone:
            count, of = sum(gone.values()), f"{len(gone)} of {len(partitions)} partitions"
            kept = [_first_kept_time(log, stream, number, partitions[number]) for number in gone]
            before = f", all before {max(filter(None, kept))}" if any(kept) else ""
            empty = f"; partitions with no events left: {kept.count(None)}" if None in kept else ""
            lines.append(f"{stream}: up to {count:,} of its first events were deleted, in {of}{before}{empty}")
    return lines


def _first_kept_time(log: LogReader, stream: str, partition: int, start: int) -> str | None:
    """Return the time when a partition's first kept event arrived, or None if the partition has no events."""
    batch = first_row(log, stream, partition, start, log.ends(stream)[partition])
    if batch is None:
        return None
    return f"{from_micros(micros_of(batch.column('_ingest_time'))[0]):%Y-%m-%d %H:%M:%S} UTC"
