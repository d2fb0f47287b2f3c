"""The texts that are refused, each with a sentence that says what to write, and its position in the text."""

from __future__ import annotations

import pytest

from penstock import App
from penstock.app.check import check
from tests.cep.letters import Letter
from tests.recognize.texts import fault, text

REFUSED = [
    (text("A B", measures="COUNT(*), 1 AS n"), "a measure needs a name"),
    (text("A B").replace("PARTITION BY key", ""), "PARTITION BY takes one column"),
    (text("A B").replace("BY key", "BY key, kind"), "PARTITION BY takes one column"),
    (text("A B").replace("BY key", "BY lower(key)"), "PARTITION BY takes a column"),
    (text("A B").replace("BY key", "BY colour"), "there is no column 'colour'"),
    (text("A B").replace("BY at", "BY number"), "rows can only be ordered by event time, ascending: write ORDER BY at"),
    (text("A B").replace("BY at", "BY at DESC"), "rows can only be ordered by event time, ascending"),
    (text("A B", define="C AS kind = 'c'"), "DEFINE contains 'C', which is not in PATTERN; the variables are A, B"),
    (text("A B", define="A AS kind"), "the expression that defines A is not a condition"),
    (text("A B", define="A AS kind > 3"), "cannot be compared"),
    (text("A B", define="A AS colour = 'c'"), "there is no column 'colour'"),
    (text("A B", define="A AS A.colour = 'c'"), "there is no column 'colour'"),
    (text("A B", define="A AS nope(kind) = 'c'"), "there is no function 'nope'"),
    (text("A B", define="A AS kind = 'a', A AS kind = 'b'"), "A is defined twice"),
    (text("A B", define="A AS NEXT(A.number) > 1"), "NEXT refers to a row that has not arrived yet"),
    (text("A B", define="A AS PREV(A.number) > 1"), "can refer to a row before the match"),
    (text("A B C", define="C AS PREV(C.number, 3) > 1"), "put 3 row(s) of other variables before C"),
    (text("A B", define="A AS MATCH_NUMBER() > 1"), "is allowed only in MEASURES"),
    (text("A B", define="A AS SUM(A.number * B.number) > 1"), "SUM takes columns of only one variable"),
    (text("A B", define="A AS SUM(A.kind) > 1"), "SUM does not take text"),
    (text("A B", define="A AS SUM(LAST(A.number)) > 1"), "LAST is not allowed in SUM"),
    (text("A B", define="A AS COUNT(*, 2) > 1"), "COUNT takes 1 value, not 2"),
    (text("A B", define="A AS LAST(A.number, -1) > 1"), "must be an integer from 0 to"),
    (text("A B", define="A AS COUNT(DISTINCT A.number) > 1"), "is not allowed here"),
    (text("A B", define="A AS number > (SELECT 1)"), "is not allowed here"),
    (text("A B", measures="B.at - A.at AS took"), "is an interval, which an event cannot hold"),
    (text("A B", measures="1 AS key"), "there is already a column 'key'"),
    (text("A B", measures="1 AS class"), "'class' cannot be the name of an event column"),
    (text("A B", select="colour"), "there is no column 'colour'"),
    (text("A B", select="n + 1"), "a computed column needs a name"),
    (text("A B") + " WHERE n", "the expression in WHERE is not a condition"),
    (text("A B") + " ORDER BY n", "ORDER BY is not allowed with MATCH_RECOGNIZE"),
    (text("A B", select="COUNT(n) AS k"), "there is no function 'count'"),
    (text("A* B?"), "every variable is optional"),
    (text("A B++"), "only one quantifier is allowed"),
    (text("A (B?)+"), "a group in which all variables are optional cannot be repeated"),
    (text("A B{3,2}"), "{3,2} can never match"),
    (text("A B{}"), "a number is missing"),
    (text("A B{2000}"), "a part can be repeated at most 1,000 times"),
    (text("((A B){50}){50}"), "it expands to more than 2,000 states"),
    (text("A (B | )"), "a name or a group is missing"),
    (text("^ A B"), "^ has no meaning on a stream"),
    (text("A B $"), "this is not allowed here"),
    (text("A {- B -}"), "this is not allowed here"),
    (text("A )("), "it cannot be parsed here"),
    (text("PERMUTE(A)"), "PERMUTE takes 2 to 4 variables"),
    (text(""), "PATTERN ( ) is empty"),
    (text("A B", rest="AFTER MATCH SKIP TO FIRST A"), "would find the same match again"),
    (text("A B", rest="AFTER MATCH SKIP TO LAST A"), "would find the same match again"),
    (text("A B", rest="AFTER MATCH SKIP TO LAST C"), "it skips to 'C', which is not in PATTERN"),
    (text("A B", rest="AFTER MATCH SKIP BACK"), "AFTER MATCH SKIP takes PAST LAST ROW"),
    (text("A B", rest="ALL ROWS PER MATCH WITH UNMATCHED ROWS"), "is not supported: use ONE ROW PER MATCH"),
    (text("A B+").replace("WITHIN INTERVAL '1' HOUR", ""), "add WITHIN INTERVAL"),
    (text("A B?").replace("WITHIN INTERVAL '1' HOUR", ""), "a match could wait forever"),
    (text("A B").replace("'1' HOUR", "'1' MONTH"), "is not an interval"),
    (text("A B").replace("'1' HOUR", "'0' HOUR"), "the interval in WITHIN must be above zero"),
    (text("A B").replace("WITHIN INTERVAL", "WITHIN"), "WITHIN takes an interval"),
    (text("A B").replace("DEFINE", "SUBSET U = (A, B) DEFINE"), "SUBSET is not supported"),
    (text("A B").replace("FROM letters", "FROM (SELECT 1) AS x"), "FROM takes the name of one stream"),
    (text("A B").replace("FROM letters", "FROM nothing"), "no stream 'nothing' is declared before"),
    (text("A B").replace("FROM letters", ""), "MATCH_RECOGNIZE must follow a single stream in FROM"),
    (text("A B").replace("HOUR", "HOUR AFTER MATCH SKIP TO NEXT ROW"), "AFTER MATCH SKIP must come before PATTERN"),
    (text("A B").replace("'1' HOUR", "'1000000' DAY"), "the interval in WITHIN must be at most 100 years"),
    (text("A B").replace("PATTERN (", "PATTERN (("), "cannot be parsed"),
    (text("A B") + ")", "it cannot be parsed"),
    (text("A 'B"), "is there an unclosed quote?"),
    (text("A B") + " " * 10_000, "it is longer than 10,000 characters"),
]


