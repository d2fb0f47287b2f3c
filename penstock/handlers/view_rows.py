"""Transfers the rows of a handler's view from its shards to the view's file.

A shard returns changed rows and the keys of deleted rows, in order, as batches with the same schema. `_kind`
distinguishes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import json_rows
from penstock.core.schema import KIND_GONE, Event, event_schema


def as_gone(batch: pa.RecordBatch, row: type[Event]) -> pa.RecordBatch:
    """Convert a batch of a view's keys to rows that are marked as gone, with null in all other columns."""
    schema, count = event_schema(row), batch.num_rows
    known = set(batch.schema.names)
    columns = [batch.column(field.name) if field.name in known else pa.nulls(count, field.type) for field in schema]
    columns[schema.get_field_index("_kind")] = pa.repeat(pa.scalar(KIND_GONE, pa.int8()), count)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def last_words(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Keep only the last row of each key in a view handler's batch. Returns the rows to write and the rows to
    delete."""
    numbers = {row_key: number for number, row_key in enumerate(json_rows(table, key))}
    last = table.take(pa.array(numbers.values(), pa.int64()))
    is_gone = pc.equal(last.column("_kind"), KIND_GONE)
    return last.filter(pc.invert(is_gone)), last.filter(is_gone)
