"""The start and end of units of time: in UTC, and where clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.rollups.calendar import HOUR, UNITS, Calendar, to_instant, to_time

ZONES = (
    "UTC", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Pacific/Apia", "America/St_Johns", "Asia/Kolkata",
    "America/Toronto", "Australia/Lord_Howe", "Pacific/Kiritimati", "Africa/Monrovia", "Asia/Beirut",
)  # fmt: skip

CALENDARS = {zone: Calendar(zone) for zone in ZONES}


def at(text: str) -> int:
    return to_instant(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("unit", "start", "end", "page", "page_end"),
    [
        ("second", "2024-02-29T13:14:15Z", "2024-02-29T13:14:16Z", "2024-02-29T13:14:00Z", "2024-02-29T13:15:00Z"),
        ("minute", "2024-02-29T13:14:00Z", "2024-02-29T13:15:00Z", "2024-02-29T13:00:00Z", "2024-02-29T14:00:00Z"),
        ("hour", "2024-02-29T13:00:00Z", "2024-02-29T14:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("day", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("month", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
        ("year", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
    ],
)
def test_a_unit_of_utc(unit: str, start: str, end: str, page: str, page_end: str) -> None:
    place = Calendar().place(unit, at("2024-02-29T13:14:15.999999Z"))
    assert place == (at(start), at(end), at(page), at(page_end))


@pytest.mark.parametrize(
    ("zone", "moment", "start", "hours", "why"),
    [
        ("Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-28T23:00:00Z", 23, "clocks go forward at two"),
        ("Europe/Berlin", "2026-03-28T22:59:59Z", "2026-03-27T23:00:00Z", 24, "the day before"),
        ("Europe/Berlin", "2026-03-29T22:00:00Z", "2026-03-29T22:00:00Z", 24, "the day after"),
        ("Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", 25, "clocks go back at three"),
        ("America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", 23, "from midnight to one: no midnight"),
        ("America/Sao_Paulo", "2018-11-04T02:59:59Z", "2018-11-03T03:00:00Z", 24, "the day before ends there"),
        ("America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", 25, "from midnight back to eleven"),
        ("America/Havana", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", 25, "from one back to midnight: twice"),
        ("America/St_Johns", "2010-11-07T02:45:00Z", "2010-11-07T02:30:00Z", 25, "back at one minute past midnight"),
        ("America/Toronto", "1919-03-31T04:40:00Z", "1919-03-31T04:30:00Z", 23.5, "from half past eleven to half past"),
        ("Pacific/Apia", "2011-12-30T12:00:00Z", "2011-12-30T10:00:00Z", 24, "the 30th was left out"),
        ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", 24, "the 29th ends where the 31st begins"),
        ("Asia/Kolkata", "2026-01-01T18:29:59Z", "2025-12-31T18:30:00Z", 24, "a day that begins at half past"),
    ],
)  # fmt: skip
def test_a_day_where_clocks_are_changed(zone: str, moment: str, start: str, hours: float, why: str) -> None:
    place = Calendar(zone).place("day", at(moment))
    assert to_time(place.start) == datetime.fromisoformat(start), why
    assert (place.end - place.start) / HOUR == hours, why


def test_months_and_years_are_those_of_the_zone() -> None:
    calendar = Calendar("Europe/Berlin")
    new_year = at("2025-12-31T23:00:00Z")
    for unit in ("month", "year"):
        assert calendar.place(unit, new_year).start == new_year
        assert calendar.place(unit, new_year - 1).end == new_year
    march = calendar.place("month", at("2026-03-15T00:00:00Z"))
    assert (march.end - march.start) / HOUR == 31 * 24 - 1


@pytest.mark.parametrize("unit", ["second", "minute", "hour"])
def test_hours_and_less_are_those_of_utc_in_every_zone(unit: str) -> None:
    moment = at("2026-10-25T00:59:59.5Z")
    assert Calendar("Asia/Kolkata").place(unit, moment) == Calendar().place(unit, moment)


@pytest.mark.parametrize("year", [1, 9, 1969, 9999])
def test_the_first_and_the_last_years_have_their_place(year: int) -> None:
    moment = to_instant(datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC))
    for unit in UNITS:
        place = Calendar().place(unit, moment)
        assert place.page <= place.start <= moment < place.end <= place.page_end
        assert to_time(place.end) > to_time(moment)


@settings(max_examples=60, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    moment=st.datetimes(datetime(1900, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),
)
def test_units_follow_each_other_and_lie_in_their_pages(zone: str, moment: datetime) -> None:
    """This holds for every zone: a bucket has its instants and no others, and its date is that of the clock, unless the
    clock was put back over midnight."""
    calendar, instant = CALENDARS[zone], to_instant(moment)
    for unit in UNITS:
        place = calendar.place(unit, instant)
        assert place.page <= place.start <= instant < place.end <= place.page_end
        assert calendar.place(unit, place.start) == place
        assert calendar.place(unit, place.end - 1) == place
        assert calendar.place(unit, place.end).start == place.end
        assert calendar.places(UNITS)(instant)[UNITS.index(unit)] == place
    shown = moment.astimezone(ZoneInfo(zone)).date()
    day = to_time(calendar.place("day", instant).start).astimezone(ZoneInfo(zone)).date()
    assert day == shown or (zone == "America/St_Johns" and day > shown)
