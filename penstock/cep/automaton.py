"""The parts of a compiled pattern that are needed to take events, emit matches and update the stored state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any

from penstock.cep.identity import fingerprint
from penstock.cep.match import Match
from penstock.cep.memory import Complete, PartialMatch
from penstock.cep.plan import CompiledPattern
from penstock.cep.runs import OrderedRuns, Runs
from penstock.cep.search import Search
from penstock.core.schema import Event

StoredMatch = PartialMatch | Complete


class Automaton:
    """A compiled pattern in which waits, steps and event classes are numbered."""

    def __init__(
        self, search: Search, plan: CompiledPattern, classes: Sequence[type[Event]], late_after: timedelta
    ) -> None:
        self.search, self.late_after, self.fingerprint = search, late_after, fingerprint(search, plan)
        numbers = {wait: number for number, wait in enumerate(plan.transitions)}
        self.ahead = {
            place: [
                (None if wait.how == "end" else numbers[wait], wait.time, wait.goes_on, wait.back)
                for wait in place.after.transitions
            ]
            for place in plan.places
        }
        self.names = [step.name for step in plan.steps]
        self.kind_of = {cls: number for number, cls in enumerate(classes)}
        self.kinds = [self.kind_of[step.event] for step in plan.steps]
        names = [f"held_{number}" for number in range(len(classes))]
        self.held: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else _single_held_getter(names[0])

    def runs(self, memory: Any) -> Runs:
        """Return the partial matches of a key, with their index."""
        runs = memory.runs
        if not isinstance(runs, Runs):
            runs = memory.runs = (OrderedRuns if self.search.preferred else Runs)(runs, memory.complete)
        return runs

    def keep(self, memory: Any) -> None:
        """Update the rest of a key's stored pattern state from the partial matches: the next deadlines and the events
        in use."""
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

    def match(self, memory: Any, path: Sequence[int], **details: Any) -> Match:
        """Create the pattern's match for a path of step and event numbers."""
        return Match(self.taken(memory, path), **details)

    def taken(self, memory: Any, path: Sequence[int]) -> list[tuple[str, Any]]:
        held, names, kinds = self.held(memory), self.names, self.kinds
        pairs = zip(path[::2], path[1::2], strict=True)
        return [(names[step], held[kinds[step]][event]) for step, event in pairs if step >= 0]


def _single_held_getter(name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    return lambda memory: (get(memory),)
