"""The page in a real browser with hostile data: it is shown as text and nothing else happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Running
from tests.dashboard.fake_api import FakeApi, serving
from tests.dashboard.market import FEED, app, stream, view

pytestmark = pytest.mark.browser
IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
LINK = "javascript:alert(3)"
HOSTILE = [
    IMAGE,
    SCRIPT,
    LINK,
    "x" * 3_000,
    "שלום مرحبا",
    "👩‍👩‍👧‍👦🔥" * 30,
    "a\u202eb\x00c",
    "' \" & \\ ${1} `",
    "__proto__",
    "",
]
WATCH = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@dataclass
class Seen:
    """The forbidden things that a page did."""

    dialogs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


def watch(page: Page) -> Seen:
    seen = Seen()

    def dialog(popup: object) -> None:
        seen.dialogs.append(str(popup))
        popup.dismiss()  # type: ignore[attr-defined]

    page.add_init_script(WATCH)
    page.on("dialog", dialog)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    page.on("websocket", lambda socket: seen.hosts.add(urlsplit(socket.url).netloc))
    return seen


def hostile_api() -> FakeApi:
    rows = [{"name": text, "n": n, IMAGE: text} for n, text in enumerate(HOSTILE)]
    taken = stream(
        IMAGE,
        {"name": "string", SCRIPT: IMAGE},
        key="name",
        end=10,
        events=10,
        rejected=2,
        error=SCRIPT,
        declared=IMAGE,
    )
    ranked = view(SCRIPT, {"name": "string", "n": "bigint"}, ["name"], [IMAGE], top=10, by="n", rows=10)
    wide = view(
        "x" * 300,
        {"name": "string", "n": "bigint", IMAGE: LINK},
        ["name"],
        [IMAGE],
        rows=10,
        state="failed",
        error=IMAGE,
        declared="d" * 300,
    )
    feed = {**FEED, "name": LINK, "address": LINK + "x" * 500, "into": IMAGE, "error": IMAGE, "state": IMAGE}
    letters = [{"reason": text, "path": text, "raw": text} for text in HOSTILE]
    described = app(IMAGE + "z" * 200, [taken], [ranked, wide], [feed], version=SCRIPT)
    return FakeApi(described, {SCRIPT: rows, wide["name"]: rows}, {IMAGE: rows, f"{IMAGE}.rejected": letters})


@pytest.fixture
def hostile() -> Iterator[Running]:
    api = hostile_api()
    with serving(api) as address:
        yield Running(api, address)


def check(page: Page, seen: Seen) -> None:
    assert page.evaluate("window.violations") == []
    assert (seen.dialogs, seen.errors) == ([], [])
    assert page.locator("img:not(.brand img), script:not([src^='assets/']), iframe, a[href^='javascript']").count() == 0


PLACES = {
    "overview": ("#/", ".bar", 10),
    "view": (f"#/views/{'x' * 300}", "tbody tr", 10),
    "ranked": (f"#/views/{quote(SCRIPT, safe='')}", ".bar", 10),
    "stream": (f"#/streams/{quote(IMAGE, safe='')}", "tbody tr", 10),
    "rejected": (f"#/streams/{quote(IMAGE, safe='')}/rejected", ".letters li", 10),
    "send": (f"#/streams/{quote(IMAGE, safe='')}/send", ".snippet", 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_hostile_text_is_shown_as_text(page: Page, hostile: Running, place: str) -> None:
    """No dialog, no violation of the policy, no error, no element created from data; on every part of the page."""
    seen = watch(page)
    hash, shown, count = PLACES[place]
    page.goto(f"{hostile.address}/{hash}")
    expect(page.locator(shown)).to_have_count(count)
    expect(page.locator("h1")).to_contain_text(IMAGE)
    check(page, seen)


@pytest.mark.parametrize("place", PLACES)
def test_hostile_text_never_makes_a_phone_scroll_sideways(page: Page, hostile: Running, place: str) -> None:
    """Names, errors and values of any length stay within 390 pixels."""
    page.set_viewport_size({"width": 390, "height": 800})
    hash, shown, count = PLACES[place]
    page.goto(f"{hostile.address}/{hash}")
    expect(page.locator(shown)).to_have_count(count)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    "hash", ["#/views/%E0%A4%A", "#/constructor/x", "#/streams/__proto__", "#/views/x?sort=%00&dir=<b>"]
)
def test_a_strange_address_is_answered_in_words(page: Page, market: Running, hash: str) -> None:
    """A hash that names nothing shows the overview or a message that there is no such thing."""
    seen = watch(page)
    page.goto(f"{market.address}/{hash}")
    expect(page.locator("main")).to_contain_text("busiest" if "constructor" in hash else "This app has no")
    check(page, seen)


def test_a_hostile_refusal_is_shown_as_text(page: Page) -> None:
    """Hostile are the server's messages about a view that it does not serve, and about a key that it does not
    accept."""
    named = view(IMAGE, {"name": "string"}, ["name"], ["orders"])
    api = FakeApi(app("shop", [stream("orders", {"name": "string"}, end=1)], [named]), {}, {})
    del api.views[IMAGE]
    seen = watch(page)
    with serving(api) as address:
        page.goto(f"{address}/#/views/{quote(IMAGE, safe='')}")
        expect(page.locator(".failure")).to_have_text(f"no view or stream is named {IMAGE}")
        check(page, seen)
        api.key, api.refusal = "another", SCRIPT
        page.evaluate("() => sessionStorage.setItem('penstock.key', 'mine')")
        page.reload()
        expect(page.get_by_role("alert")).to_have_text(SCRIPT)
        assert page.evaluate("window.violations") == []
        assert seen.dialogs == []


def test_no_request_leaves_the_origin(page: Page, market: Running) -> None:
    """Viewing everything sends requests only to the server that the page came from."""
    seen = watch(page)
    for hash, shown in [
        ("#/", ".bar"),
        ("#/views/price-by-minute", "tbody tr"),
        ("#/streams/trades/rejected", ".letters"),
    ]:
        page.goto(f"{market.address}/{hash}")
        expect(page.locator(shown).first).to_be_visible()
    check(page, seen)
    assert seen.hosts == {urlsplit(market.address).netloc}


def test_the_policy_stops_a_script_that_came_in_all_the_same(page: Page, market: Running) -> None:
    """If markup were ever created from data, the browser itself would refuse: the test above would notice."""
    seen = watch(page)
    page.goto(market.address)
    expect(page.locator(".bar")).to_have_count(10)
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("text => { document.body.innerHTML = text }", IMAGE)
    assert "require-trusted-types-for" in page.evaluate("window.violations")
    assert seen.dialogs == []
