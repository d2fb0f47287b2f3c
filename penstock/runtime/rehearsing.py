"""Run all handlers in a separate process, and record each step for comparison with another run.

The rows of each stream are in a file, so that all runs have the same rows. `examination.py` starts these processes.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.app.declared import Handler, Stream
from penstock.app.graph import order
from penstock.app.loading import load
from penstock.core.columns import tick_batch, to_batch
from penstock.core.filters.events import event_filter
from penstock.core.schema import KIND_EVENT, event_schema
from penstock.core.times import from_micros, micros_of
from penstock.handlers.batches import inputs
from penstock.handlers.inputs import row_kinds
from penstock.handlers.rehearsal import Rehearsal, RehearsalRow, SampleRow
from penstock.handlers.rows import LogPosition, to_events
from penstock.handlers.shard import Shard

POSITION_COLUMNS = ("_generation", "_partition", "_offset")
Part = Literal["whole", "first half", "second half"]


class RehearsalCall(msgspec.Struct, frozen=True):
    """The task for one process, passed as JSON in its only argument: run a part of the rows in `folder`, and record the
    steps there under the name `run`. A run over all rows also writes the emitted events, up to `events_max` for each
    class, for handlers that read them. Handlers in `without` do not run and emit nothing."""

    target: str
    folder: str
    run: str
    part: Part
    events_max: int
    without: frozenset[str]


def rows_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.rows"


def view_rows(handler: Handler, stream: Stream) -> str | None:
    """Return the name that a handler uses for the changes of a view: each handler reads them as a separate class."""
    return f"{handler.name}.{stream.name}" if stream.name not in handler.reads else None


def trace_file(folder: Path, run: str, handler: str) -> Path:
    return folder / f"{handler}.{run}.trace"


def write_sample_rows(folder: Path, stream: Stream, rows: Sequence[SampleRow], name: str | None = None) -> None:
    """Write generated or emitted rows as if they had passed through the log."""
    schema = event_schema(stream.event)
    events = [row for row in rows if row.event is not None]
    ids = [row.id for row in events]
    empty: list[str | None] = [None] * len(ids)
    batch = to_batch(stream.event, [row.event for row in events], ids=ids, keys=empty, now=from_micros(0))
    times = pa.array([row.time for row in events], pa.timestamp("us", "UTC"))
    batch = batch.set_column(schema.get_field_index("_ingest_time"), schema.field("_ingest_time"), times)
    ticks = [tick_batch(schema, row.time) for row in rows if row.event is None]
    numbers = sorted(range(len(rows)), key=lambda number: rows[number].event is None)
    write_rows(folder, stream, [batch, *ticks], [LogPosition(stream.name, 0, 0, number) for number in numbers], name)


def write_rows(
    folder: Path,
    stream: Stream,
    batches: Sequence[pa.RecordBatch],
    positions: Sequence[LogPosition],
    name: str | None = None,
) -> None:
    """Write batches of a stream for a rehearsal, unchanged, with the position of each row. If `name` is passed, it is
    used instead of the stream's name."""
    table = pa.Table.from_batches(batches, event_schema(stream.event))
    for column in POSITION_COLUMNS:
        table = table.append_column(
            column, pa.array([getattr(position, column.removeprefix("_")) for position in positions], pa.int64())
        )
    path = rows_file(folder, name or stream.name)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_rows(
    folder: Path, stream: Stream, name: str | None = None, where: str | None = None
) -> Iterator[RehearsalRow]:
    """Yield the rows in a stream's file, with events in the form that a handler receives. Events that do not meet
    `where` become ticks."""
    chosen = None if where is None else event_filter(stream.event, where)
    with pa.memory_map(str(rows_file(folder, name or stream.name))) as file:
        table = pa.ipc.open_file(file).read_all().combine_chunks()
    for batch in table.to_batches():
        kinds = row_kinds(batch, chosen)
        events = iter(to_events(stream.event, batch.filter(pc.equal(kinds, KIND_EVENT))))
        numbers = zip(*(batch.column(name).to_pylist() for name in POSITION_COLUMNS), strict=True)
        times, ids = micros_of(batch.column("_ingest_time")), batch.column("_id").to_pylist()
        for time, number, known, kind in zip(times, numbers, ids, kinds.to_pylist(), strict=True):
            event = next(events) if kind == KIND_EVENT else None
            yield RehearsalRow(time, LogPosition(stream.name, *number), known, event)


def rehearse(call: RehearsalCall) -> None:
    """Run a part of the rows through every handler of the app. Each handler runs after the handlers that it reads."""
    app = load(call.target).app
    folder = Path(call.folder)
    os.chdir(folder / call.run)  # not earlier: the app may load files relative to the previous folder
    for handler in order(app):
        if isinstance(handler, Handler):
            streams = inputs(app, handler).values()
            read = [(stream, view_rows(handler, stream), handler.condition_of(stream.name)) for stream in streams]
            rows = [row for stream, name, where in read for row in read_rows(folder, stream, name, where)]
            numbers = {stream.name: number for number, stream in enumerate(streams)}
            rows.sort(
                key=lambda row: (row.time, numbers[row.position.stream], row.position.partition, row.position.offset)
            )
            _rehearse_part(handler, folder, call, rows if handler.name not in call.without else [])


def _rehearse_part(handler: Handler, folder: Path, call: RehearsalCall, rows: list[RehearsalRow]) -> None:
    """Rehearse a part of the rows through a handler. The second part starts with the state at the end of the first
    part."""
    kept = folder / f"{handler.name}.{call.run}.shard"
    shard: Shard = pickle.loads(kept.read_bytes()) if call.part == "second half" else Shard()
    rehearsal, middle = Rehearsal(handler, shard), len(rows) // 2
    mine = {"whole": rows, "first half": rows[:middle], "second half": rows[middle:]}[call.part]
    with trace_file(folder, call.run, handler.name).open("ab") as trace:
        trace.writelines(rehearsal.steps(mine))
        if call.part != "first half":
            trace.writelines(rehearsal.steps(rehearsal.ending()))
    kept.write_bytes(pickle.dumps(rehearsal.shard))
    if call.part == "whole":
        _write_emitted(rehearsal, folder, call.events_max)


def _write_emitted(rehearsal: Rehearsal, folder: Path, events_max: int) -> None:
    """Write the emitted events for handlers that read them, unless the log contains them."""
    for stream in rehearsal.handler.outputs:
        if not rows_file(folder, stream.name).exists():
            rows = sorted(rehearsal.outputs[stream.name], key=lambda row: row.time)
            write_sample_rows(folder, stream, rows[:events_max])


if __name__ == "__main__":
    rehearse(msgspec.json.decode(sys.argv[1], type=RehearsalCall))
