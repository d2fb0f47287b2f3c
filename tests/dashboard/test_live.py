"""The page in a real browser: it shows changes, and after a break continues where it was."""

from __future__ import annotations

import random
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.conftest import Running
from tests.dashboard.fake_api import FakeApi, serving
from tests.dashboard.market import MINUTES, TRADES, Market, app, stream, view

pytestmark = pytest.mark.browser
TICKS = stream("ticks", {"n": "int64"}, end=1, events=1)
COUNTS = view("counts", {"name": "string", "n": "bigint"}, ["name"], ["ticks"], rows=3)
FLASHES = """
    window.flashed = [];
    const { animate } = Element.prototype;
    Element.prototype.animate = function (...given) {
        if (this.cells) flashed.push(this.cells[0].textContent);
        return animate.apply(this, given);
    };
"""


def shown(page: Page, column: int = 0) -> list[str]:
    """The texts of one column of the table on the page, from top to bottom."""
    return page.locator(f"tbody tr td:nth-child({column + 1})").all_inner_texts()


def connection(page: Page) -> Locator:
    return page.locator(".connection .pill")


def test_bars_move_to_their_new_rank(page: Page, market: Running) -> None:
    """When a row overtakes the others its bar is first, longest, and on top of the screen."""
    page.goto(market.address)
    bars = page.locator(".bar")
    expect(bars).to_have_count(10)
    last = page.locator(".bar[aria-posinset='10'] .bar-label").inner_text()
    row = next(row for row in market.api.views["busiest"].rows.values() if row["symbol"] == last)
    market.api.change("busiest", [{**row, "trades": 1_000_000}])
    moved = page.locator(".bar", has_text=last)
    expect(moved).to_have_attribute("aria-label", f"1. {last}: trades 1,000,000")
    page.wait_for_function(
        "label => { const tops = [...document.querySelectorAll('.bar')].map(bar => ({"
        "  top: bar.getBoundingClientRect().top, width: bar.querySelector('.bar-fill').getBoundingClientRect().width,"
        "  own: bar.querySelector('.bar-label').textContent === label }));"
        "  const own = tops.find(bar => bar.own);"
        "  return tops.every(bar => bar.own || (bar.top > own.top + 20 && bar.width < own.width / 100)); }",
        arg=last,
    )


def test_a_new_window_keeps_the_bars_of_the_same_label(page: Page, market: Running) -> None:
    """When the window advances, the caption and the values change, and the bar's element stays and can glide."""
    page.goto(market.address)
    rows = list(market.api.views["busiest"].rows.values())
    bar = page.locator(".bar", has_text=rows[0]["symbol"])
    bar.evaluate("element => { element.marked = true }")
    window = {"start": "2024-05-01T10:01:00Z", "end": "2024-05-01T10:02:00Z"}
    market.api.change("busiest", [{"window": window, "symbol": rows[0]["symbol"], "trades": 5}], rows)
    expect(page.locator(".bar")).to_have_count(1)
    expect(page.locator(".bars time")).to_have_attribute("title", f"{window['start']} to {window['end']}")
    assert bar.evaluate("element => element.marked")


def test_a_table_shows_inserts_updates_and_deletes(page: Page) -> None:
    """Rows come, change and go as the view's do; a changed row flashes, an unchanged one does not."""
    api = FakeApi(app("counting", [TICKS], [COUNTS]), {"counts": [{"name": name, "n": 1} for name in "abc"]}, {})
    page.add_init_script(FLASHES)
    with serving(api) as address:
        page.goto(f"{address}/#/views/counts")
        expect(page.locator("tbody tr")).to_have_count(3)
        api.change("counts", [{"name": "b", "n": 7}, {"name": "d", "n": 2}, {"name": "a", "n": 1}], [{"name": "c"}])
        expect(page.locator("tbody tr")).to_have_text(["a1", "b7", "d2"])
        assert sorted(page.evaluate("flashed")) == ["b", "d"]


