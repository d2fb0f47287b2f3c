"""Which streams need a tick that moves time, because they are silent and a view waits for them. Has no effects.

A view closes a window when its watermark has passed it, and that moves only by what is in the log. So while a stream is
silent, a tick says in it how late it is: the newest event time and the time since that event came. It is told when that
brings a view to the end of a window, and no more once all that the view's newest event is in must be closed: a stream
that is silent for good has a last tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.app import App
from penstock.collect.reached import Stand
from penstock.declared import Stream, View
from penstock.rows import to_micros

RUNNING = "running"
LONG_AGO, LAST = -(2**62), to_micros(datetime(9999, 12, 31, tzinfo=UTC))


class Kept(msgspec.Struct, frozen=True):
    """How long something waits for the watermark, as the engine tells it; see `analyze.lateness.Closing`."""

    span: int
    step: int = 0
    origin: int = 0


@dataclass(frozen=True)
class Lane:
    """A stream as one view sees its time, in microseconds: that of its newest event (None if it never had one), the
    one it has now, the one that the log was told, how far the watermark stays behind, and since when it is silent."""

    stream: str
    newest: int | None
    clock: int | None
    told: int
    late: int
    came: int


Ticks = dict[str, int | None]


def due(app: App, engine: Mapping[str, Any], stands: Mapping[str, Stand], now: int, quiet: int) -> Ticks:
    """The streams that need a tick at `now`, each with the event time that it has come to, None if that is not known.

    `quiet` is how long a stream must be silent. A stream that never had an event has the time of the one that is least
    far among those that are read with it.
    """
    found: Ticks = {}
    for view in app.views:
        told = engine.get("views", {}).get(view.name, {})
        kept = [msgspec.convert(each, Kept) for each in told.get("closings", ())]
        if told.get("state") != RUNNING or not kept:
            continue
        lanes = list(_lanes(app, view, stands, now))
        for lane in lanes:
            if now - lane.came >= quiet and _waits(lane, lanes, kept, quiet):
                clock = None if view.time == "ingest" else _clock(lane, lanes)
                found[lane.stream] = _least(found.get(lane.stream), clock)
    return found


def _lanes(app: App, view: View, stands: Mapping[str, Stand], now: int) -> Iterator[Lane]:
    for stream in app.streams:
        stand = stands.get(stream.name)
        if stream.name not in view.reads or stand is None:
            continue
        if view.time == "ingest":
            known = stand.logged is not None
            yield Lane(stream.name, stand.came if known else None, now, stand.logged or LONG_AGO, 0, stand.came)
        elif _is_timed(stream):
            late = (stream.late_after or timedelta()) // timedelta(microseconds=1)
            told = LONG_AGO if stand.told is None else stand.told
            yield Lane(stream.name, stand.newest, stand.clock(now), told, late, stand.came)


def _is_timed(stream: Stream) -> bool:
    return stream.late_after is not None and stream.event.__time_field__ is not None


def _waits(lane: Lane, lanes: list[Lane], kept: list[Kept], quiet: int) -> bool:
    """Whether a tick in this stream now would let the view close something."""
    newest = max((each.newest for each in lanes if each.newest is not None), default=None)
    clock = _clock(lane, lanes)
    if newest is None or clock is None:
        return False
    before, after = lane.told - lane.late, clock - lane.late
    return any(_closes(each, before, after, newest + each.span, quiet) for each in kept)


def _closes(kept: Kept, before: int, after: int, goal: int, quiet: int) -> bool:
    """Whether the way from one watermark to another has an end of a window in it. Where windows can end at any time, it
    is gone in steps of the time of silence. Nothing ends after `goal`."""
    if before >= goal or after <= before:
        return False
    if not kept.step:
        return after >= goal or after - before >= quiet
    shift = kept.origin + kept.span
    return (min(after, goal) - shift) // kept.step > (before - shift) // kept.step


def _clock(lane: Lane, lanes: list[Lane]) -> int | None:
    if lane.clock is not None:
        return min(lane.clock, LAST)
    return min((each.clock for each in lanes if each.clock is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
