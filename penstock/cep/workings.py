"""What of a compiled pattern is needed to take events, to tell matches and to keep the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any

from penstock.cep.identity import fingerprint
from penstock.cep.match import Match
from penstock.cep.memory import Complete, Run
from penstock.cep.plan import Plan
from penstock.cep.runs import OrderedRuns, Runs
from penstock.cep.search import Search
from penstock.schema import Event

Kept = Run | Complete


class Workings:
    """A pattern's numbers: of what a partial match waits for, of steps and of classes."""

    def __init__(self, search: Search, made: Plan, classes: Sequence[type[Event]], late_after: timedelta) -> None:
        self.search, self.late_after, self.fingerprint = search, late_after, fingerprint(search, made)
        numbers = {wait: number for number, wait in enumerate(made.waits)}
        self.ahead = {
            place: [
                (None if wait.how == "end" else numbers[wait], wait.time, wait.goes_on, wait.back)
                for wait in place.after.waits
            ]
            for place in made.places
        }
        self.names = [step.name for step in made.steps]
        self.kind_of = {each: number for number, each in enumerate(classes)}
        self.kinds = [self.kind_of[step.event] for step in made.steps]
        names = [f"held_{number}" for number in range(len(classes))]
        self.held: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else _single(names[0])

    def runs(self, memory: Any) -> Runs:
        """The partial matches of a key, with their index."""
        runs = memory.runs
        if not isinstance(runs, Runs):
            runs = memory.runs = (OrderedRuns if self.search.preferred else Runs)(runs, memory.complete)
        return runs

    def keep(self, memory: Any) -> None:
        """Bring what else is kept up to date with the partial matches: the events that they have, and no others."""
        runs = memory.runs
        memory.due, memory.alarm = runs.due, runs.alarm
        if runs.loose:
            for event in runs.unused():
                for held in self.held(memory):
                    held.pop(event, None)
        holds = bool(runs or memory.complete)
        if not holds:
            memory.next = 0
        memory.pattern = self.fingerprint if holds or memory.watched or memory.barred else ""

    def match(self, memory: Any, path: Sequence[int], **told: Any) -> Match:
        """What the numbers stand for."""
        return Match(self.taken(memory, path), **told)

    def taken(self, memory: Any, path: Sequence[int]) -> list[tuple[str, Any]]:
        held, names, kinds = self.held(memory), self.names, self.kinds
        pairs = zip(path[::2], path[1::2], strict=True)
        return [(names[step], held[kinds[step]][event]) for step, event in pairs if step >= 0]


def _single(name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    return lambda memory: (get(memory),)