def test_a_large_view_is_drawn_in_part_and_says_so(page: Page) -> None:
    """At most some hundreds of rows are drawn, the first ones in the chosen order."""
    rows = [{"name": f"k{n:05d}", "n": n} for n in range(2_000)]
    api = FakeApi(app("counting", [TICKS], [{**COUNTS, "rows": 2_000}]), {"counts": rows}, {})
    with serving(api) as address:
        page.goto(f"{address}/#/views/counts?sort=n&dir=desc")
        expect(page.locator("tbody tr")).to_have_count(300)
        expect(page.locator(".count")).to_have_text("showing 300 of 2,000 rows")
        assert shown(page)[:2] == ["k01999", "k01998"]


def test_keys_past_the_exact_range_of_numbers_stay_apart(page: Page) -> None:
    """Two whole numbers that a browser's number type cannot tell apart are two rows, with all their digits."""
    given = view("counts", {"id": "bigint", "n": "bigint"}, ["id"], ["ticks"], rows=2)
    rows = [{"id": 9007199254740992, "n": 1}, {"id": 9007199254740993, "n": 2}]
    with serving(FakeApi(app("counting", [TICKS], [given]), {"counts": rows}, {})) as address:
        page.goto(f"{address}/#/views/counts?sort=n&dir=asc")
        expect(page.locator("tbody tr")).to_have_count(2)
        assert shown(page) == ["9007199254740992", "9007199254740993"]


def test_windows_are_time_ranges_and_key_columns_come_first(page: Page, market: Running) -> None:
    """A struct of start and end reads as a range, newest first, with the exact times as its title."""
    page.goto(f"{market.address}/#/views/price-by-minute")
    expect(page.locator("thead th bdi")).to_have_text(["window", "symbol", "low", "high", "average"])
    first = page.locator("tbody tr").first.locator("td").first
    expect(first).to_have_text(re.compile("[0-9]+:[0-9]+ \N{EN DASH} [0-9]+:[0-9]+$"))
    expect(first).to_have_attribute("title", "2024-05-01T10:00:00Z to 2024-05-01T10:01:00Z")


def test_rows_that_have_a_time_in_their_key_stand_newest_first(page: Page) -> None:
    given = view("alerts", {"kind": "string", "at": "timestamp"}, ["at", "kind"], ["ticks"], rows=3)
    rows = [{"kind": kind, "at": f"2024-05-01T10:0{kind}:00Z"} for kind in "213"]
    with serving(FakeApi(app("alerting", [TICKS], [given]), {"alerts": rows}, {})) as address:
        page.goto(f"{address}/#/views/alerts")
        expect(page.locator("tbody tr")).to_have_count(3)
        assert shown(page, 1) == ["3", "2", "1"]


def test_the_order_of_a_table_is_kept_by_a_reload(page: Page, market: Running) -> None:
    """Sorting works by keyboard, announces its state, and is in the address."""
    page.goto(f"{market.address}/#/views/price-by-minute")
    page.get_by_role("button", name="high").press("Enter")
    expect(page.locator("th", has_text="high")).to_have_attribute("aria-sort", "descending")
    values = [float(text.replace(",", "")) for text in shown(page, 3)]
    assert values == sorted(values, reverse=True)
    page.reload()
    expect(page.locator("th", has_text="high")).to_have_attribute("aria-sort", "descending")


def test_a_view_goes_on_from_its_cursor_after_a_break(page: Page, market: Running) -> None:
    """While the server is down the rows stay and the page says "reconnecting"; then each missed change comes once."""
    page.goto(f"{market.address}/#/views/price-by-minute?sort=high&dir=desc")
    expect(page.locator("tbody tr")).to_have_count(48)
    api, row = market.api, next(iter(market.api.views["price-by-minute"].rows.values()))
    api.change("price-by-minute", [{**row, "high": 10_001.5}])
    expect(page.locator("tbody tr").first).to_contain_text("10,001.5")
    api.drop(stay_down=True)
    expect(connection(page)).to_have_text("reconnecting")
    expect(page.locator("tbody tr")).to_have_count(48)
    api.change("price-by-minute", [{**row, "high": 10_002.5}])
    api.change("price-by-minute", [{**row, "high": 10_003.5}])
    api.come_back()
    expect(page.locator("tbody tr").first).to_contain_text("10,003.5")
    expect(connection(page)).to_have_text("live")
    assert api.asked[-1].items() >= {"op": "subscribe", "view": "price-by-minute", "since": "1"}.items()
    sent = [(message["event"], message["cursor"]) for message in api.sent if message["event"] != "subscribed"]
    assert sent == [("snapshot", "0"), ("change", "1"), ("change", "2"), ("change", "3")]
    assert "sort=high" in page.url


