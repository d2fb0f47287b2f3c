"""The functions of a rollup's handler, which turn events in log order into rows of buckets.

A key's time is log time minus the smallest lag of the key's events behind log time. So it follows event time, advances
even without events, and cannot be moved ahead of the log by an event. A page of buckets is kept until the key's time is
`keep` after the end of the page. An event is counted at every level that still keeps its bucket; an event that is not
counted at any level is reported as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from penstock.core.contracts import Context
from penstock.core.deletes import gone
from penstock.core.emissions import check_events
from penstock.core.operators import KeyFields, error_text, event_text, key_columns, key_value
from penstock.core.schema import Event
from penstock.rollups.calendar import BucketSpan, Calendar, to_instant, to_time
from penstock.rollups.memory import PAGES_MAX, Page, Pages
from penstock.windows.aggregates import Aggregate, Summary

TIMER = "keep"
EDGES_CACHED = 4_096
"""Number of bucket edges to cache: most keys are updated in the same buckets."""


class Missed(Event):
    """An event that a rollup did not count. If the reason is `late`, it arrived too late for all levels, `by_s` seconds
    behind its key's time. If the reason is `full`, it was not counted at the level `per`, because too many pages of
    that level are kept. `event` contains the event as JSON.

    If the reason is `failed`, it is not an event but the row of the bucket that starts at `at`, at the level `per`: an
    aggregate's result could not be computed, or does not fit its type. `event` is then empty."""

    key: str
    reason: str
    at: datetime
    by_s: float
    event: str
    per: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Sheet:
    """The parts of a valid rollup, including its units, time zone and key. `keeps` contains the retention of each unit
    in microseconds, and `aggregates` the aggregates by column name. `row` is the class of its rows, `state` is the
    class of its state, and `pages` packs and opens the pages in the state."""

    units: tuple[str, ...]
    keeps: tuple[int, ...]
    zone: str
    aggregates: Mapping[str, Aggregate]
    row: type[Event]
    key: KeyFields
    pages: Pages
    state: Any


