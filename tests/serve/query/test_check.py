"""Validation of queries: a list of what is allowed, tested with everything that is not."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from penstock.core.errors import BadQuery, QueryRefused, RequestError
from penstock.serve.query.check import Checked, check
from penstock.serve.query.deadline import CHECK_S_MAX
from penstock.serve.query.functions import AGGREGATES, BY_NAME, KNOWN_TO_THE_PARSER
from penstock.serve.query.nodes import PLAIN
from penstock.serve.query.parsing import NESTING_MAX, STEPS_MAX, TOKENS_MAX
from tests.serve.fakes import run
from tests.serve.query.examples import GROUPS, calls
from tests.serve.query.support import ask, asking, queried

SERVED = ("fixes", "by-key", "fixes.rejected", "secret")
MAY_READ = SERVED[:3]


def resolve(name: str, place: int | None) -> str:
    for table in MAY_READ:
        if table.lower() == name.lower():
            return table
    raise BadQuery(f"there is no {name}", position=place)


def checked(text: str) -> Checked:
    return check(text, resolve, 100)


REFUSED = [
    "INSERT INTO fixes VALUES (1)", "UPDATE fixes SET n = 1", "DELETE FROM fixes", "DROP TABLE fixes",
    "CREATE TABLE x AS SELECT 1", "COPY fixes TO '/tmp/x'", "ATTACH '/tmp/x.db'", "INSTALL httpfs", "LOAD httpfs",
    "PRAGMA database_list", "SET memory_limit = '1TB'", "RESET threads", "CALL pragma_version()", "EXPLAIN SELECT 1",
    "EXPORT DATABASE '/tmp/x'", "DESCRIBE fixes", "SHOW TABLES", "SUMMARIZE fixes", "VACUUM", "CHECKPOINT", "USE x",
    "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p", "BEGIN", "COMMIT", "ALTER TABLE fixes ADD x INT",
    "SELECT 1; DROP TABLE fixes", "SELECT 1; SELECT 2", ";SELECT 1", "WITH x AS (DELETE FROM fixes) SELECT 1",
    "WITH x AS (INSERT INTO fixes VALUES (1) RETURNING *) SELECT * FROM x", "SELECT 1 INTO x", "VALUES (1)",
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM read_parquet('x')", "SELECT * FROM read_json('x')", "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')", "SELECT * FROM glob('/*')", "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM \"/etc/passwd\"", "FROM '/etc/passwd'", "SELECT * FROM 'https://example.org/x.csv'",
    "SELECT * FROM secret", "SELECT * FROM main.fixes", "SELECT * FROM temp.main.input_0", "SELECT * FROM input_0",
    "SELECT * FROM fixes, input_0", "SELECT * FROM memory.main.fixes", "SELECT * FROM information_schema.tables",
    "SELECT * FROM duckdb_settings()", "SELECT * FROM duckdb_settings", "SELECT * FROM duckdb_tables",
    "SELECT * FROM pg_catalog.pg_class", "SELECT * FROM sqlite_master", "SELECT * FROM pragma_database_list",
    "SELECT * FROM query('SELECT 1')", "SELECT * FROM query_table('fixes')", "SELECT * FROM sniff_csv('x')",
    "SELECT * FROM repeat_row(1, num_rows = 100)", "SELECT * FROM arrow_scan(1, 2, 3)", "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM python_map_function(1)", "SELECT * FROM sqlite_scan('x', 'y')", "SELECT * FROM summary(fixes)",
    "SELECT current_setting('threads')", "SELECT getenv('HOME')", "SELECT getvariable('x')", "SELECT version()",
    "SELECT random()", "SELECT uuid()", "SELECT gen_random_uuid()", "SELECT nextval('x')", "SELECT currval('x')",
    "SELECT \"current_setting\"('threads')", "SELECT \"pg_sleep\"(10)", 'SELECT "Getenv"(\'HOME\')',
    "SELECT \"main\".\"current_setting\"('threads')", "SELECT main.\"version\"()",
    "SELECT * FROM \"read_csv\"('x')", "SELECT * FROM LATERAL \"read_text\"('x')",
    "SELECT txid_current()", "SELECT pg_sleep(10)", "SELECT sleep_ms(1)", "SELECT current_database()",
    "SELECT current_schema()", "SELECT current_user", "SELECT session_user", "SELECT setseed(0.5)", "SELECT hash(1)",
    "SELECT write_log('x')", "SELECT json_serialize_sql('SELECT 1')", "SELECT json_execute_serialized_sql('x')",
    "SELECT eval('1')", "SELECT create_sort_key(1, 'ASC')", "SELECT error('x')", "SELECT in_search_path('a', 'b')",
    "SELECT $1", "SELECT ?", "SELECT :x", "SELECT * FROM fixes TABLESAMPLE 10%", "SELECT * FROM fixes USING SAMPLE 10",
    "PIVOT fixes ON n USING sum(n)", "SELECT * FROM (PIVOT fixes ON n USING sum(n))", "UNPIVOT fixes ON n",
    "SELECT * FROM fixes FOR UPDATE", "SELECT COLUMNS(*) FROM fixes", "SELECT COLUMNS('x.*') FROM fixes",
    "SELECT * FROM fixes AT (VERSION => 1)", "SELECT /*+ hint */ secret.n FROM secret", "SELECT x'00'",
    "SELECT 1::JSON", "SELECT 1::my_type", "SELECT CAST(1 AS ENUM('a'))", "SELECT CAST(1 AS UNION(a INT))",
    "SELECT (SELECT max(n) FROM secret)", "SELECT 1 WHERE EXISTS (SELECT 1 FROM secret)",
    "SELECT * FROM fixes WHERE n IN (SELECT n FROM secret)", "SELECT * FROM fixes JOIN secret USING (n)",
    "SELECT * FROM fixes UNION SELECT * FROM secret", "SELECT * FROM fixes, LATERAL (SELECT * FROM secret)",
    "WITH x AS (SELECT * FROM secret) SELECT * FROM fixes", "WITH secret AS (SELECT * FROM secret) SELECT 1",
    "SELECT (WITH secret AS (SELECT 1) SELECT 1), (SELECT max(n) FROM secret)",
    "SELECT * FROM (WITH secret AS (SELECT 1) SELECT * FROM secret) a, secret b",
    "SELECT list_transform([1], x -> (SELECT max(n) FROM secret))", "SELECT 1 ORDER BY (SELECT n FROM secret)",
    "SELECT list_aggregate([1], 'histogram')", "SELECT \"List_Aggregate\"([1], 'histogram')",
    "SELECT list_aggregate([1], 'hist' || 'ogram')", "SELECT list_aggregate([1], n) FROM fixes",
    "SELECT list_aggregate([1], lower('SUM'))", "SELECT list_aggregate([1], ('histogram'))",
    "SELECT list_aggregate([1], \"sum\") FROM fixes", "SELECT list_aggregate([1], NULL)", "SELECT list_aggregate([1])",
    "SELECT list_aggregate(DISTINCT [1], 'sum')", "SELECT list_aggregate(l := [1], name := 'histogram')",
    "SELECT [1].list_aggregate('histogram')", "SELECT [1].list_aggregate('histogram', 'sum')",
    "SELECT main.list_aggregate([1], 'histogram')", "SELECT list_transform([[1]], x -> list_aggregate(x, 'histogram'))",
    "SELECT 1 LIMIT (SELECT n FROM secret)", "SELECT 1 OFFSET (SELECT n FROM secret)",
    "SELECT sum(1) OVER (ORDER BY (SELECT n FROM secret))", "SELECT 1 GROUP BY (SELECT n FROM secret)",
    "SELECT CASE WHEN (SELECT n FROM secret) > 1 THEN 1 END", "(SELECT 1) UNION ALL (TABLE secret)", "TABLE secret",
    "SELECT 'a\0b'", "SELECT \"a\0b\"", "SELECT 1 \0", "", " ", "-- nothing", "/* nothing */", "SELECT FROM",
    "SELECT " + "(" * 25 + "1" + ")" * 25, "SELECT " + "[" * 25 + "]" * 25, "SELECT " + "1, " * 1_500 + "1",
    "SELECT " + "percentile_cont(0.5) WITHIN GROUP (ORDER BY " * 20 + "1" + ")" * 20,
    "SELECT " + "- " * 500 + "1", "SELECT " + "NOT " * 500 + "TRUE", "SELECT " + "1 + " * 500 + "1",
    "SELECT * FROM " + ", ".join(f"fixes a{number}" for number in range(700)),
]  # fmt: skip


@pytest.mark.parametrize("name", [*sorted(AGGREGATES), "SUM", "String_Agg"])
def test_an_aggregate_of_the_page_can_be_named_in_quotes(name: str) -> None:
    assert name in checked(f"SELECT list_aggregate([1, 2], '{name}')").sql


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_on_the_list_is_refused(text: str) -> None:
    with pytest.raises((BadQuery, QueryRefused)) as refused:
        checked(text)
    position = refused.value.fields.get("position")
    assert position is None or 0 <= position <= len(text)


ALLOWED = [
    ("SELECT n FROM fixes", ["fixes"]),
    ("select N from FIXES as f where f.n > 1;", ["fixes"]),
    ('SELECT * FROM "by-key" b JOIN fixes.rejected r ON b.k = r.k', ["by-key", "fixes.rejected"]),
    ("FROM fixes SELECT n", ["fixes"]),
    ("WITH secret AS (SELECT 1 AS n) SELECT * FROM secret", []),
    ("WITH a AS (SELECT 1 AS n), b AS (SELECT * FROM a) SELECT * FROM b, fixes", ["fixes"]),
    ("WITH fixes AS (SELECT * FROM fixes WHERE n > 1) SELECT * FROM fixes", ["fixes"]),
    ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r", []),
    ("SELECT * FROM (VALUES (1, 'a')) v(x, y)", []),
    ("SELECT 1 -- a comment; DROP TABLE fixes", []),
    ("SELECT ';--' AS \"a;b\"", []),
    ("SELECT n FROM fixes UNION ALL BY NAME SELECT n FROM fixes INTERSECT SELECT 1 EXCEPT SELECT 2", ["fixes"]),
]


@pytest.mark.parametrize(("text", "reads"), ALLOWED)
def test_what_is_on_the_list_is_written_anew_with_our_names(text: str, reads: list[str]) -> None:
    query = checked(text)
    assert list(query.reads) == reads
    assert query.sql != text
    require_harmless(query)


def test_every_function_on_the_list_can_be_called_and_no_other_is_known() -> None:
    """The examples are complete, so `docs/query.md`, which lists their names, is complete too."""
    queries = [calls(*group.values()) for group in GROUPS.values()]
    nodes = [node for query in queries for node in sqlglot.parse_one(query, read="duckdb").walk()]
    named = {str(node.this).lower() for node in nodes if isinstance(node, exp.Anonymous)}
    classes = {type(node).__name__ for node in nodes if isinstance(node, exp.Func)} - PLAIN - {"Anonymous"}
    assert named == BY_NAME
    assert classes | {"Case", "Mod", "Unnest"} == KNOWN_TO_THE_PARSER

    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            for query, group in zip(queries, GROUPS.values(), strict=True):
                answer = await ask(client, query)
                assert len(answer["columns"]) == len(group)
                assert answer["rows"]

    run(main())


VOCABULARY = """
SELECT FROM WHERE GROUP BY ORDER LIMIT OFFSET UNION ALL WITH RECURSIVE AS JOIN LEFT ON USING LATERAL CASE WHEN THEN ELSE
END CAST AND OR NOT IN EXISTS BETWEEN IS NULL LIKE DISTINCT OVER PARTITION INTERVAL ( ) [ ] { } , . ; : :: -> => := = <
> + - * / % || $ ? @ # ~ ^ & | ! 1 0x1 1e5 .5 'text' 'it''s' "name" "a""b" $$x$$ E'x' /* */ -- n x fixes secret "by-key"
fixes.rejected main temp input_0 read_csv('x') duckdb_settings() getenv('A') abs(1) count(*) sum(n) now() range(3)
unnest([1]) current_user '/etc/passwd' INT MAP JSON VALUES (1) PIVOT SAMPLE FOR UPDATE INTO SET COPY ATTACH PRAGMA
INSERT DELETE lambda x: QUALIFY WINDOW ROWS FILTER DATE DAY
"""
WORDS = st.sampled_from([*VOCABULARY.split(), "\n", "STRUCT(a INT)"])
SOUP = st.lists(WORDS, max_size=30).map(" ".join)
LIKELY = st.builds(
    "SELECT {} FROM {} {}".format, SOUP, st.sampled_from(["fixes", "fixes, secret", "(SELECT 1)", '"by-key"']), SOUP
)


@settings(deadline=None, print_blob=True, max_examples=400)
@given(SOUP | LIKELY | st.text(max_size=60).map("SELECT {}".format) | st.text(max_size=60))
def test_whatever_is_asked_is_refused_or_harmless(text: str) -> None:
    try:
        query = checked(text)
    except RequestError:
        return
    require_harmless(query)


NAMES = st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text and text.isprintable())


@settings(deadline=None, print_blob=True)
@given(NAMES, NAMES)
def test_names_and_texts_stay_what_they_are(name: str, text: str) -> None:
    """However they are quoted, the engine reads them as a name and a text only."""
    quoted = name.replace('"', '""')
    literal = text.replace("'", "''")
    query = checked(f"SELECT '{literal}' AS \"{quoted}\" FROM fixes")
    require_harmless(query)
    with duckdb.connect() as connection:
        connection.execute("CREATE TEMP TABLE input_0 AS SELECT 1")
        result = connection.execute(query.sql)
        assert result.fetchall() == [(text,)]


def test_a_query_may_be_as_large_as_the_limits_say() -> None:
    deep = "SELECT " + "(" * NESTING_MAX + "1" + ")" * NESTING_MAX
    wide = "SELECT " + "1, " * (TOKENS_MAX // 2 - 2) + "1"
    for text in (deep, wide):
        require_harmless(checked(text))


NESTED = ("int(", "decimal(", "struct(", "varchar(", "timestamp(", "time(", "interval(", "list(", "map(", "array(")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM fixes" + " JOIN fixes" * 18,
        "SELECT * FROM fixes" + " LEFT JOIN fixes" * 300,
        *(f"SELECT {word * 23}1{')' * 23}" for word in NESTED),
        "SELECT " + "CAST(int(" * 11 + "1" + ") AS INT)" * 11,
    ],
)
def test_reading_a_text_is_bounded_whatever_it_nests(text: str) -> None:
    """The first of them would take the parser minutes. The bound counts its steps, and not the time."""
    with counted() as steps, contextlib.suppress(RequestError):
        checked(text)
    assert 0 < steps() <= STEPS_MAX


@pytest.mark.parametrize("text", ["SELECT x" + "[1]" * 660 + " FROM fixes", "SELECT x" + "[1].b" * 390 + " FROM fixes"])
def test_a_query_whose_steps_take_long_is_refused_when_its_time_is_up(text: str) -> None:
    """The parser goes through the whole chain again after each bracket, which would take 15 seconds."""
    with pytest.raises(QueryRefused, match="too long to check"):
        checked(text)


def test_the_time_is_checked_at_each_step_of_the_parser_and_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT n, n + 1 AS m FROM fixes WHERE n > 1"
    reads, up_at = 0, -1

    def clock() -> float:
        nonlocal reads
        reads += 1
        return CHECK_S_MAX + 1 if reads == up_at else 0.0

    monkeypatch.setattr("penstock.serve.query.deadline.thread_time", clock)
    with counted() as steps:
        checked(text)
    written = reads - steps()
    assert written > len(text.split())
    for up_at in (2, steps(), steps() + 2, reads):
        reads = 0
        with pytest.raises(QueryRefused, match="too long to check"):
            checked(text)
        assert reads == up_at


def test_ordinary_texts_take_few_steps() -> None:
    """The bound does not affect them."""
    for group in GROUPS.values():
        text = calls(*group.values())
        with counted() as steps:
            tokens = sqlglot.tokenize(text, read="duckdb")
            checked(text)
        assert len(tokens) <= steps() <= 2 * len(tokens)


@contextlib.contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Count how often the parser moves to another token, below our own count."""
    moves, advance = 0, sqlglot.Parser._advance

    def counting(self: sqlglot.Parser, times: int = 1) -> None:
        nonlocal moves
        moves += 1
        advance(self, times)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlglot.Parser, "_advance", counting)
        yield lambda: moves


