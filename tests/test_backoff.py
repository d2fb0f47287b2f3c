"""Delays between tries, and delays that servers ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from penstock.core.backoff import Backoff, doubled_s, retry_after_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_wait_doubles_to_a_bound_and_is_spread_out() -> None:
    assert [Backoff(0.5, 30).wait_s(attempt, 1.0) for attempt in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert Backoff(0.5, 30).wait_s(10_000, 1.0) == 30
    assert Backoff(0.5, 30).wait_s(3, 0.25) == 1.0


def test_jitter_is_the_share_that_is_left_to_chance() -> None:
    assert [Backoff(1, 30, 0.5).wait_s(2, draw) for draw in (0.0, 0.5, 1.0)] == [2, 3, 4]
    assert [Backoff(1, 30, 0.0).wait_s(2, draw) for draw in (0.0, 1.0)] == [4, 4]


def test_a_delay_stays_at_its_bound_after_any_number_of_failures() -> None:
    assert [doubled_s(0.1, 0.5, failures) for failures in (0, 1, 2, 3, 10_000)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        ("", None),
        (None, None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("99999999999", 99999999999.0),
        ("Thu, 01 Jan 2026 12:01:00", None),
        ("9" * 40, None),
        ("Thu, 01 Jan 2026 00:00:09 -0000", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, NOW) == seconds


def test_a_date_is_not_read_without_the_time_of_now() -> None:
    assert retry_after_s("Thu, 01 Jan 2026 00:00:30 GMT") is None
    assert retry_after_s("30") == 30
