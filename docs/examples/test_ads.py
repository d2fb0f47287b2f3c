from datetime import UTC, datetime, timedelta
from typing import Any

from ads import Click, Clicked, Impression, app, clicked, clicks, impressions

from penstock.testing import run, tick

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def impression(ad: str, minute: int) -> Impression:
    return Impression(impression_id=f"{ad} {minute}", at=NOON + minute * MINUTE, ad=ad, price=0.5)


def click(ad: str, minute: int) -> Click:
    return Click(click_id=f"{ad} {minute}", at=NOON + minute * MINUTE, ad_id=ad)


def test_an_impression_is_told_with_its_click_or_when_none_can_come_any_more() -> None:
    given: dict[Any, list[Any]] = {
        impressions: [impression("tea", 0), impression("oil", 1)],
        clicks: [tick(2 * MINUTE), click("tea", 2), tick(10 * MINUTE), tick(3 * MINUTE)],
    }
    result = run(app, given)
    assert result.emitted(clicked) == [
        Clicked(ad="tea", price=0.5, after_s=120.0),
        Clicked(ad="oil", price=0.5, after_s=None),
    ]
    assert result.emitted("clicked.missed") == []
