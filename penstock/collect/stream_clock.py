"""Tracking of how far time has advanced in a stream. The writer thread updates it; the event loop uses it to plan
ticks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import KIND_EVENT


@dataclass(frozen=True)
class StreamTime:
    """The clocks of a stream, in microseconds since 1970. Unknown times are None.

    `newest` is the latest event time of any event, and `newest_came` is when that event arrived. From `since` on, event
    time is assumed to advance with the clock: `since` equals `newest_came`, or the start of this process if that is
    later, because a source may have held events back while Penstock was down. `event_time` is the latest event time in
    the log, of an event or a tick. `came` is when the last event arrived, or the start of this process. `logged` is the
    log time of the last row.
    """

    came: int
    newest: int | None = None
    newest_came: int | None = None
    since: int | None = None
    event_time: int | None = None
    logged: int | None = None

    def clock(self, now: int) -> int | None:
        """Return the stream's current event time if no event arrives: the latest event time plus the time elapsed since
        then."""
        if self.newest is None or self.since is None:
            return None
        return self.newest + max(0, now - self.since)

    @property
    def skew(self) -> int | None:
        """The delay between event time and ingest time, measured at the event with the latest event time."""
        if self.newest is None or self.newest_came is None:
            return None
        return self.newest_came - self.newest


class StreamClock:
    """Tracks the `stream_time` of one stream. The value is replaced as a whole, so every thread reads a consistent
    one."""

    def __init__(self, time_field: str | None, now: int) -> None:
        self._field = time_field
        self.stream_time = StreamTime(now)

    def recall(self, batch: pa.RecordBatch) -> None:
        """Read a stream's clock from rows at the end of the log, at startup.

        The rows might not include the event with the latest event time. In that case event time is underestimated,
        which does not make any event late.
        """
        events = batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT))
        stream_time = self.stream_time
        self.stream_time = replace(
            stream_time, logged=_later_time(stream_time.logged, _newest_in_column(batch, "_ingest_time"))
        )
        if self._field is None:
            return
        self._advance(_newest_in_column(batch, self._field))
        newest = _newest_in_column(events, self._field)
        if newest is not None and (stream_time.newest is None or newest > stream_time.newest):
            came = _newest_in_column(events, "_ingest_time")
            self.stream_time = replace(self.stream_time, newest=newest, newest_came=came, since=stream_time.came)

    def recalled(self) -> None:
        """Complete the stream clock's startup after `recall`.

        If the end of the log contains ticks but no event, the last tick is used instead of an event.
        """
        stream_time = self.stream_time
        if stream_time.newest is None and stream_time.event_time is not None:
            self.stream_time = replace(stream_time, newest=stream_time.event_time, since=stream_time.came)

    def took(self, batch: pa.RecordBatch, now: int) -> None:
        """Record the times of the events in a commit. All of them arrived at the same time."""
        if not batch.num_rows:
            return
        newest = None if self._field is None else _newest_in_column(batch, self._field)
        self.stream_time = replace(self.stream_time, came=now, logged=now)
        self._advance(newest)
        if newest is not None and (self.stream_time.newest is None or newest >= self.stream_time.newest):
            self.stream_time = replace(self.stream_time, newest=newest, newest_came=now, since=now)

    def ticked(self, now: int, event_time: int | None) -> None:
        """Record a tick, and the event time that it carries, in the stream clock."""
        self.stream_time = replace(self.stream_time, logged=now)
        self._advance(event_time)

    def _advance(self, event_time: int | None) -> None:
        self.stream_time = replace(self.stream_time, event_time=_later_time(self.stream_time.event_time, event_time))


def _newest_in_column(batch: pa.RecordBatch, column: str) -> int | None:
    newest: int | None = pc.max(batch.column(column).cast(pa.int64())).as_py()
    return newest


def _later_time(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)
