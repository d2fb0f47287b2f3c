"""Finds the streams that need a tick to advance time, because they are silent and a view is waiting for events from
them. Has no side effects.

A view closes a window when the watermark has passed its end, and only entries in the log advance the watermark.
Therefore, while a stream is silent, a tick records its current event time: the newest event's time plus the time since
that event arrived. A tick is appended only if it advances a view to the end of a window. Once every window that can
contain the view's newest event is closed, a permanently silent stream gets no further ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.app.app import App
from penstock.app.declared import Stream, View
from penstock.collect.stream_clock import StreamTime
from penstock.control import EngineStatus, WindowTiming
from penstock.core.times import to_micros

LONG_AGO, LAST = -(2**62), to_micros(datetime(9999, 12, 31, tzinfo=UTC))


@dataclass(frozen=True)
class Lane:
    """The time of a stream as one view sees it, in microseconds. `newest` is the time of the newest event (None if
    there has been none), `clock` the time that it has reached (None if unknown), and `log_clock` the time in the log.
    `late` is how far the watermark trails behind, and `came` the time at which the stream fell silent."""

    stream: str
    newest: int | None
    clock: int | None
    log_clock: int
    late: int
    came: int


Ticks = dict[str, int | None]


def due(app: App, engine: EngineStatus, stream_times: Mapping[str, StreamTime], now: int, quiet: int) -> Ticks:
    """Return the streams that need a tick at `now`, each with the event time that the stream has reached, or None if
    that time is unknown.

    `quiet` is how long a stream must be silent. A stream that has never had an event uses the time of the slowest
    stream that is read with it.
    """
    ticks: Ticks = {}
    for view in app.views:
        status = engine.views.get(view.name)
        if status is None or status.node.state != "running" or not status.window_timings:
            continue
        lanes = list(_view_lanes(app, view, stream_times, now))
        for lane in lanes:
            if now - lane.came >= quiet and _needs_tick(lane, lanes, status.window_timings, quiet):
                clock = None if view.time == "ingest" else _tick_clock(lane, lanes)
                ticks[lane.stream] = _earlier_tick(ticks.get(lane.stream), clock)
    return ticks


def _view_lanes(app: App, view: View, stream_times: Mapping[str, StreamTime], now: int) -> Iterator[Lane]:
    for stream in app.streams:
        stream_time = stream_times.get(stream.name)
        if stream.name not in view.reads or stream_time is None:
            continue
        if view.time == "ingest":
            known = stream_time.logged is not None
            yield Lane(
                stream.name,
                stream_time.came if known else None,
                now,
                stream_time.logged or LONG_AGO,
                0,
                stream_time.came,
            )
        elif _advances_watermark(stream):
            late = (stream.late_after or timedelta()) // timedelta(microseconds=1)
            log_clock = LONG_AGO if stream_time.event_time is None else stream_time.event_time
            yield Lane(stream.name, stream_time.newest, stream_time.clock(now), log_clock, late, stream_time.came)


def _advances_watermark(stream: Stream) -> bool:
    return stream.late_after is not None and stream.event.__time_field__ is not None


def _needs_tick(lane: Lane, lanes: list[Lane], timings: Sequence[WindowTiming], quiet: int) -> bool:
    """Return whether a tick appended to this stream now would let the view close a window."""
    newest = max((other.newest for other in lanes if other.newest is not None), default=None)
    clock = _tick_clock(lane, lanes)
    if newest is None or clock is None:
        return False
    before, after = lane.log_clock - lane.late, clock - lane.late
    return any(_closes_window(timing, before, after, newest + timing.length_us, quiet) for timing in timings)


def _closes_window(timing: WindowTiming, before: int, after: int, goal: int, quiet: int) -> bool:
    """Return whether a view's window ends between two watermarks. Where windows can end at any time, the check succeeds
    once the watermark has moved by `quiet`. No window ends after `goal`."""
    if before >= goal or after <= before:
        return False
    if not timing.step_us:
        return after >= goal or after - before >= quiet
    shift = timing.origin_us + timing.length_us
    return (min(after, goal) - shift) // timing.step_us > (before - shift) // timing.step_us


def _tick_clock(lane: Lane, lanes: list[Lane]) -> int | None:
    if lane.clock is not None:
        return min(lane.clock, LAST)
    return min((other.clock for other in lanes if other.clock is not None), default=None)


def _earlier_tick(one: int | None, other: int | None) -> int | None:
    return min((clock for clock in (one, other) if clock is not None), default=None)
