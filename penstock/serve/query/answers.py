"""What a query gave, as it is sent: names that differ, types that JSON has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import json_rows
from penstock.serve.channels.pieces import join

METADATA = b"penstock"
"""Where the cursors stand in the schema of an Arrow stream."""


@dataclass(frozen=True)
class Answer:
    """The rows of a query, the SQL types of its columns, where the streams and views stood that it read, and how long
    it took to read them and to run it."""

    table: pa.Table
    types: Sequence[str]
    cursors: Mapping[str, str]
    truncated: bool
    took_s: float

    def rows(self) -> bytes:
        """Columns and rows as members of a JSON object: the same for results that are the same. Takes a while."""
        columns = [{"name": name, "type": kind} for name, kind in zip(self.table.schema.names, self.types, strict=True)]
        listed = b'"columns":' + msgspec.json.encode(columns) + b',"rows":' + join(json_rows(_sayable(self.table)))
        return listed + (b',"truncated":true' if self.truncated else b"")

    def json(self) -> bytes:
        rest = {"cursors": self.cursors, "elapsed_ms": round(self.took_s * 1000)}
        return b"{" + self.rows() + b"," + msgspec.json.encode(rest)[1:]

    def arrow(self) -> bytes:
        """An Arrow stream; what else there is to say is JSON in the metadata of its schema."""
        rest: dict[str, Any] = {"cursors": self.cursors, "truncated": self.truncated}
        table = self.table.replace_schema_metadata({METADATA: msgspec.json.encode(rest)})
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
        return bytes(buffer.getvalue().to_pybytes())


def tidied(data: bytes, types: Sequence[str]) -> tuple[pa.Table, list[str]]:
    """The table of a result, and its types: names that stand twice are numbered, and sums of whole numbers are whole
    numbers again, as long as 64 bits hold them."""
    table = pa.ipc.open_stream(data).read_all()
    columns, kinds = list[pa.ChunkedArray](), list[str]()
    for column, kind in zip(table.columns, types, strict=True):
        fitting = _whole(column) if kind in ("HUGEINT", "UHUGEINT") else None
        columns.append(column if fitting is None else fitting)
        kinds.append(kind.strip('"') if fitting is None else "BIGINT")
    return pa.Table.from_arrays(columns, _distinct(table.schema.names)), kinds


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _distinct(names: Sequence[str]) -> list[str]:
    taken = set(names)
    found = list[str]()
    for name in names:
        chosen, number = name, 1
        while chosen in found or (chosen != name and chosen in taken):
            number += 1
            chosen = f"{name}_{number}"
        found.append(chosen)
    return found


def _sayable(table: pa.Table) -> pa.Table:
    """The table with intervals as text, in the way of ISO 8601."""
    for index, field in enumerate(table.schema):
        if pa.types.is_interval(field.type):
            spans = [None if each is None else _span(*each) for each in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(spans, pa.string()))
        elif pa.types.is_time(field.type):
            table = table.set_column(index, field.name, pc.cast(table.column(index), pa.string()))
    return table


def _span(months: int, days: int, nanoseconds: int) -> str:
    seconds = f"{nanoseconds / 1e9:.6f}".rstrip("0").rstrip(".")
    date = (f"{months}M" if months else "") + (f"{days}D" if days else "")
    return f"P{date}T{seconds}S" if nanoseconds or not date else f"P{date}"
