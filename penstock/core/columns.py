"""Conversion of events to Arrow columns, of columns to JSON, and of JSON back to columns."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from enum import Enum
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypedDict, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import ViewError
from penstock.core.schema import (
    DECIMAL_DIGITS,
    DECIMAL_SCALE,
    HIDDEN_COLUMNS,
    KIND_EVENT,
    KIND_TICK,
    Event,
    Field,
    decimal_fits,
    event_schema,
    fields,
    holds_decimal,
    per_class,
    system_fields,
    to_millis,
)

_PLAIN = (str, int, float, bool, bytes, datetime, date, Decimal)
_KEPT = (bytes, datetime, date, Decimal)
_encode_json = msgspec.json.Encoder().encode
STRUCTS_KEPT = 256
STRUCT_MEMBERS_MAX, STRUCT_CHARS_MAX = 256, 8192
"""Maximum size of a row shape that is cached. Up to `STRUCTS_KEPT` shapes are cached, each of at most about 180 KB."""
Column = Callable[[list[Any]], pa.Array]


@per_class
def _column_builders(cls: type[Event]) -> list[tuple[str, Column]]:
    schema = event_schema(cls)
    return [(field.name, _column_builder(field, schema.field(field.name).type)) for field in fields(cls)]


def _column_builder(field: Field, kind: pa.DataType) -> Column:
    if field.epoch:
        return lambda values: pa.array(map(_epoch_millis, values), pa.timestamp("ms", "UTC")).cast(kind)
    if field.base in _PLAIN or get_origin(field.base) is Literal:
        return lambda values: pa.array(values, kind)
    if field.base is UUID:
        return lambda values: pa.array([None if value is None else str(value) for value in values], kind)
    if isinstance(field.base, type) and issubclass(field.base, Enum):
        return lambda values: pa.array([None if value is None else value.value for value in values], kind)
    return lambda values: pa.array(msgspec.to_builtins(values, builtin_types=_KEPT), kind)


def _epoch_millis(value: Any) -> int | None:
    return to_millis(value) if isinstance(value, datetime) else value


def to_batch(
    cls: type[Event], events: Sequence[Any], *, ids: Sequence[str | None], keys: Sequence[str | None], now: datetime
) -> pa.RecordBatch:
    """Convert events of one class (or their wire twins) to one record batch with the stream's schema."""
    columns = [build([getattr(event, name) for event in events]) for name, build in _column_builders(cls)]
    count = len(events)
    columns.append(pa.array(ids, pa.string()))
    columns.append(pa.array(keys, pa.string()))
    columns.append(pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count))
    columns.append(pa.repeat(pa.scalar(KIND_EVENT, pa.int8()), count))
    return pa.RecordBatch.from_arrays(columns, schema=event_schema(cls))


def some_columns(cls: type[Event], events: Sequence[Any], names: Collection[str]) -> pa.RecordBatch:
    """Convert selected fields of events (or of their wire twins) to columns with the stream's types, for a filter that
    reads only those fields."""
    chosen = [(name, build) for name, build in _column_builders(cls) if name in names]
    if not chosen:  # without columns, from_arrays would lose the row count
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(events), pa.struct([])))
    arrays = [build([getattr(event, name) for event in events]) for name, build in chosen]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in chosen])


def tick_batch(
    schema: pa.Schema, now: datetime, time_field: str | None = None, at: datetime | None = None
) -> pa.RecordBatch:
    """Build a batch that contains one tick with the log time `now`. If both `at` and `time_field` are passed, the tick
    also advances event time to `at`; otherwise, it does not affect the event-time watermark."""
    row = {"_ingest_time": now, "_kind": KIND_TICK}
    if time_field is not None and at is not None:
        row[time_field] = at
    return pa.RecordBatch.from_pylist([row], schema=schema)


