"""The page in a real browser: themes, widths, and hints for new users."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.conftest import Running
from tests.dashboard.fake_api import FakeApi, serving
from tests.dashboard.market import FAILED, RANKED, TRADES, app, stream, view

pytestmark = pytest.mark.browser
PLACES = ["#/", "#/views/busiest", "#/views/price-by-minute", "#/streams/trades", "#/streams/trades/send"]
EMPTY = {**TRADES, "events": 0, "end": 0, "accepted": 0, "rate": 0, "rejected": 0, "last_event": None}
LIGHTNESS = """() => {
    const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
    return (red + green + blue) / 765;
}"""


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_theme_follows_the_reader_s_choice(page: Page, market: Running, scheme: str, dark: bool) -> None:
    """The page is dark or light, as the reader's browser asks for."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(market.address)
    expect(page.locator(".bar")).to_have_count(10)
    assert (page.evaluate(LIGHTNESS) < 0.5) == dark


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("hash", PLACES)
def test_no_width_scrolls_sideways(page: Page, market: Running, width: int, hash: str) -> None:
    """On a phone and on a laptop the page is as wide as the screen; only a wide table scrolls, in its own frame."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{market.address}/{hash}")
    expect(page.locator("section.panel").first).to_be_visible()
    expect(page.locator(".bar, tbody tr, .snippet, .empty").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_pipe_shows_every_node_its_figures_and_its_lines(page: Page, market: Running) -> None:
    """Sources, streams and views are in the picture with their rates, and a line for each that reads another."""
    page.goto(market.address)
    pipe = page.get_by_role("navigation", name="The pipe")
    expect(pipe.locator(".card strong")).to_have_text(
        ["exchange", "front door", "trades", "quotes", "busiest", "price-by-minute", "spread", "swings"]
    )
    expect(pipe.locator(".card", has_text="trades").nth(1)).to_contain_text("1,840/s")
    expect(pipe.locator("svg.edges path")).to_have_count(6)
    expect(pipe.locator("svg.edges path.bad")).to_have_count(1)


def test_a_failed_view_says_why_and_where(page: Page, market: Running) -> None:
    """The sentence of the error and the file:line of the declaration are visible without a click."""
    page.goto(market.address)
    failure = page.locator(".card .failure")
    expect(failure).to_be_visible()
    expect(failure).to_contain_text(FAILED["error"])
    expect(failure.locator("code")).to_have_text("market.py:52")


def test_a_handler_stands_between_its_streams_and_opens_on_its_failures_and_what_it_fills(page: Page) -> None:
    """Its card has its figures; its output streams are read, not posted to."""
    fixes = stream("fixes", {"fix": "int"}, end=5, events=5, rate=3.0)
    alerts = stream("geofence", {"vehicle": "str"}, end=1, events=1, handler="geofence")
    failed, quiet = (
        stream(f"geofence.{suffix}", {"error": "str"}, handler="geofence") for suffix in ("failed", "quiet")
    )
    figures = {"keys": 1_234, "emitted": 1, "failed": 2, "lag": 0, "rate": 3.0, "batch_ms": 40, "error": None}
    handler = {"name": "geofence", "declared": "fleet.py:9", "reads": ["fixes"], "state": "running", **figures}
    described = app(
        "fleet", [fixes, alerts, failed, quiet], [view("by-vehicle", {"vehicle": "string"}, ["vehicle"], ["geofence"])]
    )
    described["handlers"] = [{**handler, "emits": ["geofence", "geofence.failed"]}]
    why = {"stream": "fixes", "key": "v1", "error": "KeyError: 'zone'", "event": "{}", "traceback": "Traceback"}
    with serving(FakeApi(described, {}, {"geofence": [{"vehicle": "v1"}], "geofence.failed": [why]})) as address:
        page.goto(address)
        pipe = page.get_by_role("navigation", name="The pipe")
        expect(pipe.locator(".card strong")).to_have_text(["front door", "fixes", "geofence", "by-vehicle"])
        expect(pipe.locator(".card", has_text="1,234 keys")).to_contain_text("2 failed")
        expect(pipe.locator("svg.edges path")).to_have_count(3)
        page.locator("a.card", has_text="geofence").press("Enter")
        expect(page.locator(".letters li")).to_contain_text("KeyError: 'zone'")
        page.locator(".facts a", has_text=re.compile("^geofence$")).click()
        expect(page.locator("section.panel tbody tr")).to_have_count(1)
        expect(page.locator("nav.tabs")).to_have_count(0)
        page.goto(f"{address}/#/streams/geofence.quiet")
        expect(page.locator("section.panel .empty")).to_have_text(
            "No events yet: the handler geofence has emitted none."
        )


def test_a_view_of_what_a_handler_emits_asks_nobody_to_post_that(page: Page) -> None:
    fixes = stream("fixes", {"fix": "int"}, end=5, events=5)
    alerts = stream("geofence", {"vehicle": "str"}, handler="geofence")
    described = app("fleet", [fixes, alerts], [view("alerts", {"vehicle": "string"}, ["vehicle"], ["geofence"])])
    with serving(FakeApi(described, {}, {})) as address:
        page.goto(f"{address}/#/views/alerts")
        hint = page.locator("section.panel .empty")
        expect(hint).to_have_text("No rows yet: the handler geofence has emitted nothing.")


def test_nothing_is_promised_of_a_stream_that_has_failed(page: Page) -> None:
    """While the engine starts, a view says that events are kept, unless they are refused."""
    broken = stream("fixes", {"fix": "int"}, error="fixes.db is damaged")
    one = view("speeds", {"fix": "bigint"}, ["fix"], ["fixes"], state="starting")
    with serving(FakeApi({**app("fleet", [broken], [one]), "state": "starting"}, {}, {})) as address:
        page.goto(address)
        expect(page.locator(".notice")).to_have_text("Spark is starting, which takes a few seconds.")
        expect(page.locator(".panel .empty")).to_have_text("No rows: the stream fixes has failed.")


def test_dead_letters_are_a_click_away(page: Page, market: Running) -> None:
    """From a stream's card the keyboard alone leads to the rejected data, the reason, and the bytes sent."""
    page.goto(market.address)
    page.locator("a.card", has_text="rejected").press("Enter")
    page.get_by_role("link", name="Rejected (3)").press("Enter")
    expect(page.locator(".letters li")).to_contain_text("Expected `float`, got `str` at $.price")
    expect(page.locator(".letters pre")).to_have_text('{"price":"cheap"}')


