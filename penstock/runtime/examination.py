"""Check that handlers are deterministic: run them twice on the same events, in processes that differ in everything that
must not affect the result.

The first process runs all events. The second process runs the first half of the events, and a third runs the rest. As
in a restart, everything that a handler keeps outside its state is lost in between. Each process has its own hash seed,
so the items of a set are in a different order. The two runs use different working directories, start at different
times, and use time zones so far apart that the date differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from penstock.app.app import App
from penstock.app.declared import Handler, Stream
from penstock.core.columns import text_of
from penstock.core.contracts import LogReader
from penstock.core.errors import DeclarationError, HandlerError, NotFound
from penstock.core.schema import OFFSET_COLUMN, event_schema
from penstock.handlers.batches import batch_stop, inputs
from penstock.handlers.determinism import NOT_RUN, DeterminismResult, compare
from penstock.handlers.rehearsal import SampleRow
from penstock.handlers.rows import LogPosition
from penstock.handlers.samples import samples
from penstock.runtime.events import open_log
from penstock.runtime.opening import open_storage
from penstock.runtime.rehearsing import (
    Part,
    RehearsalCall,
    rows_file,
    trace_file,
    view_rows,
    write_rows,
    write_sample_rows,
)

RUNS: tuple[tuple[str, Part, str, str], ...] = (
    ("one", "whole", "1", "AAA12"),
    ("two", "first half", "2", "BBB-14"),
    ("two", "second half", "3", "BBB-14"),
)
"""The processes, each with its run, part, hash seed and time zone. The time zones of the two runs are 26 hours
apart."""
RUN_S_MAX = 900


def examine(
    app: App, target: str, data: Path | None, events_max: int, without: frozenset[str] = frozenset()
) -> list[DeterminismResult]:
    """Run the handlers of an app twice, except the handlers in `without`. They run on generated events, or on the first
    events of each stream in the data directory `data`, which is only read. The app must be free of problems."""
    with TemporaryDirectory(prefix="penstock-") as name:
        folder = Path(name)
        if data is None:
            _generate_examined_rows(app, folder, events_max)
        else:
            _copy_examined_rows(app, data, folder, events_max, without)
        for run, part, seed, zone in RUNS:
            (folder / run).mkdir(exist_ok=True)
            call = RehearsalCall(str(Path(target).absolute()), name, run, part, events_max, without)
            run_apart("penstock.runtime.rehearsing", msgspec.json.encode(call).decode(), seed, zone)
        kinds = dict.fromkeys((handler.name for handler in app.handlers), "generated" if data is None else "recorded")
        kinds |= dict.fromkeys(without, NOT_RUN)
        return [_compare_traces(handler, folder, kinds[handler.name]) for handler in app.handlers]


def _examined_streams(app: App, streams: Sequence[Stream]) -> list[Stream]:
    """Return the streams that a handler reads."""
    names = {name for handler in app.handlers for name in handler.reads}
    return [stream for stream in streams if stream.name in names]


def _examined_changes(app: App) -> list[tuple[Stream, str | None]]:
    """Return the changes of views as handlers read them, each with the name that the handler uses."""
    return [
        (stream, name)
        for handler in app.handlers
        for stream in inputs(app, handler).values()
        if (name := view_rows(handler, stream)) is not None
    ]


def _generate_examined_rows(app: App, folder: Path, count: int) -> None:
    """Generate the rows of each stream for the rehearsal, and write them. The first run writes the streams that
    handlers fill."""
    for stream, name in [*((stream, None) for stream in _examined_streams(app, app.streams)), *_examined_changes(app)]:
        identity = stream.event.__id_field__
        rows = []
        for time, event in samples(app, stream, count):
            known = text_of(getattr(event, identity)) if event is not None and identity is not None else None
            rows.append(SampleRow(time, event, known))
        write_sample_rows(folder, stream, rows, name)


def _copy_examined_rows(app: App, data: Path, folder: Path, count: int, without: frozenset[str]) -> None:
    """Copy the first rows of each stream of a data directory, including streams that handlers fill. If such a stream
    does not exist, the handler's output in the first run replaces it. Streams in `without` are not read and are treated
    as empty."""
    log = open_log(app, open_storage(data))
    try:
        streams = [
            (stream, None)
            for stream in _examined_streams(app, (*app.streams, *app.outputs))
            if stream.name not in without
        ]
        results = [
            _copy_examined_stream(log, stream, folder, count, name)
            for stream, name in (*streams, *_examined_changes(app))
        ]
    finally:
        log.close()
    if not any(results):
        raise DeclarationError(f"{data} has no events for the app {app.name}; omit --data to generate events")
    for stream, name in [*((stream, None) for stream in _examined_streams(app, app.streams)), *_examined_changes(app)]:
        if not rows_file(folder, name or stream.name).exists():
            write_sample_rows(folder, stream, [], name)


def _copy_examined_stream(log: LogReader, stream: Stream, folder: Path, count: int, name: str | None = None) -> bool:
    """Copy the first rows of a stream, and return whether there were any."""
    try:
        starts = log.starts(stream.name)
        ends = batch_stop(log, stream.name, starts, log.ends(stream.name), count)
    except NotFound:
        return False
    schema, generation = event_schema(stream.event), log.generation(stream.name)
    batches, positions = [], []
    for partition, end in ends.items():
        for batch in log.read(stream.name, partition, starts[partition], end):
            _require_logged_fields(stream, set(schema.names) - set(batch.schema.names))
            batches.append(batch.select(schema.names).cast(schema))
            offsets = batch.column(OFFSET_COLUMN).to_pylist()
            positions += [LogPosition(stream.name, generation, partition, offset) for offset in offsets]
    if batches:
        write_rows(folder, stream, batches, positions, name)
    return bool(batches)


def _require_logged_fields(stream: Stream, missing: set[str]) -> None:
    if missing:
        names = ", ".join(sorted(missing))
        raise DeclarationError(
            f"{stream.where}: stream {stream.name}: {names} is not in the log; omit --data to generate events"
        )


def run_apart(module: str, call: str, seed: str, zone: str) -> None:
    """Run a check's module in its own process until it ends. The output of handlers is discarded."""
    command = [sys.executable, "-m", module, call]
    environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=RUN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HandlerError(f"the handlers did not finish within {RUN_S_MAX} s: pass a lower --events") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HandlerError(f"the process that ran the handlers ended with status {done.returncode}: {last}")


def _compare_traces(handler: Handler, folder: Path, kind: str) -> DeterminismResult:
    one, two = (trace_file(folder, run, handler.name) for run in ("one", "two"))
    with one.open("rb") as mine, two.open("rb") as other:
        return compare(handler, kind, mine, other)
