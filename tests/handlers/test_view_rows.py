"""A handler whose results are a view: rows that replace others, rows that are deleted, each batch once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import App, Event
from penstock.app.check import check
from penstock.app.graph import change_streams, derived, nodes, order
from penstock.core import failpoints
from penstock.core.columns import to_batch
from penstock.core.schema import SYSTEM_COLUMNS
from penstock.handlers.samples import BEGIN
from penstock.testing import CRASH, run
from tests.handlers import standing
from tests.handlers.standing import Hours, Reading, Used, app, readings
from tests.handlers.view_handlers import Keeping

[used] = app.view_handlers
READINGS = st.lists(
    st.builds(
        Reading, meter=st.sampled_from("abc"), hour=st.integers(1, 3), watts=st.integers(-1, 5), struck=st.booleans()
    )
)


def naive(events: list[Reading]) -> dict[tuple[str, int], int]:
    """Return the expected rows: the readings since the hour was last struck out."""
    left: dict[tuple[str, int], int] = {}
    for event in events:
        if event.watts < 0:
            continue
        if event.struck:
            left.pop((event.meter, event.hour), None)
        else:
            left[event.meter, event.hour] = left.get((event.meter, event.hour), 0) + event.watts
    return left


def reading(meter: str, hour: int, watts: int = 0, *, struck: bool = False) -> Reading:
    return Reading(meter=meter, hour=hour, watts=watts, struck=struck)


def test_a_row_takes_the_place_of_the_one_with_its_key_and_goes_when_it_is_told_gone() -> None:
    given = [
        reading("a", 1, 5),
        reading("a", 2, 7),
        reading("a", 1, 1),
        reading("a", 2, struck=True),
        reading("b", 1, 3),
    ]
    result = run(app, {readings: given})
    assert [(row.meter, row.hour, row.watts) for row in result.rows("used")] == [("a", 1, 6), ("b", 1, 3)]
    assert [type(event).__name__ for event in result.emitted("used")] == ["Used", "Used", "Used", "UsedGone", "Used"]


@settings(deadline=None, max_examples=50)
@given(READINGS, st.integers(1, 5), st.integers(1, 3))
def test_rows_are_the_same_however_the_work_is_cut(events: list[Reading], batch: int, shards: int) -> None:
    result = run(app, {readings: [*events, CRASH]}, shards=shards, batch_events=batch)
    assert {(row.meter, row.hour): row.watts for row in result.rows(used)} == naive(events)
    assert len(result.failed(used)) == sum(event.watts < 0 for event in events)


def test_it_is_among_views_and_handlers_and_computed_once() -> None:
    assert [view.name for view in app.views] == ["most", "used"]
    assert [query.name for query in app.queries] == ["most"]
    assert [handler.name for handler in app.handlers] == ["used"]
    assert [output.name for output in app.outputs] == ["used.failed"]
    assert nodes(app)["used"] is used
    assert [node.name for node in order(app)] == ["used", "most"]
    assert [view.name for view in derived(app)] == ["most"]
    assert change_streams(app) == frozenset()
    assert check(app) == []


def declared(row: Any, key: Any, **more: Any) -> list[str]:
    bad_app = App("bad")
    stream = bad_app.stream("readings", Reading, key="meter")
    bad_app.handler("used", reads=stream, key="meter", state=Hours, emits=row, view=key, **more)(lambda *_: None)
    return [problem.message for problem in check(bad_app)]


class Bare(Event):
    hour: int
    level: float


@pytest.mark.parametrize(
    ("row", "key", "message"),
    [
        (Used, ["meter", "day"], "its view's key 'day' is not a field of Used"),
        (Used, ["hour"], "its view's key must include 'meter'"),
        (Used, ["meter", "parts"], "its view's key 'parts' has a type that cannot identify a row"),
        (Bare, ["level"], "its view's key 'level' has a type that cannot identify a row"),
        (Used, [], "it has no key"),
        ([Used, Bare], ["meter"], "a handler with view= emits only one class, the class of its rows"),
        ((), ["meter"], "a handler with view= emits only one class, the class of its rows"),
    ],
)
def test_a_view_that_cannot_be_kept_is_refused(row: Any, key: list[str], message: str) -> None:
    assert any(message in problem for problem in declared(row, key))


class Kept(Keeping):
    def __init__(self, root: Path) -> None:
        super().__init__(root, app, used, standing.__file__)

    def used(self) -> dict[tuple[str, int], int]:
        return {(row["meter"], row["hour"]): row["watts"] for row in self.rows()}


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    keeping = Kept(tmp_path)
    yield keeping
    keeping.log.close()


def test_batches_bring_the_rows_of_the_view_up_to_date(kept: Kept) -> None:
    first = [reading("a", 1, 5), reading("b", 1, 3), reading("a", 1, 1), reading("c", 2, 2)]
    kept.send(first)
    assert kept.batch()
    assert kept.used() == naive(first) == {("a", 1): 6, ("b", 1): 3, ("c", 2): 2}
    second = [
        reading("a", 1, struck=True),
        reading("a", 1, 4),
        reading("b", 1, 1),
        reading("b", 1, struck=True),
        reading("b", 9, -1),
    ]
    kept.send(second)
    assert kept.batch()
    assert kept.used() == naive(first + second) == {("a", 1): 4, ("c", 2): 2}
    assert kept.log.events_appended("used.failed") == 1
    assert kept.changes() == 5  # the last change of each row in each batch, including deleted rows


CRASHES = [
    "handler.after_append@1",
    "ledger.before_commit@1",
    "ledger.after_commit@1",
    "ledger.before_commit@2",
    "ledger.after_commit@2",
]
"""The view's file and the handler's ledger each have a commit: the view's is the first."""


