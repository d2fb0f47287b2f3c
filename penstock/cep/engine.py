"""A pattern at work: one event after the other, in order of time, with what is kept of a key.

What is done for each event is proportional to the partial matches that there are; if there are none and the event
begins none, nothing is made and nothing kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.cep.match import Sofar
from penstock.cep.memory import TICK, Complete, Run
from penstock.cep.plan import plan
from penstock.cep.preferring import preferring
from penstock.cep.search import Search
from penstock.cep.turn import Found, Moment, PreferringTurn, Turn
from penstock.cep.verdicts import Begin, Verdict, begins, verdict
from penstock.cep.waits import Place
from penstock.cep.workings import Workings
from penstock.schema import Event


class Engine(Workings):
    """Runs one pattern, for any number of keys. It keeps nothing itself."""

    def __init__(self, search: Search, classes: Sequence[type[Event]], late_after: timedelta = timedelta(0)) -> None:
        made = preferring(search.pattern) if search.preferred else plan(search.pattern)
        super().__init__(search, made, classes, late_after)
        numbers = {wait: number for number, wait in enumerate(made.waits)}
        self._turn: type[Turn] = PreferringTurn if search.preferred else Turn
        self._waits: list[Verdict] = [verdict(wait, len(classes) > 1) for wait in made.waits]
        self._ends = [wait.how == "end_within" for wait in made.waits]
        self._absences = [wait.places[0] if wait.how == "absent" else None for wait in made.waits]
        self._matched = self._already_matched(made.places, numbers)
        self._begin: Begin = begins(made.start, len(classes) > 1)
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
        runs, waits, sofar, turn = memory.runs, self._waits, self._sofar, None
        for number, run in enumerate(runs):
            sofar._path = (memory, run.path)
            outcome = waits[run.wait](run, event, sofar)
            if outcome is not None:
                if turn is None:
                    turn = self._turn(self, memory, event, time, moment, runs[:number])
                turn.follow(run, outcome)
            elif turn is not None:
                turn.runs.append(run)
        if begun:
            turn = turn or self._turn(self, memory, event, time, moment, runs[:])
            for place in begun:
                turn.take(place, None)
        return found if turn is None else turn.settle(found)

    def advance(self, memory: Any, time: datetime, moment: Moment) -> Found:
        """Event time has reached `time`: absences are complete until then, and times are over. In order."""
        found = Found([], [], [])
        while memory.due is not None and memory.due <= time and not memory.ended:
            turn = self._turn(self, memory, None, memory.due, moment, [])
            for run in memory.runs:
                self._reach(turn, run, memory.due)
            turn.settle(found)
        return found

    def _reach(self, turn: Turn, run: Run, time: datetime) -> None:
        """A partial match when time has come so far."""
        place = self._absences[run.wait]
        if run.due is not None and run.due <= time and place is not None:
            turn.spawn(place, run, run.path, run.began)
        elif run.deadline is not None and run.deadline <= time:
            if self._ends[run.wait]:
                turn.complete.append(Complete(run.path, run.began, run.deadline - TICK))
            elif run.wait not in self._matched:
                turn.timed_out.append(Complete(run.path, run.began, run.deadline - TICK))
        else:
            turn.runs.append(run)

    def finish(self, memory: Any, moment: Moment) -> Found:
        """There are no more events: no match waits for another one any longer."""
        found = Found([], [], [])
        self._turn(self, memory, None, moment.now, moment, []).settle(found)
        return found

    def forget(self, memory: Any) -> None:
        """Give up all partial matches."""
        gone = (*memory.runs, *memory.complete)
        memory.runs, memory.complete = [], []
        self.keep(memory, gone)
