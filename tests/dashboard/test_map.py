"""The map of a view whose rows have places, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.conftest import Running
from tests.dashboard.fake_api import FakeApi, Row, serving
from tests.dashboard.market import app, stream, view
from tests.dashboard.test_safety import HOSTILE, check, watch
from tests.dashboard.towns import ALERTS, FIXES, POSITIONS, Towns

pytestmark = pytest.mark.browser
MARGIN = 44
COUNT = """
    window.painted = window.frames_seen = 0;
    const fillRect = CanvasRenderingContext2D.prototype.fillRect;
    CanvasRenderingContext2D.prototype.fillRect = function (...box) { painted += 1; return fillRect.apply(this, box); };
    const count = () => { frames_seen += 1; requestAnimationFrame(count); };
    requestAnimationFrame(count);
"""
CORNER = """canvas => [...canvas.getContext("2d").getImageData(3, canvas.height - 60, 1, 1).data.slice(0, 3)]"""


def position(vehicle: str, lat: float | None, lon: float, standing: str = "on route") -> Row:
    return {"vehicle": vehicle, "standing": standing, "speed": 50.0, "lat": lat, "lon": lon}


@contextmanager
def fleet(rows: list[Row], alerts: list[Row] | None = None) -> Iterator[Running]:
    api = FakeApi(app("fleet", [FIXES], [POSITIONS, ALERTS]), {"positions": rows, "alerts": alerts or []}, {})
    with serving(api) as address:
        yield Running(api, address)


def canvas(page: Page) -> Locator:
    return page.locator(".map canvas")


def tip(page: Page) -> Locator:
    return page.locator(".map-tip")


def point_at(page: Page, x: float) -> None:
    """Move the pointer to a point on the middle line; a negative `x` counts from the right."""
    canvas(page).scroll_into_view_if_needed()
    box = canvas(page).bounding_box()
    assert box is not None
    left = box["x"] + (x if x >= 0 else box["width"] + x)
    page.mouse.move(left, box["y"] + 5)
    page.mouse.move(left, box["y"] + box["height"] / 2)


def finds(page: Page, x: float, vehicle: str) -> None:
    """Wait until pointing there shows the row of a vehicle: the frame may be gliding."""
    for _ in range(50):
        point_at(page, x)
        page.wait_for_timeout(50)  # between two looks at the same condition
        if vehicle in (tip(page).inner_text() if tip(page).count() else ""):
            return
    raise AssertionError(f"{vehicle} is not at {x}")


def test_only_a_view_with_a_numeric_lat_and_lon_has_a_map(page: Page) -> None:
    texts = view("texts", {"name": "string", "lat": "string", "lon": "string"}, ["name"], ["fixes"])
    plain = view("plain", {"name": "string", "lat": "double"}, ["name"], ["fixes"])
    rows: dict[str, list[Row]] = {
        "texts": [{"name": "a", "lat": "north", "lon": "east"}],
        "plain": [{"name": "a", "lat": 1.0}],
        "positions": [position("a", 1, 1)],
    }
    with serving(FakeApi(app("mixed", [FIXES], [texts, plain, POSITIONS]), rows, {})) as address:
        page.goto(address)
        expect(page.locator("section.panel", has=page.locator("tbody tr"))).to_have_count(3)
        expect(canvas(page)).to_have_count(1)
        expect(page.get_by_label("View positions").locator("canvas")).to_be_visible()


def test_pointing_at_a_place_shows_its_row(page: Page) -> None:
    """The frame encloses the points: the western one is at the left margin, the eastern one at the right."""
    with fleet([position("west", 50, 8), position("east", 50, 9, "off route")]) as running:
        page.goto(f"{running.address}/#/views/positions")
        expect(canvas(page)).to_be_visible()
        finds(page, MARGIN, "west")
        finds(page, -MARGIN, "east")
        expect(tip(page)).to_have_text(re.compile("vehicle.*east.*standing.*off route.*speed.*50.*lat.*50.*lon.*9"))
        point_at(page, 300)
        expect(tip(page)).to_have_count(0)


def test_the_rows_can_be_gone_through_by_keyboard_and_are_said_aloud(page: Page) -> None:
    with fleet([position(name, 50, lon) for lon, name in enumerate(("a", "b", "c"))]) as running:
        page.goto(f"{running.address}/#/views/positions")
        expect(canvas(page)).to_have_attribute("aria-label", re.compile("Map of 3 rows of positions"))
        said = page.locator(".map [role=status]")
        for key, name in (
            ("ArrowRight", "a"),
            ("ArrowRight", "b"),
            ("End", "c"),
            ("ArrowDown", "a"),
            ("ArrowLeft", "c"),
        ):
            canvas(page).press(key)
            expect(said).to_contain_text(f"vehicle{name}")
        canvas(page).press("Escape")
        expect(said).to_have_text("")


def test_points_are_counted_by_state_and_rows_without_a_place_are_told_of(page: Page) -> None:
    rows = [position("a", 50, 8), position("b", 51, 8, "off route"), position("c", 50, 9)]
    lost = [position("d", 95, 8), position("e", 50, -190), position("f", None, 8)]
    with fleet([*rows, *lost]) as running:
        page.goto(f"{running.address}/#/views/positions")
        expect(page.get_by_label("Points by standing").locator("li")).to_have_text(["off route 1", "on route 2"])
        expect(page.locator(".map figcaption")).to_contain_text("3 rows without a valid position")
        running.api.change("positions", [position("a", 50, 8, "speeding")], [{"vehicle": "d"}])
        expect(page.get_by_label("Points by standing").locator("li")).to_have_text(
            ["off route 1", "on route 1", "speeding 1"]
        )
        expect(page.locator(".map figcaption")).to_contain_text("2 rows without a valid position")


def test_a_view_about_the_same_rows_is_drawn_on_their_map_and_can_be_hidden(page: Page) -> None:
    """Alerts have the vehicle, which is the key of the positions, and places: they are drawn as crosses."""
    alert = {"alert": 7, "vehicle": "west", "kind": "speeding", "lat": 50.0, "lon": 8.5}
    with fleet([position("west", 50, 8), position("east", 50, 9)], [alert]) as running:
        page.goto(running.address)
        expect(canvas(page)).to_have_count(1)
        box = canvas(page).bounding_box()
        assert box is not None
        finds(page, box["width"] / 2, "speeding")
        page.get_by_label("alerts").first.uncheck()
        expect(tip(page)).to_have_count(0)
        page.goto(f"{running.address}/#/views/alerts")
        expect(canvas(page)).to_have_attribute("aria-label", re.compile("Map of 1 row of alerts"))


def test_the_frame_stays_while_points_move_in_it_and_follows_one_that_leaves(page: Page) -> None:
    with fleet([position("west", 50, 8), position("east", 50, 9)]) as running:
        page.goto(f"{running.address}/#/views/positions")
        finds(page, -MARGIN, "east")
        running.api.change("positions", [position("west", 50, 8.1)])
        expect(page.locator("tbody tr").nth(1)).to_contain_text("8.1")
        finds(page, -MARGIN, "east")
        running.api.change("positions", [position("east", 50, 20)])
        finds(page, -MARGIN, "east")
        finds(page, MARGIN, "west")


def test_ten_thousand_points_that_move_are_drawn_at_most_once_a_frame(page: Page) -> None:
    """This holds however fast the changes come; and the last change is the one drawn."""
    towns = Towns(10_000)
    api = towns.api()
    page.add_init_script(COUNT)
    with serving(api) as address:
        page.goto(f"{address}/#/views/positions")
        expect(page.get_by_label("Points by standing")).to_contain_text("on route 5,001")
        for _ in range(40):
            towns.step(api, 250)
        gone = [{"vehicle": vehicle} for vehicle in list(towns.places)[100:]]
        api.change("positions", [], gone)
        expect(canvas(page)).to_have_attribute("aria-label", re.compile("Map of 100 rows"))
        painted, frames = page.evaluate("[painted, frames_seen]")
        assert 0 < painted <= frames


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_the_map_follows_the_theme_also_while_it_is_shown(page: Page, scheme: Any, other: Any) -> None:
    with fleet([position("a", 50, 8)]) as running:
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{running.address}/#/views/positions")
        expect(canvas(page)).to_be_visible()
        for theme in (scheme, other):
            page.emulate_media(color_scheme=theme)
            page.wait_for_function(
                f"dark => ({CORNER})(document.querySelector('.map canvas'))[0] < 128 === dark", arg=theme == "dark"
            )


def test_names_and_states_of_any_kind_are_drawn_as_text_and_fit_a_phone(page: Page) -> None:
    seen = watch(page)
    page.set_viewport_size({"width": 390, "height": 800})
    rows = [position(text, 50, number / 10, HOSTILE[number % 3]) for number, text in enumerate(HOSTILE)]
    with fleet(rows) as running:
        page.goto(f"{running.address}/#/views/positions")
        expect(page.locator(".map-legend li")).to_have_count(3)
        for _ in HOSTILE:
            canvas(page).press("ArrowRight")
            expect(tip(page)).to_be_visible()
            box = tip(page).bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        check(page, seen)


def asked(page: Page, module: str, expression: str) -> Any:
    return page.evaluate(f"import('/assets/model/{module}.js').then((m) => {expression})")


def test_a_frame_is_laid_over_the_180th_meridian_if_that_is_shorter(page: Page, market: Running) -> None:
    page.goto(market.address)
    size = "{ width: 800, height: 400 }"
    rows = "[179, -179].map((lon) => ({ row: { lat: 0, lon } }))"
    frame = asked(page, "places", f"m.fit({rows}, {size})")
    assert abs(frame["lon"]) == 180
    assert frame["scale"] == pytest.approx((800 - 2 * MARGIN) / 2)
    edges = asked(page, "places", f"{rows}.map(({{ row }}) => m.project(m.fit({rows}, {size}), {size}, row).x)")
    assert edges == [pytest.approx(MARGIN), pytest.approx(800 - MARGIN)]


def test_lines_stand_at_round_degrees_and_the_bar_has_a_round_length(page: Page, market: Running) -> None:
    page.goto(market.address)
    frame = "{ lat: 0, lon: 179.95, scale: 1000 }"
    lines = asked(page, "graticule", f"m.graticule({frame}, {{ width: 400, height: 250 }})")
    assert [line["text"] for line in lines["across"]] == ["0.1°S", "0.0°", "0.1°N"]
    assert [line["text"] for line in lines["down"]] == ["179.8°E", "179.9°E", "180.0°E", "179.9°W"]
    assert asked(page, "graticule", f"m.scaleBar({frame})") == {
        "pixels": pytest.approx(89.93, abs=0.1),
        "text": "10 km",
    }


def test_a_column_of_few_texts_is_the_state_and_one_of_many_is_not(page: Page, market: Running) -> None:
    page.goto(market.address)
    columns = "['name', 'note', 'colour'].map((name) => ({ name, kind: 'text', key: name === 'name' }))"
    rows = "[...'abcdefghij'].map((name, n) => ({ row: { name, note: name, colour: n % 2 ? 'red' : 'blue' } }))"
    assert asked(page, "places", f"m.stateColumn({columns}, {rows}).name") == "colour"
    assert asked(page, "places", f"m.stateColumn({columns}.slice(0, 2), {rows})") is None


def test_a_view_without_columns_yet_has_no_map_and_no_error(page: Page) -> None:
    """While the engine starts, the first rows determine the columns."""
    seen = watch(page)
    bare = view("positions", {}, ["vehicle"], ["fixes"])
    api = FakeApi(app("young", [stream("fixes", {"vehicle": "string"})], [bare]), {}, {})
    with serving(api) as address:
        page.goto(f"{address}/#/views/positions")
        expect(page.locator(".panel")).to_be_visible()
        expect(canvas(page)).to_have_count(0)
        api.change("positions", [position("a", 50, 8)])
        expect(canvas(page)).to_be_visible()
        check(page, seen)
