"""docs/joins.md: each row of its table gives the documented result, and its tests pass."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock import joins
from tests.joins.ads import S, join_app, parsed, result_of, texts

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "joins.md").read_text()
ROW = re.compile(
    r"^\| `within=(?P<within>[^`]+?)(, how=\"(?P<how>\w+)\")?` \| `(?P<events>[^`]+)` \| "
    r"(?P<emitted>[^|]*) \| (?P<missed>[^|]*)\|$",
    re.MULTILINE,
)


def interval(text: str) -> Any:
    parts = tuple(int(number) * S for number in re.findall(r"(\d+) s", text))
    return parts if len(parts) == 2 else parts[0]


@pytest.mark.parametrize("row", [*ROW.finditer(PAGE)], ids=lambda row: row["events"])
def test_a_row_of_the_page_is_true(row: re.Match[str]) -> None:
    app, _ = join_app(within=interval(row["within"]), how=row["how"] or "inner")
    result = result_of(app, parsed(row["events"]))
    assert texts(result) == re.findall(r"`([^`]+)`", row["emitted"])
    missed = [
        f"`{miss.stream[0].upper()}{_number(miss.event)}` {miss.reason}" for miss in result.emitted("both.missed")
    ]
    assert ", ".join(missed) == row["missed"].strip()


def _number(event: str) -> str:
    return str(re.findall(r'"number":(\d+)', event)[0])


def test_the_page_has_rows() -> None:
    assert len(list(ROW.finditer(PAGE))) == 7


@pytest.mark.parametrize(
    ("name", "count"), [("test_ads", 1), ("test_prices", 2), ("test_sites", 3), ("test_compared", 3)]
)
def test_the_tests_of_the_page_pass(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    tests = [test for title, test in vars(importlib.import_module(name)).items() if title.startswith("test_")]
    assert len(tests) == count
    for test in tests:
        test()


def test_every_bound_and_every_field_of_what_is_missed_is_on_the_page() -> None:
    assert all(f"{field.name}=" in PAGE for field in fields(joins.Bounds))
    assert all(f"`{name}`" in PAGE for name in joins.Missed.__struct_fields__)
