"""The stream VIEW.changes: from the view's change table, each version once, beginning with a snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.contracts import Output, Retention
from penstock.core.errors import ViewError
from penstock.queue import EmbeddedLog
from penstock.runtime.changes import ChangePublisher
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.retention import floor
from penstock.runtime.views import open_reader, view_spec
from penstock.store import ViewTable, adopt
from tests.derived.layers import COLUMNS, Layer, Layers, Step, layered_app

FILTER = Layer("SELECT k, n FROM {0} WHERE n >= 2", (0,))


def changes_of(log: EmbeddedLog, stream: str = "v0.changes") -> list[tuple[str, str, int | None, int]]:
    batches = log.read(stream, 0, log.starts(stream)[0], log.ends(stream)[0])
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["_change"], row["k"], row["n"], row["_version"]) for row in rows]


def publisher(layers: Layers, name: str = "v0") -> ChangePublisher:
    view = next(view for view in layers.app.views if view.name == name)
    reader = open_reader(view, EmbeddedStorage(layers.directory), layers.settings)
    assert reader is not None
    return ChangePublisher(view, COLUMNS, reader, layers.log)


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return Layers(tmp_path, layered_app([FILTER]))


def test_changes_have_the_version_and_deletes_by_the_query_and_by_keep(layers: Layers) -> None:
    layers.take(Step(0, {"a": 1, "b": 2}))
    layers.take(Step(0, {"a": 5}, deletes=["b"], minutes=1))
    layers.take(Step(1, minutes=3))
    assert changes_of(layers.log) == [
        ("upsert", "a", 1, 1), ("upsert", "b", 2, 1), ("upsert", "a", 5, 2), ("delete", "b", None, 2),
        ("delete", "a", None, 3),
    ]  # fmt: skip
    assert changes_of(layers.log, "v2.changes") == [
        ("upsert", "b", 2, 1), ("upsert", "a", 5, 2), ("delete", "b", None, 2), ("delete", "a", None, 3),
    ]  # fmt: skip
    layers.close()


def test_a_ranked_view_tells_of_the_rows_that_it_serves(tmp_path: Path) -> None:
    layers = Layers(tmp_path, layered_app([FILTER], top=1))
    layers.take(Step(0, {"a": 3}))
    layers.take(Step(0, {"b": 5}))
    layers.take(Step(0, {"a": 4}))
    assert changes_of(layers.log) == [("upsert", "a", 3, 1), ("upsert", "b", 5, 2), ("delete", "a", None, 2)]
    assert layers.served("v2") == {"b": 5}
    layers.close()


def test_a_stream_that_is_new_begins_with_the_rows_that_there_are(layers: Layers) -> None:
    layers.take(Step(0, {"a": 1, "b": 2}))
    layers.take(Step(0, {"a": 5}))
    layers.end()
    for path in layers.directory.streams.glob("v0.changes*"):
        path.unlink()
    layers.open()
    layers.take(Step(0, {"c": 1}))
    assert changes_of(layers.log) == [("snapshot", "a", 5, 2), ("snapshot", "b", 2, 2), ("upsert", "c", 1, 3)]
    layers.close()


def test_a_new_reader_of_a_stream_that_was_trimmed_finds_the_rows_once_more(layers: Layers) -> None:
    layers.take(Step(0, {"a": 1}))
    change_publisher = publisher(layers)
    change_publisher.welcome()
    assert changes_of(layers.log) == [("upsert", "a", 1, 1)]  # nothing was trimmed
    layers.log.trim("v0.changes", Retention(timedelta(0), 0, {}))
    layers.take(Step(0, {"b": 2}))
    change_publisher.welcome()
    change_publisher.welcome()
    assert changes_of(layers.log) == [("upsert", "b", 2, 2), ("snapshot", "a", 1, 2), ("snapshot", "b", 2, 2)]
    change_publisher.close()
    layers.close()


def test_changes_that_are_no_longer_kept_are_a_failure_and_no_hole(tmp_path: Path) -> None:
    layers = Layers(tmp_path, layered_app([FILTER]))
    layers.take(Step(0, {"a": 1}))
    behind = publisher(layers)
    layers.publishers["v0"].publish = lambda: None  # type: ignore[method-assign]
    layers.tables["v0"]._spec = replace(layers.tables["v0"]._spec, changes_kept=2)
    for number in range(5):
        layers.take(Step(0, {"a": number}))
    with pytest.raises(ViewError, match=r"view v0: change 2 is no longer kept, so v0.changes cannot continue"):
        behind.publish()
    behind.close()
    layers.close()


def test_what_a_derived_view_reads_does_not_hold_back_the_changes_of_its_input(layers: Layers) -> None:
    layers.take(Step(0, {"a": 5}))
    assert floor(layers.app, EmbeddedStorage(layers.directory), layers.log, "v0.changes") == {}
    layers.app.sql("seen", "SELECT k, count(*) AS n FROM `v0.changes` GROUP BY k", key="k")
    assert floor(layers.app, EmbeddedStorage(layers.directory), layers.log, "v0.changes") == {0: 0}
    layers.close()


@pytest.mark.parametrize(
    ("before", "after", "difference"), [(1, 2, ("upsert", "a", 3, 2)), (2, 1, ("delete", "a", None, 2))]
)
def test_another_top_is_one_change_of_the_rows_that_are_served(
    tmp_path: Path, before: int, after: int, difference: tuple[str, str, int | None, int]
) -> None:
    layers = Layers(tmp_path, layered_app([FILTER], top=before))
    layers.take(Step(0, {"a": 3, "b": 5, "c": 1}))
    layers.end()
    layers.app = layered_app([FILTER], top=after)
    layers.open()
    assert changes_of(layers.log)[before:] == [difference]
    layers.take(Step(0, {"c": 9}))
    layers.require_right()
    layers.close()


def test_another_top_loses_no_change_that_a_crash_left_unpublished(tmp_path: Path) -> None:
    layers = Layers(tmp_path, layered_app([FILTER], top=1))
    layers.take(Step(0, {"a": 3}))
    layers.publishers["v0"].publish = lambda: None  # type: ignore[method-assign]
    layers.take(Step(0, {"b": 5}))
    layers.end()
    layers.app = layered_app([FILTER], top=2)
    layers.open()
    changed = [("upsert", "a", 3, 1), ("upsert", "b", 5, 2), ("delete", "a", None, 2), ("upsert", "a", 3, 3)]
    assert changes_of(layers.log) == changed
    layers.close()


def test_another_top_of_a_derived_view_is_told_in_its_changes(tmp_path: Path) -> None:
    layers = Layers(tmp_path, layered_app([replace(FILTER, top=1)]))
    layers.take(Step(0, {"a": 3, "b": 5}))
    layers.end()
    layers.app = layered_app([replace(FILTER, top=2)])
    layers.open()
    layers.take(Step(1, {"z": 1}))
    assert changes_of(layers.log, "v2.changes") == [("upsert", "b", 5, 1), ("upsert", "a", 3, 2)]
    layers.require_right()
    layers.close()


def test_deletes_by_another_key_than_the_readers_know_are_a_failure_and_never_nulls(
    tmp_path: Path, layers: Layers
) -> None:
    layers.take(Step(0, {"a": 1}))
    layers.end()
    view = replace(next(view for view in layers.app.views if view.name == "v0"), key=("k", "n"))
    spec, file = view_spec(view, layers.settings), tmp_path / "made.db"
    table = ViewTable(file, spec, clock=layers.clock)
    table.describe(COLUMNS)
    table.commit(Output(0, "[]", "[]", 1, pa.Table.from_pylist([{"k": "a", "n": 2}], schema=COLUMNS)))
    table.close()
    adopt(layers.directory.view_file("v0"), file, spec, identity="one", origin="[]", epoch=2)
    reader, log = (
        open_reader(view, EmbeddedStorage(layers.directory), layers.settings),
        EmbeddedLog(layers.directory.streams),
    )
    assert reader is not None
    behind = ChangePublisher(view, COLUMNS, reader, log)
    with pytest.raises(ViewError, match=r"change 2 deletes rows by the key k, but the key is now k, n, so v0.changes"):
        behind.publish()
    assert changes_of(log) == [("upsert", "a", 1, 1)]
    behind.close()
    log.close()
    layers.duck.close()
