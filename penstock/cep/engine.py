"""A pattern at work: one event after the other, in order of time, with what is kept of a key.

Partial matches that wait for the same are asked together: if a predicate does not look at what has matched, its answer
holds for all of them. So an event costs as much as the partial matches that it changes; and as those that are looked
at, where a predicate does that. If there are none and the event begins none, nothing is made and nothing kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.cep.match import NOTHING, Sofar
from penstock.cep.memory import TICK, Complete, Run
from penstock.cep.plan import plan
from penstock.cep.preferring import preferring
from penstock.cep.runs import FEW
from penstock.cep.search import Search
from penstock.cep.turn import Found, Moment, PreferringTurn, Turn
from penstock.cep.verdicts import Begin, Decided, Verdict, begins, fits, verdict
from penstock.cep.waits import Place, Wait
from penstock.cep.workings import Workings
from penstock.schema import Event


class Watch:
    """A silence at the beginning of a pattern, which is counted from an event: one that it does not want, or the first
    of the key. That may be the first event of an `all_of`."""

    def __init__(self, number: int, wait: Wait, mixed: bool) -> None:
        assert wait.time is not None
        self.wait, self.time = number, wait.time
        self._unwanted = [fits(each, mixed) for each in wait.never]
        self._places = [] if wait.how == "absent" else [(fits(place.on, mixed), place) for place in wait.places]

    def is_unwanted(self, event: Any) -> bool:
        return any(test(event, NOTHING) for test in self._unwanted)

    def taking(self, event: Any) -> list[Place]:
        """The places that take the event with which it begins."""
        return [] if self.is_unwanted(event) else [place for test, place in self._places if test(event, NOTHING)]


class Engine(Workings):
    """Runs one pattern, for any number of keys. It keeps nothing itself."""

    def __init__(self, search: Search, classes: Sequence[type[Event]], late_after: timedelta = timedelta(0)) -> None:
        made = preferring(search.pattern) if search.preferred else plan(search.pattern)
        super().__init__(search, made, classes, late_after)
        numbers = {wait: number for number, wait in enumerate(made.waits)}
        self._turn: type[Turn] = PreferringTurn if search.preferred else Turn
        self._waits: list[Verdict] = [verdict(wait, len(classes) > 1) for wait in made.waits]
        self._ends = [wait.how == "end_within" for wait in made.waits]
        self._silences = [wait.silences for wait in made.waits]
        self._watches = [Watch(numbers[wait], wait, len(classes) > 1) for wait in made.start if wait.silences]
        self._matched = self._already_matched(made.places, numbers)
        self._begin: Begin = begins(made.start, len(classes) > 1)
        self._open = frozenset(numbers[wait] for wait in made.open)
        before = [wait for wait in made.start if wait.never and not wait.silences]
        unwanted = list(dict.fromkeys(step for wait in before for step in wait.never))
        self._bars = [fits(step, len(classes) > 1) for step in unwanted]
        self._barred_by = {
            place: sum(1 << unwanted.index(step) for step in set(wait.never))
            for wait in before
            for place in wait.places
        }
        self._sofar = Sofar(self.taken)

    def _already_matched(self, places: Sequence[Place], numbers: dict[Any, int]) -> set[int]:
        """The waits that only make a match longer: when their time is over, nothing was missed."""
        return {numbers[wait] for place in places if place.after.is_final for wait in place.after.waits}

    def feed(self, memory: Any, event: Any, time: datetime, moment: Moment) -> Found | None:
        """What comes of an event, at its time, which is not before that of the last one; None if nothing does."""
        found = self.advance(memory, time, moment) if memory.due is not None and time >= memory.due else None
        if memory.ended:
            return found
        begun = self._begin(event)
        barred = memory.barred
        if self._bars:
            barred, begun = self._bar(barred, begun, event)
        if begun and self._open and self._is_open(memory):
            begun = ()
        if len(memory.runs) > FEW:
            decided = self._decided(memory, event)
        else:
            decided, waits, sofar = [], self._waits, self._sofar
            for run in memory.runs:
                sofar._path = (memory, run.path)
                outcome = waits[run.wait](run, event, sofar)
                if outcome is not None:
                    decided.append((run, outcome))
        watches = [
            (each, each.taking(event)) for each in self._watches if not memory.watched or each.is_unwanted(event)
        ]
        if barred != memory.barred:
            memory.barred, memory.pattern = barred, self.fingerprint
        if not begun and not decided and not watches:
            return found
        turn = self._turn(self, memory, event, time, moment)
        for run, outcome in decided:
            turn.follow(run, outcome)
        for place in begun:
            turn.take(place, None)
        for watch, places in watches:
            memory.watched = True
            turn.watch(watch.wait, watch.time, places)
        return turn.settle(found)

    def _bar(self, barred: int, begun: Sequence[Place], event: Any) -> tuple[int, Sequence[Place]]:
        """Which steps that must not come before a match have come with this event; and what it begins nevertheless."""
        for number, test in enumerate(self._bars):
            if not barred >> number & 1 and test(event, NOTHING):
                barred |= 1 << number
        return barred, [place for place in begun if not self._barred_by.get(place, 0) & barred]

    def _is_open(self, memory: Any) -> bool:
        """Whether a partial match is inside the `every` at the beginning. It looks at few runs, or at their groups."""
        if len(memory.runs) <= FEW:
            return any(run.wait in self._open for run in memory.runs)
        index = self.runs(memory).lookup
        assert index is not None
        return any(wait in self._open for wait, *_ in index.groups)

    def _decided(self, memory: Any, event: Any) -> list[tuple[Run, Decided]]:
        """Of many partial matches those for which an event means something, in the order of the list."""
        index, waits, sofar = self.runs(memory).lookup, self._waits, self._sofar
        assert index is not None
        decided: list[tuple[Run, Decided]] = []
        for (wait, *_), members in index.groups.items():
            decide = waits[wait]
            for run in members.values():
                sofar._path, sofar.seen = (memory, run.path), False
                outcome = decide(run, event, sofar)
                if outcome is not None:
                    decided.append((run, outcome))
                elif not sofar.seen:
                    break  # so it is for all of them
        decided.sort(key=lambda each: index.place(each[0]))
        return decided

    def advance(self, memory: Any, time: datetime, moment: Moment) -> Found:
        """Event time has reached `time`: absences are complete until then, and times are over. In order."""
        found = Found([], [], [])
        while memory.due is not None and memory.due <= time and not memory.ended:
            turn = self._turn(self, memory, None, memory.due, moment)
            for run in self.runs(memory).due_until(memory.due):
                self._reach(turn, run)
            turn.settle(found)
        return found

    def _reach(self, turn: Turn, run: Run) -> None:
        """A partial match for which something is due now. An absence that would be complete after `within` is none."""
        turn.gone.append(run)
        if run.deadline is None or run.deadline > turn.time:
            left = [each for bit, each in self._silences[run.wait] if not run.past & bit]
            first = min(each.time for each in left)
            for place in [each.place for each in left if each.time == first]:
                turn.spawn(place, run, run.path, run.began)
        elif self._ends[run.wait]:
            turn.complete.append(Complete(run.path, run.began, run.deadline - TICK))
        elif run.wait not in self._matched:
            turn.timed_out.append(Complete(run.path, run.began, run.deadline - TICK))

    def finish(self, memory: Any, moment: Moment) -> Found:
        """There are no more events: no match waits for another one any longer."""
        found = Found([], [], [])
        turn = self._turn(self, memory, None, moment.now, moment)
        turn.gone.extend(turn.runs)
        turn.settle(found)
        return found

    def forget(self, memory: Any) -> None:
        """Give up all partial matches, and count from the next event."""
        runs = self.runs(memory)
        runs.clear()
        for each in memory.complete:
            runs.let_go(each.path)
        memory.complete, memory.watched, memory.barred = [], False, 0
        self.keep(memory)
