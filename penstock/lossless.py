"""Rows of a view as JSON and back without loss.

Rows are stored and served as JSON, which has no NaN, no infinity and no year above 9999: there it says null, or text
that cannot be read back. The few rows that hold such a value are kept a second time, as Arrow's bytes, so that whoever
computes with the rows gets back exactly what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import from_json_rows
from penstock.errors import ViewError

_FIRST = pa.scalar(datetime(1, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")).cast(pa.int64())
_LAST = pa.scalar(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), pa.timestamp("us", "UTC")).cast(pa.int64())


def beyond_json(table: pa.Table) -> dict[int, bytes]:
    """The rows whose JSON does not say everything, by number, each as Arrow's bytes. Most tables have none, and finding
    that out takes some microseconds a column."""
    masks = [mask for mask in map(_mask, table.columns) if mask is not None]
    if not masks:
        return {}
    (whole,) = table.combine_chunks().to_batches()
    return {row: whole.slice(row, 1).serialize().to_pybytes() for row in pc.indices_nonzero(_either(masks)).to_pylist()}


def _mask(column: pa.ChunkedArray | pa.Array) -> pa.Array | None:
    """For each row whether JSON loses something of it; None if it loses nothing anywhere."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    kind = column.type
    if pa.types.is_floating(kind):
        return _if_any(pc.fill_null(pc.invert(pc.is_finite(column)), False))
    if pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        outside = pc.or_(pc.less(micros, _FIRST), pc.greater(micros, _LAST))
        return _if_any(pc.fill_null(outside, False))
    if pa.types.is_struct(kind):
        parts = [mask for mask in map(_mask, column.flatten()) if mask is not None]
        return None if not parts else _either(parts)
    if pa.types.is_nested(kind):
        if all(_mask(each) is None for each in _inside(column)):
            return None
        return pa.repeat(pa.scalar(True), len(column))  # whose item it is does not matter: a few more are kept twice
    return None


def _inside(column: pa.Array) -> list[pa.Array]:
    return [column.keys, column.items] if pa.types.is_map(column.type) else [column.flatten()]


def _if_any(mask: pa.Array) -> pa.Array | None:
    return mask if pc.any(mask).as_py() else None


def _either(masks: Sequence[pa.Array]) -> pa.Array:
    found = masks[0]
    for mask in masks[1:]:
        found = pc.or_(found, mask)
    return found


def table_of(rows: Sequence[bytes], exact: Mapping[int, bytes], schema: pa.Schema, view: str) -> pa.Table:
    """The rows of a view as columns: from their JSON, and those that `beyond_json` found from their own bytes.

    Raises `ViewError` if a row does not fit the columns, as one that was written by another query.
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
    kept = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in exact.values()]
    places = {row: table.num_rows + number for number, row in enumerate(exact)}
    order = [places.get(row, row) for row in range(table.num_rows)]
    return pa.concat_tables([table, pa.Table.from_batches(kept)]).take(pa.array(order, pa.int64()))
