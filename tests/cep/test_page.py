"""docs/patterns.md: each row of its tables gives the documented result, and its tests pass."""

from __future__ import annotations

import importlib
import re
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import cep
from penstock.cep.problems import problems
from tests.cep.brute import Brute
from tests.cep.letters import Letter, letters, matches_of, on

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


NAMES = {"cep": cep, "is_b": is_b, "is_c": is_c, "s": timedelta(seconds=1)} | {name: on(name) for name in "abcd"}


REFUSED = re.compile(r"^\| `(?P<refused>[^`]+)` \| (?P<why>[^|]+) \| (?P<instead>[^|]+) \|", re.MULTILINE)
ABOUT_REFUSED = PAGE[PAGE.index("## What is refused") : PAGE.index("## If you know")]


def listed(matches: str) -> list[str]:
    return sorted(re.findall(r"`([^`]+)`", matches))


@pytest.mark.parametrize("row", [*ROW.finditer(PAGE)], ids=lambda row: row["pattern"])
def test_a_row_of_the_page_is_true(row: re.Match[str]) -> None:
    assert sorted(matches_of(eval(row["pattern"], NAMES), row["events"])) == listed(row["matches"])


@pytest.mark.parametrize("row", [*ROW.finditer(PAGE)], ids=lambda row: row["pattern"])
def test_trying_everything_gives_what_a_row_says(row: re.Match[str]) -> None:
    """This proves that `brute.py` implements the rules of the page, independently of the engine."""
    events = letters(row["events"])
    matches = Brute(events).matches(eval(row["pattern"], NAMES))
    assert sorted(" ".join(events[number].text for _, number in match.taken) for _, match in matches) == listed(
        row["matches"]
    )


@pytest.mark.parametrize("row", [*SKIP.finditer(PAGE)], ids=lambda row: row["skip"])
def test_a_row_about_skipping_is_true(row: re.Match[str]) -> None:
    pattern = eval("b.at_least(1).next(c)", NAMES)
    assert sorted(matches_of(pattern, "b1 b2 b3 c", skip=eval(row["skip"], NAMES))) == listed(row["matches"])


@pytest.mark.parametrize("row", [*REFUSED.finditer(ABOUT_REFUSED)], ids=lambda row: row["refused"])
def test_a_pattern_that_the_page_says_is_refused_is_and_what_it_says_to_write_instead_is_not(
    row: re.Match[str],
) -> None:
    assert [*problems(eval(row["refused"], NAMES))]
    for pattern in re.findall(r"`((?:cep|[abcd])\.[^`]+)`", row["instead"]):
        assert [*problems(eval(pattern, NAMES), within=timedelta(hours=1))] == []


def test_the_page_has_rows() -> None:
    counts = [len(list(regex.finditer(PAGE))) for regex in (ROW, SKIP)]
    assert (*counts, len(list(REFUSED.finditer(ABOUT_REFUSED)))) == (63, 5, 23)


def test_the_tests_of_the_page_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    tests = [test for title, test in vars(importlib.import_module("test_cards")).items() if title.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


@pytest.mark.parametrize("name", [name for name in vars(cep.Pattern) if not name.startswith("_")])
def test_every_word_of_the_language_is_on_the_page(name: str) -> None:
    assert name in ("parts", "steps") or f".{name}(" in PAGE
