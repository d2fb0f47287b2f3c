"""Encode the result of a query as JSON or Arrow. Runs in the process of the query, under its limits.

Of ours it imports `penstock.columns` alone: see `worker.bare_package`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import forget_json_objects, json_rows

METADATA = b"penstock"
"""The key of the cursors in the metadata of an Arrow stream's schema."""
BATCH_ROWS = 1_000
"""Rows that are encoded at once: the bound on bytes is checked after each batch, when it is written."""
COLUMNS_MAX = 1_000
NAMES_LENGTH_MAX = 64 * 1024
"""Characters of all column names together. Each row of a JSON answer repeats them."""


class UnfitResult(Exception):
    """The result cannot be encoded; the message tells the client why."""


def distinct_names(names: Sequence[str]) -> list[str]:
    """Number the names that stand twice: n, n_2, n_3. Raises `UnfitResult` if they are too many or too long."""
    if len(names) > COLUMNS_MAX:
        raise UnfitResult(f"the result has {len(names)} columns, and may have {COLUMNS_MAX}")
    if sum(map(len, names)) > NAMES_LENGTH_MAX:
        raise UnfitResult(
            f"the names of the result's columns have more than {NAMES_LENGTH_MAX} characters together; "
            "give them shorter ones with AS"
        )
    given, taken, numbers = set(names), set[str](), Counter[str]()
    found = list[str]()
    for name in names:
        chosen = name
        while chosen in taken or (chosen != name and chosen in given):
            numbers[name] += 1
            chosen = f"{name}_{numbers[name] + 1}"
        taken.add(chosen)
        found.append(chosen)
    return found


def tidied(table: pa.Table, types: Sequence[str]) -> tuple[pa.Table, list[str]]:
    """Return the table with distinct names, and its types. Sums of whole numbers are whole numbers again, as long as 64
    bits hold them."""
    columns, kinds = list[pa.ChunkedArray](), list[str]()
    for column, kind in zip(table.columns, types, strict=True):
        fitting = _whole(column) if kind in ("HUGEINT", "UHUGEINT") else None
        columns.append(column if fitting is None else fitting)
        kinds.append(kind.strip('"') if fitting is None else "BIGINT")
    return pa.Table.from_arrays(columns, distinct_names(table.schema.names)), kinds


def write_json(file: BinaryIO, table: pa.Table, types: Sequence[str], *, truncated: bool) -> None:
    """Write an object with columns and rows, the same for results that are the same. It is left open at its end: the
    caller adds further members, if any, and the brace."""
    columns = [{"name": name, "type": kind} for name, kind in zip(table.schema.names, types, strict=True)]
    file.write(b'{"columns":' + msgspec.json.encode(columns) + b',"rows":[')
    try:
        for number, batch in enumerate(_sayable(table).to_batches(max_chunksize=BATCH_ROWS)):
            file.write((b"," if number else b"") + b",".join(json_rows(batch)))
    except (OverflowError, TypeError, ValueError) as error:
        raise UnfitResult(f"a value has no JSON; cast it to VARCHAR ({error})") from None
    finally:
        forget_json_objects()  # clients choose the names
    file.write(b"]" + (b',"truncated":true' if truncated else b""))


def write_arrow(file: BinaryIO, table: pa.Table, cursors: Mapping[str, str], *, truncated: bool) -> None:
    """Write an Arrow stream, with cursors and `truncated` as JSON in the metadata of its schema."""
    rest: dict[str, Any] = {"cursors": cursors, "truncated": truncated}
    described = table.replace_schema_metadata({METADATA: msgspec.json.encode(rest)})
    with pa.ipc.new_stream(file, described.schema) as writer:
        writer.write_table(described)


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _sayable(table: pa.Table) -> pa.Table:
    """Write intervals as text, in the way of ISO 8601, and times of day."""
    for index, field in enumerate(table.schema):
        if pa.types.is_interval(field.type):
            spans = [None if each is None else _span(*each) for each in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(spans, pa.string()))
        elif pa.types.is_time(field.type):
            text = pc.cast(table.column(index), pa.string())
            last = pc.starts_with(text, "<")  # the end of a day, which Arrow has not
            table = table.set_column(index, field.name, pc.if_else(last, "24:00:00", text))
    return table


def _span(months: int, days: int, nanoseconds: int) -> str:
    seconds = f"{nanoseconds / 1e9:.6f}".rstrip("0").rstrip(".")
    date = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    return f"P{date}T{seconds}S" if nanoseconds or not date else f"P{date}"
