"""What is kept of a key: its partial matches and the events they hold. Plain values of declared types, encoded by their
schema as any handler's state, so that a snapshot, a replay and a restart find the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.making import Full, bounds_faults, made_class
from penstock.schema import Event, State

TICK = timedelta(microseconds=1)
"""The least difference of two times."""


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partial match: the number of what it waits for, and what it has, as pairs of a step's number and an event's.

    The first pair may be of no step, -1, and the event that an absence at the beginning is counted from: that event is
    not kept. `past` is 0 until the first event that it has waited through; its higher bits say which guards are off,
    and then which alternatives. `due` is when an absence is complete, `deadline` the first moment at which the time is
    over, both in event time; `alarm` is the log time at which they are taken to have come even if no event says so.
    """

    wait: int
    past: int
    began: datetime
    deadline: datetime | None
    due: datetime | None
    alarm: datetime | None
    path: tuple[int, ...]


def due_later(run: Run, later: timedelta | None) -> Run:
    """The same, with an absence to wait for that is complete later; with None, with nothing but the end of its time."""
    assert run.due is not None
    due = None if later is None else run.due + later
    times = [] if run.deadline is None else [run.deadline - TICK]
    ends = min(times if due is None else [*times, due], default=None)
    alarm = None if ends is None or run.alarm is None else run.alarm + (ends - min([*times, run.due]))
    return msgspec.structs.replace(run, due=due, alarm=alarm)


class Complete(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A match that waits for those that began before it."""

    path: tuple[int, ...]
    began: datetime
    ended: datetime


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that waits for its turn: its time, its number among those that came, the number of its class, and the
    log time at which it has waited long enough."""

    time: datetime
    number: int
    kind: int
    alarm: datetime


class Memory(State):
    """What is kept of a key, but for the events: those are in `held_0`, `held_1`, ..., one for each class, by number;
    events that wait for their turn under negative ones.

    `time` is how far event time has come, `next` the number of the next event that is taken, `came` how many have come;
    `timer` is when the timer is set for, `alarm` the first one of a partial match. `lost` counts partial matches that
    were given up for room, `late` events that came too late, `told` matches, if some are skipped. `touched` says if an
    event has come since the timer was set for the key to be forgotten, `watched` if an absence at the beginning of the
    pattern has been counted from an event. `barred` has a bit for each step that must not come before the first event
    of a match, and has come.
    """

    time: datetime | None = None
    timer: datetime | None = None
    due: datetime | None = None
    alarm: datetime | None = None
    next: int = 0
    came: int = 0
    runs: list[Run] = msgspec.field(default_factory=list)
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
    """The class of what is kept for a pattern over events of these classes."""
    hints: dict[str, Any] = {f"held_{number}": dict[int, each] for number, each in enumerate(classes)}  # type: ignore[valid-type]
    return made_class(Memory, name, hints, {each: {} for each in hints})


@dataclass(frozen=True)
class Bounds:
    """How much is kept of a key at most: partial matches, events of each of them, and events that wait for their turn.

    A partial match that would have too many events is given up. When there are too many of them, with the complete ones
    that wait for one that began earlier, `drop_oldest` gives up those that began first, so that what waits for them is
    told, and `refuse_new` those that began last. When too many events wait, the oldest has its turn before its time.
    All are counted and told. A key that has nothing else is forgotten when no event of it has come for `remember`, and
    at the latest when that has passed twice: until then an event that is late is known to be, and matches are numbered
    on. One that has had its only match is not forgotten.
    """

    partial: int = 1_000
    events: int = 1_000
    waiting: int = 10_000
    full: Full = "drop_oldest"
    remember: timedelta = timedelta(days=1)

    def problems(self) -> list[str]:
        """What is wrong with them."""
        return bounds_faults(self, "partial", "events", "waiting")


DEFAULT = Bounds()