def text_of(value: Any) -> str | None:
    """Convert an id or part of a key to a string. The result is the same on every machine."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


_UNIT, _COLUMN = Decimal(1).scaleb(-DECIMAL_SCALE), Context(prec=DECIMAL_DIGITS)


def key_text(values: Iterable[Any]) -> str | None:
    """Return the key of a handler's state as a string, given the values of the key fields. If there is only one field,
    the key is its value as a string; otherwise, the key is a JSON array of strings. Returns None if any field has no
    value. The format of the string and the order of the fields are part of the file format."""
    texts = [key_part(value) for value in values]
    if None in texts:
        return None
    return texts[0] if len(texts) == 1 else _encode_json(texts).decode()


def key_part(value: Any) -> str | None:
    """Convert one value in a key to a string. A Decimal is written with the full scale of its column, to match existing
    keys."""
    return str(value.quantize(_UNIT, context=_COLUMN)) if isinstance(value, Decimal) else text_of(value)


def event_key(event: Any, fields: Sequence[str]) -> str | None:
    """Return an event's key as a string, given the names of the key fields."""
    return key_text([getattr(event, name) for name in fields])


def partition_of(key: str | None, partitions: int) -> int:
    """Return the partition for a key. The mapping is part of the file format and must never change for a stream that
    contains data."""
    return zlib.crc32(key.encode()) % partitions if key else 0


@per_class
def decimal_fields(cls: type[Event]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if holds_decimal(field.hint))


def unfit_decimal(value: Any) -> bool:
    """Return whether the value contains, at any depth, a Decimal that would lose digits in its column."""
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
    """Convert each row to a JSON object. Times are written as RFC 3339 in UTC, bytes as base64, and NaN and infinity as
    null. Decimals are written as strings without an exponent and without the trailing zeros that an event's Decimal
    column or Spark's decimal types add."""
    chosen = list(names) if names is not None else list(data.schema.names)
    if not chosen:
        return [b"{}"] * data.num_rows
    lists = [_json_values(data.column(name)) for name in chosen]
    return list(map(_encode_json, map(_json_object(tuple(chosen)), *lists)))


def require_one_row_each(view: str, keys: Sequence[str]) -> None:
    """Raise `ViewError` if two rows of a derived view have the same key. `keys` contains each row's key as a string."""
    if len(set(keys)) == len(keys):
        return
    key, count = Counter(keys).most_common(1)[0]
    raise ViewError(
        f"view {view}: its query returns {count} rows with the key {key[:200]}, but each key must have exactly one "
        "row; either add to key= the columns that distinguish the rows, or group by the key",
        view=view,
    )


