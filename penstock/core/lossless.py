"""Lossless conversion of a view's rows to JSON and back.

Rows are stored and served as JSON, which cannot represent NaN, infinity or years after 9999. Such values become null,
or strings that cannot be parsed. The few rows that contain such values are therefore also stored as Arrow bytes, so
computations on the rows get exactly the values that were written.

The bytes of a row are two Arrow messages: the schema that the row was written with, and a record batch. So a row can be
read after the view's columns have changed: like JSON, it is read by the names of its columns. Earlier versions of
Penstock stored only the record batch, which can be read only with the schema that it was written with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import from_json_rows
from penstock.core.errors import ViewError

_FIRST = pa.scalar(datetime(1, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")).cast(pa.int64())
_LAST = pa.scalar(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), pa.timestamp("us", "UTC")).cast(pa.int64())
_FIRST_DAY = pa.scalar(date(1, 1, 1)).cast(pa.int32())
_LAST_DAY = pa.scalar(date(9999, 12, 31)).cast(pa.int32())


def beyond_json(table: pa.Table) -> dict[int, bytes]:
    """Return the Arrow bytes of the rows that JSON cannot fully represent, by row number. Most tables have no such
    rows, and the check takes a few microseconds per column."""
    masks = [mask for mask in map(_lossy_mask, table.columns) if mask is not None]
    if not masks:
        return {}
    (whole,) = table.combine_chunks().to_batches()
    header = _header(table.schema)
    return {
        row: header + whole.slice(row, 1).serialize().to_pybytes()
        for row in pc.indices_nonzero(_either_mask(masks)).to_pylist()
    }


def is_null_in_json(column: pa.ChunkedArray | pa.Array) -> bool:
    """Return whether JSON has null in the place of a time in the column, or in a struct in the column: a time after
    about the year 32,767, or infinity."""
    if _lossy_mask(column) is None:
        return False
    if pa.types.is_struct(column.type):
        return any(map(is_null_in_json, column.flatten()))
    texts = column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
    return bool(pc.any(pc.starts_with(texts.cast(pa.string()), "<")).as_py())


def with_schema(data: bytes, schema: pa.Schema) -> bytes:
    """Return the Arrow bytes of a row with their schema, which is `schema` if an earlier version of Penstock stored
    them without it. Bytes that do not fit `schema` are returned as they are."""
    if _has_schema(data):
        return data
    try:
        _read_headless(data, schema)
    except pa.ArrowException:
        return data
    return _header(schema) + data


def readable_as(before: pa.DataType, now: pa.DataType) -> bool:
    """Return whether stored values of one type can be read as the other: the same type, or integers as floats."""
    return _same_layout(before, now) or (pa.types.is_integer(before) and pa.types.is_floating(now))


def _header(schema: pa.Schema) -> bytes:
    """Return the message that describes a row's columns. Equal rows have equal bytes, so details that do not affect
    the values are left out."""
    columns = [pa.field(field.name, field.type) for field in schema]
    data: bytes = pa.schema(columns).serialize().to_pybytes()
    return data


def _has_schema(data: bytes) -> bool:
    return bool(pa.ipc.read_message(pa.py_buffer(data)).type == "schema")


def _lossy_mask(column: pa.ChunkedArray | pa.Array) -> pa.Array | None:
    """Return a mask of a view's rows that JSON cannot fully represent, or None if there are no such rows."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    kind = column.type
    if pa.types.is_floating(kind):
        return _mask_if_any(pc.fill_null(pc.invert(pc.is_finite(column)), False))
    if pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        outside = pc.or_(pc.less(micros, _FIRST), pc.greater(micros, _LAST))
        return _mask_if_any(pc.fill_null(outside, False))
    if pa.types.is_date32(kind):
        days = column.cast(pa.int32())
        return _mask_if_any(pc.fill_null(pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY)), False))
    if pa.types.is_struct(kind):
        parts = [mask for mask in map(_lossy_mask, column.flatten()) if mask is not None]
        return None if not parts else _either_mask(parts)
    if pa.types.is_nested(kind):
        if all(_lossy_mask(inner) is None for inner in _nested_columns(column)):
            return None
        return pa.repeat(pa.scalar(True), len(column))  # marks all rows, so more rows than necessary are stored twice
    return None