@pytest.mark.parametrize(("statement", "expected"), REFUSED)
def test_a_text_is_refused_with_a_sentence_and_its_place(statement: str, expected: str) -> None:
    sentence = fault(statement)
    assert expected in sentence
    assert "(line " in sentence or "(at the end)" in sentence


def test_the_place_is_that_of_the_fault() -> None:
    statement = text("A B", define="A AS kind = 'a',\n  B AS colour = 'b'")
    line = statement.count("\n", 0, statement.index("colour")) + 1
    assert f"(line {line}, column 8: \"colour = 'b')" in fault(statement)


def app_with(statement: str, **options: object) -> App:
    app = App("letters")
    app.stream("letters", Letter, key="key")
    app.sql("found", statement, **options)  # type: ignore[call-overload]
    return app


@pytest.mark.parametrize("option", [{"key": "key"}, {"top": 3}, {"by": "n"}, {"emit": "close"}])
def test_what_is_for_views_is_refused_by_check(option: dict[str, object]) -> None:
    [problem] = check(app_with(text("A B"), **option))
    assert f"handler found: {next(iter(option))} cannot be used with MATCH_RECOGNIZE" in str(problem)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (text("A B", define="A AS colour = 'a'"), "there is no column 'colour'"),
        (text("A B").replace("PARTITION BY key", ""), "PARTITION BY takes one column"),
    ],
)
def test_check_tells_the_fault_of_a_text_with_its_declaration_and_nothing_else(statement: str, expected: str) -> None:
    [problem] = check(app_with(statement))
    assert "test_problems.py" in str(problem)
    assert expected in str(problem)


def test_bounds_are_looked_at_as_those_of_any_pattern() -> None:
    [problem] = check(app_with(text("A B"), bounds=5))
    assert "bounds is 5; pass cep.Bounds(" in str(problem)


def test_a_sound_text_has_no_problems() -> None:
    assert check(app_with(text("A B"))) == []
