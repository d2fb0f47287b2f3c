"""Events to Arrow columns, Arrow columns to JSON, and that JSON back to Arrow columns: the conversions on an event's
way through the system."""

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

from penstock.errors import ViewError
from penstock.schema import (
    DECIMAL_DIGITS,
    DECIMAL_SCALE,
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
    system_fields,
    to_millis,
)

_PLAIN = (str, int, float, bool, bytes, datetime, date, Decimal)
_KEPT = (bytes, datetime, date, Decimal)
_encode_json = msgspec.json.Encoder().encode
STRUCTS_KEPT = 256
STRUCT_MEMBERS_MAX, STRUCT_CHARS_MAX = 256, 8192
"""What is kept for rows of so many members, with names of so many characters, is some 180 KB."""
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


def some_columns(cls: type[Event], events: Sequence[Any], names: Collection[str]) -> pa.RecordBatch:
    """Some fields of events (or of their wire twins), typed as in the stream. For a filter that looks at no others."""
    chosen = [(name, build) for name, build in _builder(cls) if name in names]
    if not chosen:  # a batch of no columns is made of rows, or it would have none
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(events), pa.struct([])))
    arrays = [build([getattr(event, name) for event in events]) for name, build in chosen]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in chosen])


def tick_batch(
    schema: pa.Schema, now: datetime, time_field: str | None = None, at: datetime | None = None
) -> pa.RecordBatch:
    """One tick, at log time `now`: "event time has reached `at`". Without that it moves no watermark of event time."""
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


_UNIT, _COLUMN = Decimal(1).scaleb(-DECIMAL_SCALE), Context(prec=DECIMAL_DIGITS)


def key_text(values: Iterable[Any]) -> str | None:
    """The key of a handler's state as text, given the values of its fields: of one field the value's text, of several
    the JSON array of their texts. None if a field has no value. Part of the file format, as is the order of the fields.
    """
    texts = [key_part(each) for each in values]
    if None in texts:
        return None
    return texts[0] if len(texts) == 1 else _encode_json(texts).decode()


def key_part(value: Any) -> str | None:
    """A Decimal has all digits of its column, as it had when handlers got their Decimals so."""
    return str(value.quantize(_UNIT, context=_COLUMN)) if isinstance(value, Decimal) else text_of(value)


def event_key(event: Any, fields: Sequence[str]) -> str | None:
    """The same of an event, given the names of the fields."""
    return key_text([getattr(event, name) for name in fields])


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
    """Each row as a JSON object. Times are RFC 3339 UTC, bytes base64, NaN and infinity null; decimals are text without
    an exponent, and without the zeros that the column of an event's Decimal, or what Spark makes of one, adds."""
    chosen = list(names) if names is not None else list(data.schema.names)
    if not chosen:
        return [b"{}"] * data.num_rows
    lists = [_json_values(data.column(name)) for name in chosen]
    return list(map(_encode_json, map(_json_object(tuple(chosen)), *lists)))


def require_one_row_each(view: str, keys: Sequence[str]) -> None:
    """Raise `ViewError` if two rows of a derived view have the same key. `keys` has the key of each row as text."""
    if len(set(keys)) == len(keys):
        return
    key, count = Counter(keys).most_common(1)[0]
    raise ViewError(
        f"view {view}: its query gives {count} rows with the key {key[:200]}, and a key has one row; add the columns "
        "that tell them apart to key=, or group by the key",
        view=view,
    )


def _json_object(names: tuple[str, ...]) -> Callable[..., Any]:
    """Makes, of a row's values, what encodes to a JSON object with these members: for very many names a dict, since
    structs are kept, and a client may choose the names."""
    if len(names) > STRUCT_MEMBERS_MAX or sum(map(len, names)) > STRUCT_CHARS_MAX:
        return lambda *values: dict(zip(names, values, strict=True))
    return _json_struct(names)


