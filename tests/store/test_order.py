"""Rows of a view in the order of their keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pyarrow as pa
import pytest

from penstock.store import in_order
from tests.store.support import START, WINDOWED

NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("key", [("window", "k"), ("k", "window")])
def test_the_same_rows_are_the_same_table_in_whatever_order_they_come(key: tuple[str, ...]) -> None:
    windows = [None, *({"start": NEVER, "end": START + timedelta(minutes=minute)} for minute in (0, 1))]
    rows = [{"window": window, "k": k, "n": 1} for window in windows for k in ("a", None)]
    tables = [in_order(pa.Table.from_pylist(list(permutation), WINDOWED), key) for permutation in permutations(rows)]
    assert all(row in rows for row in tables[0].to_pylist())
    assert tables[0].num_rows == len(rows)
    assert all(table.equals(tables[0]) for table in tables)


def test_no_rows_are_in_order() -> None:
    assert in_order(WINDOWED.empty_table(), ("window", "k")).equals(WINDOWED.empty_table())
