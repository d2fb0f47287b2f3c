"""A text as a handler: the same as over a list, despite crashes, restarts and out-of-order events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import App
from penstock.app.check import check
from penstock.app.declared import Recognizer, View
from penstock.handlers.purity import impurities
from penstock.testing import CRASH, Result, run, tick
from tests.cep.letters import Letter, letters
from tests.recognize.texts import text

S = timedelta(seconds=1)
STATEMENT = text("A B+ C?", measures="COUNT(*) AS n, MATCH_NUMBER() AS m").replace("'1' HOUR", "'10' SECOND")
GIVEN = letters("a@0 b1@1 b2@2 d@3 a@4 b3@5 c@6 a@20 b4@21")
EXPECTED = [("k", 3, 1), ("k", 3, 2)]


def app_with(late_after: timedelta | None = None) -> tuple[App, Recognizer]:
    app = App("letters")
    app.stream("letters", Letter, key="key", late_after=late_after)
    recognizer = app.sql("found", STATEMENT)
    assert check(app) == []
    return app, recognizer


def rows(result: Result) -> list[tuple[Any, ...]]:
    return [(event.key, event.n, event.m) for event in result.emitted("found")]


def test_what_it_finds_is_a_stream() -> None:
    app, recognizer = app_with()
    assert [stream.name for stream in recognizer.outputs] == ["found", "found.missed", "found.failed"]
    assert rows(run(app, {"letters": GIVEN})) == EXPECTED


@pytest.mark.parametrize("place", range(len(GIVEN) + 1))
def test_a_crash_changes_nothing(place: int) -> None:
    app, _ = app_with()
    assert rows(run(app, {"letters": [*GIVEN[:place], CRASH, *GIVEN[place:]]})) == EXPECTED


def test_rows_out_of_order_are_put_in_order() -> None:
    app, _ = app_with(late_after=5 * S)
    shuffled = [GIVEN[index] for index in (1, 0, 2, 4, 3, 6, 5, 7, 8)]
    assert rows(run(app, {"letters": [*shuffled, tick(60 * S)]})) == [*EXPECTED, ("k", 2, 3)]


def test_a_match_that_could_be_longer_is_told_when_log_time_says_so() -> None:
    app, _ = app_with()
    assert rows(run(app, {"letters": [*GIVEN, tick(8 * S)]})) == EXPECTED
    assert rows(run(app, {"letters": [*GIVEN, tick(60 * S)]})) == [*EXPECTED, ("k", 2, 3)]


def test_nobody_wrote_its_functions_so_nobody_is_told_about_them() -> None:
    app, recognizer = app_with()
    assert recognizer.written == ()
    assert list(impurities(app)) == []


def test_a_view_without_a_key_is_refused_as_ever() -> None:
    app, _ = app_with()
    app.sql("counts", "SELECT key, count(*) AS n FROM found GROUP BY key")
    [problem] = check(app)
    assert "it has no key" in str(problem)


@pytest.mark.parametrize(
    "column",
    ["'no match_recognize'", r"'it\'s MATCH_RECOGNIZE'", "r'MATCH_RECOGNIZE'", "1 /* MATCH_RECOGNIZE */"],
)
def test_a_view_that_only_mentions_the_word_is_a_view(column: str) -> None:
    app, _ = app_with()
    view = app.sql(
        "counts", f"SELECT key, count(*) AS `match_recognize`, {column} AS n FROM found GROUP BY key", key="key"
    )
    assert isinstance(view, View)
    assert check(app) == []


@pytest.mark.parametrize("statement", [STATEMENT, STATEMENT.lower(), f"-- that one\n{STATEMENT}", f"{STATEMENT} '"])
def test_a_text_with_the_word_is_a_pattern_also_if_it_cannot_be_read(statement: str) -> None:
    assert isinstance(App("letters").sql("found", statement), Recognizer)


def test_a_view_may_read_what_it_finds() -> None:
    app, _ = app_with()
    app.sql("counts", "SELECT key, count(*) AS n FROM found GROUP BY key", key="key")
    assert check(app) == []
