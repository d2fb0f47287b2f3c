"""Units of time: finds the start and end of the second, hour or month that contains an instant. Instants are
microseconds since 1970.

Seconds, minutes and hours follow UTC in every zone. Days, months and years follow the zone's calendar. A day begins
when a clock first shows its date or a later date, so days follow each other without a gap, even if a zone changes its
clocks around midnight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

UNITS = ("second", "minute", "hour", "day", "month", "year")
"""All units, from finest to coarsest. The buckets of one unit are grouped into pages of the next unit; years are
grouped into decades."""
SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
DAYS_CACHED, SECONDS_CACHED = 4_096, 4_096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


class CalendarDay(NamedTuple):
    """The start and end of a calendar day, and of its month, year and decade."""

    day: int
    day_end: int
    month: int
    month_end: int
    year: int
    year_end: int
    decade: int
    decade_end: int


class BucketSpan(NamedTuple):
    """The start and end of the bucket that contains an instant, and of the bucket's page."""

    start: int
    end: int
    page: int
    page_end: int


class Calendar:
    """The days in a time zone. Recent results are cached."""

    def __init__(self, zone: str = "UTC") -> None:
        self._zone = None if zone == "UTC" else ZoneInfo(zone)
        self.spans: Callable[[int], tuple[CalendarDay, ...]] = lru_cache(DAYS_CACHED)(self._spans)

    def span(self, instant: int) -> CalendarDay:
        """Return the calendar day that contains an instant."""
        return next(span for span in self.spans(instant // DAY) if instant < span.day_end)

    def place(self, unit: str, instant: int) -> BucketSpan:
        """Return the rollup bucket and page that contain an instant, for one of the `UNITS`."""
        if unit == "second":
            return _even_bucket_span(instant, SECOND, MINUTE)
        if unit == "minute":
            return _even_bucket_span(instant, MINUTE, HOUR)
        if unit == "hour":
            return _even_bucket_span(instant, HOUR, DAY)
        span = self.span(instant)
        if unit == "day":
            return BucketSpan(span.day, span.day_end, span.month, span.month_end)
        if unit == "month":
            return BucketSpan(span.month, span.month_end, span.year, span.year_end)
        return BucketSpan(span.year, span.year_end, span.decade, span.decade_end)

    def page_end(self, unit: str, page: int) -> int:
        """Return the end of the rollup page that begins at this instant."""
        return self.place(unit, page).page_end

    def places(self, units: Sequence[str]) -> Callable[[int], tuple[BucketSpan, ...]]:
        """Return a function that returns an instant's bucket and page for each unit. Recent results are cached by
        second: a zone's days always begin on a full second, but not always on a full minute."""

        @lru_cache(SECONDS_CACHED)
        def of_second(number: int) -> tuple[BucketSpan, ...]:
            return tuple(self.place(unit, number * SECOND) for unit in units)

        return lambda instant: of_second(instant // SECOND)

    def _spans(self, number: int) -> tuple[CalendarDay, ...]:
        """Return the days that overlap a UTC day, in order: all nearby days that end after the UTC day begins. `number`
        counts UTC days since 1970."""
        if self._zone is None:
            return (self._span_of(number + _EPOCH_DAY),)
        first = _calendar_day_number(number * DAY, self._zone)
        spans = [self._span_of(first + offset) for offset in range(-1, 3)]
        return tuple(span for span in spans if span.day_end > max(span.day, number * DAY))

    def _span_of(self, ordinal: int) -> CalendarDay:
        """Return the calendar day with this ordinal number. If the zone skipped this date, the day is empty."""
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
        return CalendarDay(
            self._start(ordinal), self._start(ordinal + 1), *(self._start(_first_day_of_month(*mark)) for mark in marks)
        )

    def _start(self, ordinal: int) -> int:
        """Return the instant at which a date begins."""
        plain = (ordinal - _EPOCH_DAY) * DAY
        if self._zone is None or ordinal > date.max.toordinal():
            return plain
        return _calendar_day_start(date.fromordinal(ordinal), self._zone)


def _even_bucket_span(instant: int, width: int, page_width: int) -> BucketSpan:
    start, page = instant - instant % width, instant - instant % page_width
    return BucketSpan(start, start + width, page, page + page_width)


def _first_day_of_month(year: int, month: int) -> int:
    """Return the ordinal number of the first day of a month. Also works for the year 10000, which `date` cannot
    represent."""
    return date.max.toordinal() + 1 if year > date.max.year else date(year, month, 1).toordinal()


def _calendar_day_number(instant: int, zone: ZoneInfo) -> int:
    return to_time(instant).astimezone(zone).toordinal()


def _calendar_day_start(day: date, zone: ZoneInfo) -> int:
    """Return the first instant at which a clock in the zone shows this date, or a later date if the zone skips it."""
    midnight = datetime.combine(day, time(), zone)
    late, early = (to_instant(midnight.replace(fold=fold)) for fold in (0, 1))
    if late <= early:  # midnight occurs once or twice: return the first one
        return late
    ordinal = day.toordinal()
    while early < late:  # midnight is skipped: the clock jumps over it between these two instants
        middle = (early + late) // (2 * SECOND) * SECOND
        if _calendar_day_number(middle, zone) >= ordinal:
            late = middle
        else:
            early = middle + SECOND
    return late


def to_instant(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def to_time(instant: int) -> datetime:
    """Convert an instant to a datetime. For an instant after the year 9999, return the last representable datetime."""
    return _EPOCH + timedelta(microseconds=min(instant, _LATEST))
