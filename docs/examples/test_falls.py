from datetime import UTC, datetime, timedelta

from falls import Tick, app, falls, ticks

from penstock.testing import run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_fall_of_two_steps_or_more_is_told_when_it_is_over() -> None:
    prices = [20, 18, 14, 10, 12, 11, 13]
    given = [
        Tick(at=NOON + timedelta(minutes=minute), symbol="ACME", price=price) for minute, price in enumerate(prices)
    ]
    [fall] = run(app, {ticks: given}).emitted(falls)
    assert (fall.top, fall.bottom, fall.share, fall.at) == (20, 10, 0.5, NOON + timedelta(minutes=4))
