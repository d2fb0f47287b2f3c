"""The stored state of a key: its partial matches and their events. It consists of plain values of declared types, which
are encoded by their schema, like any handler's state. So a snapshot, a replay and a restart produce the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.core.operators import Full, bounds_faults, made_class
from penstock.core.schema import Event, State

TICK = timedelta(microseconds=1)
"""The smallest difference between two times."""


class PartialMatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partial match: the number of its wait, and its path, as pairs of a step number and an event number.

    If the pattern begins with an absence, the first pair consists of the step -1 and the number of the event from which
    the absence is timed. That event is not stored. `past` contains bits: the lowest bit is set when an event has
    occurred during the wait, the next bits mark inactive guards, and the highest bits mark alternatives that have been
    ruled out. `due` is the time when an absence is complete, and `deadline` is the first moment after the timeout, both
    in event time. `alarm` is the log time when these times are considered reached even without an event.
    """

    __stored_name__ = "run"
    wait: int
    past: int
    began: datetime
    deadline: datetime | None
    due: datetime | None
    alarm: datetime | None
    path: tuple[int, ...]


def due_later(run: PartialMatch, later: timedelta | None) -> PartialMatch:
    """Return a partial match with its absence postponed by `later`. If `later` is None, the absence is removed, and
    only the run's deadline remains."""
    assert run.due is not None
    due = None if later is None else run.due + later
    times = [] if run.deadline is None else [run.deadline - TICK]
    ends = min(times if due is None else [*times, due], default=None)
    alarm = None if ends is None or run.alarm is None else run.alarm + (ends - min([*times, run.due]))
    return msgspec.structs.replace(run, due=due, alarm=alarm)


class Complete(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A complete match that is waiting for partial matches that began before it."""

    path: tuple[int, ...]
    began: datetime
    ended: datetime


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that is waiting to be processed by the pattern engine: its time, its number in order of arrival, the
    number of its class, and the log time at which it has waited long enough."""

    time: datetime
    number: int
    kind: int
    alarm: datetime


class PatternMemory(State):
    """The stored pattern state of a key, without the events. Events are stored by number in `held_0`, `held_1`, ...,
    one for each class; waiting events have negative numbers.

    `time` is the current event time, `next` is the number for the next event that is taken, and `came` is the number of
    events that have waited. `timer` is the time that the timer is set for, and `alarm` is the earliest alarm of a
    partial match. `lost` counts dropped partial matches, `late` counts late events, and `told` counts emitted matches
    if `skip` is set. `touched` is true if an event has arrived since the timer was set to forget the key. `watched` is
    true if an absence at the beginning of the pattern has been timed from an event. `barred` has a bit for each step
    that must not occur before the first event of a match; the bit is set once the step has occurred.
    """

    time: datetime | None = None
    timer: datetime | None = None
    due: datetime | None = None
    alarm: datetime | None = None
    next: int = 0
    came: int = 0
    runs: list[PartialMatch] = msgspec.field(default_factory=list)
    complete: list[Complete] = msgspec.field(default_factory=list)
    pending: list[Pending] = msgspec.field(default_factory=list)
    ended: bool = False
    late: int = 0
    lost: int = 0
    told: int = 0
    pattern: str = ""
    touched: bool = True
    watched: bool = False
    barred: int = 0


def memory_class(name: str, classes: Sequence[type[Event]]) -> Any:
    """Create the state class for a pattern over events of these classes."""
    hints: dict[str, Any] = {f"held_{number}": dict[int, cls] for number, cls in enumerate(classes)}  # type: ignore[valid-type]
    return made_class(PatternMemory, name, hints, {field: {} for field in hints})


@dataclass(frozen=True)
class Bounds:
    """Limits on a pattern's state for a key: the partial matches, the events in each partial match, and the waiting
    events. `periods` limits how often an absence that is repeated without a limit completes for one event or timer.

    A partial match that would have too many events is dropped. A complete match that waits for an earlier match also
    counts as a partial match. If there are too many partial matches, `drop_oldest` drops the partial matches that began
    first, so that the matches waiting for them are emitted; `refuse_new` drops the matches that began last. If too many
    events are waiting, the oldest is processed early. If more than `periods` of them are complete, only the first ones
    and the last one are used, and those in between are left out. All drops are counted and reported.

    A key without other state is deleted when it has had no event for `remember`, or at the latest after twice that
    time. Until then, late events are recognized, and the numbering of matches continues. With `every=False`, a key that
    has had its match is not deleted.
    """

    partial: int = 1_000
    events: int = 1_000
    waiting: int = 10_000
    full: Full = "drop_oldest"
    remember: timedelta = timedelta(days=1)
    periods: int = 1_000

    def problems(self) -> list[str]:
        """Return the errors in a pattern's bounds."""
        return bounds_faults(self, "partial", "events", "waiting", "periods")


DEFAULT = Bounds()
