"""How far time has come in a stream: written by its writer thread, read by the event loop to decide on ticks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import KIND_EVENT


@dataclass(frozen=True)
class Stand:
    """Where a stream stands, in microseconds since 1970; a time that is not known is None.

    `newest` is the newest event time of an event, `newest_came` when that event came, and `since` the time from which
    on event time has gone by the clock: the same, or the start of this process if that is later, for nobody knows what
    a source has kept for us while we were down. `told` is the newest event time that the log has, be it of an event or
    of a tick. `came` is when the last event came, or the start of this process; `logged` the log time of the last row.
    """

    came: int
    newest: int | None = None
    newest_came: int | None = None
    since: int | None = None
    told: int | None = None
    logged: int | None = None

    def clock(self, now: int) -> int | None:
        """The event time that it is in this stream, if no event comes: the newest one, and the time since."""
        if self.newest is None or self.since is None:
            return None
        return self.newest + max(0, now - self.since)

    @property
    def skew(self) -> int | None:
        """How far event time is behind ingest time, by the newest event."""
        if self.newest is None or self.newest_came is None:
            return None
        return self.newest_came - self.newest


class Reached:
    """Keeps the `stand` of one stream, which is always a whole one, whoever looks at it."""

    def __init__(self, time_field: str | None, now: int) -> None:
        self._field = time_field
        self.stand = Stand(now)

    def recall(self, batch: pa.RecordBatch) -> None:
        """Take in rows of the end of the log, at the start. They may lack the newest event: then event time is taken
        for less than it is, which makes nothing late."""
        events = batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT))
        stand = self.stand
        self.stand = replace(stand, logged=_later(stand.logged, _newest(batch, "_ingest_time")))
        if self._field is None:
            return
        self._told(_newest(batch, self._field))
        newest = _newest(events, self._field)
        if newest is not None and (stand.newest is None or newest > stand.newest):
            came = _newest(events, "_ingest_time")
            self.stand = replace(self.stand, newest=newest, newest_came=came, since=stand.came)

    def recalled(self) -> None:
        """The end of the log was taken in. If it has ticks and no event, the last of them stands for the events."""
        stand = self.stand
        if stand.newest is None and stand.told is not None:
            self.stand = replace(stand, newest=stand.told, since=stand.came)

    def took(self, batch: pa.RecordBatch, now: int) -> None:
        """Note the events of a commit, all of which came at the same time."""
        if not batch.num_rows:
            return
        newest = None if self._field is None else _newest(batch, self._field)
        self.stand = replace(self.stand, came=now, logged=now)
        self._told(newest)
        if newest is not None and (self.stand.newest is None or newest >= self.stand.newest):
            self.stand = replace(self.stand, newest=newest, newest_came=now, since=now)

    def ticked(self, now: int, told: int | None) -> None:
        """Note a tick, and the event time that it carries."""
        self.stand = replace(self.stand, logged=now)
        self._told(told)

    def _told(self, told: int | None) -> None:
        self.stand = replace(self.stand, told=_later(self.stand.told, told))


def _newest(batch: pa.RecordBatch, column: str) -> int | None:
    newest: int | None = pc.max(batch.column(column).cast(pa.int64())).as_py()
    return newest


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
