"""docs/patterns.md: each row of its tables gives what it says, and its tests pass."""

from __future__ import annotations

import importlib
import re
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import cep
from tests.cep.brute import Brute
from tests.cep.letters import Letter, found, letters, on

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "patterns.md").read_text()
ROW = re.compile(
    r"^\| `(?P<pattern>(?!cep\.skip|\()[^`]+)` \| `(?P<events>[^`]+)` \| (?P<matches>[^|]+) \|", re.MULTILINE
)
SKIP = re.compile(r"^\| `(?P<skip>cep\.skip[^`]+)` \| (?P<matches>[^|]+) \|", re.MULTILINE)


def is_b(event: Letter, match: cep.Match) -> bool:
    return event.kind == "b"


def is_c(event: Letter, match: cep.Match) -> bool:
    return event.kind == "c"


NAMES = {"cep": cep, "is_b": is_b, "is_c": is_c, "s": timedelta(seconds=1)} | {each: on(each) for each in "abcd"}


def listed(matches: str) -> list[str]:
    return sorted(re.findall(r"`([^`]+)`", matches))


@pytest.mark.parametrize("row", [*ROW.finditer(PAGE)], ids=lambda row: row["pattern"])
def test_a_row_of_the_page_is_true(row: re.Match[str]) -> None:
    assert sorted(found(eval(row["pattern"], NAMES), row["events"])) == listed(row["matches"])


@pytest.mark.parametrize("row", [*ROW.finditer(PAGE)], ids=lambda row: row["pattern"])
def test_trying_everything_gives_what_a_row_says(row: re.Match[str]) -> None:
    """So `brute.py` means the same as the page, whatever the engine does."""
    events = letters(row["events"])
    found = Brute(events).matches(eval(row["pattern"], NAMES))
    assert sorted(" ".join(events[number].text for _, number in each.taken) for _, each in found) == listed(
        row["matches"]
    )


@pytest.mark.parametrize("row", [*SKIP.finditer(PAGE)], ids=lambda row: row["skip"])
def test_a_row_about_skipping_is_true(row: re.Match[str]) -> None:
    pattern = eval("b.at_least(1).next(c)", NAMES)
    assert sorted(found(pattern, "b1 b2 b3 c", skip=eval(row["skip"], NAMES))) == listed(row["matches"])


def test_the_page_has_rows() -> None:
    assert (len(list(ROW.finditer(PAGE))), len(list(SKIP.finditer(PAGE)))) == (54, 5)


def test_the_tests_of_the_page_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    tests = [each for title, each in vars(importlib.import_module("test_cards")).items() if title.startswith("test_")]
    assert len(tests) == 2
    for each in tests:
        each()


@pytest.mark.parametrize("name", [name for name in vars(cep.Pattern) if not name.startswith("_")])
def test_every_word_of_the_language_is_on_the_page(name: str) -> None:
    assert name in ("parts", "steps") or f".{name}(" in PAGE
