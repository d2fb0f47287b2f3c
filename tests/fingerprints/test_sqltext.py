"""SQL text without its layout: the same for the same query, and never the same for two queries."""

from __future__ import annotations

import pytest

from penstock.app.fingerprints.sqltext import normal_sql

SAME = {
    "layout": ("SELECT  'a' AS x\n FROM t;", "SELECT 'a' AS x FROM t"),
    "a comment": ("SELECT 'a' -- it's\n, 'b'", "SELECT 'a', /* it's */ 'b'"),
    "the space between two literals": ("SELECT 'it' 's'", "SELECT 'it' /* and */\n's'"),
    "literals with other quotes": ("SELECT 'it' \"s\"", "SELECT 'it'\"s\""),
    "a raw literal before another": ("SELECT r'it' 's'", "SELECT r'it''s'"),
}
OTHER = {
    "a doubled quote": ("SELECT 'it''s' AS x", "SELECT 'it' 's' AS x"),
    "a doubled double quote": ('SELECT "it""s" AS x', 'SELECT "it" "s" AS x'),
    "one of several": ("SELECT 'a' 'b''c' AS x", "SELECT 'a''b' 'c' AS x"),
    "two literals or one with a space": ("SELECT 'a' 'b' AS x", "SELECT 'a b' AS x"),
    "an end of a line in old files": ("SELECT 'a' -- x\r, 'b'", "SELECT 'a' -- x\r, 'c'"),
    "an escaped quote": ("SELECT 'it\\'s' AS x", "SELECT 'it\\' 's' AS x"),
    "a quoted name": ("SELECT a `b` FROM t", "SELECT a``b` FROM t"),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_the_same_query_has_the_same_text(one: str, other: str) -> None:
    assert normal_sql(one) == normal_sql(other)


@pytest.mark.parametrize(("one", "other"), OTHER.values(), ids=OTHER)
def test_two_queries_have_two_texts(one: str, other: str) -> None:
    assert normal_sql(one) != normal_sql(other)


def test_the_text_of_a_stored_digest_is_kept() -> None:
    """Fingerprints on disk contain digests of these texts."""
    query = "SELECT 'it''s', \"a\"\"b\", r'x''y', `c``d`, 'e' \"f\" FROM t -- end"
    assert normal_sql(query).split("\n") == [
        *("SELECT", "'it'", "'s'", ",", '"a"', '"b"', ",", "r'x'", "'y'", ",", "`c``d`", ","),
        *("'e'", '"f"', "FROM", "t"),
    ]
