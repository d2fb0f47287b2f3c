"""Compiles a pattern into the functions of a handler, which takes events in log order and emits matches.

Events are matched in order of event time. An event waits until its key gets an event that is `late_after` newer. If no
such event arrives, the event waits until `late_after` of log time has passed since its arrival, and at most for twice
that time. An event that is further behind the newest event is late, and is reported as missed. Time also passes without
events. A deadline that is counted from an event in event time takes effect at the latest when the same amount of log
time, plus twice `late_after`, has passed since that event.

A key has one timer. It is set to an earlier time if needed, and when it fires, it checks everything that might be due.
It can fire up to `late_after` after an event has waited long enough. If events keep arriving, newer events cause the
waiting event to be processed before that, so the timer has little to do. A key without any other state sets the timer
only once per `remember`, however many events it receives.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.cep.engine import PatternEngine
from penstock.cep.match import Match
from penstock.cep.memory import TICK, PatternMemory, Pending, memory_class
from penstock.cep.search import Search
from penstock.cep.step import StepResult
from penstock.core.contracts import Context
from penstock.core.emissions import check_events
from penstock.core.operators import error_text, event_text, forget, listed, time_of
from penstock.core.schema import Event, State

TIMER = "time"

Select = Callable[[Match], Any]


class Missed(Event):
    """An event or partial match that a pattern did not fully process. `reason` is `late` for an event that arrived
    `by_s` seconds too late, and `failed` if a function raised for an event. It is `full` if a limit was reached, and
    `changed` for partial matches that were dropped because the pattern has changed. `events` contains the event or the
    dropped events as JSON, or states how many partial matches were dropped or how many periods of an absence were left
    out."""

    key: str
    reason: str
    at: datetime
    events: str
    by_s: float = 0.0
    error: str | None = None


class DueEvent:
    """The moment when the pattern engine processes a waiting event. It is never later than the end of the event's wait,
    even if the timer fires late. So deadlines that are counted from the event do not depend on the timer."""

    __slots__ = ("_ctx", "now")

    def __init__(self, ctx: Context, now: datetime) -> None:
        self._ctx, self.now = ctx, now

    @property
    def key(self) -> str:
        return self._ctx.key


class Telling(NamedTuple):
    """The functions that create events from matches and from partial matches that timed out. The function for timeouts
    is optional, and can be declared later."""

    match: Select
    timed_out: Sequence[Select]


class PatternParts(NamedTuple):
    """The parts of a pattern's handler. `faults` contains the reasons why the handler cannot run; if there are any, the
    other parts cannot be used."""

    state: type[State]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]
    faults: tuple[str, ...] = ()


def handled(
    search: Search,
    reads: Sequence[tuple[type[Event], timedelta | None]],
    telling: Telling,
    known: tuple[str, ...] = (),
) -> PatternParts:
    """Compile a pattern over streams with these classes, each with its `late_after`. If there are `known` faults,
    nothing is compiled."""
    classes = list(dict.fromkeys(cls for cls, _ in reads))
    faults = known or search.problems(classes, bounded=True)
    if faults:
        return PatternParts(PatternMemory, telling.match, telling.match, faults)
    late_after = max((late or timedelta(0) for _, late in reads), default=timedelta(0))
    on_event, on_timer = Matching(PatternEngine(search, classes, late_after), classes, telling).functions()
    return PatternParts(memory_class("Memory", classes), on_event, on_timer)


class Matching:
    """The two functions of a pattern's handler: `on_event` runs for each event, and `on_timer` runs when time has
    passed."""

    def __init__(self, engine: PatternEngine, classes: Sequence[type[Event]], telling: Telling) -> None:
        self.engine, self.telling = engine, telling
        self._time = time_of(classes)
        self._held = [attrgetter(f"held_{number}") for number in range(len(classes))]
        self._kinds = {cls: number for number, cls in enumerate(classes)}
        self._late, bounds = engine.late_after, engine.search.bounds
        self._remember, self._waiting = bounds.remember, bounds.waiting
        self._in_event_order = bool(self._late) and self._time is not None

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return `on_event` and `on_timer` as plain functions, which a pattern's handler requires."""
        feed, time_of, waits, pattern = self.engine.feed, self._time, self._in_event_order, self.engine.fingerprint

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            time = ctx.now if time_of is None else time_of(event)
            if state.pattern and state.pattern != pattern:
                return [*self._changed(state, ctx), *(on_event(state, event, ctx) or ())]
            if time_of is not None:
                if state.time is not None and time < state.time:
                    return self._report_late_event(state, event, time, ctx)
                if waits:
                    return self._wait(state, event, time, ctx)
                state.time = time
            step_result = feed(state, event, time, ctx)
            state.touched = True
            timer, alarm = state.timer, state.alarm
            if timer is None or (alarm is not None and (alarm < timer or timer <= ctx.now)):
                self._set(state, ctx)
            return None if step_result is None else self._emissions(step_result, ctx)

        def on_timer(state: Any, ctx: Context) -> Any:
            return self._timer(state, ctx)

        return on_event, on_timer

    def _changed(self, state: Any, ctx: Context) -> list[Missed]:
        """Drop partial matches that belong to a previous version of the pattern."""
        count = len(state.runs) + len(state.complete)
        state.lost += count
        self.engine.forget(state)
        if not count:
            return []
        return [Missed(key=ctx.key, reason="changed", at=ctx.now, events=f"{count} partial matches")]

    def _report_late_event(self, state: Any, event: Any, time: datetime, ctx: Context) -> list[Missed]:
        state.late += 1
        state.touched = True
        if state.timer is None:
            self._set(state, ctx)
        by_s = (state.time - time).total_seconds()
        return [Missed(key=ctx.key, reason="late", at=time, events=event_text(event), by_s=by_s)]

    def _wait(self, state: Any, event: Any, time: datetime, ctx: Context) -> list[Any] | None:
        """Queue an event for the pattern, and process the waiting events that no longer have to wait."""
        pending, number, now = state.pending, state.came, ctx.now
        state.came, state.touched, is_alone = number + 1, True, not pending
        mine = Pending(time, number, self._kinds[event.__declared__], now + self._late)
        self._held[mine.kind](state)[~number] = event
        if is_alone or time >= pending[-1].time:
            pending.append(mine)
        else:
            insort(pending, mine, key=_pending_order)
        watermark = pending[-1].time - self._late
        surplus = len(pending) - self._waiting
        if surplus > 0:
            watermark = max(watermark, pending[surplus - 1].time)
        results = self._reach(state, watermark, now, ctx)
        timer = state.timer  # a previous event may have set it to an earlier time
        if timer is None or is_alone or timer <= now or (state.alarm is not None and state.alarm < timer):
            self._set(state, ctx)
        return results

    def _reach(self, state: Any, time: datetime, now: datetime, ctx: Context) -> list[Any] | None:
        """Advance the pattern's event time: process the waiting events up to `time`, and everything that is due by
        then."""
        if state.time is not None and time < state.time:
            return None
        results: list[Any] = []
        pending, count = state.pending, 0
        while count < len(pending) and pending[count].time <= time:
            count += 1
        turns = pending[:count]
        del pending[:count]
        for turn in turns:
            event = self._held[turn.kind](state).pop(~turn.number)
            if state.due is not None and state.due <= turn.time:
                self._advance(results, state, turn.time, ctx)
            moment = DueEvent(ctx, turn.alarm if turn.alarm < now else now)
            self._safely(results, ctx, event, self.engine.feed, state, event, turn.time, moment)
        if self._time is not None:
            state.time = time
        if state.due is not None and state.due <= time:
            self._advance(results, state, time, ctx)
        return results

    def _advance(self, results: list[Any], state: Any, time: datetime, ctx: Context) -> None:
        """Process everything in the pattern that is due by a time, as a separate step: the results are emitted even if
        the event at that time fails."""
        self._safely(results, ctx, None, self.engine.advance, state, time, ctx)

    def _timer(self, state: Any, ctx: Context) -> list[Any]:
        """Process the pattern's events and deadlines that have waited long enough in log time."""
        state.timer = None
        now, results = ctx.now, list[Any]()
        if state.pattern and state.pattern != self.engine.fingerprint:
            results += self._changed(state, ctx)
        waited = [turn.time for turn in state.pending if turn.alarm <= now]
        due = [_alarmed_match_due(run) for run in self.engine.runs(state).alarmed(now)]
        if waited or due:
            time = max(waited + due)
            if self._time is None:  # log time is event time: an event at exactly the end of a limit may follow
                time = min(time, now)
            results += self._reach(state, time, now, ctx) or ()
        if _is_pattern_state_empty(state) and not (state.touched and _has_pattern_past(state)):
            forget(state)
        else:
            self._set(state, ctx, now + TICK)
        return results

    def _set(self, state: Any, ctx: Context, earliest: datetime | None = None) -> None:
        """Set the timer for the next time when something in the pattern might be due or the key might be deleted. If
        `state.timer` is past, the timer has failed and is not called again, so it is set for a new time."""
        alarm = state.alarm
        if state.pending:
            first = min(turn.alarm for turn in state.pending) + self._late
            alarm = first if alarm is None else min(alarm, first)
        is_quiet = alarm is None and _is_pattern_state_empty(state) and _has_pattern_past(state)
        if is_quiet:
            alarm = ctx.now + self._remember
        has_failed = state.timer is not None and state.timer <= ctx.now
        if has_failed:
            earliest = ctx.now + TICK
        if alarm is None or (state.timer is not None and not has_failed and state.timer <= alarm):
            return
        state.timer = alarm if earliest is None else max(alarm, earliest)
        state.touched = not is_quiet
        ctx.timer(TIMER, state.timer)

    def _safely(
        self, results: list[Any], ctx: Context, event: Any, step: Callable[..., StepResult | None], *given: Any
    ) -> None:
        """Run a step of the pattern engine, and add either all of its results or none. If the step raises, or a result
        has a value that does not fit its type, a `failed` event is added instead."""
        try:
            step_result = step(*given)
            if step_result is not None:
                emissions = list(self._emissions(step_result, ctx))
                check_events(emissions)
                results += emissions
        except Exception as error:
            text = error_text(error)
            results.append(Missed(key=ctx.key, reason="failed", at=ctx.now, events=event_text(event), error=text))

    def _emissions(self, step_result: StepResult, ctx: Context) -> Iterator[Any]:
        for match in step_result.matches:
            yield from listed(self.telling.match(match))
        for timed_out in self.telling.timed_out[:1]:
            for match in step_result.timed_out:
                yield from listed(timed_out(match))
        for match in step_result.lost:
            at = match.ended if match.ended is not None else ctx.now
            yield Missed(key=ctx.key, reason="full", at=at, events=event_text(match.events))
        for at, periods in step_result.left_out:
            yield Missed(key=ctx.key, reason="full", at=at, events=f"{periods} periods of an absence")


def _is_pattern_state_empty(state: Any) -> bool:
    return not (state.runs or state.complete or state.pending or state.ended)


def _has_pattern_past(state: Any) -> bool:
    """Return whether a key's pattern state, although it contains no events or matches, differs from the state of a new
    key."""
    return state.time is not None or bool(state.told or state.lost or state.watched or state.barred)


def _pending_order(pending: Pending) -> tuple[datetime, int]:
    return pending.time, pending.number


def _alarmed_match_due(run: Any) -> datetime:
    return min((time for time in (run.due, run.deadline) if time is not None), default=datetime.min.replace(tzinfo=UTC))
