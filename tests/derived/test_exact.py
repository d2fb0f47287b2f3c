"""Values that JSON cannot express pass through views, their files and their changes unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock import App
from penstock.app.declared import View
from penstock.core.contracts import LedgerEntry, Output
from penstock.core.errors import Damaged, ViewError
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from penstock.runtime.changes import ChangePublisher
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_reader, open_table
from penstock.store import ViewTable, layout
from tests.derived.layers import Item

COLUMNS = pa.schema(
    [("k", pa.string()), ("x", pa.float64()), ("d", pa.decimal128(20, 3)), ("l", pa.list_(pa.float32()))]
)
Row = tuple[str, float | None]


class One:
    """A view's file, with the stream of its changes."""

    def __init__(self, root: Path, top: int | None = None) -> None:
        app = App("one")
        app.stream("items", Item, key="k")
        self.view: View = app.sql("v", "SELECT 1", key="k", top=top, by="d" if top else None)
        self.directory = DataDirectory(root)
        self.directory.make()
        self.log = EmbeddedLog(self.directory.streams)
        self.batches = 0
        self.open()

    def open(self) -> None:
        table = open_table(self.view, EmbeddedStorage(self.directory), Settings())
        assert isinstance(table, ViewTable)
        self.table = table
        self.table.describe(COLUMNS)
        reader = open_reader(self.view, EmbeddedStorage(self.directory), Settings())
        assert reader is not None
        self.reader = reader
        again = open_reader(self.view, EmbeddedStorage(self.directory), Settings())
        assert again is not None
        self.publisher = ChangePublisher(self.view, COLUMNS, again, self.log)

    def close(self) -> None:
        self.table.close()
        self.reader.close()
        self.publisher.close()

    def rows(self, *rows: Row) -> pa.Table:
        listed = [{"k": key, "x": x, "d": Decimal(len(key)), "l": [x, None]} for key, x in rows]
        return pa.Table.from_pylist(listed, COLUMNS)

    def commit(self, *rows: Row, gone: Sequence[str] = ()) -> None:
        start, end = (
            msgspec.json.encode([{"items/0": offset}]).decode() for offset in (self.batches, self.batches + 1)
        )
        deleted = pa.table({"k": pa.array(gone, pa.string())})
        self.table.commit(Output(self.batches, start, end, 1, self.rows(*rows), deleted))
        self.batches += 1

    def served(self) -> dict[str, str]:
        snapshot = self.reader.table()
        assert snapshot is not None
        return {row["k"]: repr((row["x"], row["l"][0])) for row in snapshot.table.to_pylist()}

    def reported(self) -> list[tuple[str, str, str]]:
        self.publisher.publish()
        batches = self.log.read("v.changes", 0, 0, self.log.ends("v.changes")[0])
        return [(row["_change"], row["k"], repr(row["x"])) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("top", [None, 3])
def test_nan_and_infinity_are_read_back_as_they_were_written(tmp_path: Path, top: int | None) -> None:
    one = One(tmp_path, top)
    one.commit(("a", math.nan), ("bb", 1.5), ("ccc", -math.inf))
    expected = {"a": "(nan, nan)", "bb": "(1.5, 1.5)", "ccc": "(-inf, -inf)"}
    assert one.served() == expected
    one.close()
    one.open()
    assert one.served() == expected
    assert sorted(one.reported()) == [("snapshot", "a", "nan"), ("snapshot", "bb", "1.5"), ("snapshot", "ccc", "-inf")]
    one.commit(("a", None), gone=["ccc"])
    assert one.served() == {"a": "(None, None)", "bb": "(1.5, 1.5)"}
    assert one.reported()[3:] == [("upsert", "a", "None"), ("delete", "ccc", "None")]
    one.commit(("a", math.inf))
    assert one.reported()[5:] == [("upsert", "a", "inf")]
    one.close()


@pytest.mark.parametrize("first", [math.nan, math.inf])
@pytest.mark.parametrize("top", [None, 3])
def test_of_two_rows_with_one_key_in_a_batch_the_last_one_is_read(
    tmp_path: Path, top: int | None, first: float
) -> None:
    one = One(tmp_path, top)
    one.publisher.publish()
    rows = one.rows(("a", first), ("b", 1.0), ("a", 2.5), ("b", math.nan))
    plain = rows.set_column(3, COLUMNS.field("l"), pa.array([[0.5]] * 4, COLUMNS.field("l").type))
    one.table.commit(Output(0, "[]", '[{"items/0":4}]', 1, plain))
    assert one.served() == {"a": "(2.5, 0.5)", "b": "(nan, 0.5)"}
    assert one.reported() == [("upsert", "a", "2.5"), ("upsert", "b", "nan")]
    one.close()


@pytest.mark.parametrize(
    "now",
    [
        pa.schema([COLUMNS.field(name) for name in ("l", "x", "k", "d")]),
        pa.schema([COLUMNS.field("k"), ("y", pa.float64()), *list(COLUMNS)[1:]]),
        pa.schema([*COLUMNS, ("y", pa.list_(pa.float32()))]),
        pa.schema([COLUMNS.field("k"), COLUMNS.field("l")]),
    ],
    ids=["in another order", "with a new one", "with a new one at the end", "with fewer"],
)
def test_rows_are_read_by_the_names_of_their_columns_after_the_columns_have_changed(
    tmp_path: Path, now: pa.Schema
) -> None:
    one = One(tmp_path)
    one.commit(("a", math.nan), ("bb", 1.5))
    before = one.rows(("a", math.nan), ("bb", 1.5)).to_pylist()
    one.table.describe(now)
    snapshot = one.reader.table()
    assert snapshot is not None
    assert snapshot.table.schema == now
    expected = [{name: row.get(name) for name in now.names} for row in before]
    assert repr(snapshot.table.to_pylist()) == repr(expected)
    one.close()


def test_a_row_whose_column_has_another_type_now_is_refused(tmp_path: Path) -> None:
    one = One(tmp_path)
    one.commit(("a", math.nan))
    one.table.describe(pa.schema([COLUMNS.field("k"), ("x", pa.string())]))
    with pytest.raises(ViewError, match=r"its column x was double and is now string.*penstock rebuild FILE --view v"):
        one.reader.table()
    one.close()


FAR = 2**60
"""A time in the year 38,504, in microseconds."""


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ([0, FAR, FAR + 1], pa.timestamp("us", "UTC")),
        ([-FAR], pa.timestamp("us")),
        ([0, 2**30], pa.date32()),
        ([0, FAR], pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])),
    ],
    ids=["times", "before", "days", "windows"],
)
def test_a_key_with_a_time_that_json_cannot_express_is_refused_so_that_rows_do_not_overwrite_each_other(
    tmp_path: Path, times: list[int], kind: pa.DataType
) -> None:
    if pa.types.is_struct(kind):
        column = pa.StructArray.from_arrays([pa.array(times, pa.timestamp("us"))] * 2, fields=list(kind))
    else:
        column = pa.array(times, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    one = One(tmp_path)
    with pytest.raises(ViewError, match="view v: its key column 'k' contains a time"):
        one.table.commit(Output(0, "[]", '[{"items/0":1}]', 1, pa.table({"k": column})))
    assert one.table.size == 0
    one.close()


@pytest.mark.parametrize("day", [-719_163, 2_932_897, 4_000_000, None])
def test_a_key_with_a_day_that_json_expresses_is_accepted_in_any_year(tmp_path: Path, day: int | None) -> None:
    one = One(tmp_path)
    days = pa.array([0, day], pa.int32()).cast(pa.date32())
    one.table.commit(Output(0, "[]", '[{"items/0":1}]', 1, pa.table({"k": days})))
    assert one.table.size == 2
    one.close()


def without_schema(one: One) -> None:
    """Store the exact rows as earlier versions of Penstock did, as a record batch without its schema."""
    for key, data in one.table._connection.execute("SELECT key, data FROM exact").fetchall():
        messages = pa.BufferReader(data)
        schema = pa.ipc.read_schema(pa.ipc.read_message(messages))
        bare = pa.ipc.read_record_batch(pa.ipc.read_message(messages), schema).serialize().to_pybytes()
        crc = layout.exact_sum(key, bare)
        one.table._connection.execute("UPDATE exact SET crc = ?, data = ? WHERE key = ?", (crc, bare, key))


def test_exact_rows_from_before_they_had_a_schema_are_read_and_get_one_before_the_columns_change(
    tmp_path: Path,
) -> None:
    one = One(tmp_path)
    one.commit(("a", math.nan), ("b", 1.5))
    without_schema(one)
    assert one.served() == {"a": "(nan, nan)", "b": "(1.5, 1.5)"}
    one.table.describe(pa.schema([COLUMNS.field(name) for name in ("l", "x", "k", "d")]))
    assert one.served() == {"a": "(nan, nan)", "b": "(1.5, 1.5)"}
    one.close()


def test_exact_rows_from_before_they_had_a_schema_are_not_a_change_of_a_derived_view(tmp_path: Path) -> None:
    one = One(tmp_path)
    one.table.assign(one.rows(("a", math.nan)), LedgerEntry(0, "[]", "[]", 1))
    without_schema(one)
    one.table.describe(COLUMNS)
    one.table.assign(one.rows(("a", math.nan)), LedgerEntry(1, "[]", "[]", 1))
    assert one.table.version == 1
    one.close()


@pytest.mark.parametrize("now", [COLUMNS.remove(3), COLUMNS.append(pa.field("y", pa.float64()))])
def test_exact_rows_from_before_they_had_a_schema_are_refused_with_other_columns(
    tmp_path: Path, now: pa.Schema
) -> None:
    one = One(tmp_path)
    one.commit(("a", math.nan))
    without_schema(one)
    with one.table._lock:
        layout.put_schema(one.table._connection, now)
    with pytest.raises(ViewError, match="its stored rows do not fit its columns"):
        one.reader.table()
    one.close()


def test_null_in_the_place_of_nan_is_a_change_of_a_derived_view_though_its_json_is_the_same(tmp_path: Path) -> None:
    one = One(tmp_path)
    versions = []
    for number, x in enumerate((math.nan, math.nan, None, math.nan)):
        one.table.assign(one.rows(("a", x), ("b", 1.0)), LedgerEntry(number, "[]", "[]", 1))
        versions.append(one.table.version)
    assert versions == [1, 1, 2, 3]
    assert one.served()["a"] == "(nan, nan)"
    one.close()


def test_a_flipped_bit_in_the_exact_bytes_is_found(tmp_path: Path) -> None:
    one = One(tmp_path)
    one.commit(("a", math.nan))
    with one.table._lock:
        one.table._connection.execute("UPDATE exact SET data = zeroblob(length(data))")
    with pytest.raises(Damaged, match="is not what was written"):
        one.reader.table()
    one.close()
    with pytest.raises(Damaged, match="is not what was written"):
        one.open()


def test_a_file_from_before_there_were_exact_bytes_is_read_and_written(tmp_path: Path) -> None:
    one = One(tmp_path)
    one.commit(("a", 1.0))
    one.table._connection.execute("DROP TABLE exact")
    one.close()
    one.open()
    one.commit(("a", math.nan))
    assert one.served() == {"a": "(nan, nan)"}
    assert layout.get_state(one.table._connection, tmp_path).exact == 1
    one.close()
