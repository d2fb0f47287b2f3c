"""Hostile filters: each is refused with a sentence and a position, quickly, and nothing else happens."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import BadExpression
from penstock.core.filters import Filter, compiled
from penstock.core.filters.limits import (
    CALLS_MAX,
    DEPTH_MAX,
    IN_MAX,
    LENGTH_MAX,
    LEVELS_MAX,
    LIKE_FLOATING_MAX,
    LIKE_LENGTH_MAX,
    LIKE_WILDCARDS_MAX,
    NAME_LENGTH_MAX,
    NAMES_MAX,
    NODES_MAX,
    PATTERNS_MAX,
)

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("f", pa.bool_()),
     ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("tags", pa.list_(pa.string())),
     ("attrs", pa.map_(pa.string(), pa.string())), ("place", pa.struct([("lat", pa.float64())])),
     ("raw", pa.binary()), ("_id", pa.string()), ("_kind", pa.int8())]
)  # fmt: skip
HOSTILE = {
    "a method of Java": ("java_method('java.lang.Runtime', 'getRuntime') = s", 0),
    "reflect": ("f AND reflect('java.lang.System', 'exit', 1) = s", 6),
    "try_reflect": ("try_reflect('a', 'b') = s", 0),
    "a file": ("read_csv('/etc/passwd') = s", 0),
    "a function of the system": ("s = version()", 4),
    "a function without parentheses": ("CURRENT_USER = s", 0),
    "the time": ("at < now()", 5),
    "today": ("day < CURRENT_DATE", 6),
    "a random number": ("x < random()", 4),
    "a sub-query": ("a = (SELECT 1)", 5),
    "a sub-query in IN": ("a IN (SELECT a FROM r)", 6),
    "a column in IN": ("a IN b", 0),
    "EXISTS": ("EXISTS (SELECT 1)", 0),
    "a statement": ("SELECT 1", 0),
    "another statement": ("DROP TABLE r", 5),
    "two statements": ("a = 1; DROP TABLE r", 5),
    "a semicolon at the end": ("a = 1;", 5),
    "UNION": ("a = 1 UNION SELECT 1", 6),
    "a comment to the end": ("a = 1 -- and more", 4),
    "a comment inside": ("a /* or not */ = 1", 0),
    "a comment that is open": ("a = 1 /*", None),
    "a hash": ("a = 1 # more", 6),
    "CASE": ("CASE WHEN a = 1 THEN TRUE END", 0),
    "IF": ("IF = 1", 0),
    "IF as a function": ("IF(a = 1, TRUE, FALSE)", 0),
    "a cast": ("a::text = '1'", 1),
    "a cast by name": ("CAST(a AS TEXT) = '1'", 0),
    "TRY_CAST": ("TRY_CAST(s AS INT) = 1", 0),
    "a typed literal": ("DATE '2024-01-01' = day", 5),
    "text side by side": ("s = 'a' 'b'", 4),
    "a pattern": ("s RLIKE '(a+)+$'", 2),
    "a pattern of a regular expression": ("s ~ '(a+)+$'", 2),
    "a function of patterns": ("regexp_like(s, '(a+)+$')", 0),
    "SIMILAR TO": ("s SIMILAR TO '(a|b)*'", 2),
    "GLOB": ("s GLOB '*'", 2),
    "a placeholder": ("a = ?", 4),
    "a named placeholder": ("a = :x", 4),
    "a numbered placeholder": ("a = $1", 4),
    "a variable": ("a = @x", 4),
    "a template": ("a = {{ 1 }}", 4),
    "a format": ("s = {s.__class__}", 4),
    "an attribute of Python": ("__class__ = 's'", 0),
    "an attribute of an attribute": ("s.__class__.__mro__ = 's'", 2),
    "an import": ("__import__('os') = s", 0),
    "a star": ("*", 0),
    "a star of a column": ("place.* = 1", 6),
    "a count": ("count(*) > 1", 6),
    "a window function": ("sum(a) OVER () > 1", 7),
    "an aggregate": ("max(a) = 1", 0),
    "a lambda": ("filter(tags, x -> x = 'a') = s", 13),
    "a bare interval": ("a = INTERVAL 1 DAY", 13),
    "an interval of months": ("at - INTERVAL '1 month' < at", 14),
    "an interval too long": ("at - INTERVAL '99999999999 weeks' < at", 14),
    "a tuple": ("(a, b) = (1, 2)", 1),
    "collation": ("s = 'a' COLLATE nocase", 8),
    "null-safe": ("a <=> 1", 2),
    "DISTINCT FROM": ("a IS DISTINCT FROM b", 0),
    "IS with a value": ("a IS 1", 0),
    "IS TRUE": ("f IS TRUE", 0),
    "symmetric": ("a BETWEEN SYMMETRIC 1 AND 2", 0),
    "IN nothing": ("a IN ()", 0),
    "quotes of Unicode": ("s = \u2018a\u2019", 4),
    "double quotes of Unicode": ("s = \u201ca\u201d", 4),
    "text in double quotes": ('s = "alarm"', 4),
    "backticks": ("`a` = 1", 0),
    "dollar quotes": ("s = $$a$$", 4),
    "hexadecimal": ("s = x'ff'", 5),
    "a national text": ("s = N'a'", 4),
    "an escape": ("s = E'\\n'", 5),
    "a quote that is open": ("s = 'a", 4),
    "a null character": ("s = a\0", None),
    "half a character": ("s = '\ud800'", None),
    "nothing": ("", 0),
    "blanks": (" \n", 0),
    "half of it": ("a = ", 2),
    "a bitwise operator": ("a & 1 = 1", 2),
    "a shift": ("a << 1 = 2", None),
    "an arrow": ("s -> 'a' = 'b'", 0),
    "a system column": ("_id = 'a'", 0),
    "another system column": ("_kind = 0", 0),
    "500 parentheses": ("(" * 500 + "f" + ")" * 500, DEPTH_MAX),
    "parentheses that stay open": ("(" * 1_000, DEPTH_MAX),
    "brackets": ("tags" + "[" * 1_000, 4 + DEPTH_MAX),
    "400 times NOT": ("NOT " * 400 + "f", 4 * DEPTH_MAX),
    "1000 times minus": ("a = " + "- " * 1_000 + "1", 4 + 2 * DEPTH_MAX),
    "functions within each other": ("lower(" * 200 + "s" + ")" * 200, 6 * DEPTH_MAX + 5),
    "a chain that is too deep": ("f = " * 150 + "f", None),
    "IS NULL of IS NULL": ("f " + "IS NOT NULL " * 150, None),
    "too many parts": ("f OR " * (NODES_MAX // 2) + "f", None),
    "too long": ("f OR " * 1_000 + "f", LENGTH_MAX),
    "a huge IN": (f"a IN ({', '.join(['1'] * 600)})", None),
    "an IN that is a little too large": (f"a IN ({', '.join(['1'] * (IN_MAX + 1))})", 6 + 3 * IN_MAX),
    "a pattern with too many wildcards": (f"s LIKE '{'%a' * (LIKE_WILDCARDS_MAX + 1)}'", 7),
    "a pattern that doubles its work each time": (f"s LIKE '%{'_' * (LIKE_FLOATING_MAX + 1)}b'", 7),
    "a pattern that is too long": (f"s LIKE '{'a' * (LIKE_LENGTH_MAX + 1)}'", 7),
    "a pattern of a column": ("s LIKE s", 7),
    "a pattern that ends with an escape": ("s LIKE 'a\\'", 7),
    "an escape of two characters": ("s LIKE 'a' ESCAPE '!!'", 18),
    "too many functions": (" OR ".join(["lower(s) = 'a'"] * (CALLS_MAX + 1)), 18 * CALLS_MAX),
    "too many patterns": (" OR ".join(["s LIKE '%a%b%'"] * (PATTERNS_MAX + 1)), 18 * PATTERNS_MAX),
    "too many simple patterns": (" OR ".join(["s LIKE '%abc%'"] * (CALLS_MAX + 1)), 18 * CALLS_MAX),
    "a huge number": ("a = 1e999999999", 4),
    "a number of 2000 digits": ("a = " + "9" * 2_000, 4),
    "an infinite number": ("x < 1e999", 4),
    "a number that goes on": ("a = 1_000", 5),
    "two points": ("a = 1.2.3", None),
    "infinity": ("x < Infinity", 4),
    "text and number": ("s = 1", 4),
    "number and text": ("a = '1'", 4),
    "truth and number": ("f = 1", 4),
    "a comparison of a comparison": ("a < b < 3", 8),
    "columns of two kinds": ("a = s", 4),
    "literals of two kinds": ("1 = 'a'", 4),
    "IN with two kinds": ("a IN (1, 'b')", 9),
    "BETWEEN with two kinds": ("s BETWEEN 'a' AND 3", 18),
    "NOT of a number": ("NOT a", 4),
    "AND with a text": ("f AND 'x'", 6),
    "text added": ("s + 1 = 2", 0),
    "minus a text": ("-s = 'a'", 1),
    "a list compared": ("tags = 'a'", 0),
    "a struct compared": ("place = 1", 0),
    "bytes and text": ("raw = 'a'", 6),
    "element 0": ("tags[0] = 'a'", 5),
    "an element by name": ("tags['a'] = 'a'", 5),
    "a value by number": ("attrs[1] = 'a'", 6),
    "an element of a text": ("s[1] = 'a'", 0),
    "an element by a column": ("tags[a] = 'a'", 5),
    "a slice": ("tags[1:2] = 'a'", 6),
    "a field of a text": ("s.length = 1", 2),
    "an unknown field": ("place.lon = 1", 6),
    "an unknown column": ("f AND severity = 1", 6),
    "a column in capitals": ("A = 1", 0),
    "too few values": ("substr(s) = 'a'", 0),
    "too many values": ("lower(s, s) = 'a'", 0),
    "a named value": ("lower(x => s) = 'a'", None),
    "a text that is not written": ("starts_with(s, s)", 15),
    "no condition": ("a", 0),
    "a text alone": ("'yes'", 0),
    "a number alone": ("1", 0),
    "two conditions": ("f, f", 1),
    "a name": ("f AS g", 2),
}


@pytest.mark.parametrize(("text", "position"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_condition_is_refused_with_a_sentence_and_a_position(
    text: str, position: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, text, None)
    error = refusal.value
    assert error.part == "where"
    assert error.position is not None
    assert 0 <= error.position <= len(text)
    assert position is None or error.position == position
    assert 10 < len(error.message) < 300
    assert "Error" not in error.message
    assert error.message.isprintable()
    assert caplog.records == [], "a stranger must not fill the log"


SELECTS = {
    "a star": ("*", 0),
    "all of a struct": ("place.*", 6),
    "nothing": ("", 0),
    "a comma at the end": ("a,", 2),
    "a comma at the beginning": (",a", 0),
    "two commas": ("a,,b", 2),
    "what has no name": ("a, a + 1", 3),
    "a name without AS": ("a + 1 more", 6),
    "a name that is a text": ("a AS 'b'", 2),
    "no name": ("a + 1 AS", 6),
    "an empty name": ('a AS ""', 5),
    "a long name": (f"a AS {'b' * (NAME_LENGTH_MAX + 1)}", 5),
    "a name twice": ("a, b AS a", 8),
    "a name of the system": ("a AS _kind", 5),
    "a column of the system": ("_id", 0),
    "a column twice": ("s AS one, s AS two", 10),
    "a field twice": ("place.lat AS one, place.lat", 18),
    "too many columns": (", ".join(f"a+{n} AS n{n}" for n in range(NAMES_MAX + 1)), None),
    "too many parts in all": (", ".join(f"a+{n}+{n}+{n} AS n{n}" for n in range(40)), None),
    "a FROM": ("a FROM b", 2),
    "an INTO": ("a INTO OUTFILE 'b'", 2),
    "DISTINCT": ("DISTINCT a", 0),
    "a sub-query": ("(SELECT 1) AS a", 1),
    "a list in a list": ("coalesce(tags, tags) AS t", 9),
}


@pytest.mark.parametrize(("text", "position"), SELECTS.values(), ids=SELECTS)
def test_a_hostile_list_of_columns_is_refused_with_a_position(text: str, position: int | None) -> None:
    with pytest.raises(BadExpression) as refusal:
        compiled(SCHEMA, "f", text)
    assert refusal.value.part == "select"
    assert refusal.value.position is not None
    assert 0 <= refusal.value.position <= len(text)
    assert position is None or refusal.value.position == position


@pytest.mark.parametrize("text", [3, True, ["f"], {"a": 1}, b"f"])
def test_what_is_not_text_is_refused(text: object) -> None:
    for part in ("where", "select"):
        texts = {"where": None, "select": None, part: text}
        with pytest.raises(BadExpression) as refusal:
            compiled(SCHEMA, texts["where"], texts["select"])  # type: ignore[arg-type]
        assert refusal.value.part == part


_WORDS = (
    "a b s f at place.lat tags[1] attrs['k'] 1 2.5 'x' NULL TRUE ( ) [ ] , . + - * / % || = < >= <> AND OR NOT IN IS "
    "LIKE ILIKE BETWEEN ESCAPE INTERVAL lower( f( int( struct< array[ map( date timestamp case when end select from "
    "over cast( :: -> => : as distinct exists unnest( if( values( with union { } @ ? $1 x'ff' -- /* ; \"q\" ` any( ~ ! "
    "# << >> & | ^ interval extract( trim( both 1e5 .. \u2018 \U0001f600"
)
_words = st.lists(st.sampled_from(_WORDS.split(" ")), max_size=40)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | _words.map(" ".join) | _words.map("".join))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    batch = pa.RecordBatch.from_pylist([{}, {"a": 1, "s": "x", "f": True}], SCHEMA)
    for where, select in ((text, None), (None, text)):
        outcome = _filter_or_position(where, select)
        if isinstance(outcome, Filter):
            assert len(outcome.mask(batch)) == outcome.project(batch).num_rows == 2
        else:
            assert outcome is not None
            assert 0 <= outcome <= len(text)


def _filter_or_position(where: str | None, select: str | None) -> Filter | int | None:
    try:
        return compiled(SCHEMA, where, select)
    except BadExpression as refusal:
        return refusal.position


def test_as_much_as_is_allowed_is_allowed() -> None:
    """Each limit is reached by a text that is still accepted."""
    for text in (
        " OR ".join(["f"] * LEVELS_MAX),
        "(" * DEPTH_MAX + "f" + ")" * DEPTH_MAX,
        "NOT " * DEPTH_MAX + "f",
        f"a IN ({', '.join(['1'] * IN_MAX)})",
        f"s LIKE '{'%a' * LIKE_WILDCARDS_MAX}'",
        f"s LIKE '{'_' * LIKE_WILDCARDS_MAX}'",
        f"s LIKE '%{'_' * LIKE_FLOATING_MAX}'",
        f"s LIKE '{'a' * LIKE_LENGTH_MAX}'",
        " OR ".join(["lower(s) = 'a'"] * CALLS_MAX),
        " OR ".join(["s LIKE 'a%'"] * CALLS_MAX),
        " OR ".join(["s LIKE 'a%b'"] * PATTERNS_MAX),
        "s = '" + "a" * (LENGTH_MAX - 6) + "'",
    ):
        compiled(SCHEMA, text, None)
    compiled(SCHEMA, None, ", ".join(f"a+{n} AS n{n}" for n in range(NAMES_MAX)))
