"""Views on real Spark: as batch previews, as streaming queries, and with errors."""

from __future__ import annotations

import inspect
import json
import shutil
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.util
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import App
from penstock.analyze import check as checking
from penstock.analyze.frames import build, columns_schema, inputs, key_problems
from penstock.analyze.pruning import needed_columns
from penstock.app.check import check
from penstock.app.declared import View
from penstock.core.columns import change_schema
from penstock.core.errors import DeclarationError, LedgerMismatch, MissingTool, ViewError
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.sketches import columns
from penstock.store import ViewSpec
from penstock.store.rows import to_rows
from tests.analyze.pipe import NOON, Fix, Pipe, app, busiest, fix, fixes

pytestmark = pytest.mark.spark


@app.view("speeds", reads=fixes, key=["window", "vehicle"])
def speeds(fixes: DataFrame) -> DataFrame:
    return fixes.groupBy(F.window("at", "1 minute"), "vehicle").agg(F.avg("speed").alias("speed"))


def test_a_view_runs_on_a_plain_list_of_events(spark: SparkSession) -> None:
    rows = app.preview(speeds, [fix(1, speed=10), fix(2, speed=30), fix(3, "v2")]).collect()
    assert {(row["vehicle"], row["speed"]) for row in rows} == {("v1", 20.0), ("v2", 10.0)}


def test_a_sql_view_takes_plain_mappings_too(spark: SparkSession) -> None:
    event = {"fix_id": "1", "at": "2026-01-01T12:00:00Z", "vehicle": "v1", "speed": 1.0}
    assert [tuple(row) for row in app.preview(busiest, [event, fix(2)]).collect()] == [("v1", 2)]


def test_a_preview_wants_a_list_for_each_input(spark: SparkSession) -> None:
    with pytest.raises(ViewError, match="one list of events for each"):
        app.preview(speeds, [], [])


def test_a_preview_takes_the_name_of_a_view_or_tells_those_that_there_are(spark: SparkSession) -> None:
    assert app.preview("speeds", [fix(1, speed=10)]).count() == 1
    with pytest.raises(DeclarationError, match="there is no view 'sped'; did you mean 'speeds'"):
        app.preview("sped", [])
    with pytest.raises(DeclarationError, match=r"there is no view 'zzz'; available: .*speeds"):
        app.preview("zzz", [])


def test_a_preview_of_a_derived_view_refuses_two_rows_of_one_key_as_the_view_does(spark: SparkSession) -> None:
    layered = App("layered")
    layered.stream("fixes", Fix, key="vehicle")
    layered.sql("counts", "SELECT vehicle, count(*) AS n FROM fixes GROUP BY vehicle", key="vehicle")
    twice = layered.sql("twice", "SELECT n, vehicle FROM counts", key="n")
    rows = [{"vehicle": "v1", "n": 1}, {"vehicle": "v2", "n": 1}, {"vehicle": "v3", "n": 2}]
    with pytest.raises(
        ViewError,
        match=r'view twice: its query returns 2 rows with the key \{"n":1\}, but each key must have exactly one row',
    ):
        layered.preview(twice, rows)
    assert layered.preview(twice, rows[1:]).count() == 2


def test_a_preview_has_the_last_row_of_each_key_as_the_view_does(spark: SparkSession) -> None:
    latest = App("latest")
    stream = latest.stream("fixes", Fix)

    @latest.view("last", reads=stream, key="vehicle")
    def last(fixes: DataFrame) -> DataFrame:
        return fixes.select("vehicle", "speed")

    events = [fix(1, speed=10), fix(2, "v2", speed=1), fix(3, speed=30), fix(4, speed=20)]
    previewed = latest.preview(last, events)
    every = build(spark, last, [latest.preview(app_of_all(latest), events)]).toArrow()
    served = to_rows(
        every, ViewSpec("last", ("vehicle",), None, None, None, changes_kept=1, changes_bytes=1), NOON
    ).rows
    assert [json.loads(row[-1]) for row in served] == [
        {"vehicle": "v1", "speed": 20.0},
        {"vehicle": "v2", "speed": 1.0},
    ]
    assert sorted(tuple(row) for row in previewed.collect()) == [("v1", 20.0), ("v2", 1.0)]
    assert previewed.columns == ["vehicle", "speed"]


