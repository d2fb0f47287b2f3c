"""A rebuilt view's rows replace a view's: completely or not at all, once, at the next version."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core import failpoints
from penstock.core.contracts import LedgerEntry
from penstock.core.errors import Damaged, LedgerMismatch
from penstock.core.failpoints import Interrupted
from penstock.store import History, Rebuilt, ViewSpec, adopt, contents, ledger, rebuilt
from penstock.store.delta import Delta, decode
from penstock.store.reader import ViewReader
from tests.store.support import COUNTS, PLAIN, changes, counts, open_view, output, position, ranked, served

ORIGIN = position(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts.db"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "made.db"


def fill(path: Path, spec: ViewSpec, *batches: dict[str, int], epoch: int = 1) -> None:
    with open_view(path, spec) as view:
        view.describe(COUNTS)
        for number, batch in enumerate(batches):
            view.commit(output(number, counts(*batch.items()), epoch=epoch))


def take(path: Path, source: Path, spec: ViewSpec = PLAIN, identity: str = "one") -> Rebuilt:
    return adopt(path, source, spec, identity=identity, origin=ORIGIN, epoch=7)


def rows(path: Path, spec: ViewSpec = PLAIN) -> dict[str, int]:
    return {row["k"]: row["n"] for row in served(path, spec).rows}


def stored_changes(path: Path) -> dict[int, Delta]:
    with closing(sqlite3.connect(path)) as file:
        return {version: decode(data) for version, data in file.execute("SELECT version, data FROM changes")}


def test_the_rows_are_replaced_by_one_change_with_the_next_version_and_a_new_generation(
    path: Path, source: Path
) -> None:
    fill(path, PLAIN, {"a": 1, "b": 2}, {"b": 3, "c": 4})
    fill(source, PLAIN, {"a": 1, "b": 9, "d": 5}, epoch=0)
    before = served(path, PLAIN)
    take(path, source)
    after = served(path, PLAIN)
    assert rows(path) == {"a": 1, "b": 9, "d": 5}
    assert after.version == before.version + 1 == 3
    assert after.generation != before.generation
    (change,) = changes(path, PLAIN, 2)
    delta = json.loads(change.data)
    assert delta == {"upserts": [{"k": "b", "n": 9}, {"k": "d", "n": 5}], "deletes": [{"k": "c"}]}


def test_the_ledger_is_that_of_the_rebuild_under_the_epoch_of_the_engine(path: Path, source: Path) -> None:
    fill(path, PLAIN, {"a": 1}, {"a": 2}, {"a": 3})
    fill(source, PLAIN, {"a": 3}, epoch=0)
    take(path, source)
    assert ledger(path) == LedgerEntry(0, position(0), position(10), 7)
    with open_view(path, PLAIN) as view:
        with pytest.raises(LedgerMismatch, match="older than epoch 7"):
            view.commit(output(1, counts(("a", 4)), epoch=6))
        assert view.commit(output(1, counts(("a", 4)), epoch=7))
    assert rows(path) == {"a": 4}


def test_earlier_changes_stay_for_those_who_write_them_elsewhere(path: Path, source: Path) -> None:
    fill(path, PLAIN, {"a": 1}, {"a": 2})
    fill(source, PLAIN, {"a": 5})
    take(path, source)
    assert list(stored_changes(path)) == [1, 2, 3]


def test_changes_of_rows_with_another_key_or_other_columns_go(path: Path, source: Path) -> None:
    fill(path, PLAIN, {"a": 1}, {"a": 2})
    other = replace(PLAIN, key=("k", "n"))
    fill(source, other, {"a": 5})
    take(path, source, other)
    assert stored_changes(path) == {3: Delta(['{"k":"a","n":5}'], [b'{"k":"a","n":5}'], [], ['{"k":"a"}'])}
    with open_view(path, other) as view:  # which reads and checks all of it
        assert view.version == 3


def test_equal_rows_make_a_new_generation_and_no_change(path: Path, source: Path) -> None:
    fill(path, PLAIN, {"a": 1}, {"b": 2})
    fill(source, PLAIN, {"a": 1, "b": 2})
    before = served(path, PLAIN)
    take(path, source)
    after = served(path, PLAIN)
    assert (after.version, after.rows) == (before.version, before.rows)
    assert after.generation != before.generation


@pytest.mark.parametrize(
    ("old", "new"),
    [(ranked(top=2), ranked(top=2)), (PLAIN, ranked(top=2)), (ranked(top=2), PLAIN), (ranked(top=1), ranked(top=3))],
)
def test_the_change_is_what_turns_the_served_rows_into_the_new_ones(
    path: Path, source: Path, old: ViewSpec, new: ViewSpec
) -> None:
    fill(path, old, {"a": 1, "b": 2, "c": 3, "d": 4})
    fill(source, new, {"a": 4, "b": 3, "c": 2, "e": 1})
    before = rows(path, old)
    take(path, source, new)
    delta = stored_changes(path)[2]
    for key in delta.deletes:
        del before[json.loads(key)["k"]]
    before |= {row["k"]: row["n"] for row in map(json.loads, delta.rows)}
    assert before == rows(path, new)
    assert len(delta.ranks) == (len(delta.keys) if new.top else 0)
    with open_view(path, new) as view:
        assert view.size == 4


def test_it_is_done_once(path: Path, source: Path) -> None:
    fill(path, PLAIN, {"a": 1})
    fill(source, PLAIN, {"a": 2})
    first = take(path, source)
    generation = served(path, PLAIN).generation
    assert take(path, source) == first == rebuilt(path)
    assert served(path, PLAIN).generation == generation
    assert take(path, source, identity="two").id == "two"


def test_batches_are_counted_on_so_that_no_number_is_used_twice(path: Path, source: Path) -> None:
    fill(path, PLAIN, {"a": 1}, {"a": 2}, {"a": 3})
    fill(source, PLAIN, {"a": 3}, {"a": 4})
    assert take(path, source).batches == 4  # three batches, and the changes of the rebuild itself
    assert take(path, source, identity="two").batches == 7


@pytest.mark.parametrize("point", ["adoption.before_commit", "adoption.after_commit"])
def test_a_crash_leaves_all_of_it_or_nothing(
    path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fill(path, PLAIN, {"a": 1, "b": 2})
    fill(source, PLAIN, {"a": 5})
    before = served(path, PLAIN)
    monkeypatch.setattr(failpoints, "_traps", failpoints.parse(f"{point}=stop"))
    with pytest.raises(Interrupted):
        take(path, source)
    if point == "adoption.before_commit":
        assert served(path, PLAIN) == before
        assert rebuilt(path) is None
    else:
        assert rows(path) == {"a": 5}
    take(path, source)
    assert rows(path) == {"a": 5}
    assert served(path, PLAIN).version == 2


def test_what_json_does_not_say_is_taken_over_too(path: Path, source: Path) -> None:
    """NaN and null are both null in JSON: a row that changes from one to the other counts as changed."""
    schema = pa.schema([("k", pa.string()), ("n", pa.float64())])

    def fill_floats(file: Path, content: dict[str, float | None]) -> None:
        table = pa.Table.from_pylist([{"k": key, "n": value} for key, value in content.items()], schema=schema)
        with open_view(file, PLAIN) as view:
            view.describe(schema)
            view.commit(output(0, table))

    fill_floats(path, {"a": None, "b": float("inf"), "c": 1.0})
    fill_floats(source, {"a": float("nan"), "b": float("inf"), "c": None})
    take(path, source)
    reader = ViewReader(path, PLAIN)
    served_table = reader.table()
    reader.close()
    assert served_table is not None
    assert str(served_table.table.to_pylist()) == "[{'k': 'a', 'n': nan}, {'k': 'b', 'n': inf}, {'k': 'c', 'n': None}]"
    assert stored_changes(path)[2].keys == ['{"k":"a"}', '{"k":"c"}']
    assert list(stored_changes(path)[2].exact) == [0]
    with open_view(path, PLAIN) as view:
        assert view.size == 3


def test_a_view_without_a_file_is_made(path: Path, source: Path) -> None:
    fill(source, PLAIN, {"a": 5}, {"b": 6})
    take(path, source)
    assert rows(path) == {"a": 5, "b": 6}
    assert served(path, PLAIN).version == 1


@pytest.mark.parametrize("damaged", ["old", "made"])
def test_a_damaged_file_is_not_taken_for_a_good_one(path: Path, source: Path, damaged: str) -> None:
    fill(path, PLAIN, {"a": 1, "b": 2})
    fill(source, PLAIN, {"a": 5})
    with closing(sqlite3.connect(path if damaged == "old" else source)) as file:
        file.execute("UPDATE rows SET data = x'7b7d' WHERE key = '{\"k\":\"a\"}'")
        file.commit()
    with pytest.raises(Damaged, match="the row with key"):
        take(path, source)
    assert rebuilt(path) is None


def test_the_history_of_batches_is_that_of_the_rebuild(path: Path, source: Path) -> None:
    """Its versions are counted separately: none is above the view's, or a waiter for it would wait in vain."""
    fill(path, PLAIN, *[{"a": number} for number in range(2)])
    fill(source, PLAIN, *[{"a": number} for number in range(30)])
    take(path, source)
    past = History(path)
    latest = past.latest()
    assert latest is not None
    assert (latest.end, latest.version) == (position(300), 3)
    past.close()