@lru_cache(maxsize=STRUCTS_KEPT)
def _json_struct(names: tuple[str, ...]) -> Callable[..., Any]:
    """A struct is faster to make and to encode than a dict, but refuses a few names, such as one with a quote in it."""
    members = {f"_{index}": name for index, name in enumerate(names)}
    try:
        return msgspec.defstruct("JsonObject", [(each, Any) for each in members], rename=members, gc=False)
    except ValueError:
        return lambda *values: dict(zip(names, values, strict=True))


def forget_json_objects() -> None:
    """Empty the cache of what makes JSON objects. Called after rows whose columns a client has named."""
    _json_struct.cache_clear()


def _json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, each as something that encodes to its JSON. Times are formatted by Arrow, a hundred times
    as fast as by way of Python's datetime, also where they stand in a struct such as a window."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _json_values(chunk)]
    if pa.types.is_timestamp(column.type):
        return _rfc3339(column)
    if pa.types.is_struct(column.type) and column.type.num_fields:
        return _json_structs(column)
    if pa.types.is_decimal(column.type):
        return _json_decimals(column)
    try:
        if pa.types.is_nested(column.type):
            nested = list(column.to_pylist(maps_as_pydicts="strict"))
            return list(map(decimals_as_text, nested)) if _holds_decimals(column.type) else nested
        return list(column.to_pylist())  # without that argument ten times as fast
    except (OverflowError, ValueError):  # a time that Python has not
        return _json_far_values(column)


def _json_far_values(column: pa.Array) -> list[Any]:
    """The same without Python's dates, which end with the year 9999: dates are text of Arrow, lists and maps are taken
    apart."""
    kind = column.type
    if pa.types.is_date(kind):
        return list(_in_range(column.cast(pa.string())).to_pylist())
    if pa.types.is_map(kind):
        pairs = list(zip(_json_values(column.keys), _json_values(column.items), strict=True))
        spans = zip(column.is_valid().to_pylist(), pairwise(column.offsets.to_pylist()), strict=True)
        return [dict(pairs[start:end]) if there else None for there, (start, end) in spans]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = iter(_json_values(column.flatten()))
        sizes = pc.if_else(column.is_valid(), pc.list_value_length(column), None).to_pylist()
        return [None if size is None else list(islice(values, size)) for size in sizes]
    return list(column.to_pylist())


def _in_range(text: pa.Array) -> pa.Array:
    """Times as text, null for those that Arrow does not write: infinity, and years from about 32,768 on."""
    return pc.if_else(pc.starts_with(text, "<"), None, text)


def _rfc3339(times: pa.Array) -> list[str | None]:
    """Casting to a type without a zone gives the time in UTC."""
    zone = times.type.tz
    utc = times.cast(pa.timestamp("us", zone), safe=False).cast(pa.timestamp("us"))
    text = pc.replace_substring(_in_range(utc.cast(pa.string())), " ", "T")
    whole = pc.replace_substring(text, ".000000", "")
    return list((pc.binary_join_element_wise(whole, "Z", "") if zone else whole).to_pylist())


def _json_decimals(column: pa.Array) -> list[str | None]:
    """Arrow writes them several times as fast as Python does, but very small ones, and zero, with an exponent."""
    text, scale = column.cast(pa.string()), column.type.scale
    if _has_exponent(text):
        return [None if value is None else _decimal_text(value) for value in column.to_pylist()]
    if scale >= DECIMAL_SCALE:
        text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return list(text.to_pylist())


def read_decimals(column: pa.Array) -> list[Decimal | None]:
    """Decimals without the zeros that their column adds: 1.5 for 1.50, 100 for 100. By way of Arrow's text, which takes
    half the time of `to_pylist`."""
    text = column.cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".").to_pylist()
    return [
        None if short is None else Decimal(short) if "E" not in short else Decimal(_decimal_text(Decimal(whole)))
        for short, whole in zip(trimmed, text.to_pylist() if _has_exponent(text) else trimmed, strict=True)
    ]


