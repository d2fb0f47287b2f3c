"""An app that asks for a key: the page asks for it, keeps it in the tab, and forgets it again."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Running

pytestmark = pytest.mark.browser
KEY = "penstock_0123456789abcdef"


def test_a_key_opens_the_page_for_this_tab_and_no_longer_than_wanted(page: Page, market: Running) -> None:
    market.api.key = KEY
    page.goto(market.address)
    form = page.get_by_role("heading", name="This app requires a key")
    expect(form).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_label("Key or token").fill("penstock_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("this key is not known here")
    page.get_by_label("Key or token").fill(f"  {KEY} ")
    page.keyboard.press("Enter")
    expect(page.locator(".bar")).to_have_count(10)
    expect(page.locator(".connection .pill")).to_have_text("live")
    page.reload()
    expect(page.locator(".bar")).to_have_count(10)
    assert KEY not in page.url
    page.get_by_role("button", name="sign out").click()
    expect(form).to_be_visible()
    page.reload()
    expect(form).to_be_visible()
    assert page.evaluate("Object.keys(sessionStorage).length + Object.keys(localStorage).length") == 0


def test_a_key_that_is_revoked_shows_nothing_any_more(page: Page, market: Running) -> None:
    market.api.key = KEY
    page.goto(market.address)
    page.get_by_label("Key or token").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator(".bar")).to_have_count(10)
    market.api.key = "another"
    expect(page.get_by_role("alert")).to_have_text("this key is not known here")
    expect(page.locator(".bar")).to_have_count(0)


def test_with_another_key_it_goes_by_websocket_again(page: Page, market: Running) -> None:
    """A refused WebSocket looks like one that does not get through: the page tries other transports, and their answer
    tells it why. It does not stay with them."""
    market.api.key = KEY
    page.goto(market.address)
    page.get_by_label("Key or token").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator(".bar")).to_have_count(10)
    market.api.key = "another"
    with page.expect_response(lambda answer: "/live?" in answer.url and answer.status == 401):
        market.api.drop()
    page.get_by_label("Key or token").fill("another")
    with page.expect_websocket(timeout=40_000):
        page.keyboard.press("Enter")
    expect(page.locator(".bar")).to_have_count(10)


def test_what_cannot_be_sent_is_said_at_once(page: Page, market: Running) -> None:
    market.api.key = KEY
    page.goto(market.address)
    page.get_by_label("Key or token").fill("two words")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("without spaces")
