"""Edits of an app that has data: the output of `plan`, the effect of `run`, and correct results of what continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.app.fingerprints.verdicts import VerdictKind
from penstock.cli.changing import REFUSED, lines, reported
from penstock.runtime.affected import affected
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.plans import decided
from tests.fingerprints.edits import ROWS, Row
from tests.fingerprints.shop import (
    ALL,
    Shop,
    compare,
    engine_rows,
    fill,
    fresh_rows,
    load_app,
    make_shop,
    new_shop,
    purge,
    rebuild,
    run_handler,
    run_view,
    spark_plans,
    view_of,
    write_app,
)

pytestmark = pytest.mark.spark
SOME = 5
"""One in this many edits is run on Spark here; a soak test runs all of them."""


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return make_shop(spark, tmp_path_factory.mktemp("shop"))


def test_the_table_is_large_enough() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_edit_is_judged_and_what_goes_on_is_right(row: Row, shop: Shop, spark: SparkSession, tmp_path: Path) -> None:
    file = write_app(tmp_path / "code", row.edits, row.rates)
    app = load_app(file)
    comparison = compare(file, app, shop.directory)
    said: list[str] = []
    verdicts = decided(comparison, said.append, lambda _, views: spark_plans(spark, app, shop.directory, views))
    outcomes = {
        verdict.name: (verdict.kind, verdict.reason)
        for verdict in verdicts
        if verdict.kind is not VerdictKind.unchanged
    }
    assert {name: kind for name, (kind, _) in outcomes.items()} == {
        name: kind for name, (kind, _) in row.expected.items()
    }
    for name, (_, part) in row.expected.items():
        assert part in outcomes[name][1]
    _require_plan(
        row,
        lines(
            verdicts, affected(app, EmbeddedStorage(shop.directory), verdicts, None), EmbeddedStorage(shop.directory)
        ),
    )
    refused = reported(verdicts, shop.directory.root, said.append)
    assert bool(refused) == row.refused
    for name, (kind, part) in row.expected.items():
        where = refused if kind in REFUSED else said if kind is not VerdictKind.new else [name + part]
        assert any(name in line and part in line for line in where)
    if row in ROWS[::SOME]:
        _require_right(row, shop, spark, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_goes_on_after_any_edit_is_right(row: Row, shop: Shop, spark: SparkSession, tmp_path: Path) -> None:
    _require_right(row, shop, spark, tmp_path)


REBUILT = [(row, view) for row in ROWS for view in row.rebuilt]


@pytest.mark.soak
@pytest.mark.parametrize(("row", "view"), REBUILT, ids=lambda parameter: getattr(parameter, "name", parameter))
def test_a_view_that_is_refused_is_right_once_it_is_rebuilt(
    row: Row, view: str, shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    file = write_app(tmp_path / "code", row.edits, row.rates)
    fresh = engine_rows(spark, file, new_shop(file, tmp_path / "fresh"), view)
    data = shop.whole_copy(tmp_path / "data")
    rebuild(spark, file, data, view)
    assert engine_rows(spark, file, data, view) == fresh
    assert fresh or row.name in ("emit", "the input of a view")  # nothing has closed yet; nothing is there to read


EDITED = [row for row in ROWS if row.expected.get("tell", (VerdictKind.removed, ""))[0] is not VerdictKind.removed]


@pytest.mark.soak
@pytest.mark.parametrize("row", EDITED, ids=lambda row: row.name)
def test_an_edited_handler_is_right_once_the_printed_command_has_run(
    row: Row, shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    file = write_app(tmp_path / "code", row.edits, row.rates)
    data = shop.whole_copy(tmp_path / "data")
    app = load_app(file)
    command = str(compare(file, app, data).of_handler(app.handlers[0]).command)
    if command.startswith("penstock purge"):
        purge(file, data, command)
    else:
        assert command == f"penstock rebuild {file} --handler tell --data {data.root}"
        rebuild(spark, file, data, "tell")
    digest, keys = run_handler(spark, file, data)
    assert (digest, keys) == run_handler(spark, file, new_shop(file, tmp_path / "fresh"))
    assert keys or row.name == "the input of a handler"  # there are no refunds


PLACED = [row for row in ROWS if "stored events use the old" in row.expected.get("orders", (None, ""))[1]]


@pytest.mark.soak
@pytest.mark.parametrize("row", PLACED, ids=lambda row: row.name)
def test_a_stream_is_right_once_it_was_removed_and_filled_again(
    row: Row, shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    file = write_app(tmp_path / "code", row.edits, row.rates)
    data = shop.whole_copy(tmp_path / "data")
    app = load_app(file)
    purge(file, data, str(compare(file, app, data).of_stream(app.streams[0]).command))
    fill(app, data.streams, ALL, 1)
    fresh = new_shop(file, tmp_path / "fresh")
    for view in ("best", "large"):
        rows = engine_rows(spark, file, data, view)
        assert rows == engine_rows(spark, file, fresh, view)
        assert rows


def _require_right(row: Row, shop: Shop, spark: SparkSession, tmp_path: Path) -> None:
    """Check that views which continue after an edit reach the rows of a fresh run of the new code."""
    app = load_app(write_app(tmp_path / "right", row.edits, row.rates))
    for name in row.watched:
        view = view_of(app, name)
        continued = run_view(spark, app, view, shop.longer, shop.copy(tmp_path / "continued", name))
        assert continued == fresh_rows(app, view, ALL, tmp_path)
        assert continued


def _require_plan(row: Row, printed: list[str]) -> None:
    assert printed[-1].endswith("would refuse" if row.refused else "would start")
    for name, (kind, part) in row.expected.items():
        line = next(line for line in printed if f" {name}: {kind}" in f" {line}")
        assert part in line
        if kind is VerdictKind.incompatible:
            assert "app.py:" in line
            assert any(
                remedy in line
                for remedy in ("penstock rebuild", "penstock purge", "raise the version", "renamed=", "First fix")
            )