def _has_exponent(text: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring(text, "E")).as_py())


def _decimal_text(value: Decimal) -> str:
    """A decimal in full. A scale below that of an event's Decimal was chosen by a view, and stays: 902.50."""
    text = f"{value:f}"
    places = len(text.partition(".")[2])
    return text.rstrip("0").rstrip(".") if places >= DECIMAL_SCALE else text


def _holds_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _holds_decimals(kind.key_type) or _holds_decimals(kind.item_type)
    inside = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(_holds_decimals, inside))


def decimals_as_text(value: Any) -> Any:
    """A value of a nested column with the text of each decimal in it."""
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if isinstance(value, list):
        return list(map(decimals_as_text, value))
    if isinstance(value, dict):
        return {decimals_as_text(name): decimals_as_text(each) for name, each in value.items()}
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
    """The schema of the stream VIEW.changes: the view's columns, what became of the row and at which version, and the
    system columns. A row that was deleted has its key and nothing else."""
    own = [pa.field(CHANGE_COLUMN, pa.string()), pa.field(VERSION_COLUMN, pa.int64())]
    return pa.schema([*columns, *own, *system_fields()])


def event_rows(batch: pa.RecordBatch) -> list[bytes]:
    """The events of a batch as JSON objects, without ticks and system columns."""
    events = batch.filter(pc.equal(batch.column("_kind"), KIND_EVENT))
    return json_rows(events, [name for name in batch.schema.names if name not in SYSTEM_COLUMNS])


def from_json_rows(
    rows: Iterable[bytes], schema: pa.Schema, names: Sequence[str] | None = None, *, strict: bool = False
) -> pa.RecordBatch:
    """Rows that `json_rows` has written, as columns again; `names` are those that are wanted, all unless given.

    A member that is missing is null. What JSON cannot say comes back as null too: NaN, infinity, a year above 9999. So
    does what does not fit its column: a view has rows from before its query was changed. If `strict`, what does not fit
    raises instead.
    """
    chosen = schema if names is None else pa.schema([schema.field(name) for name in names])
    shape, decode = _row_reader(chosen)
    listed = list(rows)
    try:
        decoded = [decode(row) for row in listed]
    except msgspec.ValidationError:
        if strict:
            raise
        decoded = [_decoded(row, chosen, shape, decode) for row in listed]
    build = _built_strictly if strict else _built
    columns = [
        build(part, [value(row) for row in decoded]) for part, value in zip(shape.parts, shape.values, strict=True)
    ]
    if not columns:  # a batch without columns has as many rows as are said here
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(decoded), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=chosen)


_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


