"""docs/sketches.md: its table agrees with the classes, and its tests pass."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from penstock import sketches
from penstock.sketches import columns

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sketches.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `") and "µs" in line
]
MADE = [name for name in sketches.__all__ if name not in ("REST", "Estimate", "Sketch")]


def test_every_sketch_has_a_row() -> None:
    assert sorted(row[0][1:].split("(")[0] for row in ROWS) == sorted(MADE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_tells_the_size_and_the_format(row: list[str]) -> None:
    sketch: Any = eval(row[0].strip("`"), vars(sketches))
    assert row[3] == f"{sketch.size_bytes:,} / {sketch.size_bytes_max:,}"
    assert row[6] == sketch.format


@pytest.mark.parametrize("name", columns.__all__)
def test_every_function_of_columns_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}\([^`]*\)`", PAGE)


def test_the_tests_of_the_page_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    tests = [test for title, test in vars(importlib.import_module("test_pages")).items() if title.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()
