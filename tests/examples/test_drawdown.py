"""Drawdowns: the output of the handler and the matches of the pattern, compared with brute force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.drawdown import Drawdown, Slide, Trade, app, drawdown, slides
from penstock.app.check import check
from penstock.testing import CRASH, Result, run
from tests.examples.played import events

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def trade(second: float, price: float, symbol: str = "OAK", number: int = 0) -> Trade:
    return Trade(trade_id=f"{second}/{number}", at=NOON + timedelta(seconds=second), symbol=symbol, price=price)


def followed(*items: Any) -> Result:
    return run(app, {"trades": items})


def falls(result: Result) -> list[tuple[float, float]]:
    return [(round(event.fall, 6), round(event.largest, 6)) for event in result.emitted(drawdown)]


def test_the_app_is_sound() -> None:
    assert check(app) == []


def test_the_fall_is_from_the_highest_price_so_far_and_the_largest_one_stays() -> None:
    """Each trade with its current fall in percent, and the largest so far."""
    expected = [
        (100, 0, 0),
        (90, 10, 10),
        (95, 5, 10),
        (200, 0, 10),  # a new peak ends the fall, and not the record
        (190, 5, 10),
        (150, 25, 25),
        (180, 10, 25),
    ]
    result = followed(*(trade(second, float(price)) for second, (price, _, _) in enumerate(expected)))
    assert falls(result) == [(fall, largest) for _, fall, largest in expected]
    last = result.emitted(drawdown)[-1]
    assert (last.began, last.ended) == (NOON + timedelta(seconds=3), NOON + timedelta(seconds=5))


def test_symbols_do_not_touch_each_other() -> None:
    result = followed(trade(0, 100.0), trade(1, 50.0, "ELM"), trade(2, 100.0))
    assert [event.fall for event in result.emitted(drawdown)] == [0, 0, 0]


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_a_failure_and_no_fall(price: float) -> None:
    result = followed(trade(0, 100.0), trade(1, price), trade(2, 99.0))
    assert falls(result) == [(0, 0), (1, 1)]
    assert [failure.error.partition(":")[0] for failure in result.failed(drawdown)] == ["ValueError"]


def test_a_trade_that_is_older_than_the_last_one_is_counted_and_changes_nothing() -> None:
    result = followed(trade(5, 100.0), trade(1, 500.0), trade(6, 99.0))
    assert falls(result) == [(0, 0), (1, 1)]
    assert result.states(drawdown)["OAK"].stale == 1


prices = st.lists(st.floats(min_value=0.01, max_value=1e6), min_size=1, max_size=40)


@settings(max_examples=50)
@given(prices)
def test_the_largest_fall_is_that_of_all_pairs(given: list[float]) -> None:
    result = followed(*(trade(second, price) for second, price in enumerate(given)))
    pairs = [100 * (1 - low / high) for place, high in enumerate(given) for low in given[place:]]
    assert result.emitted(drawdown)[-1].largest == max(0.0, *pairs)


SLIDES: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {
    "told when it is past ten percent": ([(0, 100), (10, 95), (20, 89)], [(0, 20)]),
    "once for each peak": ([(0, 100), (20, 89), (21, 91), (22, 85)], [(0, 20)]),
    "again after another peak": ([(0, 100), (20, 89), (30, 101), (40, 90)], [(0, 20), (30, 40)]),
    "from the last peak": ([(0, 100), (5, 100), (9, 110), (20, 98)], [(9, 20)]),
    "not if it took long": ([(0, 100), (301, 89)], []),
    "not for less": ([(0, 100), (10, 90.5), (20, 100)], []),
}
"""The trades as (second, price), and the slides as (second of the peak, second of the fall)."""


@pytest.mark.parametrize(("given", "expected"), SLIDES.values(), ids=SLIDES.keys())
def test_a_slide_is(given: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    result = followed(*(trade(second, float(price)) for second, price in given))
    slide_events = result.emitted(slides)
    assert [
        ((slide.at - NOON).total_seconds() - slide.seconds, (slide.at - NOON).total_seconds()) for slide in slide_events
    ] == expected


def naive_slides(given: list[Drawdown]) -> list[Slide]:
    """Return the slides by looking back from each trade: the first far enough below its peak, if the last trade at the
    peak is recent."""
    slides = []
    for place, low in enumerate(given):
        peak = max(index for index in range(place + 1) if given[index].fall == 0)
        between = given[peak + 1 : place]
        if low.fall >= 10 and all(event.fall < 10 for event in between):
            seconds = (low.at - given[peak].at).total_seconds()
            if seconds <= 300:
                price = given[peak].price
                slides.append(
                    Slide(symbol=low.symbol, at=low.at, peak=price, price=low.price, fall=low.fall, seconds=seconds)
                )
    return slides


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(80, 110)), min_size=1, max_size=40))
def test_slides_are_those_that_looking_back_finds_whatever_crashes(given: list[tuple[int, int]]) -> None:
    items: list[Any] = []
    second = 0
    for number, (gap, price) in enumerate(given):
        second += gap
        items.append(trade(second, float(price), number=number))
    calm = followed(*items)
    assert calm.emitted(slides) == naive_slides(calm.emitted(drawdown))
    middle = len(items) // 2
    rough = followed(*items[:middle], CRASH, *items[middle:], CRASH)
    assert rough.emitted(slides) == calm.emitted(slides)
    assert rough.digest(slides) == calm.digest(slides)


def test_the_play_has_slides_bad_prices_and_late_trades() -> None:
    result = followed(*events("drawdown", 4_000))
    assert len(result.emitted(slides)) >= 3
    assert len({event.symbol for event in result.emitted(drawdown)}) == 12
    assert result.failed(drawdown)
    assert sum(state.stale for state in result.states(drawdown).values())