def _json_object(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that turns a row's values into an object that encodes as a JSON object with these members. If
    there are too many names, the object is a dict, because struct classes are cached and a client can choose the
    names."""
    if len(names) > STRUCT_MEMBERS_MAX or sum(map(len, names)) > STRUCT_CHARS_MAX:
        return lambda *values: dict(zip(names, values, strict=True))
    return _json_struct(names)


@lru_cache(maxsize=STRUCTS_KEPT)
def _json_struct(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a struct class with these members, which is faster to create and encode than a dict. If msgspec rejects a
    name, for example because it contains a quote, return a function that creates a dict."""
    members = {f"_{index}": name for index, name in enumerate(names)}
    try:
        return msgspec.defstruct("JsonObject", [(member, Any) for member in members], rename=members, gc=False)
    except ValueError:
        return lambda *values: dict(zip(names, values, strict=True))


def forget_json_objects() -> None:
    """Empty the cache of struct classes. Called after encoding rows whose columns were named by a client."""
    _json_struct.cache_clear()


def _json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert a column to values that can be encoded as JSON. Arrow formats the times, including times inside a struct
    such as a window, a hundred times as fast as Python's datetime could."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _json_values(chunk)]
    if pa.types.is_timestamp(column.type):
        return _json_times(column)
    if pa.types.is_struct(column.type) and column.type.num_fields:
        return _json_structs(column)
    if pa.types.is_decimal(column.type):
        return _json_decimals(column)
    try:
        if pa.types.is_nested(column.type):
            nested = list(column.to_pylist(maps_as_pydicts="strict"))
            return list(map(decimals_as_text, nested)) if _holds_decimals(column.type) else nested
        return list(column.to_pylist())  # without `maps_as_pydicts`, ten times as fast
    except (OverflowError, ValueError):  # a time outside Python's range
        return _json_far_values(column)


def _json_far_values(column: pa.Array) -> list[Any]:
    """Convert a column that contains dates after the year 9999, which Python does not support. Arrow formats the dates,
    and lists and maps are converted item by item."""
    kind = column.type
    if pa.types.is_date(kind):
        return list(_formattable_times(column.cast(pa.string())).to_pylist())
    if pa.types.is_map(kind):
        pairs = list(zip(_json_values(column.keys), _json_values(column.items), strict=True))
        spans = zip(column.is_valid().to_pylist(), pairwise(column.offsets.to_pylist()), strict=True)
        return [dict(pairs[start:end]) if there else None for there, (start, end) in spans]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = iter(_json_values(column.flatten()))
        sizes = pc.if_else(column.is_valid(), pc.list_value_length(column), None).to_pylist()
        return [None if size is None else list(islice(values, size)) for size in sizes]
    return list(column.to_pylist())


def _formattable_times(text: pa.Array) -> pa.Array:
    """Replace times that Arrow cannot format with null: infinity, and times after about the year 32,767."""
    return pc.if_else(pc.starts_with(text, "<"), None, text)


def _json_times(times: pa.Array) -> list[str | None]:
    """Format times as RFC 3339. Casting to a type without a time zone results in the time in UTC."""
    zone = times.type.tz
    utc = times.cast(pa.timestamp("us", zone), safe=False).cast(pa.timestamp("us"))
    text = pc.replace_substring(_formattable_times(utc.cast(pa.string())), " ", "T")
    whole = pc.replace_substring(text, ".000000", "")
    return list((pc.binary_join_element_wise(whole, "Z", "") if zone else whole).to_pylist())


def _json_decimals(column: pa.Array) -> list[str | None]:
    """Format decimals with Arrow, which is several times as fast as Python. Arrow writes zero and very small values
    with an exponent, so a column that contains such a value is formatted by Python instead."""
    text, scale = column.cast(pa.string()), column.type.scale
    if _decimal_has_exponent(text):
        return [None if value is None else _decimal_text(value) for value in column.to_pylist()]
    if scale >= DECIMAL_SCALE:
        text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return list(text.to_pylist())


def read_decimals(column: pa.Array) -> list[Decimal | None]:
    """Read decimals without the trailing zeros that their column adds: 1.50 becomes 1.5, and 100 stays 100. Parses
    strings formatted by Arrow, which takes half as long as `to_pylist`."""
    text = column.cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".").to_pylist()
    return [
        None if short is None else Decimal(short) if "E" not in short else Decimal(_decimal_text(Decimal(whole)))
        for short, whole in zip(trimmed, text.to_pylist() if _decimal_has_exponent(text) else trimmed, strict=True)
    ]


def _decimal_has_exponent(text: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring(text, "E")).as_py())


def _decimal_text(value: Decimal) -> str:
    """Format a decimal without an exponent. Trailing zeros are kept if the scale is lower than the scale of an event's
    Decimal column, because a view chose that scale: 902.50."""
    text = f"{value:f}"
    places = len(text.partition(".")[2])
    return text.rstrip("0").rstrip(".") if places >= DECIMAL_SCALE else text


def _holds_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _holds_decimals(kind.key_type) or _holds_decimals(kind.item_type)
    inside = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(_holds_decimals, inside))


def decimals_as_text(value: Any) -> Any:
    """Replace each decimal in a value from a nested column with a string."""
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if isinstance(value, list):
        return list(map(decimals_as_text, value))
    if isinstance(value, dict):
        return {decimals_as_text(name): decimals_as_text(member) for name, member in value.items()}
    return value


def _json_structs(column: pa.StructArray) -> list[Any]:
    build = _json_object(tuple(field.name for field in column.type))
    rows: list[Any] = list(map(build, *(_json_values(part) for part in column.flatten())))
    if column.null_count:
        return [row if there else None for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)]
    return rows


