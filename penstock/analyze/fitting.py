"""A view's rows as events of a class that names the columns a handler needs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.app import App
from penstock.columns import CHANGE_COLUMN, DELETE
from penstock.graph import Problem
from penstock.schema import DECIMAL_DIGITS, DECIMAL_SCALE, KIND_GONE, Event, event_schema, shown


def fitted(batch: pa.RecordBatch, row: type[Event]) -> pa.RecordBatch:
    """The changes of a view as events of a class: the columns that it names, of its types. A row that was deleted is
    marked as gone."""
    schema = event_schema(row)
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    if CHANGE_COLUMN in batch.schema.names:  # else it was written before there were such marks
        deleted = pc.fill_null(pc.equal(batch.column(CHANGE_COLUMN), DELETE), False)
        place = schema.get_field_index("_kind")
        columns[place] = pc.if_else(deleted, pa.scalar(KIND_GONE, pa.int8()), columns[place])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_problems(app: App, view: str, schema: pa.Schema) -> Iterator[Problem]:
    """What is wrong with the classes by which handlers read a view, given its columns."""
    columns = {field.name: field.type for field in shown(schema)}
    for handler in app.handlers:
        for each in shown(event_schema(handler.rows[view])) if view in handler.rows else ():
            row = handler.rows[view].__name__
            if each.name not in columns:
                told = f"the view {view} has no column {each.name!r}, which {row} names; it has {', '.join(columns)}"
            elif not _fits(columns[each.name], each.type):
                told = f"{row}.{each.name} is {each.type}, and the view's column is {columns[each.name]}"
            else:
                continue
            yield Problem(handler.where, f"handler {handler.name}: {told}")


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of a column is one of the type that is wanted."""
    if pa.types.is_decimal(want) and pa.types.is_decimal(have):
        fits: bool = have.scale <= DECIMAL_SCALE and have.precision - have.scale <= DECIMAL_DIGITS - DECIMAL_SCALE
        return fits
    both_whole = pa.types.is_signed_integer(want) and pa.types.is_signed_integer(have)
    both_float = pa.types.is_floating(want) and pa.types.is_floating(have)
    return bool(have == want) or both_whole or both_float
