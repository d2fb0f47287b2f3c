"""Lossless conversion of a view's rows to JSON and back.

Rows are stored and served as JSON, which cannot represent NaN, infinity or years after 9999. Such values become null,
or strings that cannot be parsed. The few rows that contain such values are therefore also stored as Arrow bytes, so
computations on the rows get exactly the values that were written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

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
    return {
        row: whole.slice(row, 1).serialize().to_pybytes() for row in pc.indices_nonzero(_either_mask(masks)).to_pylist()
    }


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
    are read from JSON.

    Raises `ViewError` if a row does not fit the columns, for example because a different query wrote it.
    """
    said = [b"{}" if row in exact else data for row, data in enumerate(rows)] if exact else rows
    try:
        table = pa.Table.from_batches([from_json_rows(said, schema, strict=True)])
    except (msgspec.ValidationError, pa.ArrowException, OverflowError) as error:
        raise ViewError(
            f"view {view}: its stored rows do not fit its columns ({error}); run `penstock rebuild FILE --view {view}`",
            view=view,
        ) from error
    if not exact:
        return table
    kept = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for data in exact.values()]
    places = {row: table.num_rows + number for number, row in enumerate(exact)}
    order = [places.get(row, row) for row in range(table.num_rows)]
    return pa.concat_tables([table, pa.Table.from_batches(kept)]).take(pa.array(order, pa.int64()))
