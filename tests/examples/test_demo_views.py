"""The Spark views of the demos, in one file, so that Spark starts only once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from examples import drawdown, learning, logins, traffic

pytestmark = pytest.mark.spark
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def test_the_ranking_has_the_last_word_on_each_symbol() -> None:
    def fall_row(symbol: str, number: int, fall: float, largest: float) -> dict[str, Any]:
        prices = {"price": 90.0 + number, "peak": 100.0, "began": NOON, "ended": NOON}
        return {"symbol": symbol, "number": number, "at": at(number), "fall": fall, "largest": largest, **prices}

    given = [fall_row("OAK", 2, 10.004, 20.0), fall_row("OAK", 1, 20.0, 20.0), fall_row("ELM", 1, 0.0, 0.0)]
    records = drawdown.app.preview(drawdown.ranking, given).collect()
    rows = {row.symbol: (row.largest_fall, row.fall_now, row.price) for row in records}
    assert rows == {"OAK": (20.0, 10.0, 92.0), "ELM": (0.0, 0.0, 91.0)}


def test_the_average_speed_of_a_segment_is_that_of_its_fifteen_seconds() -> None:
    def report(second: float, segment: str, speed: float) -> dict[str, Any]:
        where = {"segment": segment, "limit": 100.0, "lat": 50.0, "lon": 8.0}
        return {"report_id": f"{second}", "at": at(second), "vehicle": "v", "speed": speed, **where}

    given = [report(1, "a", 80.0), report(2, "a", 60.0), report(3, "b", 10.0), report(15, "a", 50.0)]
    records = traffic.app.preview(traffic.speeds, given).collect()
    rows = {(row.segment, row.window.start.second): (row.speed, row.state, row.reports) for row in records}
    assert rows == {("a", 0): (70.0, "flowing", 2), ("b", 0): (10.0, "slow", 1), ("a", 15): (50.0, "dense", 1)}


def test_a_road_is_as_its_latest_average_says() -> None:
    def average(second: float, state: str) -> dict[str, Any]:
        window = {"start": at(second - 15), "end": at(second)}
        return {"window": window, "segment": "a", "speed": 1.0, "state": state, "reports": 1, **PLACE}

    rows = traffic.app.preview(traffic.roads, [average(30, "slow"), average(15, "flowing")]).collect()
    assert [(row.segment, row.state, row.lat, row.lon) for row in rows] == [("a", "slow", 50.0, 8.0)]


PLACE = {"latitude": 50.0, "longitude": 8.0}


def test_addresses_are_told_by_their_failures_and_minutes_have_all_attempts() -> None:
    def attempt(number: int, address: str, user: str, success: bool) -> dict[str, Any]:
        return {"attempt_id": f"{number}", "at": at(number), "address": address, "user": user, "success": success}

    given = [attempt(1, "a", "x", False), attempt(2, "a", "y", False), attempt(3, "b", "x", True)]
    rows = logins.app.preview(logins.addresses, given).collect()
    assert [(row.address, row.failures, row.users) for row in rows] == [("a", 2, 2)]
    [minute] = logins.app.preview(logins.minutes, given).collect()
    assert (minute.attempts, minute.failures, minute.addresses) == (3, 2, 2)


def test_the_accuracy_is_the_share_of_right_guesses_in_percent() -> None:
    def guess(number: int, right: bool) -> dict[str, Any]:
        figures = {"chance": 0.5, "late": True, "right": right, "recent": 0.75, "drifts": 1}
        return {"delivery_id": f"{number}", "depot": "d", "number": number, "at": at(number), **figures}

    given = [guess(1, True), guess(2, True), guess(3, False)]
    [row] = learning.app.preview(learning.accuracy, given).collect()
    assert (row.depot, row.right_percent, row.guesses) == ("d", 66.7, 3)
    [row] = learning.app.preview(learning.models, given).collect()
    assert (row.depot, row.deliveries, row.right_percent, row.drifts) == ("d", 3, 75.0, 1)
