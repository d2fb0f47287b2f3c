"""docs/patterns.md, the part about SQL: each row of its table is true, and its test passes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from penstock.cep.recognize import navigation
from tests.recognize.texts import matches, text

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "patterns.md").read_text()
ROW = re.compile(r"^\| `\((?P<pattern>[^`]+)\)` \| `(?P<rows>[^`]+)` \| (?P<matches>[^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("row", [*ROW.finditer(PAGE)], ids=lambda row: row["pattern"])
def test_a_row_of_the_page_is_true(row: re.Match[str]) -> None:
    pattern = row["pattern"].replace("\\|", "|")
    assert matches(text(pattern), row["rows"]) == re.findall(r"`([^`]+)`", row["matches"])


def test_the_page_has_rows() -> None:
    assert len(list(ROW.finditer(PAGE))) == 7


def test_the_test_of_the_page_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    [test] = [test for title, test in vars(importlib.import_module("test_falls")).items() if title.startswith("test_")]
    test()


@pytest.mark.parametrize("name", sorted(navigation.CALLS))
def test_every_function_is_on_the_page(name: str) -> None:
    assert name.upper() in PAGE
