"""Computes whether a compiled pattern can match within its time limits, given the times of its absences. Predicates do
not matter: each step is assumed to get its event whenever that helps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from heapq import heappop, heappush
from itertools import count

from penstock.cep.plan import CompiledPattern
from penstock.cep.transitions import AutomatonState, Transition

ZERO = timedelta(0)
BEFORE_EVENTS = timedelta(-1)
"""Marks the time since the last event if there has been no event: a gap has not begun."""


def least_duration(plan: CompiledPattern) -> timedelta | None:
    """Return the shortest duration of a match: the sum of its absences, one after the other. None if the end cannot be
    reached."""
    order, known = count(), set[Transition]()
    ahead = [(ZERO, next(order), wait) for wait in plan.start]
    while ahead:
        duration, _, wait = heappop(ahead)
        if wait.how.startswith("end"):
            return duration
        if wait in known:
            continue
        known.add(wait)
        for place, time in _absence_durations(wait):
            for following in place.after.transitions:
                heappush(ahead, (duration + (time or ZERO), next(order), following))
    return None


def fits_gap(plan: CompiledPattern, gap: timedelta) -> bool:
    """Return whether a match is possible in which no event follows more than `gap` after the previous one, and no
    absence completes more than `gap` after the last event before it. An absence whose time began before the last event
    is ignored."""
    least: dict[Transition, timedelta] = {}
    order = count()
    ahead = [(BEFORE_EVENTS, next(order), wait) for wait in plan.start]
    while ahead:
        since, _, wait = heappop(ahead)
        if wait.how.startswith("end"):
            return True
        if wait in least and least[wait] <= since:
            continue
        least[wait] = since
        for place, time in _absence_durations(wait):
            passed = since if wait.goes_on or since == BEFORE_EVENTS or time is None else since + time
            for following in place.after.transitions if passed <= gap else ():
                heappush(ahead, (passed if time is not None else ZERO, next(order), following))
    return False


def _absence_durations(wait: Transition) -> Iterator[tuple[AutomatonState, timedelta | None]]:
    """Yield the places that a wait can lead to, each with the time of the absence, or None for an event."""
    if wait.how != "absent":
        yield from ((place, None) for place in wait.places)
    for _, absence in wait.silences:
        yield absence.place, absence.time if wait.choices else wait.time
