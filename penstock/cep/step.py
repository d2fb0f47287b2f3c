"""Processes one event, or one moment, and applies its effect to a key's partial matches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from penstock.cep.automaton import Automaton, StoredMatch
from penstock.cep.match import Match
from penstock.cep.memory import TICK, Complete, PartialMatch
from penstock.cep.periods import LeftOut, Period
from penstock.cep.transitions import AutomatonState
from penstock.cep.verdicts import Decided


class Moment(Protocol):
    """The current log time and key, as the engine needs them. A handler's context is an example."""

    @property
    def now(self) -> datetime:
        """The log time."""

    @property
    def key(self) -> str:
        """The key of the events."""


class StepResult(NamedTuple):
    """The results of an event or of the passage of time: matches, partial matches that timed out, and, because of
    limits, dropped partial matches and left-out periods of absences."""

    matches: list[Match]
    timed_out: list[Match]
    lost: list[Match]
    left_out: list[LeftOut]

    @classmethod
    def empty(cls) -> StepResult:
        return cls([], [], [], [])


class EventStep:
    """Processes one event of a pattern, or one moment without an event."""

    def __init__(self, engine: Automaton, memory: Any, event: Any, time: datetime, moment: Moment) -> None:
        self.engine, self.memory, self.event, self.time, self.moment = engine, memory, event, time, moment
        self.runs = engine.runs(memory)
        self.gone: list[PartialMatch] = []
        self.new: list[PartialMatch] = []
        self.complete: list[Complete] = []
        self.timed_out: list[Complete] = []
        self.lost: list[PartialMatch] = []
        self._number: int | None = None
        self._kind = 0
        self._log: datetime | None = None

    def follow(self, run: PartialMatch, outcome: Decided) -> None:
        """Apply the outcome for a partial match."""
        places, stays, ends = outcome
        for place in places:
            self.take(place, run)
        if ends:
            self.complete.append(Complete(run.path, run.began, self.time))
        if stays is not run:
            self.gone.append(run)
            if stays is not None:
                self.new.append(stays)

    def take(self, place: AutomatonState, run: PartialMatch | None) -> None:
        """Let a step take the event, as part of a partial match or as the first event of a new match."""
        engine = self.engine
        if run is not None and len(run.path) >= 2 * engine.search.bounds.events:
            self.lost.append(run)
            return
        added = (place.step, self._numbered())
        if run is None:
            self.spawn(place, None, added, self.time)
        else:
            self.spawn(place, run, run.path + added, run.began)

    def watch(self, wait: int, time: timedelta, places: Sequence[AutomatonState] = ()) -> None:
        """Start the time of an absence at the beginning of the pattern with this event. The event is part of the match
        only if it is the first event of an `all_of`; in that case, `places` take it."""
        within, due = self.engine.search.within, self.time + time
        deadline = None if within is None else self.time + within + TICK
        path = (-1, self._numbered())
        run = PartialMatch(wait, 0, self.time, deadline, due, self._alarm(None, due, deadline), path)
        for place in places:
            self.take(place, run)
        if not places:
            self.new.append(run)

    def _numbered(self) -> int:
        """Return the number of this event in the pattern's state."""
        if self._number is None:
            self._number, self._kind = self.memory.next, self.engine.kind_of[self.event.__declared__]
        return self._number

    def _deadline(self, run: PartialMatch | None, began: datetime) -> datetime | None:
        """Return the first moment after a partial match times out: after `within` for the whole match or `gap` after
        this event, whichever is earlier."""
        within, gap = self.engine.search.within, self.engine.search.gap
        if run is not None and (gap is None or self.event is None):
            return run.deadline
        ends = _earlier_deadline(None if within is None else began + within, None if gap is None else self.time + gap)
        return None if ends is None else ends + TICK

    def spawn(self, place: AutomatonState, run: PartialMatch | None, path: tuple[int, ...], began: datetime) -> None:
        """Add a partial match for each wait after a place. If the end follows the place, add a complete match."""
        deadline = self._deadline(run, began)
        for wait, time, goes_on, back in self.engine.ahead[place]:
            if wait is None:
                self.complete.append(Complete(path, began, self.time))
                if self.ends_with(path):
                    return
            else:
                due = None if time is None else self.time + time
                if due is not None and goes_on and run is not None:
                    due = run.due
                kept = path[: -2 * back] if back else path
                alarm = self._alarm(run, due, deadline, keeps_due=goes_on)
                self.new.append(PartialMatch(wait, 0, began, deadline, due, alarm, kept))

    def leave_out(self, period: Period, periods: int, run: PartialMatch) -> LeftOut:
        """Continue with the last of several periods of an absence, as if all earlier periods were complete."""
        last = self.time + periods * period.time
        alarm = self._alarm(run, last, run.deadline)
        self.new.append(PartialMatch(period.wait, 0, run.began, run.deadline, last, alarm, run.path))
        return LeftOut(last - period.time, periods)

    def ends_with(self, path: tuple[int, ...]) -> bool:
        """Return whether a complete match with this path rules out the continuations that have not been tried yet."""
        return False

    def _alarm(
        self, run: PartialMatch | None, due: datetime | None, deadline: datetime | None, *, keeps_due: bool = False
    ) -> datetime | None:
        """Return the log time when the next deadline is considered reached even without an event. This is the current
        log time, plus `late_after`, plus the time from this event to the deadline.

        A deadline that is counted from an earlier event (with `keeps_due`, `due` is) keeps its alarm if that is later.
        Otherwise, after an event at exactly the end of `within`, there would be no time for the next event to arrive.
        """
        earliest = _earliest_end(due, deadline)
        if earliest is None:
            return None
        if self.event is None and run is not None and run.alarm is not None:  # the absence that was due is complete
            return run.alarm + (earliest - self.time)
        if self._log is None:
            self._log = self.moment.now + self.engine.late_after
        alarm = self._log + (earliest - self.time)
        if run is None or not (keeps_due if earliest == due else deadline == run.deadline):
            return alarm
        before, gap = _earliest_end(run.due, run.deadline), self.engine.search.gap
        if before is None or run.alarm is None:
            return alarm
        kept = run.alarm + (earliest - before)
        return max(alarm, kept if gap is None else min(kept, self._log + gap))

    def settle(self, step_result: StepResult | None) -> StepResult | None:
        """Store a key's new partial matches and add the results. Nothing changes before this call, so a predicate that
        raises has no effect."""
        memory, engine, runs = self.memory, self.engine, self.runs
        if self._number is not None:
            engine.held(memory)[self._kind][self._number] = self.event
            memory.next = self._number + 1
            runs.loose.add(self._number)
        runs.replace(self.gone, self.kept())
        changed = bool(self.complete or self.timed_out or self.lost or memory.complete)
        if step_result is None and (changed or len(runs) > engine.search.bounds.partial):
            step_result = StepResult.empty()
        if step_result is not None:
            self._lose(step_result, self.lost)
            self.tell(step_result)
            self._bound(step_result)
        engine.keep(memory)
        return step_result

    def kept(self) -> Iterable[PartialMatch]:
        """Return the new partial matches."""
        return self.new

    def _lose(self, step_result: StepResult, lost: Sequence[StoredMatch]) -> None:
        """Report dropped matches."""
        self.memory.lost += len(lost)
        step_result.lost.extend(self._match(Complete(match.path, match.began, self.time)) for match in lost)

    def _bound(self, step_result: StepResult) -> None:
        """Drop partial matches, and complete matches that wait for them, until the limit is met. Each pass drops at
        least one match; another pass follows only if the previous pass did not free enough."""
        bounds = self.engine.search.bounds
        give_up = self._oldest if bounds.full == "drop_oldest" else self._newest
        while (surplus := len(self.runs) + len(self.memory.complete) - bounds.partial) > 0:
            self._lose(step_result, give_up(surplus))
            self.release(step_result)

    def _oldest(self, surplus: int) -> Sequence[StoredMatch]:
        """Remove the `surplus` partial matches that began first. If there is a complete match, remove only partial
        matches that it waits for."""
        complete, lost = self.memory.complete, list[PartialMatch]()
        while len(lost) < surplus and (run := self.runs.oldest()) is not None:
            if complete and not self.must_wait(complete[0], run.path[1]):
                break
            self.runs.drop(run)
            lost.append(run)
        return lost

    def _newest(self, surplus: int) -> Sequence[StoredMatch]:
        """Remove the `surplus` matches that began last, whether partial or complete."""
        memory = self.memory
        lost = sorted((*memory.complete, *self.runs), key=_stored_match_order)[-surplus:]
        gone = set(map(id, lost))
        self.runs.replace([run for run in self.runs if id(run) in gone], ())
        self._let_go([match for match in memory.complete if id(match) in gone])
        memory.complete = [match for match in memory.complete if id(match) not in gone]
        return lost

    def tell(self, step_result: StepResult) -> None:
        """Emit complete matches and timeouts."""
        memory, search = self.memory, self.engine.search
        for match in sorted(dict.fromkeys(self.timed_out), key=_stored_match_order):
            step_result.timed_out.append(self._match(match, timed_out=True))
        fresh = sorted({match.path: match for match in self.complete}.values(), key=_stored_match_order)
        if search.skip.kind != "none":
            for match in fresh:
                insort(memory.complete, match, key=_first_event_number)
                self.runs.hold(match.path)
            self.release(step_result)
            return
        step_result.matches.extend(map(self._match, fresh if search.every else fresh[:1]))
        if fresh and not search.every:
            self._end()

    def _let_go(self, complete: Iterable[Complete]) -> None:
        """Release the events of pattern matches that are no longer waiting."""
        for match in complete:
            self.runs.let_go(match.path)

    def _end(self) -> None:
        """End the pattern search for this key, because only its first match is wanted."""
        memory = self.memory
        self._let_go(memory.complete)
        self.runs.clear()
        memory.ended, memory.complete = True, []

    def release(self, step_result: StepResult) -> None:
        """Emit matches in the order in which they began, each as soon as no earlier match is possible. Drop the matches
        that an emitted match skips."""
        memory, complete = self.memory, self.memory.complete
        place = before = 0
        while place < len(complete):
            match = complete[place]
            if match.path[1] >= before:
                first = self.runs.oldest()
                if first is not None and self.must_wait(match, first.path[1]):
                    break
                memory.told += 1
                step_result.matches.append(self._match(match))
                if not self.engine.search.every:
                    self._end()
                    return
                before = self._skipped(match)
                self._skip_to(before)
            place += 1
        self._let_go(complete[:place])
        del complete[:place]

    def _skip_to(self, before: int) -> None:
        """Drop the partial matches that began before an event."""
        while (run := self.runs.oldest()) is not None and run.path[1] < before:
            self.runs.drop(run)

    def must_wait(self, match: Complete, begun: int) -> bool:
        """Return whether a match must wait for a partial match that began with this event."""
        return begun < match.path[1]

    def _skipped(self, match: Complete) -> int:
        """Return the number of the first event that another match of the pattern can begin with."""
        skip, names = self.engine.search.skip, self.engine.names
        if skip.kind == "to_next":
            return match.path[1] + 1
        if skip.kind == "past_last":
            return match.path[-1] + 1
        pairs = zip(match.path[::2], match.path[1::2], strict=True)
        taken = [event for step, event in pairs if step >= 0 and names[step] == skip.name]
        if not taken:
            return 0
        return taken[0] if skip.kind == "to_first" else taken[-1]

    def _match(self, match: Complete, timed_out: bool = False) -> Match:
        return self.engine.match(
            self.memory,
            match.path,
            key=self.moment.key,
            began=match.began,
            ended=match.ended,
            timed_out=timed_out,
            number=self.memory.told,
        )