@pytest.mark.parametrize("crash", CRASHES)
def test_a_batch_that_crashed_changes_the_view_once(kept: Kept, monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    first, second = [reading("a", 1, 5), reading("b", 1, 3)], [reading("a", 1, 2), reading("b", 1, struck=True)]
    kept.send(first)
    kept.batch()
    kept.send(second)
    version = kept.version()
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse(f"{crash}=stop"))
    with pytest.raises(failpoints.Interrupted):
        kept.batch()
    kept.batch()
    assert kept.used() == naive(first + second) == {("a", 1): 7}
    assert kept.version() == version + 1
    assert kept.changes() == 4
    third = [reading("b", 2, 8)]
    kept.send(third)
    assert kept.batch()
    assert kept.used() == naive(first + second + third)


def test_a_rebuild_makes_the_rows_anew_with_the_state(kept: Kept) -> None:
    """Rows that the log does not lead to are deleted, and missing ones are added; the next batch continues from
    there."""
    first = [reading("a", 1, 5), reading("b", 1, 3), reading("b", 1, struck=True), reading("c", 2, 2)]
    kept.send(first)
    kept.batch()
    table = kept.table()
    wrong = [Used(meter="b", hour=1, watts=7, parts=[]), Used(meter="a", hour=1, watts=9, parts=[])]
    table.replace(pa.Table.from_batches([shown_batch(wrong)]))
    table.close()
    assert kept.used() == {("a", 1): 9, ("b", 1): 7}
    digest = kept.digest()
    kept.rebuild()
    later = [reading("a", 1, 1)]
    kept.send(later)
    assert kept.batch()
    assert kept.used() == naive(first + later) == {("a", 1): 6, ("c", 2): 2}
    assert kept.digest() != digest
    assert kept.version() == 4  # the first batch, the spoiling, the rebuild, and the second batch


def shown_batch(rows: list[Used]) -> pa.RecordBatch:
    empty: list[str | None] = [None] * len(rows)
    return to_batch(Used, rows, ids=empty, keys=empty, now=BEGIN).drop_columns(list(SYSTEM_COLUMNS))


@settings(deadline=None, max_examples=10)
@given(st.lists(READINGS, min_size=1, max_size=4))
def test_any_batches_leave_the_rows_that_there_must_be(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Reading]]
) -> None:
    kept = Kept(tmp_path_factory.mktemp("kept"))
    for batch in batches:
        kept.send(batch)
        kept.batch()
    assert kept.used() == naive([event for batch in batches for event in batch])
    kept.log.close()
