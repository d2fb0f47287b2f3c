"""The webhooks page in a real browser, with a real gateway behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from penstock.core.access import Policy
from tests.dashboard.fake_api import FakeApi, serving
from tests.dashboard.market import app, stream
from tests.dashboard.test_safety import HOSTILE, watch
from tests.harness import wait_for
from tests.runtime.guarded import Running, running
from tests.runtime.hooked import QUICK, Receiver, asking, gateway, receiver, registered

__all__ = ["gateway", "receiver"]
pytestmark = pytest.mark.browser


def shown(page: Page, gateway: Running, hash: str = "#/webhooks") -> Locator:
    page.goto(f"http://127.0.0.1:{gateway.port}/{hash}")
    return page.get_by_role("region", name="Webhooks")


def test_without_a_webhook_the_page_says_how_to_make_one(page: Page, gateway: Running) -> None:
    seen = watch(page)
    panel = shown(page, gateway, "#/query")
    page.get_by_role("link", name="Webhooks").click()
    expect(panel.locator(".snippet pre")).to_contain_text("/v1/webhooks -H")
    expect(panel.locator(".snippet pre")).to_contain_text('"stream":"a"')
    assert seen.errors == []


def test_the_page_tells_how_each_webhook_is_doing(page: Page, gateway: Running, receiver: Receiver) -> None:
    seen = watch(page)
    with asking(gateway) as ask:
        registered(ask, receiver, name="to the shop")
        panel = shown(page, gateway)
        hook = panel.locator(".hook")
        expect(hook).to_contain_text("to the shop")
        expect(hook).to_contain_text("0 delivered")
        gateway.post("a", events=[{"k": "one", "n": 1}, {"k": "two", "n": 2}])
        expect(hook).to_contain_text("2 delivered")
        expect(hook.locator(".tag")).to_have_text("active")
        expect(hook.locator(".hook-way")).to_have_text(f"a → http://127.0.0.1:{receiver.server_address[1]}")
        assert "secret-path" not in panel.inner_text()
        hook.get_by_role("link", name="to the shop").click()
        expect(panel.locator(".facts")).to_contain_text("/a/secret-path")  # its owner sees the whole address
        expect(panel).to_contain_text("No dead letters")
    assert seen.errors == []


def test_its_owner_pauses_a_webhook_and_lets_it_go_on(page: Page, gateway: Running, receiver: Receiver) -> None:
    with asking(gateway) as ask:
        id = registered(ask, receiver)
        hook = shown(page, gateway).locator(".hook")
        hook.get_by_role("button", name="pause").click()
        expect(hook.locator(".tag")).to_have_text("paused")
        gateway.post("a", events={"k": "one", "n": 1})
        expect(hook).to_contain_text("1 behind")
        assert ask("GET", f"/{id}")["state"] == "paused"
        hook.get_by_role("button", name="resume").click()
        expect(hook).to_contain_text("1 delivered")


def test_dead_letters_are_shown_with_their_reason_and_sent_again(
    page: Page, gateway: Running, receiver: Receiver
) -> None:
    receiver.status = 500
    with asking(gateway) as ask:
        id = registered(ask, receiver, name="failing")
        gateway.post("a", events=[{"k": "one", "n": number} for number in range(3)])
        wait_for(lambda: ask("GET", f"/{id}")["dead"] == 3)
        panel = shown(page, gateway)
        expect(page.get_by_label("1 webhook in trouble")).to_be_visible()
        expect(panel.locator(".hook")).to_contain_text("3 dead letters")
        panel.get_by_role("link", name="failing").click()
        letters = panel.locator(".letters li")
        expect(letters).to_have_count(3)
        expect(letters.first).to_contain_text("the receiver returned 500 after 3 attempts")
        expect(letters.first.locator("pre")).to_contain_text('"n":0')
        receiver.status = 200
        letters.nth(1).get_by_role("button", name="send again").click()
        expect(letters).to_have_count(2)
        wait_for(lambda: [event["n"] for event in receiver.events()] == [1])
        panel.get_by_role("button", name="send all again").click()
        expect(panel).to_contain_text("No dead letters")
        wait_for(lambda: [event["n"] for event in receiver.events()] == [1, 0, 2])
        expect(page.get_by_label("1 webhook in trouble")).to_have_count(0)


def test_a_webhook_that_waits_for_its_challenge_says_what_came_instead(
    page: Page, gateway: Running, receiver: Receiver
) -> None:
    receiver.willing = False
    with asking(gateway) as ask:
        webhook = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)
        receiver.secrets.append(webhook["secret"])
        wait_for(lambda: ask("GET", f"/{webhook['id']}")["reason"])
        hook = shown(page, gateway).locator(".hook")
        expect(hook.locator(".tag")).to_have_text("pending")
        expect(hook.locator(".failure")).to_have_text(ask("GET", f"/{webhook['id']}")["reason"])
        receiver.willing = True
        hook.get_by_role("button", name="verify").click()
        expect(hook.locator(".tag")).to_have_text("active")


def test_who_is_not_its_owner_sees_figures_and_no_more(page: Page, tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path, Policy(), settings=QUICK) as gateway:
        mine, other = gateway.add("mine", "consume:*"), gateway.add("other", "consume:*")
        with asking(gateway, mine) as ask:
            id = registered(ask, receiver, name="mine")
        page.goto(f"http://127.0.0.1:{gateway.port}/#/webhooks")
        page.get_by_label("key").fill(other)
        page.get_by_role("button", name="sign in").click()
        panel = page.get_by_role("region", name="Webhooks")
        expect(panel.locator(".hook")).to_contain_text("mine")
        expect(panel.get_by_role("button")).to_have_count(0)
        panel.get_by_role("link", name="mine").click()
        expect(panel).to_contain_text("Only the webhook's owner can see")
        page.goto(f"http://127.0.0.1:{gateway.port}/#/webhooks/none")
        expect(panel).to_contain_text("This app has no webhook none.")
        assert id not in panel.inner_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_and_long_texts_are_text_and_fit(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    described = app("x", [stream("a", {"k": "string"}, end=1)], [])
    described["webhooks"] = [hook(f"wh_{number}", text) for number, text in enumerate(HOSTILE)]
    with serving(FakeApi(described, {}, {})) as address:
        seen = watch(page)
        page.goto(f"{address}/#/webhooks")
        expect(page.locator(".hook")).to_have_count(len(HOSTILE))
        assert page.evaluate("document.documentElement.scrollWidth") == width
    assert (seen.dialogs, len(seen.hosts)) == ([], 1)
    assert page.evaluate("violations") == []


def hook(name: str, text: str) -> dict[str, Any]:
    """Return a webhook of `/v1/app` with a text in every place that may have one."""
    figures = dict.fromkeys(["pending", "retrying", "lag", "delivered", "failures", "dead", "forgotten"], 1)
    times = dict.fromkeys(["last_success", "last_error", "last_error_at"], text)
    words = {"label": text, "of": text or "a", "kind": "stream", "address": text, "state": "stopped", "reason": text}
    return {"name": name, **words, **figures, **times}
