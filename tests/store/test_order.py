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
    windows = [None, *({"start": NEVER, "end": START + timedelta(minutes=each)} for each in (0, 1))]
    rows = [{"window": window, "k": k, "n": 1} for window in windows for k in ("a", None)]
    found = [in_order(pa.Table.from_pylist(list(each), WINDOWED), key) for each in permutations(rows)]
    assert all(row in rows for row in found[0].to_pylist())
    assert found[0].num_rows == len(rows)
    assert all(each.equals(found[0]) for each in found)


def test_no_rows_are_in_order() -> None:
    assert in_order(WINDOWED.empty_table(), ("window", "k")).equals(WINDOWED.empty_table())
