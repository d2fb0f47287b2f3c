"""Encoding of a query's result as JSON or Arrow. Runs in the query process, under its limits.

The only module of this project that it imports is `penstock.core.columns`; see `worker.bare_package`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import forget_json_objects, json_rows

METADATA = b"penstock"
"""The key for the cursors in the schema metadata of an Arrow stream."""
BATCH_ROWS = 1_000
"""Number of rows encoded at once. The limit on bytes is checked when each batch is written."""
COLUMNS_MAX = 1_000
NAMES_LENGTH_MAX = 64 * 1024
"""Maximum total length of all column names, in characters. Each row of a JSON result repeats them."""


_internal = re.compile(r'"temp"\.main\.input_\d+ AS ')
"""An internal table name, which is always followed by an alias."""


class UnfitResult(Exception):
    """The query's result cannot be encoded; the message tells the client why."""


def distinct_names(names: Sequence[str]) -> list[str]:
    """Number repeated column names of a query: n, n_2, n_3. Raises `UnfitResult` if there are too many names or they
    are too long."""
    if len(names) > COLUMNS_MAX:
        raise UnfitResult(f"the result has {len(names)} columns; the limit is {COLUMNS_MAX}")
    if sum(map(len, names)) > NAMES_LENGTH_MAX:
        raise UnfitResult(
            f"the result's column names are longer than {NAMES_LENGTH_MAX} characters in total; shorten them with AS"
        )
    given, taken, numbers = set(names), set[str](), Counter[str]()
    distinct = list[str]()
    for name in names:
        chosen = name
        while chosen in taken or (chosen != name and chosen in given):
            numbers[name] += 1
            chosen = f"{name}_{numbers[name] + 1}"
        taken.add(chosen)
        distinct.append(chosen)
    return distinct


def column_names(names: Sequence[str]) -> list[str]:
    """Return distinct names for the columns of a query's result. Raises `UnfitResult`, as `distinct_names` does.

    A column without an alias is named after its expression. A sub-query in the expression contains internal table
    names, which are removed.
    """
    return distinct_names([_internal.sub("", name) for name in names])


def tidied(table: pa.Table, types: Sequence[str]) -> tuple[pa.Table, list[str]]:
    """Return a query's result with distinct column names, and its column types.

    Sums of integers are converted back to 64-bit integers if they fit.
    """
    columns, kinds = list[pa.ChunkedArray](), list[str]()
    for column, kind in zip(table.columns, types, strict=True):
        fitting = _result_integers(column) if kind in ("HUGEINT", "UHUGEINT") else None
        columns.append(column if fitting is None else fitting)
        kinds.append(kind.strip('"') if fitting is None else "BIGINT")
    return pa.Table.from_arrays(columns, column_names(table.schema.names)), kinds


def write_json(file: BinaryIO, table: pa.Table, types: Sequence[str], *, truncated: bool) -> None:
    """Write a query's result as a JSON object with columns and rows, without its closing brace. Equal results produce
    identical bytes.

    The caller adds further members, if any, and the closing brace.
    """
    columns = [{"name": name, "type": kind} for name, kind in zip(table.schema.names, types, strict=True)]
    file.write(b'{"columns":' + msgspec.json.encode(columns) + b',"rows":[')
    try:
        for number, batch in enumerate(_encodable_result(table).to_batches(max_chunksize=BATCH_ROWS)):
            file.write((b"," if number else b"") + b",".join(json_rows(batch)))
    except (OverflowError, TypeError, ValueError) as error:
        raise UnfitResult(f"a value cannot be written as JSON; cast it to VARCHAR ({error})") from None
    finally:
        forget_json_objects()  # clients choose the names
    file.write(b"]" + (b',"truncated":true' if truncated else b""))


def write_arrow(file: BinaryIO, table: pa.Table, cursors: Mapping[str, str], *, truncated: bool) -> None:
    """Write a query's result as an Arrow stream, with cursors and `truncated` as JSON in its schema metadata."""
    rest: dict[str, Any] = {"cursors": cursors, "truncated": truncated}
    described = table.replace_schema_metadata({METADATA: msgspec.json.encode(rest)})
    with pa.ipc.new_stream(file, described.schema) as writer:
        writer.write_table(described)


def _result_integers(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _encodable_result(table: pa.Table) -> pa.Table:
    """Convert intervals to ISO 8601 strings, and times of day to strings."""
    for index, field in enumerate(table.schema):
        if pa.types.is_interval(field.type):
            spans = [
                None if interval is None else _result_interval(*interval)
                for interval in table.column(index).to_pylist()
            ]
            table = table.set_column(index, field.name, pa.array(spans, pa.string()))
        elif pa.types.is_time(field.type):
            text = pc.cast(table.column(index), pa.string())
            last = pc.starts_with(text, "<")  # the end of a day, which Arrow cannot represent
            table = table.set_column(index, field.name, pc.if_else(last, "24:00:00", text))
    return table


def _result_interval(months: int, days: int, nanoseconds: int) -> str:
    seconds = f"{nanoseconds / 1e9:.6f}".rstrip("0").rstrip(".")
    date = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    return f"P{date}T{seconds}S" if nanoseconds or not date else f"P{date}"
