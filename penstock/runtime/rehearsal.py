"""A run of all handlers in a process of its own, told step by step, to be held against another one.

The rows of each stream are in a file, so that all runs have the same. They are run one at a time, which makes no
difference to a handler and shows what each of them did. `determinism.py` starts these processes.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.analyze.batches import inputs
from penstock.analyze.inputs import row_kinds
from penstock.columns import event_key, tick_batch, to_batch
from penstock.declared import Handler, Stream
from penstock.filters.events import event_filter
from penstock.graph import order
from penstock.machine import Effects, Machine
from penstock.rows import Inputs, Place, from_micros, micros_of, to_events
from penstock.runtime.loading import load
from penstock.schema import KIND_EVENT, event_schema
from penstock.shard import Shard

VALUE_CHARS_MAX = 2_000
ENDING_TICKS = 50
"""At the end, time passes until the next timer is due, so many times: one that is set anew each time has no end."""
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
PLACE_COLUMNS = ("_generation", "_partition", "_offset")
Part = Literal["whole", "first half", "second half"]


class Call(msgspec.Struct, frozen=True):
    """What a process is to do, as JSON in its only argument: run a part of the rows in `folder`, and tell of it there
    under the name `run`. The whole also leaves what was emitted, up to `events_max` of each class, for handlers that
    read it. Those of `without` are not run, and emit nothing."""

    target: str
    folder: str
    run: str
    part: Part
    events_max: int
    without: frozenset[str]


class Row(NamedTuple):
    """One row of a stream. A tick has no event."""

    time: int
    place: Place
    id: str | None
    event: Any


class Step(msgspec.Struct):
    """What one row did: to the states of keys, by field, each value as JSON, None if the key is as new; what was
    emitted, as (class, key, event); the errors of what failed. `failed` says whether the row's own event did. A tick
    has no event, and one that was added at the end no place."""

    place: str
    event: str | None
    key: str | None
    states: dict[str, dict[str, str] | None]
    emitted: list[tuple[str, str, str]]
    errors: list[str]
    failed: bool


class Made(NamedTuple):
    """A row to be written: an event, or a tick."""

    time: datetime
    event: Any = None
    id: str | None = None


def rows_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.rows"


def view_rows(handler: Handler, stream: Stream) -> str | None:
    """The name under which a handler finds the changes of a view: each reads them by a class of its own."""
    return f"{handler.name}.{stream.name}" if stream.name not in handler.reads else None


def trace_file(folder: Path, run: str, handler: str) -> Path:
    return folder / f"{handler}.{run}.trace"


def write_made(folder: Path, stream: Stream, made: Sequence[Made], name: str | None = None) -> None:
    """Write rows that were made up, or emitted, as if they had gone through the log."""
    schema = event_schema(stream.event)
    events = [each for each in made if each.event is not None]
    ids = [each.id for each in events]
    empty: list[str | None] = [None] * len(ids)
    batch = to_batch(stream.event, [each.event for each in events], ids=ids, keys=empty, now=from_micros(0))
    times = pa.array([each.time for each in events], pa.timestamp("us", "UTC"))
    batch = batch.set_column(schema.get_field_index("_ingest_time"), schema.field("_ingest_time"), times)
    ticks = [tick_batch(schema, each.time) for each in made if each.event is None]
    numbers = sorted(range(len(made)), key=lambda number: made[number].event is None)
    write_rows(folder, stream, [batch, *ticks], [Place(stream.name, 0, 0, number) for number in numbers], name)


def write_rows(
    folder: Path, stream: Stream, batches: Sequence[pa.RecordBatch], places: Sequence[Place], name: str | None = None
) -> None:
    """Write batches as the log has them, with the place of each row; under another name than the stream's, if given."""
    table = pa.Table.from_batches(batches, event_schema(stream.event))
    for column in PLACE_COLUMNS:
        table = table.append_column(
            column, pa.array([getattr(place, column.removeprefix("_")) for place in places], pa.int64())
        )
    path = rows_file(folder, name or stream.name)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_rows(folder: Path, stream: Stream, name: str | None = None, where: str | None = None) -> Iterator[Row]:
    """The rows of a stream's file, with events as a handler gets them: those that do not meet `where` are ticks."""
    chosen = None if where is None else event_filter(stream.event, where)
    with pa.memory_map(str(rows_file(folder, name or stream.name))) as file:
        table = pa.ipc.open_file(file).read_all().combine_chunks()
    for batch in table.to_batches():
        kinds = row_kinds(batch, chosen)
        events = iter(to_events(stream.event, batch.filter(pc.equal(kinds, KIND_EVENT))))
        numbers = zip(*(batch.column(name).to_pylist() for name in PLACE_COLUMNS), strict=True)
        times, ids = micros_of(batch.column("_ingest_time")), batch.column("_id").to_pylist()
        for time, number, known, kind in zip(times, numbers, ids, kinds.to_pylist(), strict=True):
            yield Row(time, Place(stream.name, *number), known, next(events) if kind == KIND_EVENT else None)


