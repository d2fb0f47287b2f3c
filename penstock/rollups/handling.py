"""A rollup as the functions of a handler: events in log order in, rows of buckets out.

The time of a key is log time, less the least that an event of it was behind log time: so it follows event time, passes
without events too, and no event can put it ahead of the log. A page of buckets is kept until its end is `keep` before
that time. An event counts at every level that still keeps its bucket; one that counts at none is told as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from penstock.contracts import Context
from penstock.kept import gone
from penstock.making import KeyFields, event_text, key_columns, key_value
from penstock.rollups.calendar import Calendar, Place, to_instant, to_time
from penstock.rollups.memory import PAGES_MAX, Page, Pages
from penstock.schema import Event
from penstock.windows.aggregates import Aggregate

TIMER = "keep"
EDGES_CACHED = 4_096
"""Most keys are touched in the same buckets."""


class Missed(Event):
    """An event that a rollup did not count: at no level, because it came too `late`, and was `by_s` seconds behind the
    time of its key; or not at the level `per`, because too many pages of that are kept (`full`). `event` has it as
    JSON."""

    key: str
    reason: str
    at: datetime
    by_s: float
    event: str
    per: str | None = None


@dataclass(frozen=True)
class Sheet:
    """The parts of a rollup that is known to be sound: its units, how long each is kept in microseconds, its aggregates
    by the names of their columns, the class of its rows, and the key."""

    units: tuple[str, ...]
    keeps: tuple[int, ...]
    zone: str
    aggregates: Mapping[str, Aggregate]
    row: type[Event]
    key: KeyFields
    pages: Pages
    state: Any


class Rolling:
    """The functions of the handler: `event` for each event, `timer` when time has passed, `settle` when a batch is over
    for the rows of all that it has touched."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet, self._pages = sheet, sheet.pages
        self._calendar = Calendar(sheet.zone)
        self._aggregates = list(sheet.aggregates.items())
        self._made: Callable[..., Event] = sheet.row
        self._edges = lru_cache(EDGES_CACHED)(self._times)

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        """Plain functions, as a handler's are."""
        places, read, step = self._calendar.places(self._sheet.units), self._reader(), self._stepper()
        keeps, zeros, key = self._sheet.keeps, self._zeros, self._sheet.key

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            now = to_instant(ctx.now)
            at = _time_of(event) or ctx.now
            time = to_instant(at)
            told = self._moved(state, now, max(0, now - time))
            if state.key is None:
                state.key = key_value(event, key)
            values, counted = read(event), 0
            for level, place, keep in zip(state.levels, places(time), keeps, strict=True):
                page = level.open.get(place.page)
                if page is None:
                    page = self._entered(state, level, place, keep, now)
                    if page is None:
                        continue
                page[place.start] = step(page.get(place.start) or zeros(), values, at)
                level.touched[place.start] = place.page
                counted += 1
            if counted < len(keeps):
                told += self._missed(state, event, time, now, ctx)
            if state.due is not None and (state.timer is None or state.due + state.lag < state.timer):
                self._set(state, ctx)
            return told or None

        def on_timer(state: Any, ctx: Context) -> Any:
            state.timer = None
            told = self._pruned(state, to_instant(ctx.now) - state.lag)
            if state.due is not None:
                self._set(state, ctx)
            return told

        return on_event, on_timer, self._settle

    def _moved(self, state: Any, now: int, lag: int) -> list[Any]:
        """Let the time of the key come to what an event of this lag says; gives what goes by that."""
        told: list[Any] = []
        if state.lag is None or lag < state.lag:
            state.lag = lag
        if state.due is not None and state.due <= now - state.lag:
            told = self._pruned(state, now - state.lag)
            state.lag = lag if state.lag is None else state.lag
        return told

    def _entered(self, state: Any, level: Any, place: Place, keep: int, now: int) -> Page | None:
        """A page that is not open, ready to be changed; None if it is too old, or there is no room for it."""
        due = place.page_end + keep
        if place.page not in level.closed:
            if due <= now - state.lag or len(level.open) + len(level.closed) >= PAGES_MAX:
                return None
            level.due = due if level.due is None else min(level.due, due)
            state.due = due if state.due is None else min(state.due, due)
        return self._pages.opened(level, place.page)

    def _pruned(self, state: Any, time: int) -> list[Any]:
        """Give up the pages whose time is over; gives what removes their rows."""
        told: list[Any] = []
        for number, level in enumerate(state.levels):
            if level.due is not None and level.due <= time:
                told += self._given_up(state, number, time)
        state.due = min((level.due for level in state.levels if level.due is not None), default=None)
        if state.due is None:  # of a key of which nothing is kept, nothing is remembered either
            fresh = self._sheet.state()
            for name in fresh.__struct_fields__:
                setattr(state, name, getattr(fresh, name))
        return told

    def _given_up(self, state: Any, number: int, time: int) -> Iterator[Event]:
        level, unit, keep = state.levels[number], self._sheet.units[number], self._sheet.keeps[number]
        dues = {page: self._calendar.page_end(unit, page) + keep for page in (*level.open, *level.closed)}
        over = [page for page, due in dues.items() if due <= time]
        level.due = min((due for due in dues.values() if due > time), default=None)
        for start in (start for page in over for start in self._pages.taken(level, page)):
            level.touched.pop(start, None)
            yield gone(self._sheet.row, per=unit, start=to_time(start), **key_columns(self._sheet.key, state.key))

    def _missed(self, state: Any, event: Any, time: int, now: int, ctx: Context) -> Iterator[Missed]:
        """What is to be told of an event that was not counted at every level: nothing, if only some are over."""
        places = self._calendar.places(self._sheet.units)(time)
        parts = list(zip(self._sheet.units, state.levels, places, self._sheet.keeps, strict=True))
        late = [place.page_end + keep <= now - state.lag for _, _, place, keep in parts]
        full = [
            unit
            for (unit, level, place, _), over in zip(parts, late, strict=True)
            if not over and place.start not in level.touched
        ]
        by_s = max(0, now - state.lag - time) / 1_000_000
        text = event_text(event)
        for per in full:
            yield Missed(key=ctx.key, reason="full", at=to_time(time), by_s=by_s, event=text, per=per)
        if all(late):
            yield Missed(key=ctx.key, reason="late", at=to_time(time), by_s=by_s, event=text)

    def _set(self, state: Any, ctx: Context) -> None:
        """Have the timer call when the next page goes."""
        state.timer = state.due + state.lag
        ctx.timer(TIMER, to_time(state.timer))

    def _settle(self, state: Any, ctx: Context) -> Iterator[Event]:
        """The rows of the buckets that were touched since the last time."""
        for unit, level in zip(self._sheet.units, state.levels, strict=True):
            for start, page in level.touched.items():
                yield self._row(unit, start, state.key, self._pages.seen(level, page)[start])
            level.touched.clear()

    def _row(self, unit: str, start: int, key: Any, cells: Sequence[Any]) -> Event:
        begins, ends = self._edges(unit, start)
        shown = {name: each.result(cell) for (name, each), cell in zip(self._aggregates, cells, strict=True)}
        shown |= key_columns(self._sheet.key, key)
        return self._made(per=unit, start=begins, end=ends, **shown)

    def _times(self, unit: str, start: int) -> tuple[datetime, datetime]:
        return to_time(start), to_time(self._calendar.place(unit, start).end)

    def _reader(self) -> Callable[[Any], tuple[Any, ...]]:
        """A function that reads of an event what each aggregate is given. Made from text, as is the next: half the time
        of a loop, and they run for every event."""
        listed = "".join(f"event.{each.column}, " if each.column else "None, " for _, each in self._aggregates)
        made: Callable[[Any], tuple[Any, ...]] = eval(f"lambda event: ({listed})")
        return made

    def _zeros(self) -> tuple[Any, ...]:
        return tuple([each.zero() for _, each in self._aggregates])

    def _stepper(self) -> Callable[[tuple[Any, ...], tuple[Any, ...], datetime], tuple[Any, ...]]:
        """A function that adds the values of an event to the cells of a bucket."""
        adders = {f"add_{number}": each.add for number, (_, each) in enumerate(self._aggregates)}
        listed = "".join(f"add_{number}(cells[{number}], values[{number}], at), " for number in range(len(adders)))
        made: Callable[..., tuple[Any, ...]] = eval(f"lambda cells, values, at: ({listed})", adders)
        return made


def _time_of(event: Any) -> Any:
    """When an event happened; None if it does not say."""
    name = event.__time_field__
    return None if name is None else getattr(event, name)
