"""The pattern engine, which applies events one by one, in order of time, to a key's stored memory.

Partial matches with the same wait are tested together: if a predicate does not look at the match so far, its result
applies to all of them. So the cost of an event is proportional to the number of partial matches that the event changes
or that a predicate looks at. If there are no such partial matches and the event does not begin a match, nothing is
created or stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.cep.automaton import Automaton
from penstock.cep.match import NO_MATCH, Sofar
from penstock.cep.memory import TICK, Complete, PartialMatch
from penstock.cep.periods import Periods, endless
from penstock.cep.plan import plan
from penstock.cep.preferred_plan import preferring
from penstock.cep.runs import FEW
from penstock.cep.search import Search
from penstock.cep.step import EventStep, Moment, PreferringEventStep, StepResult
from penstock.cep.transitions import AutomatonState, Transition
from penstock.cep.verdicts import Begin, Decided, Verdict, begins, fits, verdict
from penstock.core.schema import Event


class Watch:
    """An absence at the beginning of a pattern. Its time is counted from the key's last unwanted event, or from the
    key's first event, which can also be the first event of an `all_of`."""

    def __init__(self, number: int, wait: Transition, mixed: bool) -> None:
        assert wait.time is not None
        self.wait, self.time = number, wait.time
        self._unwanted = [fits(step, mixed) for step in wait.never]
        self._places = [] if wait.how == "absent" else [(fits(place.on, mixed), place) for place in wait.places]

    def is_unwanted(self, event: Any) -> bool:
        return any(test(event, NO_MATCH) for test in self._unwanted)

    def taking(self, event: Any) -> list[AutomatonState]:
        """Return the places that also take the event from which the absence is timed."""
        return [] if self.is_unwanted(event) else [place for test, place in self._places if test(event, NO_MATCH)]


