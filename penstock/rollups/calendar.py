"""Units of time: where the second, hour or month of an instant begins and ends. Instants are microseconds since 1970.

Seconds, minutes and hours are those of UTC in every zone. Days, months and years are those of a zone's calendar. A day
begins the first time that its date, or a later one, is shown: so days follow each other without a gap, whatever a zone
does with its clocks around midnight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

UNITS = ("second", "minute", "hour", "day", "month", "year")
"""From the finest to the coarsest. The pages of one are the units of the next, those of years are decades."""
SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
DAYS_CACHED, SECONDS_CACHED = 4_096, 4_096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


class Span(NamedTuple):
    """A day of the calendar, and the month, year and decade that it is in: where each begins, and the next one."""

    day: int
    day_end: int
    month: int
    month_end: int
    year: int
    year_end: int
    decade: int
    decade_end: int


class Place(NamedTuple):
    """The bucket of an instant, and the page that it is on: both as the instants at which they begin and end."""

    start: int
    end: int
    page: int
    page_end: int


class Calendar:
    """The days of a zone. What it is asked for is remembered, some days of it."""

    def __init__(self, zone: str = "UTC") -> None:
        self._zone = None if zone == "UTC" else ZoneInfo(zone)
        self.spans: Callable[[int], tuple[Span, ...]] = lru_cache(DAYS_CACHED)(self._spans)

    def span(self, instant: int) -> Span:
        """The day of an instant."""
        return next(span for span in self.spans(instant // DAY) if instant < span.day_end)

    def place(self, unit: str, instant: int) -> Place:
        """The bucket of an instant, of one of the `UNITS`."""
        if unit == "second":
            return _even(instant, SECOND, MINUTE)
        if unit == "minute":
            return _even(instant, MINUTE, HOUR)
        if unit == "hour":
            return _even(instant, HOUR, DAY)
        span = self.span(instant)
        if unit == "day":
            return Place(span.day, span.day_end, span.month, span.month_end)
        if unit == "month":
            return Place(span.month, span.month_end, span.year, span.year_end)
        return Place(span.year, span.year_end, span.decade, span.decade_end)

    def page_end(self, unit: str, page: int) -> int:
        """Where a page ends that begins at this instant."""
        return self.place(unit, page).page_end

    def places(self, units: Sequence[str]) -> Callable[[int], tuple[Place, ...]]:
        """A function that gives the places of an instant, one for each unit. Those of the latest seconds that it was
        asked for are remembered: a zone's days begin with a second, if not with a minute."""

        @lru_cache(SECONDS_CACHED)
        def of_second(number: int) -> tuple[Place, ...]:
            return tuple(self.place(unit, number * SECOND) for unit in units)

        return lambda instant: of_second(instant // SECOND)

    def _spans(self, number: int) -> tuple[Span, ...]:
        """The days that a day of UTC, by its number, has a part in: in order, all that end after it begins."""
        if self._zone is None:
            return (self._span_of(number + _EPOCH_DAY),)
        first = _local_day(number * DAY, self._zone)
        found = [self._span_of(first + each) for each in range(-1, 3)]
        return tuple(span for span in found if span.day_end > max(span.day, number * DAY))

    def _span_of(self, ordinal: int) -> Span:
        """The span of a date, by its number. Of a date that a zone has left out, the day is empty."""
        day = date.fromordinal(ordinal)
        year, decade = day.year, max(1, day.year - day.year % 10)
        following = (year + 1, 1) if day.month == 12 else (year, day.month + 1)
        marks = [
            (year, day.month),
            following,
            (year, 1),
            (year + 1, 1),
            (decade, 1),
            (day.year - day.year % 10 + 10, 1),
        ]
        return Span(self._start(ordinal), self._start(ordinal + 1), *(self._start(_first(*each)) for each in marks))

    def _start(self, ordinal: int) -> int:
        """The instant at which a date begins."""
        plain = (ordinal - _EPOCH_DAY) * DAY
        if self._zone is None or ordinal > date.max.toordinal():
            return plain
        return _first_shown(date.fromordinal(ordinal), self._zone)


def _even(instant: int, width: int, page_width: int) -> Place:
    start, page = instant - instant % width, instant - instant % page_width
    return Place(start, start + width, page, page + page_width)


def _first(year: int, month: int) -> int:
    """The number of the first day of a month; also of the year 10000, which a date cannot be."""
    return date.max.toordinal() + 1 if year > date.max.year else date(year, month, 1).toordinal()


def _local_day(instant: int, zone: ZoneInfo) -> int:
    return to_time(instant).astimezone(zone).toordinal()


def _first_shown(day: date, zone: ZoneInfo) -> int:
    """The first instant at which a clock of the zone shows this date, or a later one if it leaves this one out."""
    midnight = datetime.combine(day, time(), zone)
    late, early = (to_instant(midnight.replace(fold=fold)) for fold in (0, 1))
    if late <= early:  # midnight comes once, or twice: then the first counts
        return late
    ordinal = day.toordinal()
    while early < late:  # midnight is left out: the clock jumps over it somewhere between these
        middle = (early + late) // (2 * SECOND) * SECOND
        if _local_day(middle, zone) >= ordinal:
            late = middle
        else:
            early = middle + SECOND
    return late


def to_instant(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def to_time(instant: int) -> datetime:
    """The time of an instant; the last one that there is, for what comes after the year 9999."""
    return _EPOCH + timedelta(microseconds=min(instant, _LATEST))
