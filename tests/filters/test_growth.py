"""The output of a filter for a row is bounded, whatever the filter; and large batches are processed in slices."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.filters import compiled
from penstock.core.filters.limits import NAMES_MAX, ROW_BYTES_MAX, SLICE_ROWS, TEXT_BYTES_MAX

SCHEMA = pa.schema([("s", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
LONG = "ab" * (TEXT_BYTES_MAX // 4)


def selected(select: str, *texts: str | None) -> list[str | None]:
    batch = pa.RecordBatch.from_pylist([{"s": text} for text in texts], SCHEMA)
    return list(compiled(SCHEMA, None, f"{select} AS made").project(batch).column(0).to_pylist())


@pytest.mark.parametrize("select", ["s || s", "concat(s, s)", "concat('', s, s)"])
def test_a_text_that_becomes_too_long_is_null_and_no_other(select: str) -> None:
    assert selected(select, LONG, LONG + "c", "c", None) == [LONG * 2, None, "cc", None]


def test_a_replacement_that_becomes_too_long_is_null_and_no_other() -> None:
    assert selected("replace(s, 'a', 'xyz')", LONG, LONG[2:], "b" * 9_000, "ba", None) == [
        LONG.replace("a", "xyz"),
        LONG[2:].replace("a", "xyz"),
        "b" * 9_000,
        "bxyz",
        None,
    ]
    assert selected("replace(s, 'a', 'vwxyz')", LONG, "ba") == [None, "bvwxyz"]


def test_doubling_again_and_again_ends_at_the_limit() -> None:
    text = "s"
    for _ in range(4):
        text = f"concat({text}, {text})"
    assert selected(text, "a" * 257) == [None]
    assert selected(text, "a" * 256) == ["a" * TEXT_BYTES_MAX]


def test_the_texts_of_a_row_are_bounded_together() -> None:
    batch = pa.RecordBatch.from_pylist([{"s": "a" * 600, "n": 1}, {"s": "a" * 100, "n": 2}], SCHEMA)
    names = [f"upper(s) AS u{number}" for number in range(28)]
    large, small = compiled(SCHEMA, None, ", ".join(["s", "n", *names])).project(batch).to_pylist()
    assert ROW_BYTES_MAX < 28 * 600
    assert large == {"s": "a" * 600, "n": 1} | {f"u{number}": None for number in range(28)}
    assert small == {"s": "a" * 100, "n": 2} | {f"u{number}": "A" * 100 for number in range(28)}


def test_elements_of_lists_count_as_made() -> None:
    batch = pa.RecordBatch.from_pylist([{"tags": ["a" * 1_000]}], SCHEMA)
    chosen = compiled(SCHEMA, None, ", ".join(f"tags[-{number}] AS t{number}" for number in (1, 2)))
    assert chosen.project(batch).to_pylist() == [{"t1": "a" * 1_000, "t2": None}]
    many = ", ".join(f"coalesce(tags[1], '{number}') AS t{number}" for number in range(20))
    assert set(compiled(SCHEMA, None, many).project(batch).to_pylist()[0].values()) == {None}


def test_a_batch_of_many_slices_is_as_one() -> None:
    count = 2 * SLICE_ROWS + 7
    rows = [{"s": f"r{number}", "n": number, "tags": ["even"] if number % 2 == 0 else None} for number in range(count)]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    chosen = compiled(SCHEMA, "contains(tags, 'even') AND n % 3 = 0", "n, upper(s) AS u")
    assert chosen.mask(batch).to_pylist() == [number % 6 == 0 for number in range(count)]
    assert chosen.project(batch).to_pylist() == [{"n": number, "u": f"R{number}"} for number in range(count)]


def test_as_many_columns_as_allowed_come_out() -> None:
    batch = pa.RecordBatch.from_pylist([{"n": 1}], SCHEMA)
    text = ", ".join(f"n + {number} AS c{number}" for number in range(NAMES_MAX))
    assert compiled(SCHEMA, None, text).project(batch).to_pylist() == [{f"c{n}": n + 1 for n in range(NAMES_MAX)}]