def _decoded(row: bytes, schema: pa.Schema, shape: _Shape, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(row)
    except msgspec.ValidationError:
        members = msgspec.json.decode(row, type=dict[str, msgspec.Raw])
        wires = {name: part.wire for name, part in zip(schema.names, shape.parts, strict=True)}
        fitting = {name: value for name, value in members.items() if name in wires and _fits(value, wires[name])}
        return decode(msgspec.json.encode(fitting))


def _fits(value: msgspec.Raw, wire: Any) -> bool:
    try:
        msgspec.json.decode(value, type=wire | None)
    except msgspec.ValidationError:
        return False
    return True


def _built(part: _Reader, values: list[Any]) -> pa.Array:
    try:
        return part.build(values)
    except _UNFIT:
        return pa.concat_arrays([_built_alone(part, value) for value in values])


def _built_strictly(part: _Reader, values: list[Any]) -> pa.Array:
    column = part.build(values)
    if column.null_count != values.count(None):
        raise pa.ArrowInvalid(f"a value is not of the type {column.type}")
    return column


def _built_alone(part: _Reader, value: Any) -> pa.Array:
    try:
        return part.build([value])
    except _UNFIT:
        return part.build([None])


class _Reader(NamedTuple):
    """How a value of a type is read: what msgspec makes of its JSON, and how a list of those becomes an array."""

    wire: Any
    build: Column


class _Shape(NamedTuple):
    """How an object is read: what msgspec makes of it, how each part of that is got at, and how it is built."""

    wire: Any
    values: list[Callable[[Any], Any]]
    parts: list[_Reader]


@lru_cache(maxsize=1024)
def _row_reader(schema: pa.Schema) -> tuple[_Shape, Callable[[bytes], Any]]:
    shape = _shape(schema)
    return shape, msgspec.json.Decoder(shape.wire).decode


def _shape(fields: Iterable[pa.Field]) -> _Shape:
    """A struct is the quicker one to decode, but refuses a few names; then it is a dict with the same members."""
    listed = list(fields)
    parts = [_reader(field.type) for field in listed]
    members = {f"_{index}": field.name for index, field in enumerate(listed)}
    typed = [(member, part.wire | None, None) for member, part in zip(members, parts, strict=True)]
    try:
        return _Shape(
            msgspec.defstruct("JsonRow", typed, rename=members, gc=False), list(map(attrgetter, members)), parts
        )
    except ValueError:
        kinds = {field.name: part.wire | None for field, part in zip(listed, parts, strict=True)}
        wire = TypedDict("JsonRow", kinds, total=False)  # type: ignore[misc]
        return _Shape(wire, [_getter(field.name) for field in listed], parts)


def _getter(name: str) -> Callable[[Any], Any]:
    return lambda row: row.get(name)


def _reader(kind: pa.DataType) -> _Reader:
    if pa.types.is_timestamp(kind):
        return _Reader(str, lambda values: _times(values, kind))
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
"""What msgspec reads a plain value as. Times and decimals are not here: Arrow reads their text much faster."""


def _times(values: list[str | None], kind: pa.TimestampType) -> pa.Array:
    """They have microseconds in JSON, whatever the unit of the column."""
    text = pa.array(values, pa.string())
    unit = pa.timestamp("us", kind.tz)
    try:
        found = text.cast(unit)
    except pa.ArrowInvalid:
        found = pc.if_else(pc.match_substring_regex(text, "^[0-9]{4}-"), text, None).cast(unit)
    return found if kind == unit else found.cast(kind, safe=False)


def _struct_reader(kind: pa.StructType) -> _Reader:
    shape = _shape(kind)

    def build(values: list[Any]) -> pa.Array:
        arrays = [
            part.build([None if value is None else get(value) for value in values])
            for part, get in zip(shape.parts, shape.values, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=_absent(values))

    return _Reader(shape.wire, build)


def _list_reader(kind: pa.DataType) -> _Reader:
    part = _reader(kind.value_type)
    large = pa.types.is_large_list(kind)
    whole, factory = (pa.int64(), pa.LargeListArray) if large else (pa.int32(), pa.ListArray)

    def build(values: list[Any]) -> pa.Array:
        inner = part.build(list(chain.from_iterable(value or () for value in values)))
        return factory.from_arrays(pa.array(_offsets(values), whole), inner, type=kind, mask=_absent(values))

    return _Reader(list[part.wire | None], build)  # type: ignore[name-defined]


def _map_reader(kind: pa.MapType) -> _Reader:
    key, item = _reader(kind.key_type), _reader(kind.item_type)

    def build(values: list[Any]) -> pa.Array:
        keys = key.build(list(chain.from_iterable(value or () for value in values)))
        items = item.build([each for value in values if value for each in value.values()])
        return pa.MapArray.from_arrays(pa.array(_offsets(values), pa.int32()), keys, items, kind, mask=_absent(values))

    return _Reader(dict[key.wire, item.wire | None], build)  # type: ignore[name-defined]


def _offsets(values: Sequence[Any]) -> Iterable[int]:
    return accumulate((len(value) if value else 0 for value in values), initial=0)


def _absent(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())
