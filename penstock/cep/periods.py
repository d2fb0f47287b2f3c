"""The repetition of an absence without a limit: it completes again each time its period has passed.

One event with a time far in the future completes all periods before it in one step. Therefore, a step completes at most
`Bounds.periods` of them, goes directly to the last one that is due, and reports the number of periods left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from penstock.cep.memory import TICK, PartialMatch
from penstock.cep.plan import CompiledPattern
from penstock.cep.transitions import AutomatonState, Transition


@dataclass(frozen=True)
class Period:
    """A path that leads from a place back to itself, along which only absences complete.

    `wait` is the number of the last wait on this path. `is_visible` is false if one more or one fewer repetition would
    have the same results.
    """

    time: timedelta
    wait: int
    is_visible: bool


class LeftOut(NamedTuple):
    """Periods of an absence that were left out: the end of the last one, and their number."""

    at: datetime
    periods: int


class Periods:
    """Counts the repetitions that complete in one step, and limits them to `most` for each place and path."""

    def __init__(self, periods: Mapping[AutomatonState, Period], most: int, until: datetime) -> None:
        self._periods, self._most, self._until = periods, most, until
        self._completed: dict[tuple[AutomatonState, tuple[int, ...]], tuple[int, datetime]] = {}

    def surplus(self, place: AutomatonState, run: PartialMatch, now: datetime) -> tuple[Period, int] | None:
        """Return the period, and the number of its repetitions to leave out, if an absence that completes now leads to
        a place. Returns None if there are none to leave out."""
        period = self._periods.get(place)
        if period is None:
            return None
        times, last = self._completed.get((place, run.path), (0, None))
        times += last != now
        self._completed[place, run.path] = times, now
        if times <= self._most:
            return None
        until = self._until if run.deadline is None else min(self._until, run.deadline - TICK)
        left_out = (until - now) // period.time
        return (period, left_out) if left_out > 0 else None


def endless(plan: CompiledPattern, numbers: Mapping[Transition, int]) -> dict[AutomatonState, Period]:
    """Return a period for at least one place in each cycle of absences, so that every such cycle has a limit."""
    periods: dict[AutomatonState, Period] = {}
    for place in plan.places:
        if place.step < 0:
            way = _absence_cycle(place, periods)
            if way is not None:
                cycle = {state for state, _ in way.steps}
                is_visible = any(_is_visible_outside_cycle(state, cycle) for state in cycle)
                periods[place] = Period(way.time, numbers[way.steps[-1][1]], is_visible)
    return periods


class _WayBack(NamedTuple):
    time: timedelta
    steps: tuple[tuple[AutomatonState, Transition], ...]


def _absence_cycle(start: AutomatonState, avoid: Collection[AutomatonState]) -> _WayBack | None:
    """Return the shortest path from a place back to itself that consists only of absences and avoids the places in
    `avoid`."""
    order, done = count(), set[AutomatonState]()
    ahead: list[tuple[timedelta, int, AutomatonState, tuple[tuple[AutomatonState, Transition], ...]]] = []
    heappush(ahead, (timedelta(0), next(order), start, ()))
    while ahead:
        time, _, state, steps = heappop(ahead)
        if state is start and steps:
            return _WayBack(time, steps)
        if state in done:
            continue
        done.add(state)
        for wait in state.after.transitions:
            for following in _absence_successors(wait):
                if wait.time is not None and following not in avoid:
                    heappush(ahead, (time + wait.time, next(order), following, (*steps, (state, wait))))
    return None


def _absence_successors(wait: Transition) -> list[AutomatonState]:
    """Return the places that a wait reaches if no event arrives: the places of its shortest absences."""
    absences = [absence for _, absence in wait.silences]
    first = min((absence.time for absence in absences), default=None)
    return [absence.place for absence in absences if absence.time == first]


def _is_visible_outside_cycle(state: AutomatonState, cycle: AbstractSet[AutomatonState]) -> bool:
    """Return whether the time at which a place is reached has an effect outside the cycle."""
    return any(
        wait.how == "end" or (wait.time is not None and not cycle & {*_absence_successors(wait)})
        for wait in state.after.transitions
    )
