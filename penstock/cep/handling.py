"""A pattern as the functions of a handler: events in log order in, matches out.

Events are matched in order of event time. An event waits for its turn until one of its key is `late_after` newer; if
none comes, until `late_after` of log time has passed since it came, and at most as long again. One that is further
behind the newest is late, and told as missed. Time also passes without events: what is due in event time comes at the
latest when as much log time has passed since the event that it counts from, and twice `late_after` with it.

One timer of a key does for all. It is set when it is needed earlier, and looks what there is to do when it calls. It
may call up to `late_after` after an event has waited long enough: where events keep coming, those newer ones give it
its turn, and the timer has nothing to do with most. A key that is only remembered costs a call in that time, however
many events it has.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.cep.engine import Engine
from penstock.cep.match import Match
from penstock.cep.memory import TICK, Memory, Pending, memory_class
from penstock.cep.search import Search
from penstock.cep.turn import Found
from penstock.contracts import Context
from penstock.making import error_text, event_text, forget, listed, time_of
from penstock.schema import Event, State

TIMER = "time"

Select = Callable[[Match], Any]


class Missed(Event):
    """What a pattern did not look at to the end: an event that came too `late`, `by_s` seconds; a partial match that
    was given up because there was no room (`full`) or the pattern had `changed`; or one whose function `failed`.
    `events` has it as JSON."""

    key: str
    reason: str
    at: datetime
    events: str
    by_s: float = 0.0
    error: str | None = None


class Turned:
    """The moment at which an event that waited has its turn: no later than when it had waited long enough, however late
    the timer calls. So what is due after it does not depend on that."""

    __slots__ = ("_ctx", "now")

    def __init__(self, ctx: Context, now: datetime) -> None:
        self._ctx, self.now = ctx, now

    @property
    def key(self) -> str:
        return self._ctx.key


class Telling(NamedTuple):
    """What is emitted of matches, and of partial matches whose time is over: if there is a function for them, which may
    be declared later."""

    match: Select
    timed_out: Sequence[Select]


class Handled(NamedTuple):
    """The parts of a handler. With `faults`, which tell why there can be none, they are of no use."""

    state: type[State]
    on_event: Callable[..., Any]
    on_timer: Callable[..., Any]
    faults: tuple[str, ...] = ()


def handled(
    search: Search,
    reads: Sequence[tuple[type[Event], timedelta | None]],
    telling: Telling,
    known: tuple[str, ...] = (),
) -> Handled:
    """Make a handler of a pattern over streams of these classes, each with its `late_after`. With faults that are
    `known` there is none."""
    classes = list(dict.fromkeys(cls for cls, _ in reads))
    faults = known or search.problems(classes, bounded=True)
    if faults:
        return Handled(Memory, telling.match, telling.match, faults)
    late_after = max((late or timedelta(0) for _, late in reads), default=timedelta(0))
    on_event, on_timer = Matching(Engine(search, classes, late_after), classes, telling).functions()
    return Handled(memory_class("Memory", classes), on_event, on_timer)


class Matching:
    """The two functions of the handler: `event` for each event, `timer` when time has passed."""

    def __init__(self, engine: Engine, classes: Sequence[type[Event]], telling: Telling) -> None:
        self.engine, self.telling = engine, telling
        self._time = time_of(classes)
        self._held = [attrgetter(f"held_{number}") for number in range(len(classes))]
        self._kinds = {cls: number for number, cls in enumerate(classes)}
        self._late, bounds = engine.late_after, engine.search.bounds
        self._remember, self._waiting = bounds.remember, bounds.waiting
        self._waits = bool(self._late) and self._time is not None

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Plain functions, as a handler's are."""
        feed, time_of, waits, pattern = self.engine.feed, self._time, self._waits, self.engine.fingerprint

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            time = ctx.now if time_of is None else time_of(event)
            if state.pattern and state.pattern != pattern:
                return [*self._changed(state, ctx), *(on_event(state, event, ctx) or ())]
            if time_of is not None:
                if state.time is not None and time < state.time:
                    return self._is_late(state, event, time, ctx)
                if waits:
                    return self._wait(state, event, time, ctx)
                state.time = time
            found = feed(state, event, time, ctx)
            state.touched = True
            if state.timer is None or (state.alarm is not None and state.alarm < state.timer):
                self._set(state, ctx)
            return None if found is None else self._told(found, ctx)

        def on_timer(state: Any, ctx: Context) -> Any:
            return self._timer(state, ctx)

        return on_event, on_timer

    def _changed(self, state: Any, ctx: Context) -> list[Missed]:
        """What is kept is of a pattern that was another one: its partial matches mean nothing now."""
        count = len(state.runs) + len(state.complete)
        state.lost += count
        self.engine.forget(state)
        if not count:
            return []
        return [Missed(key=ctx.key, reason="changed", at=ctx.now, events=f"{count} partial matches")]

    def _is_late(self, state: Any, event: Any, time: datetime, ctx: Context) -> list[Missed]:
        state.late += 1
        state.touched = True
        if state.timer is None:
            self._set(state, ctx)
        by_s = (state.time - time).total_seconds()
        return [Missed(key=ctx.key, reason="late", at=time, events=event_text(event), by_s=by_s)]

    def _wait(self, state: Any, event: Any, time: datetime, ctx: Context) -> list[Any] | None:
        """An event waits for its turn; those whose turn has come with it have it."""
        pending, number, now = state.pending, state.came, ctx.now
        state.came, state.touched, is_alone = number + 1, True, not pending
        mine = Pending(time, number, self._kinds[event.__declared__], now + self._late)
        self._held[mine.kind](state)[~number] = event
        if is_alone or time >= pending[-1].time:
            pending.append(mine)
        else:
            insort(pending, mine, key=_turn)
        watermark = pending[-1].time - self._late
        surplus = len(pending) - self._waiting
        if surplus > 0:
            watermark = max(watermark, pending[surplus - 1].time)
        told = self._reach(state, watermark, now, ctx)
        timer = state.timer  # if there were others, it is set for one that came before
        if timer is None or is_alone or (state.alarm is not None and state.alarm < timer):
            self._set(state, ctx)
        return told

    def _reach(self, state: Any, time: datetime, now: datetime, ctx: Context) -> list[Any] | None:
        """Event time has come so far: events until then have their turn, and what is due by then is."""
        if state.time is not None and time < state.time:
            return None
        told: list[Any] = []
        pending, count = state.pending, 0
        while count < len(pending) and pending[count].time <= time:
            count += 1
        turns = pending[:count]
        del pending[:count]
        for each in turns:
            event = self._held[each.kind](state).pop(~each.number)
            if state.due is not None and state.due <= each.time:
                self._advance(told, state, each.time, ctx)
            moment = Turned(ctx, each.alarm if each.alarm < now else now)
            self._safely(told, ctx, event, self.engine.feed, state, event, each.time, moment)
        if self._time is not None:
            state.time = time
        if state.due is not None and state.due <= time:
            self._advance(told, state, time, ctx)
        return told

    def _advance(self, told: list[Any], state: Any, time: datetime, ctx: Context) -> None:
        """What is due by then is. It is a step of its own, so that it is told whatever the event at that time does."""
        self._safely(told, ctx, None, self.engine.advance, state, time, ctx)

    def _timer(self, state: Any, ctx: Context) -> list[Any]:
        """Log time has come so far that some event, or something that is due, has waited long enough."""
        state.timer = None
        now, told = ctx.now, list[Any]()
        if state.pattern and state.pattern != self.engine.fingerprint:
            told += self._changed(state, ctx)
        waited = [each.time for each in state.pending if each.alarm <= now]
        due = [_due(run) for run in self.engine.runs(state).alarmed(now)]
        if waited or due:
            told += self._reach(state, max(waited + due), now, ctx) or ()
        if _holds_nothing(state) and not (state.touched and _has_past(state)):
            forget(state)
        else:
            self._set(state, ctx, now + TICK)
        return told

    def _set(self, state: Any, ctx: Context, earliest: datetime | None = None) -> None:
        """Have the timer call at the next time that something may be due, or the key forgotten."""
        alarm = state.alarm
        if state.pending:
            first = min(each.alarm for each in state.pending) + self._late
            alarm = first if alarm is None else min(alarm, first)
        is_quiet = alarm is None and _holds_nothing(state) and _has_past(state)
        if is_quiet:
            alarm = ctx.now + self._remember
        if alarm is None or (state.timer is not None and state.timer <= alarm):
            return
        state.timer = alarm if earliest is None else max(alarm, earliest)
        state.touched = not is_quiet
        ctx.timer(TIMER, state.timer)

    def _safely(
        self, told: list[Any], ctx: Context, event: Any, step: Callable[..., Found | None], *given: Any
    ) -> None:
        """What a step tells, all or nothing. It is not the event at hand that is to blame if it fails, so that one is
        told apart."""
        try:
            found = step(*given)
            if found is not None:
                told += list(self._told(found, ctx))
        except Exception as error:
            text = error_text(error)
            told.append(Missed(key=ctx.key, reason="failed", at=ctx.now, events=event_text(event), error=text))

    def _told(self, found: Found, ctx: Context) -> Iterator[Any]:
        for match in found.matches:
            yield from listed(self.telling.match(match))
        for timed_out in self.telling.timed_out[:1]:
            for match in found.timed_out:
                yield from listed(timed_out(match))
        for match in found.lost:
            at = match.ended if match.ended is not None else ctx.now
            yield Missed(key=ctx.key, reason="full", at=at, events=event_text(match.events))


def _holds_nothing(state: Any) -> bool:
    return not (state.runs or state.complete or state.pending or state.ended)


def _has_past(state: Any) -> bool:
    """Whether a key that holds nothing is another one than a key of which no event has ever come."""
    return state.time is not None or bool(state.told or state.lost or state.watched or state.barred)


def _turn(pending: Pending) -> tuple[datetime, int]:
    return pending.time, pending.number


def _due(run: Any) -> datetime:
    return min((each for each in (run.due, run.deadline) if each is not None), default=datetime.min.replace(tzinfo=UTC))
