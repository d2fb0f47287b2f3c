"""The Spark parts of the queries, over plain lists of events, compared with plain loops over the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.nexmark import app_for
from examples.nexmark_queries.events import LATE_AFTER
from examples.nexmark_queries.generator import Generator, apart, shuffled
from penstock import App
from penstock.app.declared import View
from penstock.testing import run
from tests.nexmark import reference
from tests.nexmark.rows import difference, rows_of

SEED, EVENTS, PER_SECOND = 11, 3_000, 50

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def events() -> list[Any]:
    return shuffled(Generator(EVENTS, seed=SEED, per_second=PER_SECOND), LATE_AFTER, SEED)


def inputs(app: App, events: list[Any]) -> dict[str, Sequence[Any]]:
    """Return the streams of an app, with those that its handlers fill."""
    given, done = apart(events), run(app, apart(events))
    return {**given, **{handler.name: done.emitted(handler) for handler in app.handlers}}


def view_of(app: App, name: str) -> View:
    return next(view for view in app.views if view.name == name)


def previewed(app: App, name: str, events: list[Any]) -> DataFrame:
    view, known = view_of(app, name), inputs(app, events)
    return app.preview(view, *(known[stream] for stream in view.reads))


@pytest.mark.parametrize("name", ["q3", "q4", "q8", "q9", "q15", "q16", "q17", "q18", "q20"])
def test_a_view_gives_what_the_loop_gives(spark: SparkSession, name: str, events: list[Any]) -> None:
    expected = reference.EXPECTED[name](reference.World(events))
    assert expected
    rows = previewed(app_for(name), name, events).distinct().toArrow().to_pylist()
    assert difference(rows_of(name, rows), expected) == ""


def test_sessions_of_q11(spark: SparkSession, events: list[Any]) -> None:
    world = reference.World(events)
    rows = rows_of("q11", previewed(app_for("q11"), "q11", events).toArrow().to_pylist())
    over = [row for row in rows if row[-1] <= world.over(world.bids)]
    assert over
    assert difference(over, reference.q11(world)) == ""


@pytest.mark.parametrize(("first", "name"), [("q5-counts", "q5"), ("q7-prices", "q7")])
def test_a_view_on_windows_that_are_over(spark: SparkSession, first: str, name: str, events: list[Any]) -> None:
    app, world = app_for(name), reference.World(events)
    frame, view = previewed(app, first, events), view_of(app, name)
    over = frame.where(frame["window.end"] <= world.over(world.bids)).collect()
    given = apart(events) | {f"{first}.changes": over}
    rows = rows_of(name, app.preview(view, *(given[stream] for stream in view.reads)).toArrow().to_pylist())
    assert rows
    assert difference(rows, reference.EXPECTED[name](world)) == ""