def app_of_all(target: App) -> View:
    """A view of all events, each under its id."""
    return target.sql("all", "SELECT * FROM fixes", key="fix_id")


@pytest.mark.skipif(find_spec("pandas") is not None, reason="pandas is there")
def test_to_pandas_names_the_extra_that_is_missing(spark: SparkSession) -> None:
    with pytest.raises(MissingTool, match=r"penstock\[pandas\]"):
        app.preview(speeds, [fix(1)]).toPandas()


def line_of(text: str, function: object) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(index for index, line in enumerate(lines) if text in line)


def test_an_unknown_column_is_reported_with_view_line_and_column(spark: SparkSession) -> None:
    wrong = App("wrong")
    stream = wrong.stream("fixes", Fix)

    @wrong.view("broken", reads=stream, key="vehicle")
    def broken(fixes: DataFrame) -> DataFrame:
        counted = fixes.groupBy("vehicle").count()
        return counted.select("vehicle", "sped")

    with pytest.raises(ViewError) as caught:
        wrong.preview(broken, [fix(1)])
    assert caught.value.fields["view"] == "broken"
    assert caught.value.fields["column"] == "sped"
    assert caught.value.fields["line"] == line_of('"sped"', broken.function)
    assert "test_views.py:" in caught.value.message
    assert "java" not in caught.value.message.lower()


@pytest.mark.parametrize(
    ("query", "sentence", "place"),
    [
        (
            "SELECT vehicle,\n  count(*) AS n,\nFROM fixes GROUP BY vehicle",
            "[TRAILING_COMMA_IN_SELECT] Trailing comma detected in SELECT clause",
            "line 3, column 1, at 'FROM fixes GROUP BY vehicle'",
        ),
        (
            "SELECT vehicle,\n  max(sped) AS n\nFROM fixes GROUP BY vehicle",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `sped`",
            "line 2, column 7, at 'sped) AS n'",
        ),
        (
            "SELECT vehicle, count(*) AS n FROM fixes GROUP BY vehicle, hash(1, 2) WITH ROLLUP, CUBE",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near",
            "line 1, column 82, at ', CUBE'",
        ),
    ],
)
def test_an_error_in_sql_is_reported_with_its_line_and_column_in_the_text(
    spark: SparkSession, query: str, sentence: str, place: str
) -> None:
    wrong = App("wrong")
    wrong.stream("fixes", Fix)
    view = View("broken", wrong.where, ("fixes",), ("vehicle",), query=query)
    with pytest.raises(ViewError) as caught:
        wrong.preview(view, [fix(1)])
    assert caught.value.message.startswith(f"{wrong.where}: view broken: {sentence}")
    assert caught.value.message.endswith(f" (in its SQL: {place})")


def test_a_view_that_gives_no_frame_or_raises_is_reported(spark: SparkSession) -> None:
    wrong = App("wrong")
    stream = wrong.stream("fixes", Fix)
    nothing = wrong.view("nothing", reads=stream, key="a")(lambda fixes: None)  # type: ignore[arg-type,return-value]
    raising = wrong.view("raising", reads=stream, key="a")(lambda fixes: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ViewError, match="view nothing: it returned NoneType"):
        wrong.preview(nothing, [])
    with pytest.raises(ViewError, match="view raising: ZeroDivisionError"):
        wrong.preview(raising, [])


