"""What of a compiled pattern is needed to take events, to tell matches and to keep the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Any

from penstock.cep.match import Match
from penstock.cep.memory import Complete, Run
from penstock.cep.plan import Plan
from penstock.cep.search import Search
from penstock.schema import Event

Kept = Run | Complete


class Workings:
    """A pattern's numbers: of what a partial match waits for, of steps and of classes."""

    def __init__(self, search: Search, made: Plan, classes: Sequence[type[Event]], late_after: timedelta) -> None:
        self.search, self.late_after, self.fingerprint = search, late_after, made.fingerprint
        numbers = {wait: number for number, wait in enumerate(made.waits)}
        self.ahead = {
            place: [(None if wait.how == "end" else numbers[wait], wait.time) for wait in place.after.waits]
            for place in made.places
        }
        self.names = [step.name for step in made.steps]
        kinds = {each: number for number, each in enumerate(classes)}
        self.kinds = [kinds[step.event] for step in made.steps]
        names = [f"held_{number}" for number in range(len(classes))]
        self.held: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else _single(names[0])

    def keep(self, memory: Any, gone: Iterable[Kept], new: Iterable[Kept] = (), number: int | None = None) -> None:
        """Keep the events of what is kept now, and no others. It is told what is gone and what is new, and the number
        of the event that was taken, so that what waits need not be looked at for each event."""
        runs = memory.runs
        memory.due = _first(runs)
        memory.alarm = min((run.alarm for run in runs if run.alarm is not None), default=None)
        events = {event for each in gone for event in each.path[1::2]}
        if number is not None:
            events.add(number)
        for each in new if events else ():
            events.difference_update(each.path[1::2])
        if events:
            self._let_go(memory, events)
        if runs or memory.complete:
            memory.pattern = self.fingerprint
        else:
            memory.pattern, memory.next = "", 0

    def _let_go(self, memory: Any, events: set[int]) -> None:
        """Keep none of these events that no one has any more."""
        first, last = min(events), max(events)
        for each in chain(memory.runs, memory.complete):
            if each.path[-1] >= first and each.path[1] <= last:
                events.difference_update(each.path[1::2])
        for held in self.held(memory):
            for event in events:
                held.pop(event, None)

    def match(self, memory: Any, path: Sequence[int], **told: Any) -> Match:
        """What the numbers stand for."""
        return Match(self.taken(memory, path), **told)

    def taken(self, memory: Any, path: Sequence[int]) -> list[tuple[str, Any]]:
        held, names, kinds = self.held(memory), self.names, self.kinds
        return [(names[step], held[kinds[step]][event]) for step, event in zip(path[::2], path[1::2], strict=True)]


def _single(name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    return lambda memory: (get(memory),)


def _first(runs: list[Run]) -> datetime | None:
    return min((each for run in runs for each in (run.due, run.deadline) if each is not None), default=None)