CHANGE_COLUMN, VERSION_COLUMN = "_change", "_version"
UPSERT, DELETE, SNAPSHOT = "upsert", "delete", "snapshot"


def change_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of the stream VIEW.changes: the view's columns, the kind of change (upsert, delete or
    snapshot), the version, and the system columns. For a deleted row, only the key columns are set."""
    own = [pa.field(CHANGE_COLUMN, pa.string()), pa.field(VERSION_COLUMN, pa.int64())]
    return pa.schema([*columns, *own, *system_fields()])


def event_rows(batch: pa.RecordBatch) -> list[bytes]:
    """Convert the events in a batch to JSON objects. Ticks and system columns are left out."""
    events = batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT))
    return json_rows(events, [name for name in batch.schema.names if name not in HIDDEN_COLUMNS])


def from_json_rows(
    rows: Iterable[bytes], schema: pa.Schema, names: Sequence[str] | None = None, *, strict: bool = False
) -> pa.RecordBatch:
    """Convert rows written by `json_rows` back to columns: the columns in `names`, or all columns.

    Missing members and values that JSON cannot express (NaN, infinity, years above 9999) become null. A value that does
    not fit its column also becomes null, because a view can contain rows from before its query was changed. If `strict`
    is true, such a value raises an exception instead.
    """
    chosen = schema if names is None else pa.schema([schema.field(name) for name in names])
    shape, decode = _json_row_reader(chosen)
    listed = list(rows)
    try:
        decoded = [decode(row) for row in listed]
    except msgspec.ValidationError:
        if strict:
            raise
        decoded = [_decoded_row(row, chosen, shape, decode) for row in listed]
    build = _strictly_built_column if strict else _built_column
    columns = [
        build(part, [value(row) for row in decoded]) for part, value in zip(shape.parts, shape.values, strict=True)
    ]
    if not columns:  # without columns, from_arrays would lose the row count
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(decoded), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=chosen)


_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


def _decoded_row(row: bytes, schema: pa.Schema, shape: _Shape, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(row)
    except msgspec.ValidationError:
        members = msgspec.json.decode(row, type=dict[str, msgspec.Raw])
        wires = {name: part.wire for name, part in zip(schema.names, shape.parts, strict=True)}
        fitting = {
            name: value for name, value in members.items() if name in wires and _fits_json_type(value, wires[name])
        }
        return decode(msgspec.json.encode(fitting))


def _fits_json_type(value: msgspec.Raw, wire: Any) -> bool:
    try:
        msgspec.json.decode(value, type=wire | None)
    except msgspec.ValidationError:
        return False
    return True


def _built_column(part: _Reader, values: list[Any]) -> pa.Array:
    try:
        return part.build(values)
    except _UNFIT:
        return pa.concat_arrays([_built_value(part, value) for value in values])


def _strictly_built_column(part: _Reader, values: list[Any]) -> pa.Array:
    column = part.build(values)
    if column.null_count != values.count(None):
        raise pa.ArrowInvalid(f"a value is not of type {column.type}")
    return column


def _built_value(part: _Reader, value: Any) -> pa.Array:
    try:
        return part.build([value])
    except _UNFIT:
        return part.build([None])


class _Reader(NamedTuple):
    """A reader for values of one type. msgspec decodes the values from JSON to the type `wire`, and `build` converts a
    list of decoded values to an array."""

    wire: Any
    build: Column


class _Shape(NamedTuple):
    """A reader for an object: the type that msgspec decodes the object to, and a getter and a reader for each of its
    fields."""

    wire: Any
    values: list[Callable[[Any], Any]]
    parts: list[_Reader]


@lru_cache(maxsize=1024)
def _json_row_reader(schema: pa.Schema) -> tuple[_Shape, Callable[[bytes], Any]]:
    shape = _json_object_shape(schema)
    return shape, msgspec.json.Decoder(shape.wire).decode


def _json_object_shape(fields: Iterable[pa.Field]) -> _Shape:
    """Build the reader for an object from its fields. It decodes to a struct, which is faster, or to a dict with the
    same members if msgspec rejects a name."""
    listed = list(fields)
    parts = [_json_column_reader(field.type) for field in listed]
    members = {f"_{index}": field.name for index, field in enumerate(listed)}
    typed = [(member, part.wire | None, None) for member, part in zip(members, parts, strict=True)]
    try:
        return _Shape(
            msgspec.defstruct("JsonRow", typed, rename=members, gc=False), list(map(attrgetter, members)), parts
        )
    except ValueError:
        kinds = {field.name: part.wire | None for field, part in zip(listed, parts, strict=True)}
        wire = TypedDict("JsonRow", kinds, total=False)  # type: ignore[misc]
        return _Shape(wire, [_column_getter(field.name) for field in listed], parts)


def _column_getter(name: str) -> Callable[[Any], Any]:
    return lambda row: row.get(name)


def _json_column_reader(kind: pa.DataType) -> _Reader:
    if pa.types.is_timestamp(kind):
        return _Reader(str, lambda values: _times_from_json(values, kind))
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return _Reader(str, lambda values: pa.array(values, pa.string()).cast(kind))
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_map(kind):
        return _map_reader(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_reader(kind)
    return _Reader(_WIRE.get(kind.id, Any), lambda values: pa.array(values, kind))


_WIRE = {
    pa.string().id: str, pa.large_string().id: str, pa.binary().id: bytes, pa.large_binary().id: bytes,
    pa.float64().id: float, pa.float32().id: float, pa.bool_().id: bool, pa.time32("s").id: time,
    pa.time64("us").id: time, pa.duration("us").id: timedelta,
    **dict.fromkeys((kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())), int),
}  # fmt: skip
"""The Python types that msgspec decodes plain values to. Timestamps, dates and decimals are not listed, because Arrow
parses them much faster."""


def _times_from_json(values: list[str | None], kind: pa.TimestampType) -> pa.Array:
    """Parse times from JSON, which have microsecond precision regardless of the column's unit."""
    text = pa.array(values, pa.string())
    unit = pa.timestamp("us", kind.tz)
    try:
        times = text.cast(unit)
    except pa.ArrowInvalid:
        times = pc.if_else(pc.match_substring_regex(text, "^[0-9]{4}-"), text, None).cast(unit)
    return times if kind == unit else times.cast(kind, safe=False)


