"""A view kept by a handler, in a running app: served as any view, read by others, through a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.handlers import standing
from tests.harness import RunningApp, running, wait_for

pytestmark = pytest.mark.spark
POINT = "handler.after_append@2"
"""The engine dies when the view has a batch that the handler's ledger does not have."""


def rows(app: RunningApp, view: str, **parameters: str) -> list[dict[str, Any]]:
    view_rows: list[dict[str, Any]] = httpx.get(f"{app.url}/v1/views/{view}", params=parameters).json().get("rows", [])
    return view_rows


def watts(app: RunningApp, view: str) -> dict[tuple[str, Any], int]:
    return {(row["meter"], row.get("hour")): row["watts"] for row in rows(app, view)}


def described(app: RunningApp) -> dict[str, Any]:
    return next(view for view in app.describe()["views"] if view["name"] == "used")


def test_a_view_that_a_handler_keeps_is_served_and_read_through_a_crash(tmp_path: Path) -> None:
    mark = tmp_path / "died"
    with running(Path(standing.__file__), tmp_path / "data", PENSTOCK_FAILPOINTS=f"{POINT}=kill:{mark}") as app:
        app.ready(180)
        for number in (1, 2, 33):
            app.post("readings", [{"meter": meter, "hour": 1, "watts": number} for meter in "ab"])
        wait_for(mark.exists, 120, "the failpoint to be reached")
        wait_for(lambda: watts(app, "used") == {("a", 1): 36, ("b", 1): 36}, 120, "the first rows")
        struck = {"meter": "b", "hour": 1, "watts": 0, "struck": True}
        app.post("readings", [{"meter": "c", "hour": 2, "watts": 5}, struck])
        expected = {("a", 1): 36, ("c", 2): 5}
        wait_for(lambda: watts(app, "used") == expected, 120, "the rows")
        page = httpx.get(f"{app.url}/v1/views/used", params={"where": "watts > 10", "select": "meter"}).json()
        assert page["rows"] == [{"hour": 1, "meter": "a"}]  # the key is always included
        wait_for(lambda: watts(app, "most") == {("a", None): 36, ("c", None): 5}, 120, "the view on it")
        wait_for(lambda: described(app)["lag"] == 0, 30, "the engine to say that all is read")
        view, description = described(app), app.describe()
        assert (view["kind"], view["state"], view["rows"]) == ("handler", "running", 2)
        assert [column["name"] for column in view["columns"]] == ["meter", "hour", "watts", "parts"]
        (handler,) = description["handlers"]
        assert (handler["view"], handler["emits"], handler["keys"]) == ("used", ["used.failed"], 2)
        again = app.post("readings?reply=used", [{"meter": "a", "hour": 1, "watts": 4}]).json()
        assert [row["watts"] for row in again["reply"]["rows"]] == [40]
