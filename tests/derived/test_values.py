"""Values pass through Spark, a view's file and back unchanged."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import App
from penstock.analyze.deriving import Derived
from penstock.core.contracts import LedgerEntry
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.views import open_reader, open_table
from tests.derived.layers import Item

pytestmark = pytest.mark.spark
INSIDE = pa.struct([("f", pa.float32()), ("d", pa.decimal128(12, 4)), ("t", pa.timestamp("us", "UTC"))])
COLUMNS = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(38, 18)),
        ("t", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("b", pa.bool_()),
        ("s", INSIDE),
        ("l", pa.list_(INSIDE)),
        ("m", pa.map_(pa.string(), pa.float64())),
    ]
)
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
ODD = datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC)
"""A day that does not exist in other calendars."""


def inside(f: float | None, d: str | None, t: datetime | None) -> dict[str, Any]:
    return {"f": f, "d": None if d is None else Decimal(d), "t": t}


VALUES: list[tuple[Any, ...]] = [
    (2**63 - 1, math.nan, Decimal("12345678901234567890.123456789012345678"), FIRST, date.min, True,
     inside(math.nan, "1.0001", ODD), [inside(-math.inf, None, LAST), None], {"a": math.nan, "b": None}),
    (-(2**63), math.inf, Decimal("-0.000000000000000001"), LAST, date.max, False,
     inside(None, None, None), [], {}),
    (0, -math.inf, Decimal(0), ODD, date(1582, 10, 10), None,
     None, None, None),
    (1, 5e-324, Decimal(10) ** 19, datetime(2024, 10, 27, 0, 30, tzinfo=UTC), date(1970, 1, 1), True,
     inside(1.5, "-99999999.9999", FIRST), [None], {"": -math.inf}),
    (2**53 + 1, -0.0, None, None, None, None,
     inside(math.inf, "0.0001", None), [inside(math.nan, "0.1", None)], {"c": 0.1}),
    (None, None, None, None, None, None, None, None, None),
]  # fmt: skip
QUERIES = {
    "one by one": "SELECT * FROM v0",
    "in one place": "SELECT a.* FROM v0 AS a JOIN (SELECT k AS other FROM v0) AS b ON a.k = b.other",
    "in order": "SELECT * FROM v0 ORDER BY x, k",
}


@pytest.mark.parametrize("copies", [1, 300], ids=["in the plan", "beside the plan"])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_derived_view_has_the_values_of_what_it_reads_exactly(
    spark: SparkSession, tmp_path: Path, query: str, copies: int
) -> None:
    names = COLUMNS.names[1:]
    rows = [
        {"k": f"{copy:03}-{place}", **dict(zip(names, values, strict=True))}
        for copy in range(copies)
        for place, values in enumerate(VALUES)
    ]
    table = pa.Table.from_pylist(rows, COLUMNS)
    app = App("exact")
    app.stream("items", Item, key="k")
    app.sql("v0", "SELECT k, n FROM items", key="k")
    view = app.sql("v", query, key="k")
    derived = Derived(spark, view)
    assert derived.columns([COLUMNS]) == COLUMNS
    derived_table = derived.compute([table])
    assert shown(derived_table) == shown(table)

    directory = DataDirectory(tmp_path)
    directory.make()
    stored = open_table(view, EmbeddedStorage(directory), Settings())
    stored.describe(derived_table.schema)
    stored.assign(derived_table, LedgerEntry(0, "[]", "[]", 1))
    reader = open_reader(view, EmbeddedStorage(directory), Settings())
    assert reader is not None
    served = reader.table()
    assert served is not None
    assert shown(served.table) == shown(table)
    assert shown(derived.compute([served.table])) == shown(table), "as the input of the next view"
    reader.close()
    stored.close()


def shown(table: pa.Table) -> list[str]:
    """Return rows as texts, in which NaN equals NaN and -0.0 is not 0.0."""
    return sorted(repr(row) for row in table.to_pylist())
