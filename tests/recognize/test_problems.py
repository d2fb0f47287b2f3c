"""What is refused, each with a sentence that says what to write, and its place in the text."""

from __future__ import annotations

import pytest

from penstock import App
from penstock.graph import check
from tests.cep.letters import Letter
from tests.recognize.texts import fault, text

REFUSED = [
    (text("A B", measures="COUNT(*), 1 AS n"), "a measure has a name"),
    (text("A B").replace("PARTITION BY key", ""), "PARTITION BY takes one column"),
    (text("A B").replace("BY key", "BY key, kind"), "PARTITION BY takes one column"),
    (text("A B").replace("BY key", "BY lower(key)"), "PARTITION BY takes a column"),
    (text("A B").replace("BY key", "BY colour"), "there is no column 'colour'"),
    (text("A B").replace("BY at", "BY number"), "rows are looked at in the order of event time: write ORDER BY at"),
    (text("A B").replace("BY at", "BY at DESC"), "rows are looked at in the order of event time"),
    (text("A B", define="C AS kind = 'c'"), "DEFINE names 'C', which is not in PATTERN; there are A, B"),
    (text("A B", define="A AS kind"), "what defines A is no condition"),
    (text("A B", define="A AS kind > 3"), "cannot be compared"),
    (text("A B", define="A AS colour = 'c'"), "there is no column 'colour'"),
    (text("A B", define="A AS A.colour = 'c'"), "there is no column 'colour'"),
    (text("A B", define="A AS nope(kind) = 'c'"), "there is no function 'nope'"),
    (text("A B", define="A AS kind = 'a', A AS kind = 'b'"), "A is defined twice"),
    (text("A B", define="A AS NEXT(A.number) > 1"), "NEXT looks at rows that have not come"),
    (text("A B", define="A AS PREV(A.number) > 1"), "can be a row before the match"),
    (text("A B C", define="C AS PREV(C.number, 3) > 1"), "let 3 row(s) of other variables stand before C"),
    (text("A B", define="A AS MATCH_NUMBER() > 1"), "stands in MEASURES only"),
    (text("A B", define="A AS SUM(A.number * B.number) > 1"), "SUM takes columns of one variable"),
    (text("A B", define="A AS SUM(A.kind) > 1"), "SUM does not take text"),
    (text("A B", define="A AS SUM(LAST(A.number)) > 1"), "LAST cannot stand in SUM"),
    (text("A B", define="A AS COUNT(*, 2) > 1"), "COUNT takes 1 value, not 2"),
    (text("A B", define="A AS LAST(A.number, -1) > 1"), "takes a whole number here"),
    (text("A B", define="A AS COUNT(DISTINCT A.number) > 1"), "is not allowed here"),
    (text("A B", define="A AS number > (SELECT 1)"), "is not allowed here"),
    (text("A B", measures="B.at - A.at AS took"), "is an interval, which no event can hold"),
    (text("A B", measures="1 AS key"), "there is a column 'key' already"),
    (text("A B", measures="1 AS class"), "'class' cannot be the name of a column"),
    (text("A B", select="colour"), "there is no column 'colour'"),
    (text("A B", select="n + 1"), "what is computed has a name"),
    (text("A B") + " WHERE n", "what stands in WHERE is no condition"),
    (text("A B") + " ORDER BY n", "ORDER BY cannot stand with MATCH_RECOGNIZE"),
    (text("A B", select="COUNT(n) AS k"), "there is no function 'count'"),
    (text("A* B?"), "every variable is optional"),
    (text("A B++"), "one quantifier is enough"),
    (text("A (B?)+"), "a group that may be nothing cannot be repeated"),
    (text("A B{3,2}"), "{3,2} can never be"),
    (text("A B{}"), "a number is missing"),
    (text("A B{2000}"), "a repetition is of 1,000 rows at most"),
    (text("((A B){50}){50}"), "it has more than 2,000 places"),
    (text("A (B | )"), "a name or a group is missing"),
    (text("^ A B"), "^ has no meaning on a stream"),
    (text("A B $"), "this cannot stand here"),
    (text("A {- B -}"), "this cannot stand here"),
    (text("A )("), "it cannot be read here"),
    (text("PERMUTE(A)"), "PERMUTE takes 2 to 4 variables"),
    (text(""), "PATTERN ( ) is empty"),
    (text("A B", rest="AFTER MATCH SKIP TO FIRST A"), "that is its own first row"),
    (text("A B", rest="AFTER MATCH SKIP TO LAST A"), "that is its own first row"),
    (text("A B", rest="AFTER MATCH SKIP TO LAST C"), "it skips to 'C', which is not in PATTERN"),
    (text("A B", rest="AFTER MATCH SKIP BACK"), "AFTER MATCH SKIP takes PAST LAST ROW"),
    (text("A B", rest="ALL ROWS PER MATCH WITH UNMATCHED ROWS"), "is not known: use ONE ROW PER MATCH"),
    (text("A B+").replace("WITHIN INTERVAL '1' HOUR", ""), "add WITHIN INTERVAL"),
    (text("A B?").replace("WITHIN INTERVAL '1' HOUR", ""), "a match could wait forever"),
    (text("A B").replace("'1' HOUR", "'1' MONTH"), "is no interval"),
    (text("A B").replace("'1' HOUR", "'0' HOUR"), "an interval above zero"),
    (text("A B").replace("WITHIN INTERVAL", "WITHIN"), "WITHIN takes an interval"),
    (text("A B").replace("DEFINE", "SUBSET U = (A, B) DEFINE"), "SUBSET is not known"),
    (text("A B").replace("FROM letters", "FROM (SELECT 1) AS x"), "FROM takes the name of one stream"),
    (text("A B").replace("FROM letters", "FROM nothing"), "there is no stream 'nothing'"),
    (text("A B").replace("FROM letters", ""), "MATCH_RECOGNIZE stands after the one stream of FROM"),
    (text("A B").replace("HOUR", "HOUR AFTER MATCH SKIP TO NEXT ROW"), "AFTER MATCH SKIP stands before PATTERN"),
    (text("A B").replace("'1' HOUR", "'1000000' DAY"), "an interval of a hundred years at most"),
    (text("A B").replace("PATTERN (", "PATTERN (("), "cannot be read"),
    (text("A B") + ")", "it cannot be read"),
    (text("A 'B"), "is there a quote that is not closed?"),
    (text("A B") + " " * 10_000, "it has more than 10,000 characters"),
]


@pytest.mark.parametrize(("statement", "told"), REFUSED)
def test_a_text_is_refused_with_a_sentence_and_its_place(statement: str, told: str) -> None:
    sentence = fault(statement)
    assert told in sentence
    assert "(line " in sentence or "(the end)" in sentence


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
    assert f"handler found: {next(iter(option))} is not for MATCH_RECOGNIZE" in str(problem)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (text("A B", define="A AS colour = 'a'"), "there is no column 'colour'"),
        (text("A B").replace("PARTITION BY key", ""), "PARTITION BY takes one column"),
    ],
)
def test_check_tells_the_fault_of_a_text_with_its_declaration_and_nothing_else(statement: str, told: str) -> None:
    [problem] = check(app_with(statement))
    assert "test_problems.py" in str(problem)
    assert told in str(problem)


def test_bounds_are_looked_at_as_those_of_any_pattern() -> None:
    [problem] = check(app_with(text("A B"), bounds=5))
    assert "bounds is 5; give cep.Bounds(" in str(problem)


def test_a_sound_text_has_no_problems() -> None:
    assert check(app_with(text("A B"))) == []