PLACES = [{"vehicle": "v1", "speed": 1.0}]
REFUSED: dict[str, tuple[str, dict[str, Any], list[list[Any]]]] = {
    "a condition (HAVING, or a filter) after GROUP BY selects rows by an aggregate": (
        "SELECT vehicle, count(*) AS n FROM fixes GROUP BY vehicle HAVING count(*) > 1",
        {},
        [[fix(1)]],
    ),
    "explode, or another function that generates rows, after": (
        "SELECT vehicle, explode(collect_set(fix_id)) AS f FROM fixes GROUP BY vehicle",
        {},
        [[fix(1)]],
    ),
    "it reads both the stream fixes and the rows of the view places": (
        "SELECT fixes.vehicle, places.speed FROM fixes JOIN places ON fixes.vehicle = places.vehicle",
        {},
        [[fix(1)], PLACES],
    ),
    "its query uses now(), but a derived view": ("SELECT vehicle, now() AS n FROM places", {}, [PLACES]),
    "its query uses rand(), whose value differs each time": ("SELECT vehicle, rand() AS n FROM places", {}, [PLACES]),
    "emit='close' cannot be used on a view that reads other views": (
        "SELECT vehicle FROM places",
        {"emit": "close"},
        [PLACES],
    ),
    "it has no column 'n' for its key; it has vehicle": ("SELECT vehicle FROM fixes", {"key": "n"}, [[fix(1)]]),
    "it also groups by vehicle": (
        "SELECT vehicle, count(*) AS n FROM fixes GROUP BY vehicle",
        {"key": "n"},
        [[fix(1)]],
    ),
    "it joins two streams, so each of its rows is emitted once": (
        "SELECT a.vehicle FROM fixes AS a JOIN fixes AS b ON a.vehicle = b.vehicle",
        {},
        [[fix(1)]],
    ),
    "it has an aggregate that is written in Python": (
        "SELECT vehicle FROM fixes",
        {"function": lambda fixes: fixes.groupBy("vehicle").agg(columns.tdigest("speed").alias("d"))},
        [[fix(1)]],
    ),
    "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]": (
        "SELECT vehicle FROM fixes",
        {"emit": "close", "function": lambda fixes: fixes.groupBy("vehicle").count()},
        [[fix(1)]],
    ),
    "a condition (HAVING, or a filter) after GROUP BY": (
        "SELECT vehicle, sum(speed) AS s FROM `places.changes` GROUP BY vehicle HAVING sum(speed) > 1",
        {},
        [PLACES],
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_preview_refuses_what_check_refuses_with_the_same_message(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    query, options, given = REFUSED[message]
    bad = App("bad")
    bad.stream("fixes", Fix, key="vehicle")
    bad.sql("places", "SELECT vehicle, last(speed) AS speed FROM fixes GROUP BY vehicle", key="vehicle")
    function = options.get("function")
    named = {"key": "vehicle"} | {name: value for name, value in options.items() if name != "function"}
    if function is None:
        bad.sql("wrong", query, **named)
    else:
        bad.view("wrong", reads="fixes", **named)(function)
    monkeypatch.setattr(checking, "start_session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    (problem, *_) = check(bad) or checking.check_views(bad, Settings())
    assert f"view wrong: {message}" in str(problem)
    with pytest.raises((ViewError, DeclarationError)) as caught:
        bad.preview("wrong", *given)
    assert str(caught.value) == str(problem)


@pytest.mark.parametrize(
    ("key", "by", "says"),
    [
        (("vehikle",), None, "it has no column 'vehikle' for its key; it has vehicle, n, mean, all"),
        (("mean",), None, "the key 'mean' is of type double"),
        (("all",), None, "the key 'all' is of type array<string>"),
        (("n",), None, "it also groups by vehicle"),
        (("vehicle",), "m", "it has no column 'm' for by=; it has vehicle, n, mean, all"),
        (("vehicle",), "all", "cannot be ranked"),
        (("vehicle",), "n", None),
    ],
)
def test_a_key_must_identify_rows(spark: SparkSession, key: tuple[str, ...], by: str | None, says: str | None) -> None:
    view = View("v", app.where, ("fixes",), key, by=by, top=3 if by else None)
    query = "SELECT vehicle, count(*) n, avg(speed) mean, collect_list(fix_id) `all` FROM f GROUP BY vehicle"
    spark.createDataFrame([("a", "v", 1.0)], "fix_id string, vehicle string, speed double").createOrReplaceTempView("f")
    problems = key_problems(view, spark.sql(query))
    assert (problems == []) if says is None else says in problems[0]


@pytest.fixture
def pipe(spark: SparkSession, tmp_path: Path) -> object:
    view_pipe = Pipe(spark, tmp_path, busiest)
    yield view_pipe
    view_pipe.close()


def test_a_query_counts_each_event_once_over_restarts(pipe: Pipe) -> None:
    pipe.append(1, fix(1), fix(2), fix(3, "v2"))
    pipe.run()
    pipe.restart()
    pipe.append(2, fix(4), fix(5, "v2"))
    assert pipe.run() == []
    assert pipe.counts() == {"v1": 3, "v2": 2}


def test_an_unclean_end_runs_the_last_batch_again_without_effect(pipe: Pipe) -> None:
    pipe.append(1, fix(1), fix(2))
    pipe.run()
    last = pipe.table.last()
    assert last is not None
    pipe.restart()
    dropped = pipe.run(clean=False)
    assert [Path(path).name for path in dropped] == [str(last.batch_id)]
    assert pipe.counts() == {"v1": 2}
    pipe.restart()
    pipe.append(2, fix(3))
    pipe.run(clean=False)
    assert pipe.counts() == {"v1": 3}


def test_a_program_that_takes_the_place_of_a_fetch_does_not_stop_the_view(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.append(1, fix(1), fix(2))
    connect = pyspark.util.local_connect_and_auth

    def intrude(path: str, secret: None) -> tuple[object, ...]:
        """Spark serves the first client that connects, and no other."""
        with socket.socket(socket.AF_UNIX) as intruder:
            intruder.connect(path)
            while intruder.recv(65_536):
                pass
        return connect(path, secret)

    monkeypatch.setattr(pyspark.util, "local_connect_and_auth", intrude)
    with pytest.raises(StreamingQueryException):
        pipe.run()
    monkeypatch.undo()
    assert isinstance(pipe.query.failure, ConnectionError)
    assert pipe.counts() == {}
    pipe.run(clean=False)
    assert pipe.counts() == {"v1": 2}


def test_an_old_checkpoint_under_a_newer_table_is_refused(pipe: Pipe) -> None:
    pipe.append(1, fix(1))
    pipe.run()
    shutil.copytree(pipe.root / "checkpoint", pipe.root / "old")
    pipe.restart()
    pipe.append(2, fix(2))
    pipe.run()
    shutil.rmtree(pipe.root / "checkpoint")
    shutil.copytree(pipe.root / "old", pipe.root / "checkpoint")
    pipe.restart()
    with pytest.raises(LedgerMismatch, match=r"ends at batch \d+.*but the ledger ends at batch"):
        pipe.run(clean=False)
    assert pipe.counts() == {"v1": 2}


def test_ticks_wake_a_query_and_are_not_events(pipe: Pipe) -> None:
    from penstock.core.columns import tick_batch

    pipe.log.append("fixes", 0, tick_batch(event_schema(Fix), NOON), producer="tick", sequence=1)
    pipe.run()
    assert pipe.table.last() is not None
    assert pipe.counts() == {}


def test_the_changes_of_a_view_have_its_columns_and_the_system_columns(spark: SparkSession) -> None:
    frame = app.preview(speeds, [fix(1)])
    schema = change_schema(columns_schema(frame))
    own = ["window", "vehicle", "speed", "_change", "_version"]
    assert schema.names == [*own, "_id", "_key", "_ingest_time", "_kind"]
    assert schema.field("window").type.field("start").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("use", "columns"),
    [
        (lambda fixes: fixes.groupBy("vehicle").count(), {"vehicle", "_kind"}),
        (lambda fixes: fixes.select("vehicle", "speed").select("vehicle"), {"vehicle", "_kind"}),
        (lambda fixes: fixes.where("speed > 3").groupBy("vehicle").count(), {"vehicle", "speed", "_kind"}),
        (lambda fixes: fixes.groupBy(F.window("at", "1 minute")).count(), {"at", "_kind"}),
        (lambda fixes: fixes, {"fix_id", "at", "vehicle", "speed", "_kind"}),
        (lambda fixes: fixes.union(fixes), None),
        (lambda fixes: fixes.alias("a").join(fixes.alias("b"), "vehicle").select("vehicle"), None),
    ],
)
def test_only_the_columns_that_a_view_uses_are_read(
    spark: SparkSession, use: Callable[[DataFrame], DataFrame], columns: set[str] | None
) -> None:
    view = View("v", app.where, ("fixes",), ("vehicle",), use)
    stream_columns = needed_columns(spark, lambda reader: build(spark, view, inputs(app, view, reader, {})))
    assert stream_columns == ({"fixes": columns} if columns else {})