def test_an_event_s_id_is_shown_as_it_is_and_its_time_as_a_time(page: Page) -> None:
    """A number that identifies is not grouped like one that counts; a time is recognised by its value if not by its
    type."""
    given = stream("fixes", {"speed": "float", "at": "Annotated", "fix": "int"}, id="fix", end=1, events=1, accepted=1)
    event: dict[str, Any] = {"speed": 1234.5, "at": "2024-05-01T10:00:00.123Z", "fix": 1234567}
    with serving(FakeApi(app("fleet", [given], []), {}, {"fixes": [event]})) as address:
        page.goto(f"{address}/#/streams/fixes")
        cells = page.locator("tbody td")
        expect(cells.nth(0)).to_have_text("1234567")
        expect(cells.nth(1)).to_have_text("1,234.5")
        expect(cells.nth(2)).to_have_attribute("title", event["at"])
        expect(cells.nth(2)).not_to_contain_text("T")


def test_an_app_without_streams_shows_how_to_declare_one(page: Page) -> None:
    """The first thing a newcomer needs is a stream, and the page has the code for it."""
    with serving(FakeApi(app("blank", [], []), {}, {})) as address:
        page.goto(address)
        expect(page.locator("main")).to_contain_text('app.stream("readings", Reading, key="sensor")')


