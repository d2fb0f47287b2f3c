"""A rollup in a running app: corrected by late events, queried by range, through a crash."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import RunningApp, running, wait_for
from tests.rollups import till

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # test_files.py tests the same without Spark
POINT = "handler.after_append@2"
DAY = "2024-05-01"
numbers = count()


def sale(clock: str, cents: int, at: str = DAY) -> dict[str, Any]:
    return {"number": next(numbers), "at": f"{at}T{clock}Z", "till": "a", "cents": cents}


def rows(app: RunningApp, **asked: str) -> dict[str, tuple[int, int]]:
    """Return the requested rows, by the clock of their start."""
    sales = httpx.get(f"{app.url}/v1/views/sales", params=asked).json().get("rows", [])
    return {row["start"][11:19]: (row["orders"], row["cents"]) for row in sales}


def test_a_rollup_is_kept_and_corrected_through_a_crash(tmp_path: Path) -> None:
    """The events are old: the time of the till is theirs."""
    mark = tmp_path / "reached"
    with running(Path(till.__file__), tmp_path / "data", PENSTOCK_FAILPOINTS=f"{POINT}=kill:{mark}") as app:
        app.ready()
        app.post("sold", [sale("10:00:05", 1), sale("10:01:05", 2), sale("10:00:59", 4)])
        expected = {"10:00:00": (2, 5), "10:01:00": (1, 2)}
        wait_for(lambda: rows(app, per="minute") == expected, 120, "the first rows")
        app.post("sold", [sale("10:00:30", 8)])
        expected = {"10:00:00": (3, 13), "10:01:00": (1, 2)}
        wait_for(lambda: rows(app, per="minute") == expected, 120, "the late one, by way of a crash")
        assert mark.exists()
        assert rows(app, per="minute", **{"from": f"{DAY}T10:01:00Z", "to": f"{DAY}T10:02:00Z"}) == {"10:01:00": (1, 2)}
        assert rows(app, per="day", where="till = 'a'") == {"00:00:00": (4, 15)}
        app.post("sold", [sale("13:30:00", 16), sale("10:00:31", 32), sale("10:00:00", 64, "2023-05-01")])
        wait_for(lambda: rows(app, per="day") == {"00:00:00": (6, 63)}, 120, "the day with all of its sales")
        assert rows(app, per="minute") == {"13:30:00": (1, 16)}
        (missed,) = httpx.get(f"{app.url}/v1/streams/sales.missed", params={"since": "earliest"}).json()["events"]
        assert (missed["key"], missed["reason"], missed["at"]) == ("a", "late", "2023-05-01T10:00:00Z")
        description = httpx.get(f"{app.url}/v1/app").json()
        (view,) = description["views"]
        assert (view["name"], view["units"], view["key"]) == ("sales", ["minute", "day"], ["per", "start", "till"])
        assert httpx.get(f"{app.url}/v1/views/sales", params={"per": "week"}).json()["code"] == "bad_parameter"
        document = httpx.get(f"{app.url}/v1/openapi.json").json()
        asked = {parameter["name"] for parameter in document["paths"]["/v1/views/{name}"]["get"]["parameters"]}
        assert {"per", "from", "to"} <= asked