def test_a_stream_shows_each_event_once_whatever_breaks(page: Page) -> None:
    """Over random appends and breaks the page shows every event exactly once, newest first."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    api = FakeApi(app("counting", [TICKS], []), {}, {"ticks": [{"n": 0}]})
    with serving(api) as address:
        page.goto(f"{address}/#/streams/ticks")
        expect(page.locator("tbody tr")).to_have_count(1)
        total = 1
        for _ in range(6):
            before, between = chance.randrange(4), chance.randrange(4)
            api.append("ticks", *({"n": total + i} for i in range(before)))
            api.drop(stay_down=True)
            api.append("ticks", *({"n": total + before + i} for i in range(between)))
            total += before + between
            expect(connection(page)).to_have_text("reconnecting")
            api.come_back()
            page.evaluate("dispatchEvent(new Event('online'))")  # many short breaks make the back-off long
            expect(connection(page)).to_have_text("live")
            expect(page.locator("tbody tr")).to_have_count(total)
        assert [int(text) for text in shown(page)] == list(reversed(range(total)))


def test_a_position_no_longer_kept_is_answered_by_the_new_snapshot(page: Page) -> None:
    """After a `reset` the rows stay until the new snapshot, which replaces all of them."""
    api = FakeApi(app("counting", [TICKS], [COUNTS]), {"counts": [{"name": "old", "n": 1}]}, {})
    with serving(api) as address:
        page.goto(f"{address}/#/views/counts")
        expect(page.locator("tbody tr")).to_have_text(["old1"])
        api.drop(stay_down=True)
        api.call(lambda: api.views["counts"].rebuild([{"name": "new", "n": 2}]))
        api.come_back()
        expect(page.locator("tbody tr")).to_have_text(["new2"])


def test_a_hidden_page_asks_for_nothing_and_catches_up_when_seen(page: Page, market: Running) -> None:
    """A minute in the background costs no poll and no connection; changes are loaded when the page is visible again."""
    page.clock.install()
    page.goto(f"{market.address}/#/views/price-by-minute?sort=high&dir=desc")
    expect(page.locator("tbody tr")).to_have_count(48)
    set_hidden(page, True)
    page.clock.run_for(11_000)
    expect(connection(page)).to_have_text("paused")
    polls = market.api.polls
    page.clock.run_for(60_000)
    assert market.api.polls == polls
    row = next(iter(market.api.views["price-by-minute"].rows.values()))
    market.api.change("price-by-minute", [{**row, "high": 10_004.5}])
    set_hidden(page, False)
    expect(page.locator("tbody tr").first).to_contain_text("10,004.5")
    assert [message["event"] for message in market.api.sent].count("snapshot") == 1


def set_hidden(page: Page, hidden: bool) -> None:
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def test_only_views_on_the_screen_are_followed(page: Page) -> None:
    """On a page with many views, those far below are not subscribed to until they are scrolled to."""
    many = [{**MINUTES, "name": f"minutes-{n:02d}"} for n in range(20)]
    rows = {node["name"]: Market().minutes(["AAPL"] * 8) for node in many}
    api = FakeApi(app("wide", [TRADES], many), rows, {})
    with serving(api) as address:
        page.goto(address)
        expect(page.locator("section.panel").nth(19)).to_contain_text("Loading")
        assert not any(message.get("view") == "minutes-19" for message in api.asked)
        page.locator("section.panel").nth(19).scroll_into_view_if_needed()
        expect(page.locator("section.panel").nth(19).locator("tbody tr")).not_to_have_count(0)
