"""The output of a micro-batch as rows of the view's file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from penstock.columns import json_rows
from penstock.errors import ViewError
from penstock.lossless import beyond_json
from penstock.schema import INT_MIN
from penstock.store.delta import Rank
from penstock.store.layout import NO_GROUP, Row, row_sum
from penstock.store.spec import ViewSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DECIMAL_PLACES = 38
"""A decimal of Spark has at most so many digits, on either side of the point."""
_exact = Context(prec=2 * _DECIMAL_PLACES)


@dataclass(frozen=True)
class Batch:
    """Rows with distinct keys, the latest window end among them (None in a view without windows), and the keys of rows
    that are to go. `exact` has the bytes of those rows whose JSON does not say everything, by key."""

    rows: list[Row]
    newest: int | None = None
    gone: list[str] = field(default_factory=list)
    exact: dict[str, bytes] = field(default_factory=dict)


def microseconds(time: datetime) -> int:
    """An aware time as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def duration(span: timedelta) -> int:
    return span // _MICROSECOND


def to_rows(table: pa.Table, spec: ViewSpec, now: datetime, gone: pa.Table | None = None) -> Batch:
    """Read a table that has the view's columns. Of two rows with the same key the last one stands.

    `ViewError` if a key or rank column is missing, or is of a type that has no order.
    """
    _require_columns(table, spec)
    keys = keys_of(table, spec)
    ends = _window_ends(table, spec.key)
    ranks: list[Rank] = _ranks(table.column(spec.by), spec) if spec.by is not None else [None] * len(keys)
    stamps = ends if ends is not None else [microseconds(now)] * len(keys)
    groups = ends if ends is not None else [NO_GROUP] * len(keys)
    rows = {
        key: (key, row_sum(key, stamp, group, rank, data), stamp, group, rank, data)
        for key, stamp, group, rank, data in zip(keys, stamps, groups, ranks, json_rows(table), strict=True)
    }
    newest = max(ends or (), default=None)
    exact = {keys[row]: data for row, data in beyond_json(table).items()}
    return Batch(list(rows.values()), newest, keys_of(gone, spec) if gone is not None else [], exact)


def keys_of(table: pa.Table, spec: ViewSpec) -> list[str]:
    """The key of each row as text: the JSON object of its key columns."""
    return [key.decode() for key in json_rows(table, spec.key)]


def newest_window(table: pa.Table, spec: ViewSpec) -> int | None:
    """The latest end of a window among the rows; None in a view without windows."""
    return max(_window_ends(table, spec.key) or (), default=None)


def _require_columns(table: pa.Table, spec: ViewSpec) -> None:
    wanted = spec.key if spec.by is None else (*spec.key, spec.by)
    for name in wanted:
        if name not in table.schema.names:
            raise ViewError(
                f"view {spec.name}: its key or rank column {name!r} is not in its output, which has "
                f"{', '.join(table.schema.names)}",
                view=spec.name,
            )


def _window_ends(table: pa.Table, key: tuple[str, ...]) -> list[int] | None:
    """For each row the end of its window; None if no column of the key is a window. A null window is the oldest."""
    windows = [name for name in key if _is_window(table.schema.field(name).type)]
    if not windows:
        return None
    chosen = "window" if "window" in windows else windows[0]
    ends = [end for chunk in table.column(chosen).chunks for end in _microseconds_of(_child(chunk, "end"))]
    return [INT_MIN if end is None else end for end in ends]


def _is_window(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    times = {field.name for field in kind if pa.types.is_timestamp(field.type)}
    return {"start", "end"} <= times


def _child(array: pa.StructArray, name: str) -> pa.Array:
    return array.flatten()[array.type.get_field_index(name)]


def _microseconds_of(times: Any) -> list[int | None]:
    values: list[int | None] = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return values


def _ranks(column: pa.ChunkedArray, spec: ViewSpec) -> list[Rank]:
    """For each row a value that SQLite and Python order alike: a number, a text, or None, which comes last."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return list(_microseconds_of(column))
    if pa.types.is_floating(kind):
        return [None if value is None or math.isnan(value) else value for value in column.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if value is None else _sortable(value) for value in column.to_pylist()]
    if pa.types.is_boolean(kind):
        return list(column.cast(pa.int8()).to_pylist())
    if pa.types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(column.to_pylist())
    raise ViewError(
        f"view {spec.name}: its rank column {spec.by!r} is of type {kind}, which has no order; "
        "use a number, a text or a time",
        view=spec.name,
    )


def _sortable(value: Decimal) -> str:
    """Decimals exceed SQLite's numbers: shifted to whole, made positive and padded, they order as text."""
    whole = int(value.scaleb(_DECIMAL_PLACES, _exact)) + 10 ** (2 * _DECIMAL_PLACES)
    return f"{whole:0{2 * _DECIMAL_PLACES + 1}d}"