def rehearse(call: Call) -> None:
    """Run a part of the rows through every handler of the app, each after those that it reads."""
    app = load(call.target).app
    folder = Path(call.folder)
    os.chdir(folder / call.run)  # only now: an app may find its files from where it is started
    for handler in order(app):
        if isinstance(handler, Handler):
            streams = inputs(app, handler).values()
            read = [(each, view_rows(handler, each), handler.condition_of(each.name)) for each in streams]
            rows = [row for stream, name, where in read for row in read_rows(folder, stream, name, where)]
            numbers = {stream.name: number for number, stream in enumerate(streams)}
            rows.sort(key=lambda row: (row.time, numbers[row.place.stream], row.place.partition, row.place.offset))
            _Rehearsal(handler, folder, call).run(rows if handler.name not in call.without else [])


class _Rehearsal:
    """One handler, and its state from row to row. The second half takes over where the first left it."""

    def __init__(self, handler: Handler, folder: Path, call: Call) -> None:
        self.handler, self.folder, self.call = handler, folder, call
        self.machine = Machine(handler)
        self.kept = folder / f"{handler.name}.{call.run}.shard"
        later = call.part == "second half"
        self.shard: Shard = pickle.loads(self.kept.read_bytes()) if later else Shard()
        self.outputs: dict[str, list[Made]] = {stream.name: [] for stream in handler.outputs}

    def run(self, rows: list[Row]) -> None:
        middle = len(rows) // 2
        mine = {"whole": rows, "first half": rows[:middle], "second half": rows[middle:]}[self.call.part]
        with trace_file(self.folder, self.call.run, self.handler.name).open("ab") as trace:
            for row in mine:
                trace.write(self._step(row))
            if self.call.part != "first half":
                for row in self._ending():
                    trace.write(self._step(row))
        self.kept.write_bytes(pickle.dumps(self.shard))
        if self.call.part == "whole":
            self._publish()

    def _publish(self) -> None:
        """Leave what was emitted for handlers that read it; but not if the log has it."""
        for stream in self.handler.outputs:
            if not rows_file(self.folder, stream.name).exists():
                made = sorted(self.outputs[stream.name], key=lambda each: each.time)
                write_made(self.folder, stream, made[: self.call.events_max])

    def _ending(self) -> Iterator[Row]:
        """Ticks up to the timers that still wait."""
        for number in range(ENDING_TICKS):
            due = self.shard.next_due()
            if due is None:
                return
            yield Row(due, Place(self.handler.inputs[0], 0, -1, number), None, None)

    def _step(self, row: Row) -> bytes:
        event = row.event
        key = event_key(event, self.handler.key_of(row.place.stream)) if event is not None else None
        given = Inputs.of([key], [event], [row.time], lambda _: row.id, lambda _: row.place)
        effects = self.machine.run(self.shard, given)
        self.shard.apply(effects.changes)
        self._remember(effects)
        return msgspec.json.encode(self._told(row, key, effects)) + b"\n"

    def _remember(self, effects: Effects) -> None:
        *outputs, failures = self.handler.outputs
        for each in effects.emitted:
            if each.output >= len(outputs):
                continue  # a row of a view: no handler reads it
            self.outputs[outputs[each.output].name].append(Made(from_micros(each.time), each.event, each.id))
        for failure in effects.failures:
            self.outputs[failures.name].append(Made(from_micros(failure.time), failure.event, failure.id))

    def _told(self, row: Row, key: str | None, effects: Effects) -> Step:
        names = [each.__name__ for each in self.handler.emits]
        return Step(
            place=row.place.path if row.place.partition >= 0 else "",
            event=_text(row.event) if row.event is not None else None,
            key=key,
            states={each: self._state(record) for each, record in sorted(effects.changes.records.items())},
            emitted=[(names[each.output], each.key, _text(each.event)) for each in effects.emitted],
            errors=[_ADDRESS.sub("0x...", each.event.error) for each in effects.failures],
            failed=row.event is not None and any(each.event.partition >= 0 for each in effects.failures),
        )

    def _state(self, record: bytes | None) -> dict[str, str] | None:
        if record is None:
            return None
        entry = self.machine.codec.decode(record)
        told = {name: _text(getattr(entry.state, name)) for name in entry.state.__struct_fields__}
        timers = {name: from_micros(due) for name, due in sorted((entry.timers or {}).items())}
        return told | ({"(timers)": _text(timers)} if timers else {})


def _text(value: Any) -> str:
    """A value as JSON. Of a long one the beginning, and a digest: two that differ are still told apart."""
    whole = msgspec.json.encode(value, enc_hook=str).decode(errors="replace")
    if len(whole) <= VALUE_CHARS_MAX:
        return whole
    digest = blake2b(whole.encode(), digest_size=8).hexdigest()
    return f"{whole[:VALUE_CHARS_MAX]}... ({len(whole):,} characters, digest {digest})"


if __name__ == "__main__":
    rehearse(msgspec.json.decode(sys.argv[1], type=Call))