class PreferringEventStep(EventStep):
    """Processing for preferred matches, where only the best of all matches with the same first event is emitted.
    Partial matches are in order of preference. So a complete match ends the partial matches after it, and waits for the
    partial matches before it, which could still become better matches."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._won: set[int] = set()

    def spawn(self, place: AutomatonState, run: PartialMatch | None, path: tuple[int, ...], began: datetime) -> None:
        if path[1] not in self._won:
            super().spawn(place, run, path, began)

    def ends_with(self, path: tuple[int, ...]) -> bool:
        self._won.add(path[1])
        return True

    def kept(self) -> Iterable[PartialMatch]:
        """Return the new partial matches or, if they can be merged, only the best partial match for each wait and first
        event. No older partial matches remain, because each event must be the very next one."""
        if not self.engine.search.merges:
            return self.new
        best: dict[tuple[int, int], PartialMatch] = {}
        for run in self.new:
            best.setdefault((run.wait, run.path[1]), run)
        return best.values()

    def tell(self, step_result: StepResult) -> None:
        """Replace complete matches with better ones. A later match with the same first event is always better, because
        all worse partial matches were dropped when a match was completed."""
        complete = self.memory.complete
        for match in self.complete:
            place = bisect_left(complete, match.path[1], key=_first_event_number)
            worse = slice(place, bisect_right(complete, match.path[1], place, key=_first_event_number))
            self._let_go(complete[worse])
            complete[worse] = [match]
            self.runs.hold(match.path)
        self.release(step_result)

    def must_wait(self, match: Complete, begun: int) -> bool:
        return begun <= match.path[1]


def _first_event_number(match: StoredMatch) -> int:
    return match.path[1]


def _stored_match_order(match: StoredMatch) -> tuple[Any, ...]:
    """Return the sort key for pattern matches that are completed at the same time: first event, then last event, then
    all events one by one. So if two matches have the same first and last event, the match with the earlier events in
    between comes first."""
    path = match.path
    return path[1], path[-1], path[1::2], path[::2]


def _earlier_deadline(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _earliest_end(due: datetime | None, deadline: datetime | None) -> datetime | None:
    """Return when an absence is complete or, if that is earlier, the last moment at which an event can still continue a
    partial match."""
    return _earlier_deadline(due, None if deadline is None else deadline - TICK)
