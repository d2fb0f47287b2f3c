"""docs/rollup.md: its limits and defaults are correct, and its test passes."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.rollups.memory import PAGES_MAX
from penstock.rollups.problems import KEEP, keep_max

DOCS = Path(__file__).parents[2] / "docs"
PAGE = " ".join((DOCS / "rollup.md").read_text().split())


def test_the_limits_and_defaults_are_those_of_the_code() -> None:
    assert f"up to a total of {PAGES_MAX:,} pages per unit" in PAGE
    assert f"more than {PAGES_MAX * 3 // 4:,} pages (25 hours of seconds, or 62 days of minutes)" in PAGE
    assert keep_max("second") == timedelta(hours=25)
    assert keep_max("minute") // timedelta(days=1) == 62
    assert (
        "seconds are kept for an hour, minutes for a day, hours for 31 days, days for 2 years, months for 10 years"
        in PAGE
    )

    years = {unit: span / timedelta(days=365.25) for unit, span in KEEP.items()}
    assert (KEEP["second"], KEEP["minute"], KEEP["hour"]) == (timedelta(hours=1), timedelta(1), timedelta(31))
    assert (round(years["day"]), round(years["month"]), round(years["year"])) == (2, 10, 100)


def test_the_pages_test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    monkeypatch.delitem(sys.modules, "sales", raising=False)
    importlib.import_module("test_sales").test_an_hour_has_what_came_in_time_and_what_came_late()