class Rolling:
    """The functions of a rollup's handler: `on_event` runs for each event, `on_timer` runs when time has passed, and
    `_settle` runs at the end of a batch and emits the rows of all changed buckets."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet, self._pages = sheet, sheet.pages
        self._calendar = Calendar(sheet.zone)
        self._aggregates = list(sheet.aggregates.items())
        self._made: Callable[..., Event] = sheet.row
        self._runs_user_code = any(map(_has_user_code, sheet.aggregates.values()))
        self._edges = lru_cache(EDGES_CACHED)(self._times)

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        """Return `on_event`, `on_timer` and `_settle` as functions for a rollup's handler."""
        places, read, step = self._calendar.places(self._sheet.units), self._reader(), self._stepper()
        keeps, zeros, key = self._sheet.keeps, self._zeros, self._sheet.key

        def on_event(state: Any, event: Any, ctx: Context) -> Any:
            now = to_instant(ctx.now)
            at = _rolled_event_time(event) or ctx.now
            time = to_instant(at)
            events = self._moved(state, now, max(0, now - time))
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
                events += self._missed(state, event, time, now, ctx)
            if state.due is not None and (state.timer is None or state.due + state.lag < state.timer):
                self._set(state, ctx)
            return events or None

        def on_timer(state: Any, ctx: Context) -> Any:
            state.timer = None
            deletions = self._pruned(state, to_instant(ctx.now) - state.lag)
            if state.due is not None:
                self._set(state, ctx)
            return deletions

        return on_event, on_timer, self._settle

    def _moved(self, state: Any, now: int, lag: int) -> list[Any]:
        """Advance the key's time for an event with this lag, and return the deletions that this causes."""
        deletions: list[Any] = []
        if state.lag is None or lag < state.lag:
            state.lag = lag
        if state.due is not None and state.due <= now - state.lag:
            deletions = self._pruned(state, now - state.lag)
            state.lag = lag if state.lag is None else state.lag
        return deletions

    def _entered(self, state: Any, level: Any, place: BucketSpan, keep: int, now: int) -> Page | None:
        """Open or create a rollup's page, and return it for changes. Returns None if the page is too old or the limit
        is reached."""
        due = place.page_end + keep
        if place.page not in level.closed:
            if due <= now - state.lag or len(level.open) + len(level.closed) >= PAGES_MAX:
                return None
            level.due = due if level.due is None else min(level.due, due)
            state.due = due if state.due is None else min(state.due, due)
        return self._pages.opened(level, place.page)

    def _pruned(self, state: Any, time: int) -> list[Any]:
        """Drop a rollup's expired pages, and return the deletions of their rows."""
        deletions: list[Any] = []
        for number, level in enumerate(state.levels):
            if level.due is not None and level.due <= time:
                deletions += self._given_up(state, number, time)
        state.due = min((level.due for level in state.levels if level.due is not None), default=None)
        if state.due is None:  # a key without pages is deleted
            fresh = self._sheet.state()
            for name in fresh.__struct_fields__:
                setattr(state, name, getattr(fresh, name))
        return deletions

    def _given_up(self, state: Any, number: int, time: int) -> Iterator[Event]:
        level, unit, keep = state.levels[number], self._sheet.units[number], self._sheet.keeps[number]
        dues = {page: self._calendar.page_end(unit, page) + keep for page in (*level.open, *level.closed)}
        over = [page for page, due in dues.items() if due <= time]
        level.due = min((due for due in dues.values() if due > time), default=None)
        for start in (start for page in over for start in self._pages.taken(level, page)):
            level.touched.pop(start, None)
            yield gone(self._sheet.row, per=unit, start=to_time(start), **key_columns(self._sheet.key, state.key))

    def _missed(self, state: Any, event: Any, time: int, now: int, ctx: Context) -> Iterator[Missed]:
        """Yield a `Missed` event for each level that was full, and one if the event was late for all levels. Yields
        nothing if the bucket has expired only at some levels."""
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
        """Set the timer for when the rollup's next page expires."""
        state.timer = state.due + state.lag
        ctx.timer(TIMER, to_time(state.timer))

    def _settle(self, state: Any, ctx: Context) -> Iterator[Event]:
        """Yield the rows of the rollup's buckets that have changed since the last call. If a row is invalid, yield a
        `failed` report instead, so that the key's other rows are emitted."""
        for unit, level in zip(self._sheet.units, state.levels, strict=True):
            for start, page in level.touched.items():
                cells = self._pages.seen(level, page)[start]
                try:
                    row = self._row(unit, start, state.key, cells)
                    if self._runs_user_code:
                        check_events([row])
                except Exception as error:
                    text, at = error_text(error), to_time(start)
                    row = Missed(key=ctx.key, reason="failed", at=at, by_s=0.0, event="", per=unit, error=text)
                yield row
            level.touched.clear()

    def _row(self, unit: str, start: int, key: Any, cells: Sequence[Any]) -> Event:
        begins, ends = self._edges(unit, start)
        shown = {name: aggregate.result(cell) for (name, aggregate), cell in zip(self._aggregates, cells, strict=True)}
        shown |= key_columns(self._sheet.key, key)
        return self._made(per=unit, start=begins, end=ends, **shown)

    def _times(self, unit: str, start: int) -> tuple[datetime, datetime]:
        """Return the times when a rollup's bucket starts and ends."""
        return to_time(start), to_time(self._calendar.place(unit, start).end)

    def _reader(self) -> Callable[[Any], tuple[Any, ...]]:
        """Return a function that reads the value for each aggregate from an event. The function's code is generated, as
        in `_stepper`. It runs for every event, and takes half as long as a loop."""
        listed = "".join(
            f"event.{aggregate.column}, " if aggregate.column else "None, " for _, aggregate in self._aggregates
        )
        reader: Callable[[Any], tuple[Any, ...]] = eval(f"lambda event: ({listed})")
        return reader

    def _zeros(self) -> tuple[Any, ...]:
        """Return the accumulators of an empty bucket."""
        return tuple([aggregate.zero() for _, aggregate in self._aggregates])

    def _stepper(self) -> Callable[[tuple[Any, ...], tuple[Any, ...], datetime], tuple[Any, ...]]:
        """Return a function that adds an event's values to a bucket's accumulators."""
        adders = {f"add_{number}": aggregate.add for number, (_, aggregate) in enumerate(self._aggregates)}
        listed = "".join(f"add_{number}(cells[{number}], values[{number}], at), " for number in range(len(adders)))
        stepper: Callable[..., tuple[Any, ...]] = eval(f"lambda cells, values, at: ({listed})", adders)
        return stepper


def _has_user_code(aggregate: Aggregate) -> bool:
    """Return whether a rollup's aggregate calls the user's functions, so that its result may be of any type."""
    return isinstance(aggregate, Summary) or not type(aggregate).__module__.startswith("penstock.")


def _rolled_event_time(event: Any) -> Any:
    """Return an event's event time, or None if its class has none."""
    name = event.__time_field__
    return None if name is None else getattr(event, name)