def _struct_reader(kind: pa.StructType) -> _Reader:
    shape = _json_object_shape(kind)

    def build(values: list[Any]) -> pa.Array:
        arrays = [
            part.build([None if value is None else get(value) for value in values])
            for part, get in zip(shape.parts, shape.values, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=_null_mask(values))

    return _Reader(shape.wire, build)


def _list_reader(kind: pa.DataType) -> _Reader:
    part = _json_column_reader(kind.value_type)
    large = pa.types.is_large_list(kind)
    whole, factory = (pa.int64(), pa.LargeListArray) if large else (pa.int32(), pa.ListArray)

    def build(values: list[Any]) -> pa.Array:
        inner = part.build(list(chain.from_iterable(value or () for value in values)))
        return factory.from_arrays(pa.array(_list_offsets(values), whole), inner, type=kind, mask=_null_mask(values))

    return _Reader(list[part.wire | None], build)  # type: ignore[name-defined]


def _map_reader(kind: pa.MapType) -> _Reader:
    key, item = _json_column_reader(kind.key_type), _json_column_reader(kind.item_type)

    def build(values: list[Any]) -> pa.Array:
        keys = key.build(list(chain.from_iterable(value or () for value in values)))
        items = item.build([member for value in values if value for member in value.values()])
        return pa.MapArray.from_arrays(
            pa.array(_list_offsets(values), pa.int32()), keys, items, kind, mask=_null_mask(values)
        )

    return _Reader(dict[key.wire, item.wire | None], build)  # type: ignore[name-defined]


def _list_offsets(values: Sequence[Any]) -> Iterable[int]:
    return accumulate((len(value) if value else 0 for value in values), initial=0)


def _null_mask(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())