def test_the_command_for_an_empty_stream_is_one_that_a_shell_understands(page: Page) -> None:
    """The command names this server and this stream and posts a JSON object with every field, whatever their names."""
    fields = {
        "id": "string",
        "at": "timestamp[us, tz=UTC]",
        "it's": "double",
        "venue": "struct<city: string, lat: double>",
    }
    given = stream("trades", fields, id="id", time="at")
    with serving(FakeApi(app("fresh", [given], [view("busy", {}, ["id"], ["trades"])]), {}, {})) as address:
        page.goto(address)
        command = page.get_by_label("Command that posts an event").inner_text()
        quoted = subprocess.run(
            ["sh", "-c", command.replace("curl", "printf '%s\\n'", 1)], check=True, capture_output=True, text=True
        )
        url, header, media_type, option, body = quoted.stdout.splitlines()
        assert (url, header, media_type, option) == (
            f"{address}/v1/streams/trades",
            "-H",
            "content-type: application/json",
            "-d",
        )
        event = page.evaluate("text => JSON.parse(text)", body)
        assert list(event) == list(fields)
        assert event["venue"] == {"city": "city-1", "lat": 1.5}


def test_an_app_that_starts_says_that_nothing_is_lost(page: Page) -> None:
    """While Spark starts, the page says so and that events posted meanwhile are kept."""
    starting = [{**RANKED, "state": "starting", "rows": 0}]
    with serving(FakeApi(app("young", [EMPTY], starting, state="starting"), {}, {})) as address:
        page.goto(address)
        expect(page.locator(".notice")).to_have_text(re.compile("Spark is starting.*Events posted until then are kept"))


def test_a_reader_who_wants_no_motion_gets_none(browser: Browser, market: Running) -> None:
    """With reduced motion, bars jump and rows do not flash."""
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{market.address}/#/views/busiest")
    expect(page.locator(".bar")).to_have_count(10)
    row = next(iter(market.api.views["busiest"].rows.values()))
    market.api.change("busiest", [{**row, "trades": 7_777_777}])
    expect(page.locator("tbody tr").first).to_contain_text("7,777,777")
    assert page.evaluate("document.getAnimations().length") == 0
    context.close()


def test_a_stream_that_is_held_and_sheds_says_both_and_why(page: Page) -> None:
    """The card has a mark for each; the stream's page has a sentence for each, and the counts."""
    reason = "is 4100 events ahead of slow; the limit is %d"
    way = {"source": "POST", "accepted": 120, "shed": 1080, "durable_ms_mean": 4.0}
    strained = stream(
        "readings", {"sensor": "str", "weight": "float"}, end=120, events=120, accepted=120, shed=1080, by_source=[way],
        held=reason % 4000, shedding={"since": "2024-05-01T10:00:00Z", "reason": reason % 2000},
    )  # fmt: skip
    calm = stream("calm", {"sensor": "str"}, end=5, events=5, held=None, shedding=None, shed=0, by_source=[])
    with serving(
        FakeApi(app("sensors", [strained, calm], []), {}, {"readings": [{"sensor": "a", "weight": 10.0}]})
    ) as at:
        page.goto(at)
        card = page.locator("a.card", has_text="readings")
        expect(card.locator(".strain")).to_have_text(["held", "shedding"])
        expect(card).to_contain_text("1,080 shed")
        expect(page.locator("a.card", has_text="calm").locator(".strain")).to_have_count(0)
        page.goto(f"{at}/#/streams/readings")
        panel = page.locator("section.panel")
        expect(panel.locator("h2 .strain")).to_have_text(["held", "shedding"])
        expect(panel.locator(".strained").nth(0)).to_contain_text(
            "Accepts no events at the moment: it is 4100 events ahead"
        )
        expect(panel.locator(".strained").nth(1)).to_contain_text("Shedding events, as declared, since")
        expect(panel.locator(".strained").nth(1)).to_contain_text("the limit is 2000")
        expect(panel).to_contain_text("120 accepted, 1,080 shed, durable in 4 ms")
        page.goto(f"{at}/#/streams/calm")
        expect(panel.locator("tbody tr, .snippet, .empty").first).to_be_visible()
        expect(panel.locator(".strained, .strain")).to_have_count(0)
