"""The output of a filter for a row is bounded, whatever the filter; and large batches are processed in slices."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.core.filters import compiled
from penstock.core.filters.limits import NAMES_MAX, ROW_BYTES_MAX, SLICE_BYTES, SLICE_ROWS, TEXT_BYTES_MAX
from tests.alone import alone

SCHEMA = pa.schema([("s", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
LONG = "ab" * (TEXT_BYTES_MAX // 4)
PEAK_BYTES_MAX = 3 * SLICE_BYTES
"""What one filter may take at once. Before it was limited, the filters below took 500 MB and more."""


def peak() -> int:
    """Return the most that Arrow has allocated so far in this process, in bytes."""
    return int(pa.default_memory_pool().max_memory())


def grown_terms(name: str) -> list[str]:
    """Return expressions each of which makes a string of 4000 bytes from one of 200."""
    return [f"replace({name}, 'x', '{'y' * 20}')"] * 30


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


@alone
def test_strings_above_the_limit_of_a_row_take_no_memory() -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["x" * 200] * 8_000}, pa.schema([("s", pa.string())]))
    names = ", ".join(f"{term} AS c{number}" for number, term in enumerate(grown_terms("s")))
    chosen = compiled(batch.schema, None, names)
    before = pa.total_allocated_bytes()
    projected = chosen.project(batch)
    held = pa.total_allocated_bytes() - before
    assert {column.null_count for column in projected.columns} == {8_000}
    assert peak() < PEAK_BYTES_MAX, f"{peak() / 2**20:.0f} MiB"
    assert held < SLICE_BYTES, f"{held / 2**20:.0f} MiB are held for NULL"


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("s", f"coalesce({', '.join(grown_terms('s'))}) = 'z'"),
        ("tags", f"exists(tags, t -> coalesce({', '.join(grown_terms('t'))}) = 'z')"),
    ],
    ids=["columns", "elements"],
)
@alone
def test_a_condition_takes_a_bounded_amount_of_memory_at_once(name: str, where: str) -> None:
    rows = [{"s": "x" * 200}] * 4_000 if name == "s" else [{"tags": ["x" * 200] * 4_000}]
    batch, chosen = pa.RecordBatch.from_pylist(rows, SCHEMA), compiled(SCHEMA, where, None)
    assert not any(chosen.mask(batch).to_pylist())
    assert peak() < PEAK_BYTES_MAX, f"{peak() / 2**20:.0f} MiB"


@alone
def test_copies_of_long_strings_take_a_bounded_amount_of_memory_at_once() -> None:
    """A few rows of a megabyte each are copied by thirty functions, but not all rows at once."""
    batch = pa.RecordBatch.from_pydict({"s": ["x" * 2**20] * 16}, pa.schema([("s", pa.string())]))
    chosen = compiled(batch.schema, f"coalesce({', '.join(['lower(s)', 'upper(s)'] * 15)}) = 'z'", None)
    assert not any(chosen.mask(batch).to_pylist())
    assert peak() < 4 * SLICE_BYTES, f"{peak() / 2**20:.0f} MiB"


def test_each_row_is_limited_on_its_own_whichever_column_exceeds_the_limit() -> None:
    chance = random.Random(random.randrange(10**9))
    schema = pa.schema([(f"s{number}", pa.string()) for number in range(6)])
    rows = [
        {name: chance.choice([None, "", "a" * chance.choice([1, 100, 5_000, 9_000])]) for name in schema.names}
        for _ in range(SLICE_ROWS // 2)
    ]
    chosen = compiled(schema, None, ", ".join(["s1", *(f"upper({name}) AS u_{name}" for name in schema.names)]))
    for row, projected in zip(rows, chosen.project(pa.RecordBatch.from_pylist(rows, schema)).to_pylist(), strict=True):
        fits = sum(len(text or "") for text in row.values()) <= ROW_BYTES_MAX
        assert projected == {"s1": row["s1"]} | {
            f"u_{name}": text.upper() if fits and text is not None else None for name, text in row.items()
        }