def require_harmless(query: Checked) -> None:
    """Check with DuckDB's own parser that the text is one SELECT, of our tables, with allowed functions."""
    with duckdb.connect() as connection:
        try:
            statements = connection.extract_statements(query.sql)
        except duckdb.Error:
            return  # it cannot run what it cannot read
        assert [statement.type for statement in statements] == [duckdb.StatementType.SELECT], query.sql
        (row,) = connection.execute("SELECT json_serialize_sql(?)", [query.sql]).fetchall()
    tree = json.loads(row[0])
    if tree["error"]:
        return
    for node in _objects(tree):
        if node.get("type") == "BASE_TABLE":
            ours = (node["catalog_name"], node["schema_name"]) == ("temp", "main")
            assert ours or (node["catalog_name"], node["schema_name"]) == ("", ""), query.sql
            assert not ours or re.fullmatch(r"input_\d+", node["table_name"]), query.sql
            assert ours or node["table_name"].lower() in _with_names(tree), query.sql
        assert node.get("type") not in ("PIVOT", "SHOW_REF"), query.sql
        if node.get("class") == "FUNCTION" and node["function_name"].isidentifier():
            assert node["function_name"].lower() not in FORBIDDEN, query.sql


FORBIDDEN = {
    "getenv", "read_csv", "duckdb_settings", "current_setting", "random", "query", "query_table", "glob", "read_text",
    "current_user", "getvariable", "version", "nextval", "uuid", "gen_random_uuid",
}  # fmt: skip


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(child)


def _with_names(tree: Any) -> set[str]:
    maps = [node["cte_map"]["map"] for node in _objects(tree) if node.get("cte_map")]
    return {entry["key"].lower() for entries in maps for entry in entries}
