"""One pass over derived views: the rows it reads while the base views change, and the rows it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import App
from penstock.core.contracts import Output
from penstock.runtime.derivation import DerivedQuery, DerivedView
from penstock.store import StoredViewReader
from tests.derived.layers import COLUMNS, Item, Layer, Layers, Step, layered_app
from tests.harness import wait_for

TOTAL = Layer("SELECT 'all' AS k, CAST(sum(n) AS BIGINT) AS n FROM {0}", (0,))
BESIDE = "SELECT concat('x', k) AS k, n FROM {0} UNION ALL SELECT concat('y', k) AS k, n FROM {1}"
DEADLINE_S = 60.0


class Around:
    """A query, and the actions before and after its first computation."""

    def __init__(
        self, view: DerivedView, *, before: Callable[[], object] = int, after: Callable[[], object] = int
    ) -> None:
        self.query: DerivedQuery = view._query
        self.before, self.after, self.count = before, after, 0
        view._query = self

    def compute(self, inputs: Sequence[pa.Table]) -> pa.Table:
        self.count += 1
        if self.count > 1:
            return self.query.compute(inputs)
        self.before()
        table = self.query.compute(inputs)
        self.after()
        return table


def test_a_root_that_changes_between_two_levels_of_a_pass_is_seen_by_the_next_pass_only(tmp_path: Path) -> None:
    layers = Layers(tmp_path, layered_app([TOTAL, Layer(BESIDE, (0, 2)), Layer(BESIDE, (1, 3))]))
    layers.take(Step(0, {"a": 1, "b": 2}))
    layers.take(Step(1, {"c": 5}))
    Around(layers.derivation.views["v2"], after=lambda: layers._commit("v0", Step(0, {"a": 100})))
    Around(layers.derivation.views["v3"], after=lambda: layers._commit("v1", Step(1, {"c": 6})))
    layers._commit("v0", Step(0, {"a": 10}))
    layers.derivation.update()
    assert layers.served("v3") == {"xa": 10, "xb": 2, "yall": 12}
    assert layers.served("v4") == {"xc": 5, "yxa": 10, "yxb": 2, "yyall": 12}
    layers.derivation.update()
    assert layers.served("v3") == {"xa": 100, "xb": 2, "yall": 102}
    layers.require_right()
    layers.close()


def test_all_versions_of_a_root_that_come_during_a_pass_make_one_version_above(tmp_path: Path) -> None:
    layers = Layers(tmp_path, layered_app([TOTAL, Layer("SELECT k, n FROM {0} WHERE n > 0", (0,))]))
    layers.take(Step(0, {"a": 1}))
    before = layers.tables["v2"].version, layers.tables["v3"].version
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(DEADLINE_S)

    around = Around(layers.derivation.views["v2"], before=wait)
    layers._commit("v0", Step(0, {"a": 2}))
    layers.derivation.start()
    assert begun.wait(DEADLINE_S)
    for number in range(3, 10):
        layers._commit("v0", Step(0, {"a": number}))
        layers.derivation.wake()
    go_on.set()
    wait_for(lambda: layers.served("v2") == {"all": 9} and layers.served("v3") == {"a": 9}, DEADLINE_S, "the last rows")
    layers.derivation.stop()
    assert around.count == 2, "the pass under way, and one for all that came meanwhile"
    assert (layers.tables["v2"].version, layers.tables["v3"].version) == (before[0] + 2, before[1] + 2)
    layers.require_right()
    layers.close()


def test_an_error_of_arrow_fails_one_view_and_the_others_are_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = [Layer("SELECT k, n FROM {0} WHERE n > 0", (number,)) for number in (0, 1, 1)]
    layers = Layers(tmp_path, layered_app(above))
    layers.take(Step(0, {"a": 1}))
    layers.take(Step(1, {"b": 1}))

    def fail(*_: object) -> None:
        raise pa.ArrowInvalid("malformed")

    views, root = layers.derivation.views, layers.derivation._roots["v0"]
    assert root._reader is not None
    monkeypatch.setattr(type(root._reader), "table", fail_for(root._reader, fail))
    Around(views["v3"], before=fail)
    layers._commit("v0", Step(0, {"a": 2}))
    layers._commit("v1", Step(1, {"b": 2}))
    layers.derivation.update()
    assert root.error == "view v0: malformed"
    assert "it is waiting for v0, which failed" in views["v2"].error
    assert views["v3"].error.endswith("view v3: malformed")
    assert layers.served("v4") == {"b": 2}
    layers.close()


def fail_for(reader: StoredViewReader, fail: Callable[..., None]) -> Callable[..., Any]:
    """Return the method `table` of all readers, except that it fails for one of them."""
    table = type(reader).table
    return lambda self, before=None: fail() if self is reader else table(self, before)


def keyed_by_two() -> App:
    """Return a view with two columns as its key, and one above it with the first of them."""
    app = App("layers")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key=["k", "n"])
    app.sql("v1", "SELECT k, n FROM items", key="k")
    app.sql("v2", "SELECT k, n FROM v0", key="k")
    return app


def test_a_view_with_part_of_the_key_below_is_computed_from_all_rows(tmp_path: Path) -> None:
    layers = Layers(tmp_path, keyed_by_two())
    rows = [{"k": "a", "n": 1}, {"k": "a", "n": 2}]
    for number, (sets, gone) in enumerate([(rows[:1], []), (rows[1:], rows[:1]), ([], rows[1:])]):
        start, end = (msgspec.json.encode([{"items/0": offset}]).decode() for offset in (number, number + 1))
        tables = (pa.Table.from_pylist(records, COLUMNS) for records in (sets, gone))
        layers.tables["v0"].commit(Output(number, start, end, 1, *tables))
        layers.derivation.update()
        assert layers.derivation.views["v2"].error == ""
        assert layers.served("v2") == {row["k"]: row["n"] for row in sets}
    layers.close()
