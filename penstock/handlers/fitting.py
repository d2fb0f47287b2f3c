"""Conversion of a view's rows to events of a class that names the columns a handler needs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app.app import App
from penstock.app.check import Problem
from penstock.core.columns import CHANGE_COLUMN, DELETE
from penstock.core.schema import DECIMAL_DIGITS, DECIMAL_SCALE, KIND_GONE, Event, event_schema, shown


def fitted(batch: pa.RecordBatch, row: type[Event]) -> pa.RecordBatch:
    """Convert the changes of a view that a handler reads to events of a class, with the columns and types that the
    class declares. Deleted rows are marked as gone."""
    schema = event_schema(row)
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    if CHANGE_COLUMN in batch.schema.names:  # batches written before these marks existed do not have the column
        deleted = pc.fill_null(pc.equal(batch.column(CHANGE_COLUMN), DELETE), False)
        place = schema.get_field_index("_kind")
        columns[place] = pc.if_else(deleted, pa.scalar(KIND_GONE, pa.int8()), columns[place])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_problems(app: App, view: str, schema: pa.Schema) -> Iterator[Problem]:
    """Yield the problems in the row classes that handlers declare for a view, given the view's columns."""
    columns = {field.name: field.type for field in shown(schema)}
    for handler in app.handlers:
        for column in shown(event_schema(handler.rows[view])) if view in handler.rows else ():
            row = handler.rows[view].__name__
            if column.name not in columns:
                message = (
                    f"{row} has a field {column.name!r}, but the view {view} has only the columns {', '.join(columns)}"
                )
            elif not _fits(columns[column.name], column.type):
                message = f"{row}.{column.name} is {column.type}, but the view's column is {columns[column.name]}"
            else:
                continue
            yield Problem(handler.where, f"handler {handler.name}: {message}")


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether every value of a column fits the wanted type."""
    if pa.types.is_decimal(want) and pa.types.is_decimal(have):
        fits: bool = have.scale <= DECIMAL_SCALE and have.precision - have.scale <= DECIMAL_DIGITS - DECIMAL_SCALE
        return fits
    both_whole = pa.types.is_signed_integer(want) and pa.types.is_signed_integer(have)
    both_float = pa.types.is_floating(want) and pa.types.is_floating(have)
    return bool(have == want) or both_whole or both_float
