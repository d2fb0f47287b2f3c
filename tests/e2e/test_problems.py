"""Problems are visible on the console, in `/v1/health` and in the dashboard, for as long as they last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import browser, page
from tests.harness import ROOT, START_S, RunningApp, running, wait_for

__all__ = ["browser", "page"]
pytestmark = [pytest.mark.spark, pytest.mark.browser]
TROUBLED = ROOT / "tests/e2e/troubled.py"


def problems(app: RunningApp) -> dict[str, Any]:
    return {f"{problem['kind']} {problem['name']}": problem for problem in app.health()["problems"]}


def test_what_fails_is_seen_and_stays_to_be_seen(tmp_path: Path, page: Page) -> None:
    quick = {"PENSTOCK_SOURCE_DOWN_S": "2", "PENSTOCK_RECOVERED_S": "900"}
    with running(TROUBLED, tmp_path / "data", **quick) as app:
        wait_for(
            lambda: problems(app).keys() == {"source warehouse"}, what="the source to be missed", timeout_s=START_S
        )
        app.post("orders", [{"order": "1", "customer": "ann", "amount": 10}])
        wait_for(lambda: app.view("shares"), what="the first row", timeout_s=START_S)
        wait_for(lambda: app.health()["state"] == "degraded", what="the app to be up", timeout_s=START_S)
        assert app.health()["ready"]  # everything that runs is served; someone should look at it

        app.post("orders", [{"order": "2", "customer": "ann", "amount": -10}])
        wait_for(
            lambda: "handler milestones" in problems(app), what="the handler's failure to be seen", timeout_s=START_S
        )
        assert problems(app)["handler milestones"]["level"] == "amber"
        assert "failed on an event, which is in milestones.failed" in problems(app)["handler milestones"]["message"]
        page.goto(f"{app.url}/#/handlers/milestones")
        expect(page.locator(".letters li")).to_contain_text("order 2 is below zero")
        page.locator("summary", has_text="traceback").click()
        expect(page.get_by_label("Traceback")).to_contain_text("raise ValueError")
        page.get_by_label("customer").fill("ann")
        page.get_by_role("button", name="show").click()
        expect(page.get_by_label("State of ann")).to_contain_text('"orders": 1')

        app.post("orders", [{"order": "3", "customer": "bob", "amount": 0}])  # which stays: the view cannot continue
        wait_for(lambda: "view shares" in problems(app), what="the view's failure to be seen", timeout_s=START_S)
        levels = [problems(app).get("view shares", {}).get("level") for _ in range(40)]
        assert None not in levels  # not for a moment between two tries
        assert not app.health()["ready"]
        page.goto(app.url)
        listed = page.get_by_role("status", name="Problems").locator("li")
        expect(listed).to_have_count(3)
        expect(listed.filter(has_text="view shares")).to_have_class("red")
        expect(page.locator(".card", has_text="warehouse").locator(".dot")).to_have_class("dot wait")
        expect(page.locator(".card", has_text="milestones").locator(".dot")).to_have_class("dot wait")
        expect(page.locator(".card", has_text="shares").locator(".dot")).to_have_class("dot bad")
        app.stop()
    said = app.output
    assert "ready" not in said
    for sentence in (
        "source warehouse is not connected",
        "handler milestones failed on an event",
        "view shares failed",
    ):
        assert len(re.findall(rf"^penstock: {sentence}", said, re.MULTILINE)) == 1, said
    assert "running after" in said
    assert "/#/handlers/milestones" in said
