"""Derived views equal their queries on the rows of the views they read, whatever happens to those."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings

from penstock.store import ledger
from tests.derived.layers import POINTS, STEPS, Layer, Layers, Step, layered_app, layers

RICH = Layer("SELECT k, n FROM {0} WHERE n >= 100", (0,))
TOTAL = Layer("SELECT 'all' AS k, CAST(sum(n) AS BIGINT) AS n FROM {0}", (0,))
MEET = Layer("SELECT concat('x', k) AS k, n FROM {0} UNION ALL SELECT concat('y', k) AS k, n FROM {1}", (2, 3))


@pytest.fixture
def bank(tmp_path: Path) -> Layers:
    return Layers(tmp_path, layered_app([RICH, TOTAL, MEET]))


def test_a_row_that_no_longer_passes_leaves_and_a_sum_counts_each_row_once(bank: Layers) -> None:
    bank.take(Step(0, {"a": 150, "b": 10}))
    assert (bank.served("v2"), bank.served("v3")) == ({"a": 150}, {"all": 160})
    bank.take(Step(0, {"a": 50}))
    assert (bank.served("v2"), bank.served("v3")) == ({}, {"all": 60})
    bank.require_right()
    bank.close()


def test_a_row_that_expires_below_goes_above(bank: Layers) -> None:
    bank.take(Step(0, {"a": 150}))
    bank.take(Step(0, {"b": 200}, minutes=1))
    bank.take(Step(1, {}, minutes=2))
    assert (bank.served("v0"), bank.served("v2"), bank.served("v3")) == ({"b": 200}, {"b": 200}, {"all": 200})
    bank.require_right()
    bank.close()


def test_what_stays_as_it_is_makes_no_version(bank: Layers) -> None:
    bank.take(Step(0, {"a": 150, "b": 10}))
    before = bank.tables["v2"].version, bank.tables["v3"].version
    bank.take(Step(0, {"b": 20}))
    assert (bank.tables["v2"].version, bank.tables["v3"].version) == (before[0], before[1] + 1)
    bank.close()


def test_the_ledger_has_the_generation_and_version_of_each_input_and_how_far_they_had_come(bank: Layers) -> None:
    bank.take(Step(0, {"a": 150}))
    bank.take(Step(1, {"a": 7}))
    bank.take(Step(0, {"a": 160}))
    for name in ("v2", "v3", "v4"):
        entry = ledger(bank.directory.view_file(name))
        assert entry is not None
        view = bank.derivation.views[name].view
        inputs = {
            input_name: (bank.tables[input_name].generation, bank.tables[input_name].version)
            for input_name in view.reads
        }
        assert {input_name: tuple(stamp) for input_name, stamp in entry.inputs.items()} == inputs
        assert entry.end == '[{"items/0":2}]'
    bank.close()


def test_events_that_change_no_row_below_count_as_taken_above(bank: Layers) -> None:
    bank.take(Step(0, {"a": 150}))
    version = bank.tables["v4"].version
    bank.take(Step(0, {}))
    for name in ("v2", "v3", "v4"):
        entry = ledger(bank.directory.view_file(name))
        assert entry is not None
        assert entry.end == '[{"items/0":2}]'
    assert bank.tables["v4"].version == version
    bank.close()


def test_of_a_filter_only_rows_that_have_changed_are_computed(bank: Layers) -> None:
    bank.take(Step(0, {f"k{number}": number for number in range(200)}))
    computed: list[int] = []
    view = bank.derivation.views["v2"]
    query = view._query

    class Counting:
        def compute(self, inputs: Sequence[pa.Table]) -> pa.Table:
            computed.append(inputs[0].num_rows)
            return query.compute(inputs)

    view._query = Counting()
    bank.take(Step(0, {"k150": 50, "k20": 120}, deletes=["k160", "k30"]))
    assert computed == [2]
    bank.require_right()
    bank.close()


def test_views_that_do_not_read_each_other_are_computed_side_by_side(bank: Layers) -> None:
    both = threading.Barrier(2)
    for name in ("v2", "v3"):
        query = bank.derivation.views[name]._query
        query.compute = partial(after_both, both, query.compute)  # type: ignore[method-assign]
    bank.take(Step(0, {"a": 150}))
    bank.require_right()
    bank.close()


def after_both(both: threading.Barrier, compute: Callable[..., pa.Table], inputs: Sequence[pa.Table]) -> pa.Table:
    """Compute once the other view is about to be computed too."""
    both.wait(60)
    return compute(inputs)


def test_a_view_that_cannot_be_written_has_failed_until_it_can(bank: Layers) -> None:
    bank.take(Step(0, {"a": 150}))
    bank.tables["v2"]._connection.execute("PRAGMA query_only = ON")
    bank.take(Step(0, {}))  # no row changes, but the position in the log is recorded
    assert bank.derivation.views["v2"].state == "failed"
    assert "readonly" in bank.derivation.views["v2"].error
    bank.tables["v2"]._connection.execute("PRAGMA query_only = OFF")
    bank.derivation.update()
    bank.require_right()
    entry = ledger(bank.directory.view_file("v2"))
    assert entry is not None
    assert entry.end == '[{"items/0":2}]'
    bank.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_leaves_what_must_be_there(bank: Layers, point: str) -> None:
    bank.take(Step(0, {"a": 150, "b": 10}, crash=point))
    bank.require_right()
    bank.take(Step(0, {"a": 50}, deletes=["b"], crash=point))
    bank.require_right()
    bank.close()


def test_a_query_that_gives_two_rows_of_a_key_fails_and_names_it_and_those_above_wait(tmp_path: Path) -> None:
    twice = Layer("SELECT substr(k, 1, 1) AS k, n FROM {0}", (0,))
    above = Layer("SELECT k, n FROM {0} WHERE n >= 2", (2,))
    layers = Layers(tmp_path, layered_app([twice, above]))
    layers.take(Step(0, {"a0": 1, "b0": 2}))
    layers.require_right()
    layers.take(Step(0, {"a1": 3}))
    views = layers.derivation.views
    assert views["v2"].state == views["v3"].state == "failed"
    place = f"{views['v2'].view.where}: "
    assert views["v2"].error.startswith(f'{place}view v2: its query returns 2 rows with the key {{"k":"a"}}')
    assert views["v3"].error == f"{place}view v3: it is waiting for v2, which failed"
    assert layers.served("v2") == {"a": 1, "b": 2}  # the rows of the last time that it could be computed
    layers.take(Step(0, deletes=["a1"]))
    layers.require_right()
    layers.close()


def test_a_process_that_was_overtaken_writes_nothing(bank: Layers, tmp_path: Path) -> None:
    bank.take(Step(0, {"a": 150}))
    other = Layers(tmp_path, bank.app)
    other.batches, other.epoch = dict(bank.batches), 5
    other.take(Step(0, {"a": 170}))
    bank.derivation.update()
    assert "was changed by another process" in bank.derivation.views["v2"].error
    assert other.served("v2") == {"a": 170}
    other.close()
    bank.close()


def take(layers: list[Layer], steps: list[Step]) -> None:
    """Apply each step on files in memory: power cuts are tested elsewhere."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        views = Layers(Path(folder), layered_app(layers, top=None if len(layers) % 2 else 3))
        try:
            for step in steps:
                views.take(step)
                views.require_right()
        finally:
            views.close()


@settings(deadline=None, max_examples=40)
@given(layers(), STEPS)
def test_random_views_on_views_equal_their_queries(layers: list[Layer], steps: list[Step]) -> None:
    take(layers, steps)


@pytest.mark.soak
@settings(deadline=None, max_examples=2_000)
@given(layers(most=7), STEPS)
def test_many_random_views_on_views_equal_their_queries(layers: list[Layer], steps: list[Step]) -> None:
    take(layers, steps)