def test_a_difference_that_is_too_large_for_one_value_is_several_changes(
    path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "CHANGE_BYTES_MAX", 100)
    fill(path, PLAIN, {f"a{number}": 0 for number in range(10)})
    fill(source, PLAIN, {f"b{number}": 1 for number in range(10)})
    take(path, source)
    later = {version: delta for version, delta in stored_changes(path).items() if version > 1}
    assert len(later) > 2
    assert served(path, PLAIN).version == max(later)
    assert sorted(key for delta in later.values() for key in delta.deletes) == sorted(stored_changes(path)[1].keys)
    with open_view(path, PLAIN) as view:
        assert view.size == 10


def test_any_two_contents_lead_to_the_new_one(tmp_path: Path) -> None:
    chance = random.Random(seed := random.randrange(10**9))
    print(f"seed {seed}")

    def content() -> dict[str, Any]:
        return {chr(0x61 + chance.randrange(400) * 37): chance.randrange(3) for _ in range(chance.randrange(30))}

    for number in range(20):
        path, source = tmp_path / f"{number}.db", tmp_path / f"{number}.made.db"
        old, new = content(), content()
        fill(path, PLAIN, old)
        fill(source, PLAIN, new)
        before = served(path, PLAIN).version
        take(path, source)
        assert rows(path) == new
        folded = dict(old)
        for delta in [delta for version, delta in stored_changes(path).items() if version > before]:
            for key in delta.deletes:
                del folded[json.loads(key)["k"]]
            folded |= {row["k"]: row["n"] for row in map(json.loads, delta.rows)}
        assert folded == new
