"""Events to Arrow columns and Arrow columns to JSON: the only two conversions on an event's way through the system."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.schema import (
    KIND_EVENT,
    KIND_TICK,
    SYSTEM_COLUMNS,
    Event,
    Field,
    decimal_fits,
    event_schema,
    fields,
    holds_decimal,
    per_class,
    to_millis,
)

_PLAIN = (str, int, float, bool, bytes, datetime, date, Decimal)
_KEPT = (bytes, datetime, date, Decimal)
_encode_json = msgspec.json.Encoder().encode
Column = Callable[[list[Any]], pa.Array]


@per_class
def _builder(cls: type[Event]) -> list[tuple[str, Column]]:
    schema = event_schema(cls)
    return [(each.name, _column(each, schema.field(each.name).type)) for each in fields(cls)]


def _column(field: Field, kind: pa.DataType) -> Column:
    if field.epoch:
        return lambda values: pa.array(map(_millis, values), pa.timestamp("ms", "UTC")).cast(kind)
    if field.base in _PLAIN or get_origin(field.base) is Literal:
        return lambda values: pa.array(values, kind)
    if field.base is UUID:
        return lambda values: pa.array([None if value is None else str(value) for value in values], kind)
    if isinstance(field.base, type) and issubclass(field.base, Enum):
        return lambda values: pa.array([None if value is None else value.value for value in values], kind)
    return lambda values: pa.array(msgspec.to_builtins(values, builtin_types=_KEPT), kind)


def _millis(value: Any) -> int | None:
    return to_millis(value) if isinstance(value, datetime) else value


def to_batch(
    cls: type[Event], events: Sequence[Any], *, ids: Sequence[str | None], keys: Sequence[str | None], now: datetime
) -> pa.RecordBatch:
    """Events of one class (or their wire twins) as one record batch of the stream's schema."""
    columns = [build([getattr(event, name) for event in events]) for name, build in _builder(cls)]
    count = len(events)
    columns.append(pa.array(ids, pa.string()))
    columns.append(pa.array(keys, pa.string()))
    columns.append(pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count))
    columns.append(pa.repeat(pa.scalar(KIND_EVENT, pa.int8()), count))
    return pa.RecordBatch.from_arrays(columns, schema=event_schema(cls))


def tick_batch(
    schema: pa.Schema, now: datetime, time_field: str | None = None, at: datetime | None = None
) -> pa.RecordBatch:
    """One tick: "time has reached `at`". Without a time it moves no watermark and only wakes the queries."""
    row = {"_ingest_time": now, "_kind": KIND_TICK}
    if time_field is not None and at is not None:
        row[time_field] = at
    return pa.RecordBatch.from_pylist([row], schema=schema)


def text_of(value: Any) -> str | None:
    """An id or a part of a key as text, the same for the same value on every machine."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def place(key: str | None, partitions: int) -> int:
    """The partition of a key. Part of the file format: it must never change for a stream that has data."""
    return zlib.crc32(key.encode()) % partitions if key else 0


@per_class
def decimal_fields(cls: type[Event]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cls) if holds_decimal(each.hint))


def unfit_decimal(value: Any) -> bool:
    """Whether a Decimal in the value, at any depth, would lose digits in its column."""
    if isinstance(value, Decimal):
        return not decimal_fits(value)
    if isinstance(value, dict):
        return any(map(unfit_decimal, value.values()))
    if isinstance(value, list):
        return any(map(unfit_decimal, value))
    if isinstance(value, msgspec.Struct):
        return any(unfit_decimal(getattr(value, name)) for name in value.__struct_fields__)
    return False


def json_rows(data: pa.RecordBatch | pa.Table, names: Sequence[str] | None = None) -> list[bytes]:
    """Each row as a JSON object. Times are RFC 3339 UTC, bytes base64, decimals text, NaN and infinity null."""
    chosen = list(names) if names is not None else list(data.schema.names)
    if not chosen:
        return [b"{}"] * data.num_rows
    lists = [_json_values(data.column(name)) for name in chosen]
    return list(map(_encode_json, map(_json_object(tuple(chosen)), *lists)))


@lru_cache(maxsize=1024)
def _json_object(names: tuple[str, ...]) -> Callable[..., Any]:
    """Makes, of a row's values, what encodes to a JSON object with these members. A struct is faster to make and to
    encode than a dict, but refuses a few names, such as one with a quote in it."""
    members = {f"_{index}": name for index, name in enumerate(names)}
    try:
        return msgspec.defstruct("JsonObject", [(each, Any) for each in members], rename=members, gc=False)
    except ValueError:
        return lambda *values: dict(zip(names, values, strict=True))


def _json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, each as something that encodes to its JSON. Times are formatted by Arrow, a hundred times
    as fast as by way of Python's datetime, also where they stand in a struct such as a window."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _json_values(chunk)]
    if pa.types.is_timestamp(column.type):
        return _rfc3339(column)
    if pa.types.is_struct(column.type) and column.type.num_fields:
        return _json_structs(column)
    if pa.types.is_nested(column.type):
        return list(column.to_pylist(maps_as_pydicts="strict"))
    return list(column.to_pylist())  # without that argument ten times as fast


def _rfc3339(times: pa.Array) -> list[str | None]:
    """Casting to a type without a zone gives the time in UTC."""
    zone = times.type.tz
    utc = times.cast(pa.timestamp("us", zone), safe=False).cast(pa.timestamp("us"))
    text = pc.replace_substring(utc.cast(pa.string()), " ", "T")
    whole = pc.replace_substring(text, ".000000", "")
    return list((pc.binary_join_element_wise(whole, "Z", "") if zone else whole).to_pylist())


def _json_structs(column: pa.StructArray) -> list[Any]:
    build = _json_object(tuple(field.name for field in column.type))
    rows: list[Any] = list(map(build, *(_json_values(part) for part in column.flatten())))
    if column.null_count:
        return [row if there else None for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)]
    return rows


def event_rows(batch: pa.RecordBatch) -> list[bytes]:
    """The events of a batch as JSON objects, without ticks and system columns."""
    events = batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT))
    return json_rows(events, [name for name in batch.schema.names if name not in SYSTEM_COLUMNS])
