"""Conversion of a micro-batch's output to rows of the view's file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from penstock.core.columns import json_rows
from penstock.core.errors import ViewError
from penstock.core.lossless import beyond_json, is_null_in_json
from penstock.core.schema import INT_MIN
from penstock.store.delta import Rank
from penstock.store.layout import NO_GROUP, Row, row_sum
from penstock.store.spec import ViewSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DECIMALS = 38
"""Maximum number of digits in a Spark decimal, on either side of the decimal point."""
_exact = Context(prec=2 * _DECIMALS)


@dataclass(frozen=True)
class Batch:
    """View rows with distinct keys, their latest window end (None without windows), and the keys of rows to delete.

    `exact` contains the bytes of the rows whose JSON loses information, by key.
    """

    rows: list[Row]
    newest: int | None = None
    deletes: list[str] = field(default_factory=list)
    exact: dict[str, bytes] = field(default_factory=dict)


def microseconds(time: datetime) -> int:
    """Convert an aware time to microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def duration(span: timedelta) -> int:
    return span // _MICROSECOND


def to_rows(table: pa.Table, spec: ViewSpec, now: datetime, deletes: pa.Table | None = None) -> Batch:
    """Convert a table with the view's columns to rows of the view's file. If two rows have the same key, the last row
    is used.

    Raises `ViewError` if a key or rank column is missing, or if the rank column has a type that cannot be sorted.
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
    gone = keys_of(deletes, spec) if deletes is not None else []
    return Batch(list(rows.values()), newest, gone, _last_exact(keys, beyond_json(table)))


def _last_exact(keys: Sequence[str], exact: Mapping[int, bytes]) -> dict[str, bytes]:
    """Return the exact bytes by key. If two rows have the same key, only the last row counts, which may have none."""
    if not exact:
        return {}
    last = {key: row for row, key in enumerate(keys)}
    return {key: exact[row] for key, row in last.items() if row in exact}


def keys_of(table: pa.Table, spec: ViewSpec) -> list[str]:
    """Return the key of each view row as a string: the JSON object of its key columns. Raises `ViewError` if a key
    contains a time that JSON cannot express, because the keys of all such rows would be the same."""
    for name in spec.key:
        if is_null_in_json(table.column(name)):
            raise ViewError(
                f"view {spec.name}: its key column {name!r} contains a time before or after all years that JSON can "
                "express (-32767 to 32767), which cannot identify a row; exclude such rows with a condition in the "
                "query",
                view=spec.name,
            )
    return [key.decode() for key in json_rows(table, spec.key)]


def newest_window(table: pa.Table, spec: ViewSpec) -> int | None:
    """Return the latest window end among the view's rows, or None if the view has no windows."""
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
    """Return the end of each row's window, or None if no key column is a window. A null window counts as the oldest."""
    windows = [name for name in key if _is_window(table.schema.field(name).type)]
    if not windows:
        return None
    chosen = "window" if "window" in windows else windows[0]
    ends = [end for chunk in table.column(chosen).chunks for end in _times_as_microseconds(_struct_field(chunk, "end"))]
    return [INT_MIN if end is None else end for end in ends]


def _is_window(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    times = {field.name for field in kind if pa.types.is_timestamp(field.type)}
    return {"start", "end"} <= times


def _struct_field(array: pa.StructArray, name: str) -> pa.Array:
    return array.flatten()[array.type.get_field_index(name)]


def _times_as_microseconds(times: Any) -> list[int | None]:
    values: list[int | None] = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return values


def _ranks(column: pa.ChunkedArray, spec: ViewSpec) -> list[Rank]:
    """Return a rank for each row: a number, a string, or None, which is sorted last. SQLite and Python sort the ranks
    in the same order."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return list(_times_as_microseconds(column))
    if pa.types.is_floating(kind):
        return [None if value is None or math.isnan(value) else value for value in column.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if value is None else _sortable_decimal(value) for value in column.to_pylist()]
    if pa.types.is_boolean(kind):
        return list(column.cast(pa.int8()).to_pylist())
    if pa.types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(column.to_pylist())
    raise ViewError(
        f"view {spec.name}: its rank column {spec.by!r} has type {kind}, which cannot be sorted; "
        "use a number, a string or a time",
        view=spec.name,
    )


def _sortable_decimal(value: Decimal) -> str:
    """Return a decimal as a sortable string, because SQLite's numbers cannot represent it exactly.

    The decimal is scaled to an integer, made positive and padded.
    """
    whole = int(value.scaleb(_DECIMALS, _exact)) + 10 ** (2 * _DECIMALS)
    return f"{whole:0{2 * _DECIMALS + 1}d}"