def _nested_columns(column: pa.Array) -> list[pa.Array]:
    return [column.keys, column.items] if pa.types.is_map(column.type) else [column.flatten()]


def _mask_if_any(mask: pa.Array) -> pa.Array | None:
    return mask if pc.any(mask).as_py() else None


def _either_mask(masks: Sequence[pa.Array]) -> pa.Array:
    union = masks[0]
    for mask in masks[1:]:
        union = pc.or_(union, mask)
    return union


def table_of(rows: Sequence[bytes], exact: Mapping[int, bytes], schema: pa.Schema, view: str) -> pa.Table:
    """Convert a view's rows to columns. Rows that `beyond_json` found are read from their Arrow bytes; all other rows
    are read from JSON. A column that a row does not have is null.

    Raises `ViewError` if a row does not fit the columns, for example because a different query wrote it.
    """
    said = [b"{}" if row in exact else data for row, data in enumerate(rows)] if exact else rows
    try:
        table = pa.Table.from_batches([from_json_rows(said, schema, strict=True)])
        kept = [_read_exact(data, schema) for data in exact.values()]
    except (msgspec.ValidationError, pa.ArrowException, OverflowError) as error:
        raise ViewError(
            f"view {view}: its stored rows do not fit its columns ({error}); run `penstock rebuild FILE --view {view}`",
            view=view,
        ) from error
    if not exact:
        return table
    places = {row: table.num_rows + number for number, row in enumerate(exact)}
    order = [places.get(row, row) for row in range(table.num_rows)]
    return pa.concat_tables([table, pa.Table.from_batches(kept)]).take(pa.array(order, pa.int64()))


def _read_exact(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Read one row from its Arrow bytes. Raises `ArrowException` if the row does not fit the columns."""
    if not _has_schema(data):
        return _read_headless(data, schema)
    messages = pa.BufferReader(data)
    written = pa.ipc.read_schema(pa.ipc.read_message(messages))
    row = pa.ipc.read_record_batch(pa.ipc.read_message(messages), _reading_schema(written, schema))
    columns = [_exact_column(row, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_headless(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Read a row that an earlier version of Penstock stored without its schema. The columns must be the same, in the
    same order, which is checked as far as the bytes allow."""
    row = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    row.validate(full=True)
    if row.serialize().size != len(data):
        raise pa.ArrowInvalid("it has other columns")
    return row


@lru_cache(maxsize=256)
def _reading_schema(written: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return the schema to read a row with: its own columns, with the current types where only details differ, such as
    whether values inside a struct can be null."""
    now = {field.name: field.type for field in schema}
    return pa.schema(
        [
            pa.field(field.name, now[field.name])
            if field.name in now and _same_layout(field.type, now[field.name])
            else field
            for field in written
        ]
    )


def _exact_column(row: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in row.schema.names:
        return pa.nulls(row.num_rows, field.type)
    column = row.column(field.name)
    if not readable_as(column.type, field.type):
        raise pa.ArrowInvalid(f"its column {field.name} was {column.type} and is now {field.type}")
    return column if column.type == field.type else column.cast(field.type, safe=False)


def _same_layout(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types have the same values in the same memory format, even if other details differ."""
    if one.id != other.id or not pa.types.is_nested(one) or pa.types.is_fixed_size_list(one):
        return bool(one == other)
    if pa.types.is_struct(one) and [field.name for field in one] != [field.name for field in other]:
        return False
    inner = [(one.field(number).type, other.field(number).type) for number in range(one.num_fields)]
    return one.num_fields == other.num_fields and all(_same_layout(*pair) for pair in inner)
