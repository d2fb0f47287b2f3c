"""The rows that a handler keeps as a view, on their way from its shards to the view's file.

A shard gives rows, and the keys of rows that are to go, in order, as batches of one schema: `_kind` tells which is
which.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import json_rows
from penstock.schema import KIND_GONE, Event, event_schema


def as_gone(batch: pa.RecordBatch, row: type[Event]) -> pa.RecordBatch:
    """A batch of keys as one of rows that have nothing but their keys."""
    schema, count = event_schema(row), batch.num_rows
    known = set(batch.schema.names)
    columns = [batch.column(each.name) if each.name in known else pa.nulls(count, each.type) for each in schema]
    columns[schema.get_field_index("_kind")] = pa.repeat(pa.scalar(KIND_GONE, pa.int8()), count)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def last_words(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Of the rows of a batch the last one of each key: those that are to be there, and those that are to go."""
    numbers = {each: number for number, each in enumerate(json_rows(table, key))}
    last = table.take(pa.array(numbers.values(), pa.int64()))
    is_gone = pc.equal(last.column("_kind"), KIND_GONE)
    return last.filter(pc.invert(is_gone)), last.filter(is_gone)