class PatternEngine(Automaton):
    """Runs one pattern for any number of keys. The engine itself is stateless."""

    def __init__(self, search: Search, classes: Sequence[type[Event]], late_after: timedelta = timedelta(0)) -> None:
        compiled_pattern = preferring(search.pattern) if search.preferred else plan(search.pattern)
        super().__init__(search, compiled_pattern, classes, late_after)
        numbers = {wait: number for number, wait in enumerate(compiled_pattern.transitions)}
        self._step_class: type[EventStep] = PreferringEventStep if search.preferred else EventStep
        self._transitions: list[Verdict] = [verdict(wait, len(classes) > 1) for wait in compiled_pattern.transitions]
        self._ends = [wait.how == "end_within" for wait in compiled_pattern.transitions]
        self._silences = [wait.silences for wait in compiled_pattern.transitions]
        self._periods = endless(compiled_pattern, numbers)
        self._watches = [
            Watch(numbers[wait], wait, len(classes) > 1) for wait in compiled_pattern.start if wait.silences
        ]
        self._matched = self._already_matched(compiled_pattern.places, numbers)
        self._begin: Begin = begins(compiled_pattern.start, len(classes) > 1)
        self._open = frozenset(numbers[wait] for wait in compiled_pattern.open)
        before = [wait for wait in compiled_pattern.start if wait.never and not wait.silences]
        unwanted = list(dict.fromkeys(step for wait in before for step in wait.never))
        self._bars = [fits(step, len(classes) > 1) for step in unwanted]
        self._barred_by = {
            place: sum(1 << unwanted.index(step) for step in set(wait.never))
            for wait in before
            for place in wait.places
        }
        self._sofar = Sofar(self.taken)

    def _already_matched(self, places: Sequence[AutomatonState], numbers: dict[Any, int]) -> set[int]:
        """Return the waits that could only extend a complete match: when they time out, no match was missed."""
        return {numbers[wait] for place in places if place.after.is_final for wait in place.after.transitions}

    def feed(self, memory: Any, event: Any, time: datetime, moment: Moment) -> StepResult | None:
        """Apply an event to a key's partial matches. The event's `time` must not be before the time of the last event.
        Returns the results, or None if there are none."""
        step_result = self.advance(memory, time, moment) if memory.due is not None and time >= memory.due else None
        if memory.ended:
            return step_result
        begun = self._begin(event)
        barred = memory.barred
        if self._bars:
            barred, begun = self._bar(barred, begun, event)
        if begun and self._open and self._is_open(memory):
            begun = ()
        if len(memory.runs) > FEW:
            decided = self._decided(memory, event)
        else:
            decided, waits, sofar = [], self._transitions, self._sofar
            for run in memory.runs:
                sofar._path = (memory, run.path)
                outcome = waits[run.wait](run, event, sofar)
                if outcome is not None:
                    decided.append((run, outcome))
        watches = [
            (watch, watch.taking(event)) for watch in self._watches if not memory.watched or watch.is_unwanted(event)
        ]
        if barred != memory.barred:
            memory.barred, memory.pattern = barred, self.fingerprint
        if not begun and not decided and not watches:
            return step_result
        event_step = self._step_class(self, memory, event, time, moment)
        for run, outcome in decided:
            event_step.follow(run, outcome)
        for place in begun:
            event_step.take(place, None)
        for watch, places in watches:
            memory.watched = True
            event_step.watch(watch.wait, watch.time, places)
        return event_step.settle(step_result)

    def _bar(self, barred: int, begun: Sequence[AutomatonState], event: Any) -> tuple[int, Sequence[AutomatonState]]:
        """Record the pattern's unwanted steps that this event matches. Returns all recorded unwanted steps, as bits,
        and the places at which a match can still begin."""
        for number, test in enumerate(self._bars):
            if not barred >> number & 1 and test(event, NO_MATCH):
                barred |= 1 << number
        return barred, [place for place in begun if not self._barred_by.get(place, 0) & barred]

    def _is_open(self, memory: Any) -> bool:
        """Return whether any partial match is inside the `every` at the beginning of the pattern. If there are many
        partial matches, this looks only at their groups."""
        if len(memory.runs) <= FEW:
            return any(run.wait in self._open for run in memory.runs)
        index = self.runs(memory).lookup
        assert index is not None
        return any(wait in self._open for wait, *_ in index.groups)

    def _decided(self, memory: Any, event: Any) -> list[tuple[PartialMatch, Decided]]:
        """Return the partial matches that an event affects, in list order. Used if there are many partial matches."""
        index, waits, sofar = self.runs(memory).lookup, self._transitions, self._sofar
        assert index is not None
        decided: list[tuple[PartialMatch, Decided]] = []
        for (wait, *_), members in index.groups.items():
            decide = waits[wait]
            for run in members.values():
                sofar._path, sofar.seen = (memory, run.path), False
                outcome = decide(run, event, sofar)
                if outcome is not None:
                    decided.append((run, outcome))
                elif not sofar.seen:
                    break  # the result applies to all of them
        decided.sort(key=lambda decision: index.index(decision[0]))
        return decided

    def advance(self, memory: Any, time: datetime, moment: Moment) -> StepResult:
        """Advance event time to `time`: complete absences and time out partial matches that are due by then, in order.
        An absence that is repeated without a limit completes for at most `Bounds.periods` periods, plus the last one
        that is due."""
        step_result = StepResult.empty()
        periods = Periods(self._periods, self.search.bounds.periods, time)
        while memory.due is not None and memory.due <= time and not memory.ended:
            event_step = self._step_class(self, memory, None, memory.due, moment)
            for run in self.runs(memory).due_until(memory.due):
                self._reach(event_step, run, periods, step_result)
            event_step.settle(step_result)
        return step_result

    def _reach(self, event_step: EventStep, run: PartialMatch, periods: Periods, step_result: StepResult) -> None:
        """Complete or time out a partial match that is due now. An absence that would be complete only after `within`
        has ended is ignored."""
        event_step.gone.append(run)
        if run.deadline is None or run.deadline > event_step.time:
            left = [absence for bit, absence in self._silences[run.wait] if not run.past & bit]
            first = min(absence.time for absence in left)
            for place in [absence.place for absence in left if absence.time == first]:
                surplus = periods.surplus(place, run, event_step.time)
                if surplus is None:
                    event_step.spawn(place, run, run.path, run.began)
                    continue
                left_out = event_step.leave_out(*surplus, run)
                if surplus[0].is_visible:
                    step_result.left_out.append(left_out)
        elif self._ends[run.wait]:
            event_step.complete.append(Complete(run.path, run.began, run.deadline - TICK))
        elif run.wait not in self._matched:
            event_step.timed_out.append(Complete(run.path, run.began, run.deadline - TICK))

    def finish(self, memory: Any, moment: Moment) -> StepResult:
        """End the pattern's input: emit the complete matches that were only waiting for earlier matches."""
        step_result = StepResult.empty()
        event_step = self._step_class(self, memory, None, moment.now, moment)
        event_step.gone.extend(event_step.runs)
        event_step.settle(step_result)
        return step_result

    def forget(self, memory: Any) -> None:
        """Drop all partial matches, and restart the numbering of events."""
        runs = self.runs(memory)
        runs.clear()
        for match in memory.complete:
            runs.let_go(match.path)
        memory.complete, memory.watched, memory.barred = [], False, 0
        self.keep(memory)
