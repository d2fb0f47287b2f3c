"""Conversion of record batches to stored bytes and back.

Only the Arrow message of the batch is stored; its schema is stored once in the file. The concatenated messages of one
schema version are an Arrow stream, so a thousand small batches are decoded by one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import DeclarationError, TooLarge
from penstock.core.schema import KIND_TICK

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Size above which an append is stored as several batches, which limits the memory that readers need."""
ROW_BYTES_MAX = 256 * 1024 * 1024
"""Maximum size of one event, which cannot be split. SQLite allows values of up to 1,000 MB."""
COMPRESSION_PAYS = 0.9
"""Largest ratio of compressed to plain size that is worth storing: compression must save at least a tenth."""
INGEST_TYPE = pa.timestamp("us", "UTC")
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)


def encode(batch: pa.RecordBatch, *, compressed: bool = False) -> Iterator[tuple[int, Any]]:
    """Split a stream's batch into parts small enough to store, and yield the number of rows and the bytes of each, in
    order.

    `compressed` is meant for batches that are written once and kept for a long time. A part is compressed only if that
    saves enough space.
    """
    plain = batch.serialize()
    if plain.size > BATCH_BYTES_MAX and batch.num_rows > 1:
        middle = batch.num_rows // 2
        yield from encode(batch.slice(0, middle), compressed=compressed)
        yield from encode(batch.slice(middle), compressed=compressed)
    elif plain.size > ROW_BYTES_MAX:
        raise TooLarge(f"an event of {plain.size} bytes is too large for the log; the limit is {ROW_BYTES_MAX}")
    else:
        yield batch.num_rows, _compressed_if_smaller(batch, plain) if compressed else plain


def _compressed_if_smaller(batch: pa.RecordBatch, plain: Any) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_ZSTD) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema
    packed = messages.read_next_message().serialize()
    return packed if packed.size < plain.size * COMPRESSION_PAYS else plain


def decode(parts: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Decode a stream's stored batches with the same schema into one record batch, in order."""
    if len(parts) == 1:
        return pa.ipc.read_record_batch(pa.py_buffer(parts[0]), schema)
    whole = b"".join((schema.serialize().to_pybytes(), *parts))
    return pa.ipc.open_stream(pa.py_buffer(whole)).read_all().combine_chunks().to_batches()[0]


def adapt(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a stored batch to another version of its schema: added columns are null, and removed columns are
    dropped."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def newest_ingest_us(batch: pa.RecordBatch) -> int | None:
    """Return the latest ingest time in a stream's batch, in microseconds since 1970, or None if the batch has no ingest
    times."""
    if batch.schema.get_field_index("_ingest_time") < 0:
        return None
    newest: int | None = pc.max(batch.column("_ingest_time")).value
    return newest


def ticks(batch: pa.RecordBatch) -> int:
    """Return the number of a stored batch's rows that are ticks rather than events."""
    if batch.num_rows == 0 or batch.schema.get_field_index("_kind") < 0:
        return 0
    return int(pc.sum(pc.equal(batch.column("_kind"), KIND_TICK)).as_py() or 0)


def identified(batch: pa.RecordBatch) -> int:
    """Return the number of a batch's rows with an event id."""
    place = batch.schema.get_field_index("_id")
    return 0 if place < 0 else batch.num_rows - int(batch.column(place).null_count)


def require_sound(stream: str, schema: pa.Schema, unique_ids: int) -> None:
    """Raise DeclarationError for a stream's schema whose system columns do not have the types that the log relies
    on."""
    wanted = {"_ingest_time": INGEST_TYPE, "_id": pa.string()}
    for name, kind in wanted.items():
        if name in schema.names and schema.field(name).type != kind:
            raise DeclarationError(f"stream {stream}: column {name} must be {kind}, not {schema.field(name).type}")
    if len(set(schema.names)) != len(schema.names):
        raise DeclarationError(f"stream {stream}: the schema has two columns with the same name")
    if unique_ids > 0 and not {"_id", "_ingest_time"} <= set(schema.names):
        raise DeclarationError(f"stream {stream}: unique ids require the columns _id and _ingest_time")


def require_compatible(stream: str, schema: pa.Schema, versions: Sequence[pa.Schema]) -> None:
    """Raise DeclarationError for a stream's column whose type has changed, because stored events could not be read."""
    for version, earlier in enumerate(versions, 1):
        for field in schema:
            index = earlier.get_field_index(field.name)
            if index >= 0 and earlier.field(index).type != field.type:
                raise DeclarationError(
                    f"stream {stream}: column {field.name} is now {field.type}, but stored events have it as "
                    f"{earlier.field(index).type} (schema version {version}); use a different name for the new column"
                )
