"""Record batches to stored bytes and back.

Stored is the Arrow message of the batch alone; its schema stands once in the file. The messages of one schema version,
one behind the other, are an Arrow stream, so a thousand small batches are decoded by one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DeclarationError, TooLarge
from penstock.schema import KIND_TICK

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Past this, an append is stored as several batches: a reader's memory is bounded by it."""
ROW_BYTES_MAX = 256 * 1024 * 1024
"""A single event cannot be split. SQLite takes values up to 1,000 MB."""
COMPRESSION_PAYS = 0.9
"""Compression must save a tenth at least."""
INGEST_TYPE = pa.timestamp("us", "UTC")
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)


def encode(batch: pa.RecordBatch, *, compressed: bool = False) -> Iterator[tuple[int, Any]]:
    """The batch in parts that are small enough to store, in order: each its number of rows and its bytes.

    Compressed is for batches that are written once and kept for long; it is done only where it pays.
    """
    plain = batch.serialize()
    if plain.size > BATCH_BYTES_MAX and batch.num_rows > 1:
        middle = batch.num_rows // 2
        yield from encode(batch.slice(0, middle), compressed=compressed)
        yield from encode(batch.slice(middle), compressed=compressed)
    elif plain.size > ROW_BYTES_MAX:
        raise TooLarge(f"an event of {plain.size} bytes is too large for the log; the most is {ROW_BYTES_MAX}")
    else:
        yield batch.num_rows, _smaller(batch, plain) if compressed else plain


def _smaller(batch: pa.RecordBatch, plain: Any) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_ZSTD) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema
    packed = messages.read_next_message().serialize()
    return packed if packed.size < plain.size * COMPRESSION_PAYS else plain


def decode(parts: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Stored batches of one schema, in order, as one record batch."""
    if len(parts) == 1:
        return pa.ipc.read_record_batch(pa.py_buffer(parts[0]), schema)
    whole = b"".join((schema.serialize().to_pybytes(), *parts))
    return pa.ipc.open_stream(pa.py_buffer(whole)).read_all().combine_chunks().to_batches()[0]


def adapt(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as if written with another version of its schema: added columns are null, removed ones are left out."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def newest_ingest_us(batch: pa.RecordBatch) -> int | None:
    """The latest ingest time in the batch, in microseconds since 1970; None if it has none."""
    if batch.schema.get_field_index("_ingest_time") < 0:
        return None
    newest: int | None = pc.max(batch.column("_ingest_time")).value
    return newest


def ticks(batch: pa.RecordBatch) -> int:
    """How many rows of a batch are no events."""
    if batch.num_rows == 0 or batch.schema.get_field_index("_kind") < 0:
        return 0
    return int(pc.sum(pc.equal(batch.column("_kind"), KIND_TICK)).as_py() or 0)


def identified(batch: pa.RecordBatch) -> int:
    """How many rows of a batch have an id."""
    place = batch.schema.get_field_index("_id")
    return 0 if place < 0 else batch.num_rows - int(batch.column(place).null_count)


def require_sound(stream: str, schema: pa.Schema, unique_ids: int) -> None:
    """Refuse a schema whose system columns are not of the types that the log relies on."""
    wanted = {"_ingest_time": INGEST_TYPE, "_id": pa.string()}
    for name, kind in wanted.items():
        if name in schema.names and schema.field(name).type != kind:
            raise DeclarationError(f"stream {stream}: column {name} must be {kind}, not {schema.field(name).type}")
    if len(set(schema.names)) != len(schema.names):
        raise DeclarationError(f"stream {stream}: a column name stands twice in the schema")
    if unique_ids > 0 and not {"_id", "_ingest_time"} <= set(schema.names):
        raise DeclarationError(f"stream {stream}: ids can be unique only with columns _id and _ingest_time")


def require_compatible(stream: str, schema: pa.Schema, versions: Sequence[pa.Schema]) -> None:
    """Refuse a schema in which a column has another type than it ever had: kept events could not be read with it."""
    for version, earlier in enumerate(versions, 1):
        for field in schema:
            index = earlier.get_field_index(field.name)
            if index >= 0 and earlier.field(index).type != field.type:
                raise DeclarationError(
                    f"stream {stream}: column {field.name} is now {field.type}, but kept events have it as "
                    f"{earlier.field(index).type} (schema version {version}); give the new column another name"
                )
