"""What retention has dropped of the streams that a rebuild reads, in words for a person."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.contracts import LogReader
from penstock.rows import from_micros, micros_of


def missing(
    log: LogReader, starts: Mapping[str, Mapping[int, int]], began: Mapping[str, Mapping[int, int]]
) -> list[str]:
    """A line for each stream whose first kept events stand above where a view or handler `began`; without a position
    it began with the first event ever."""
    lines = []
    for stream, partitions in starts.items():
        first = began.get(stream, {})
        gone = {number: start - first.get(number, 0) for number, start in partitions.items()}
        gone = {number: count for number, count in gone.items() if count > 0}
        if gone:
            count, of = sum(gone.values()), f"{len(gone)} of {len(partitions)} partitions"
            kept = [_first_time(log, stream, number, partitions[number]) for number in gone]
            before = f": those before {max(filter(None, kept))}" if any(kept) else ""
            empty = f"; {kept.count(None)} of them have none left" if None in kept else ""
            lines.append(f"{stream}: its first {count:,} events are gone, in {of}{before}{empty}")
    return lines


def _first_time(log: LogReader, stream: str, partition: int, start: int) -> str | None:
    """When the first kept event of a partition came; None if it has none."""
    if start >= log.ends(stream)[partition]:
        return None
    (batch, *_) = log.read(stream, partition, start, start + 1)
    return f"{from_micros(micros_of(batch.column('_ingest_time'))[0]):%Y-%m-%d %H:%M:%S} UTC"
