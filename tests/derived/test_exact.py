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
from penstock.core.errors import Damaged
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
