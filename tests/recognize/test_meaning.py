"""The meaning of the text, in tables: a pattern, rows, and the matches; measures, rows, and the output."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cep.letters import Letter
from tests.recognize.texts import emitted, matches, read, text

PATTERNS = [
    ("A B C", "a b c", ["A:a B:b C:c"]),
    ("A B C", "a b d c", []),
    ("A B+ C", "a b1 b2 c", ["A:a B:b1 B:b2 C:c"]),
    ("A B* C", "a c", ["A:a C:c"]),
    ("A B?? C", "a b c", ["A:a B:b C:c"]),
    ("A (B | C) D", "a c d", ["A:a C:c D:d"]),
    ("A B | A C", "a c a b", ["A:a C:c", "A:a B:b"]),
    ("(A B)+", "a1 b1 a2 b2 a3", ["A:a1 B:b1 A:a2 B:b2"]),
    ("(A B?){2,3} C", "a1 a2 b a3 c", ["A:a1 A:a2 B:b A:a3 C:c"]),
    ("A{2}", "a1 a2 a3 a4 a5", ["A:a1 A:a2", "A:a3 A:a4"]),
    ("A{,2} B", "a1 a2 a3 b", ["A:a2 A:a3 B:b"]),
    ("A{2,}? B", "a1 a2 a3 b", ["A:a1 A:a2 A:a3 B:b"]),
    ("PERMUTE(A, B, C)", "c a b", ["C:c A:a B:b"]),
    ("PERMUTE(A, B+) C", "b1 b2 a c", ["B:b1 B:b2 A:a C:c"]),
    ("a B", "a b", ["A:a B:b"]),  # the case of names does not matter
    ("A X", "a d", ["A:a X:d"]),  # without a condition any row fits
]


@pytest.mark.parametrize(("pattern", "rows", "expected"), PATTERNS)
def test_a_pattern_matches_these(pattern: str, rows: str, expected: list[str]) -> None:
    assert matches(text(pattern), rows) == expected


SKIPS = [
    ("", ["A:a1 A:a2 B:b"]),
    ("AFTER MATCH SKIP PAST LAST ROW", ["A:a1 A:a2 B:b"]),
    ("AFTER MATCH SKIP TO NEXT ROW", ["A:a1 A:a2 B:b", "A:a2 B:b"]),
    ("AFTER MATCH SKIP TO FIRST B", ["A:a1 A:a2 B:b"]),
    ("AFTER MATCH SKIP TO LAST A", ["A:a1 A:a2 B:b", "A:a2 B:b"]),
    ("AFTER MATCH SKIP TO A", ["A:a1 A:a2 B:b", "A:a2 B:b"]),
    ("AFTER MATCH SKIP TO C", ["A:a1 A:a2 B:b", "A:a2 B:b"]),  # a match without one: continue with the next row
]


@pytest.mark.parametrize(("skip", "expected"), SKIPS)
def test_a_match_skips_rows(skip: str, expected: list[str]) -> None:
    assert matches(text("A+ B C?", rest=skip), "a1 a2 b d") == expected


def test_a_match_that_could_be_longer_is_told_when_its_time_is_over() -> None:
    statement = text("A B*").replace("'1' HOUR", "'10' SECOND")
    assert matches(statement, "a1@0 b1@5 b2@10 b3@11") == ["A:a1 B:b1 B:b2"]


MEASURES: list[tuple[str, Any]] = [
    ("A.number", 1),
    ("B.number", 7),
    ("number", 9),
    ("FIRST(B.number)", 4),
    ("LAST(B.number)", 7),
    ("FIRST(B.number, 1)", 5),
    ("LAST(B.number, 1)", 5),
    ("LAST(B.number, 3)", None),
    ("FIRST(number)", 1),
    ("LAST(number, 1)", 7),
    ("PREV(B.number)", 5),
    ("PREV(C.number, 2)", 5),
    ("PREV(FIRST(B.number))", 1),
    ("PREV(LAST(B.number, 1))", 4),
    ("COUNT(*)", 5),
    ("COUNT(B.*)", 3),
    ("COUNT(B.number)", 3),
    ("COUNT(D.*)", 0),
    ("SUM(B.number)", 16),
    ("SUM(B.number * 2 + B.number)", 48),
    ("AVG(B.number)", 16 / 3),
    ("AVG(D.number)", None),
    ("MIN(number)", 1),
    ("MAX(kind)", "c"),
    ("CLASSIFIER()", "C"),
    ("MATCH_NUMBER()", 1),
    ("D.number", None),
    ("D.number IS NULL", True),
    ("B.number > A.number AND C.kind LIKE 'c%'", True),
    ("upper(C.kind) || '!'", "C!"),
    ("C.number - FIRST(B.number)", 5),
    ("COALESCE(D.number, 3)", 3),
    ("SUM(B.number) / COUNT(B.*)", 16 / 3),
]


@pytest.mark.parametrize(("measure", "expected"), MEASURES)
def test_a_measure_of_a_match(measure: str, expected: Any) -> None:
    statement = text("A B+ D? C", measures=f"{measure} AS m")
    assert emitted(statement, "a1 b4 b5 b7 c9") == [{"key": "k", "m": expected}]


DEFINES = [
    ("A B+", "A AS kind = 'a', B AS B.number > PREV(B.number)", "a1 b2 b3 b1", ["A:a1 B:b2 B:b3"]),
    ("A B+", "A AS kind = 'a', B AS B.number > FIRST(B.number) OR COUNT(B.*) = 1", "a1 b2 b3 b1", ["A:a1 B:b2 B:b3"]),
    ("A B+", "A AS kind = 'a', B AS SUM(B.number) <= 5", "a1 b2 b3 b1", ["A:a1 B:b2 B:b3"]),
    ("A B C", "C AS C.number = A.number + B.number", "a1 b2 c3", ["A:a1 B:b2 C:c3"]),
    ("A+ B", "A AS A.number > 1, B AS CLASSIFIER() = 'B' AND kind = 'b'", "a1 a2 a3 b", ["A:a2 A:a3 B:b"]),
    ("A B", "B AS B.at < A.at + INTERVAL '5' SECOND", "a@0 b@4 c@20 d@26", ["A:a B:b"]),
    ("A B", "A AS NULL, B AS kind = 'b'", "a b", []),  # an unknown value is not true
]


@pytest.mark.parametrize(("pattern", "define", "rows", "expected"), DEFINES)
def test_a_condition_sees_the_rows_so_far(pattern: str, define: str, rows: str, expected: list[str]) -> None:
    assert matches(text(pattern, define=define), rows) == expected


def test_all_rows_have_their_columns_and_measures_as_of_then() -> None:
    measures = (
        "COUNT(*) AS n, FINAL COUNT(*) AS total, CLASSIFIER() AS v, LAST(B.number) AS b, FINAL LAST(B.number) AS last"
    )
    statement = text("A B+", measures=measures, rest="ALL ROWS PER MATCH", select="kind, n, total, v, b, last")
    assert [tuple(row.values()) for row in emitted(statement, "a1 b2 b3 c")] == [
        ("a", 1, 3, "A", None, 3),
        ("b", 2, 3, "B", 2, 3),
        ("b", 3, 3, "B", 3, 3),
    ]


def test_the_columns_are_the_key_and_the_measures_or_all_of_a_row() -> None:
    one, every = read(text("A", measures="number AS n")), read(text("A", measures="1 AS n", rest="ALL ROWS PER MATCH"))
    assert one.emits.__struct_fields__ == ("key", "n")
    assert every.emits.__struct_fields__ == (*Letter.__struct_fields__, "n")


def test_what_is_selected_has_its_name_and_a_condition() -> None:
    statement = text("A B", measures="A.number AS low, B.number AS high", select="m.key, high - low AS width") + " AS m"
    assert emitted(statement + " WHERE high > 5", "a1 b5 a1 b6") == [{"key": "k", "width": 5}]


def test_types_follow_from_the_class() -> None:
    measures = "A.at AS at, B.number AS n, AVG(B.number) AS mean, C.kind AS c, COUNT(*) AS k, A.kind = 'a' AS t"
    hints = read(text("A B C?", measures=measures)).emits.__annotations__
    shown = {name: getattr(hint, "__name__", str(hint)) for name, hint in hints.items()}
    assert shown == {
        "key": "str", "at": "datetime", "n": "int", "mean": "float | None", "c": "str | None", "k": "int",
        "t": "bool | None",
    }  # fmt: skip


def test_event_time_is_that_of_the_match_if_it_is_selected() -> None:
    assert read(text("A", measures="1 AS n")).emits.__time_field__ is None
    assert read(text("A", measures="MATCH_ROWTIME() AS ended")).emits.__time_field__ == "ended"
    assert read(text("A", measures="1 AS n", rest="ALL ROWS PER MATCH")).emits.__time_field__ == "at"
