"""Queries over HTTP: requests and answers."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.access import Caller
from penstock.core.access.caller import Sight
from penstock.core.access.grants import grants
from penstock.core.cursor import stream_cursor, view_cursor
from penstock.core.settings import Settings
from penstock.serve.connections import following
from penstock.serve.query.http import ARROW
from penstock.serve.query.relations import FeedRelation, ViewRelation
from tests.serve.fakes import FakeLog, run
from tests.serve.query.support import SETTINGS, Typed, ask, asking, queried, relations


def test_views_and_streams_are_queried_together_and_the_answer_says_where_they_stood() -> None:
    async def main() -> None:
        log, view = FakeLog(2), Typed()
        log.write(0, 1, 2, text="a")
        log.write(1, 3, text="b")
        log.tick(1)
        view.put({"a": 10, "b": 20})
        async with queried(log, view) as deps, asking(deps) as client:
            joined = 'FROM "by-key" JOIN readings r ON r.text = k GROUP BY k ORDER BY k'
            answer = await ask(client, f"SELECT k, sum(n) AS total, max(v) AS most {joined}")
        assert answer["columns"] == [
            {"name": "k", "type": "VARCHAR"},
            {"name": "total", "type": "BIGINT"},
            {"name": "most", "type": "BIGINT"},
        ]
        assert answer["rows"] == [{"k": "a", "total": 3, "most": 10}, {"k": "b", "total": 3, "most": 20}]
        assert answer["cursors"] == {"by-key": view_cursor(1, 1), "readings": stream_cursor(1, log.ends("readings"))}
        assert "truncated" not in answer

    run(main())


def test_a_query_sees_what_has_come_since_the_one_before() -> None:
    async def main() -> None:
        log, view = FakeLog(2), Typed()
        async with queried(log, view) as deps, asking(deps) as client:
            counts = 'SELECT (SELECT count(*) FROM readings) AS events, (SELECT count(*) FROM "by-key") AS rows'
            assert (await ask(client, counts))["rows"] == [{"events": 0, "rows": 0}]
            for number in range(1, 5):
                log.write(number % 2, number)
                log.tick(0)
                view.put({str(number): number})
                assert (await ask(client, counts))["rows"] == [{"events": number, "rows": number}]
            view.put({}, deletes=["1"])
            log.remake()
            assert (await ask(client, counts))["rows"] == [{"events": 0, "rows": 3}]

    run(main())


def test_of_a_stream_only_the_latest_events_are_seen_whatever_their_partition() -> None:
    async def main() -> None:
        log = FakeLog(2)
        settings = replace(SETTINGS, query_events_max=5)
        async with queried(log, settings=settings) as deps, asking(deps) as client:
            for second in range(20):
                log.write(second % 2 if second < 10 else 0, second, at_s=second)
                answer = await ask(client, "SELECT n FROM readings ORDER BY _ingest_time")
                assert [row["n"] for row in answer["rows"]] == list(range(second + 1))[-5:]
            log.trim(0, 12)
        async with queried(log, settings=settings) as deps, asking(deps) as client:
            answer = await ask(client, "SELECT n, _id FROM readings ORDER BY n")
            assert [row["n"] for row in answer["rows"]] == [9, 17, 18, 19] or len(answer["rows"]) == 5
            assert all(row["_id"] == str(row["n"]) for row in answer["rows"])

    run(main())


def test_of_large_events_fewer_are_seen() -> None:
    async def main() -> None:
        log = FakeLog(1)
        for number in range(40):
            log.write(0, number, text="x" * 1_000_000)
        settings = replace(SETTINGS, query_memory_bytes=64 * 2**20)
        relation = relations(log, Typed(), replace(settings, query_memory_bytes=8 * 2**20))["readings"]
        async with queried(log, settings=settings, more={"readings": relation}) as deps, asking(deps) as client:
            answer = await ask(client, "SELECT min(n) AS first, max(n) AS last, count(*) AS count FROM readings")
            row = answer["rows"][0]
            assert row["last"] == 39
            assert 1 <= row["count"] <= 8
            assert row["first"] == 40 - row["count"]

    run(main())


def test_a_stream_whose_events_have_dots_in_its_name_is_named_with_them() -> None:
    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 7)
        relation = relations(log, Typed())["readings"]
        async with queried(more={"readings.rejected": relation}) as deps, asking(deps) as client:
            for sql in (
                "SELECT n FROM readings.rejected",
                'SELECT "readings.rejected".n FROM "readings.rejected"',
                "SELECT readings.rejected.n FROM readings.rejected",
                "SELECT Readings.Rejected.n FROM READINGS.REJECTED",
            ):
                assert (await ask(client, sql))["rows"] == [{"n": 7}]

    run(main())


def test_a_feed_is_queried_like_any_other() -> None:
    async def main() -> None:
        log, view = FakeLog(1), Typed()
        log.write(0, 1, 2, 3, text="x")
        view.put({"a": 1, "b": 2})
        base_relations = relations(log, view)
        some = FeedRelation(base_relations["readings"], "n > 1", None, source="readings")
        named = FeedRelation(base_relations["by-key"], "v > 1", "k AS name", source="by-key")
        async with queried(log, view, more={"some": some, "named": named}) as deps, asking(deps) as client:
            assert (await ask(client, "SELECT n, _id FROM some ORDER BY n"))["rows"] == [
                {"n": 2, "_id": "2"},
                {"n": 3, "_id": "3"},
            ]
            assert (await ask(client, "SELECT * FROM named"))["rows"] == [{"name": "b"}]
        empty = FeedRelation(relations(FakeLog(1), view)["readings"], "n > 1", "n", source="readings")
        async with queried(more={"some": empty}) as deps:
            async with asking(deps) as client:
                assert (await ask(client, "SELECT count(*) AS c FROM some"))["rows"] == [{"c": 0}]

    run(main())


def test_a_feed_is_no_way_around_a_rule_for_what_it_is_of() -> None:
    """A feed with its own rule is limited by that; one without is hidden from callers who see a part of its source."""

    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1, 2, 3)
        feeds = {
            name: FeedRelation(relations(log, Typed())["readings"], "n > 1", None, source="readings")
            for name in ("open", "ruled")
        }
        rules = Sight({"readings": "n = 1", "ruled": "n = 3"}, {})
        caller = Caller("key:ann", grants(["consume:*"]), sight=rules)
        async with queried(log, more=feeds) as deps, asking(deps, caller) as client:
            assert (await ask(client, "SELECT n FROM readings"))["rows"] == [{"n": 1}]
            assert (await ask(client, "SELECT n FROM ruled"))["rows"] == [{"n": 3}]
            refused = await client.post("/v1/query", json={"sql": "SELECT n FROM open"})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
            assert "query readings instead" in refused.json()["detail"]
        caller = Caller("key:bob", grants(["consume:open"]), sight=rules)
        async with queried(log, more=feeds) as deps, asking(deps, caller) as client:
            refused = await client.post("/v1/query", json={"sql": "SELECT n FROM open"})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
            assert "readings" not in refused.text, "a caller without a grant for it does not learn its name"

    run(main())


def test_a_column_without_a_name_shows_no_internal_name() -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            sql = 'SELECT (SELECT max(n) FROM readings), EXISTS (FROM "by-key" b)'
            columns = (await ask(client, sql))["columns"]
            names = ["(SELECT max(n) FROM readings)", "EXISTS(SELECT * FROM b)"]
            assert [column["name"] for column in columns] == names

    run(main())


def test_rows_are_as_many_as_asked_for_and_more_are_told_of() -> None:
    async def main() -> None:
        async with queried(settings=replace(SETTINGS, query_rows_max=50)) as deps, asking(deps) as client:
            for sql, limit, count, truncated in (
                ("SELECT * FROM range(10)", None, 10, False),
                ("SELECT * FROM range(50)", None, 50, False),
                ("SELECT * FROM range(51)", None, 50, True),
                ("SELECT * FROM range(100000)", 7, 7, True),
                ("SELECT * FROM range(7)", 7, 7, False),
                ("SELECT * FROM range(100) LIMIT 3", 7, 3, False),
                ("SELECT * FROM range(100) LIMIT 60", None, 50, True),
                ("(SELECT * FROM range(100)) UNION ALL (SELECT 1) ORDER BY 1", None, 50, True),
                ("(SELECT * FROM range(100))", None, 50, True),
                ("SELECT * FROM range(100) LIMIT (SELECT 60)", None, 50, True),
                ("SELECT * FROM range(10) LIMIT 0", None, 0, False),
            ):
                answer = await ask(client, sql, **({} if limit is None else {"limit": limit}))
                assert (len(answer["rows"]), answer.get("truncated", False)) == (count, truncated), sql
            for limit in (0, 51, -1):
                response = await client.post("/v1/query", json={"sql": "SELECT 1", "limit": limit})
                assert (response.status_code, response.json()["code"]) == (400, "bad_parameter")

    run(main())


VALUES: list[tuple[str, str, Any]] = [
    ("1", "INTEGER", 1),
    ("sum(x) FROM range(3) r(x)", "BIGINT", 3),
    ("9223372036854775807::HUGEINT * 4", "HUGEINT", "36893488147419103228"),
    ("1.5::DECIMAL(10, 2)", "DECIMAL(10,2)", "1.50"),
    ("1e300 * 1e300", "DOUBLE", None),
    ("'a' || chr(10)", "VARCHAR", "a\n"),
    ("TIMESTAMPTZ '2024-05-01 12:00:00+02:00'", "TIMESTAMP WITH TIME ZONE", "2024-05-01T10:00:00Z"),
    ("TIMESTAMP '2024-05-01 12:00:00.5'", "TIMESTAMP", "2024-05-01T12:00:00.500000"),
    ("DATE '2024-05-01'", "DATE", "2024-05-01"),
    ("TIME '12:30:00'", "TIME", "12:30:00.000000"),
    ("INTERVAL '90' MINUTE", "INTERVAL", "PT5400S"),
    ("INTERVAL '1' MONTH + INTERVAL '2' DAY", "INTERVAL", "P1M2D"),
    ("DATE '2024-05-03' - DATE '2024-05-01'", "BIGINT", 2),
    ("[1, NULL]", "INTEGER[]", [1, None]),
    ("{'a': 1, 'b': 'x'}", "STRUCT(a INTEGER, b VARCHAR)", {"a": 1, "b": "x"}),
    ("NULL", "NULL", None),
    ("encode('ab')", "BLOB", "YWI="),
    ("date_trunc('hour', TIMESTAMPTZ '2024-05-01 12:34:00Z')", "TIMESTAMP WITH TIME ZONE", "2024-05-01T12:00:00Z"),
    ("strftime(TIMESTAMPTZ '2024-05-01 23:34:00+02:00', '%H')", "VARCHAR", "21"),
    ("make_date(12000, 1, 1)", "DATE", "12000-01-01"),
    ("make_date(200000, 1, 1)", "DATE", None),
    ("DATE 'infinity'", "DATE", None),
    ("TIMESTAMP 'infinity'", "TIMESTAMP", None),
    ("[TIMESTAMP 'infinity', TIMESTAMP '2024-05-01']", "TIMESTAMP[]", [None, "2024-05-01T00:00:00"]),
    ("{'a': DATE '-infinity'}", "STRUCT(a DATE)", {"a": None}),
    ("TIME '24:00:00'", "TIME", "24:00:00"),
]


def test_every_type_has_its_json() -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            for expression, kind, value in VALUES:
                value_of, _, rest = expression.partition(" FROM ")
                answer = await ask(client, f"SELECT {value_of} AS x" + (f" FROM {rest}" if rest else ""))
                assert (answer["columns"], answer["rows"]) == ([{"name": "x", "type": kind}], [{"x": value}]), (
                    expression
                )

    run(main())


def test_columns_of_the_same_name_are_numbered() -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            answer = await ask(client, "SELECT 1 AS a, 2 AS a_2, 3 AS a, 4 AS a")
            assert answer["rows"] == [{"a": 1, "a_2": 2, "a_3": 3, "a_4": 4}]

    run(main())


def test_the_answer_can_be_an_arrow_stream() -> None:
    async def main() -> None:
        view = Typed()
        view.put({"a": 1})
        async with queried(view=view) as deps, asking(deps) as client:
            sql = 'SELECT *, 1 AS k FROM "by-key"'
            for body, headers in (({"sql": sql}, {"Accept": ARROW}), ({"sql": sql, "format": "arrow"}, {})):
                response = await client.post("/v1/query", json=body, headers=headers)
                assert response.headers["content-type"] == ARROW
                table = pa.ipc.open_stream(response.content).read_all()
                assert table.to_pylist() == [{"k": "a", "v": 1, "k_2": 1}]
                assert view_cursor(1, 1) in table.schema.metadata[b"penstock"].decode()
            body = {"sql": sql, "format": "json"}
            response = await client.post("/v1/query", json=body, headers={"Accept": ARROW})
            assert response.json()["rows"] == [{"k": "a", "v": 1, "k_2": 1}]

    run(main())


PROBLEMS = [
    ("SELECT", 400, "bad_query", None),
    ("SELECT n FROM readings WHERE", 400, "bad_query", 23),
    ("SELECT spead FROM readings", 400, "bad_query", 7),
    ("SELECT n,\n  oops.x FROM readings", 400, "bad_query", 12),
    ("SELECT n FROM nowhere", 400, "bad_query", 14),
    ("SELECT n, count(*) FROM readings", 400, "bad_query", 7),
    ("SELECT CAST('x' AS INT)", 400, "bad_query", None),
    ("SELECT n + text FROM readings", 400, "bad_query", None),
    ("SELECT 'abc", 400, "bad_query", None),
    ("DROP TABLE readings", 400, "query_refused", 0),
    ("SELECT 1; SELECT 2", 400, "query_refused", 8),
    ("SELECT * FROM read_csv('/etc/passwd')", 400, "query_refused", 14),
    ("SELECT n, getenv('HOME') FROM readings", 400, "query_refused", 10),
    ("SELECT 'input_99'::INT", 400, "bad_query", None),
    ("SELECT " + "1 + " * 3_000 + "1", 400, "query_refused", None),
    ("SELECT " + "(" * 30 + "1" + ")" * 30, 400, "query_refused", 31),
]


@pytest.mark.parametrize(("sql", "status", "code", "position"), PROBLEMS)
def test_what_is_wrong_is_told_with_its_place(sql: str, status: int, code: str, position: int | None) -> None:
    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1, text="x")
        async with queried(log) as deps, asking(deps) as client:
            response = await client.post("/v1/query", json={"sql": sql})
            problem = response.json()
            assert (response.status_code, problem["code"]) == (status, code), problem
            if position is not None:
                assert problem["position"] == position, problem
            assert "input_" not in problem["detail"]
            assert "LINE" not in problem["detail"]

    run(main())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"sql": 1}', b'{"sql": "SELECT 1", "x": 1}', b'{"sql":"a","format":"xml"}']
)
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            response = await client.post("/v1/query", content=body)
            assert (response.status_code, response.json()["code"]) == (400, "malformed_body")
            assert (await client.post("/v1/query", content=b" " * 200_000)).status_code == 413
            assert (await client.post("/v1/query?x=1", json={"sql": "SELECT 1"})).status_code == 400
            assert (await client.get("/v1/query")).status_code == 405
            long = await client.post("/v1/query", json={"sql": "SELECT 1" + " " * 20_000})
            assert (long.status_code, long.json()["code"]) == (400, "query_refused")

    run(main())


def test_a_caller_queries_what_it_may_read_and_is_not_told_of_the_rest() -> None:
    async def main() -> None:
        log = FakeLog(1)
        log.write(0, 1)
        one = Caller("one", grants(["consume:readings"]))
        async with queried(log) as deps, asking(deps, one) as client:
            assert (await ask(client, "SELECT n FROM readings"))["rows"] == [{"n": 1}]
            for sql in ('SELECT * FROM "by-key"', "SELECT * FROM nowhere", 'SELECT (SELECT max(v) FROM "by-key")'):
                response = await client.post("/v1/query", json={"sql": sql})
                assert (response.status_code, response.json()["code"]) == (403, "forbidden")
                assert "by-key" not in response.json()["detail"] or "by-key" in sql
            with_same = 'WITH "by-key" AS (SELECT 5 AS v) SELECT v FROM "by-key"'
            assert (await ask(client, with_same))["rows"] == [{"v": 5}]

    run(main())


def test_a_caller_sees_the_rows_that_its_rule_shows_and_no_query_gets_around_it() -> None:
    async def main() -> None:
        log, view = FakeLog(1), Typed()
        log.write(0, 1, 2, 3, text="one")
        log.write(0, 4, text="two")
        view.put({"a": 1, "b": 2})
        rules = {"readings": "text = claim('who')", "by-key": "v > claim('least')"}
        granted = grants(["consume:*"])
        seen = {
            who: Caller(who, granted, sight=Sight(rules, {"who": who, "least": 1})) for who in ("one", "two", "nobody")
        }
        everyone = Caller("all", granted)
        sql = 'SELECT (SELECT count(*) FROM readings) AS events, (SELECT sum(v) FROM "by-key") AS v'
        async with queried(log, view) as deps:
            for caller, events, v in (
                (everyone, 4, 3),
                (seen["one"], 3, 2),
                (seen["two"], 1, 2),
                (seen["nobody"], 0, 2),
                (everyone, 4, 3),
            ):
                async with asking(deps, caller) as client:
                    assert (await ask(client, sql))["rows"] == [{"events": events, "v": v}], caller.name
                async with following(deps.channel("query", sql, caller), None) as deliveries:
                    first = await anext(deliveries)
                    assert json.loads(first.data)["rows"] == [{"events": events, "v": v}], caller.name
            bad = Caller("bad", granted, sight=Sight({"readings": "no_such_column = 1"}, {}))
            async with asking(deps, bad) as client:
                response = await client.post("/v1/query", json={"sql": "SELECT * FROM readings"})
                assert (response.status_code, response.json()["code"]) == (403, "forbidden")

    run(main())


def test_a_view_whose_columns_are_not_known_yet_is_asked_for_again_later() -> None:
    class Unknown(Typed):
        schema = None

    async def main() -> None:
        async with queried(view=Unknown()) as deps, asking(deps) as client:
            response = await client.post("/v1/query", json={"sql": 'SELECT * FROM "by-key"'})
            assert (response.status_code, response.json()["code"]) == (503, "busy")

    run(main())


def test_a_view_larger_than_a_query_may_read_is_told_so() -> None:
    async def main() -> None:
        view = Typed()
        view.put({str(number): number for number in range(200_000)})
        async with queried(view=view, settings=Settings(query_memory_bytes=2**20)) as deps, asking(deps) as client:
            response = await client.post("/v1/query", json={"sql": 'SELECT count(*) FROM "by-key"'})
            assert (response.status_code, response.json()["code"]) == (422, "query_too_large")

    run(main())


def test_what_is_held_for_the_next_query_is_bounded_and_made_again_when_it_is_needed() -> None:
    async def main() -> None:
        views = {f"view-{number}": Typed() for number in range(8)}
        for view in views.values():
            view.put({str(number): number for number in range(45_000)})
        view_relations = {name: ViewRelation(name, view) for name, view in views.items()}
        settings = replace(SETTINGS, query_memory_bytes=2**20)
        async with queried(settings=settings, more=view_relations) as deps, asking(deps) as client:
            for _ in range(2):
                for name in views:
                    assert (await ask(client, f'SELECT count(*) AS n FROM "{name}"'))["rows"] == [{"n": 45_000}]
                    held = [source.held for source in deps.asked._sources.values()]
                    assert 0 < sum(held) <= 4 * 2**20
            assert min(held) == 0, "some were let go"

    run(main())


def test_now_is_a_time_in_utc() -> None:
    async def main() -> None:
        async with queried() as deps, asking(deps) as client:
            (row,) = (await ask(client, "SELECT now() AS t"))["rows"]
            assert abs((datetime.fromisoformat(row["t"]) - datetime.now(UTC)).total_seconds()) < 60

    run(main())
