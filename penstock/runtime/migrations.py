"""Check that `migrate` is deterministic: migrate stored events and state from earlier versions to the newest version,
twice. The two runs are in processes that differ in everything that must not affect the result (listed in
`examination.py`).

The migrated values are compared: `python -m penstock.runtime.migrations CALL` writes a line for each event or key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from penstock.app.app import App
from penstock.app.declared import Handler, Stream, Where
from penstock.app.loading import load
from penstock.core.columns import event_rows
from penstock.core.errors import NotFound
from penstock.core.schema import KIND_EVENT, OFFSET_COLUMN, migrate_of
from penstock.core.shapes import shape_of
from penstock.handlers.batches import batch_stop
from penstock.handlers.determinism import both
from penstock.handlers.evolution import Carrier, misfit
from penstock.runtime.events import event_streams, open_log
from penstock.runtime.examination import RUNS, run_apart
from penstock.runtime.opening import open_storage
from penstock.runtime.rehearsing import Part
from penstock.runtime.storage import Storage, StoredLogReader

MODULE = "penstock.runtime.migrations"
Range = tuple[int, int, int]
"""A partition, and the range [start, end) of its offsets."""


class MigrationCall(msgspec.Struct, frozen=True):
    """The task for one process: read a part of these stream ranges, and migrate the state of these handlers."""

    target: str
    data: str
    folder: str
    run: str
    part: Part
    streams: Mapping[str, Sequence[Range]]
    handlers: Sequence[str]


class Migrated(NamedTuple):
    """The result of running one `migrate` twice: the number of events or keys, and the first difference, if any."""

    where: Where
    name: str
    values: int
    difference: str | None = None

    def __str__(self) -> str:
        if self.difference is not None:
            return f"{self.where}: {self.name}: {self.difference}"
        if not self.values:
            needed = "there is no data from an earlier version; pass a data directory that has some with --data"
            return f"{self.name}: migrate NOT TESTED: {needed}"
        return f"{self.name}: ran migrate twice on {self.values:,} stored values, no difference"


def examine_migrations(
    app: App, target: str, data: Path | None, events_max: int, without: frozenset[str] = frozenset()
) -> list[Migrated]:
    """Run each `migrate` of an app twice on the stored data that it applies to, except for the streams and handlers in
    `without`. The data directory is only read."""
    streams = [stream for stream in event_streams(app) if migrate_of(stream.event) and stream.name not in without]
    handlers = [handler for handler in app.handlers if migrate_of(handler.state) and handler.name not in without]
    with TemporaryDirectory(prefix="penstock-") as folder:
        if data is not None and (streams or handlers):
            storage = open_storage(data.resolve())
            log = open_log(app, storage)
            ranges = {stream.name: _migrated_ranges(log, stream, events_max) for stream in streams}
            log.close()
            names = [handler.name for handler in handlers if _has_older_state(handler, storage)]
            for run, part, seed, zone in RUNS:
                (Path(folder) / run).mkdir(exist_ok=True)
                call = MigrationCall(str(Path(target).absolute()), storage.location, folder, run, part, ranges, names)
                run_apart(MODULE, msgspec.json.encode(call).decode(), seed, zone)
        declarations = [(stream.where, f"stream {stream.name}") for stream in streams]
        declarations += [(handler.where, f"handler {handler.name}") for handler in handlers]
        return [_compare_migrations(Path(folder), where, name) for where, name in declarations]


def _migrated_ranges(log: StoredLogReader, stream: Stream, count: int) -> list[Range]:
    """Return the ranges of a stream's first events. The result is empty if no event can be from an earlier version."""
    try:
        starts, ends = log.starts(stream.name), log.ends(stream.name)
    except NotFound:
        return []
    if not log.is_evolved(stream.name):
        return []
    return [
        (partition, starts[partition], end)
        for partition, end in batch_stop(log, stream.name, starts, ends, count).items()
    ]


def _has_older_state(handler: Handler, storage: Storage) -> bool:
    handled = storage.handled(handler.name)
    older = handled is not None and handled.shape != shape_of(handler.state)
    return older and handled is not None and misfit(handled.shape, handler.state) is None


def _migration_trace(folder: Path, run: str, name: str) -> Path:
    return folder / f"{name}.{run}.migrated"


def _compare_migrations(folder: Path, where: Where, name: str) -> Migrated:
    one, two = (_migrated_values(_migration_trace(folder, run, name)) for run in ("one", "two"))
    for place in one | two:
        if one.get(place) != two.get(place):
            difference = both(one.get(place), two.get(place))
            return Migrated(where, name, len(one), f"two runs of migrate differ for {place}: {difference}")
    return Migrated(where, name, len(one))


def _migrated_values(file: Path) -> dict[str, str]:
    """Return the migrated values that a run has written, by the position of each event, or by key."""
    if not file.exists():
        return {}
    parts = (line.partition("\t") for line in file.read_text().splitlines())
    return {place: value for place, _, value in parts}


def migrate(call: MigrationCall) -> None:
    """Migrate the part of the data that this process is responsible for, and write the results."""
    app, storage, folder = load(call.target).app, open_storage(call.data), Path(call.folder)
    os.chdir(folder / call.run)  # not earlier: the app may load files relative to the previous folder
    log = open_log(app, storage)
    for stream, ranges in call.streams.items():
        _write_migrated_lines(
            call,
            f"stream {stream}",
            (
                line
                for offset_range in ranges
                for line in _migrated_event_lines(log, stream, _part_of_range(offset_range, call.part))
            ),
        )
    log.close()
    for handler in app.handlers:
        if handler.name in call.handlers and call.part != "first half":
            _write_migrated_lines(call, f"handler {handler.name}", _migrated_state_lines(handler, storage))


def _write_migrated_lines(call: MigrationCall, name: str, lines: Iterator[str]) -> None:
    with _migration_trace(Path(call.folder), call.run, name).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def _part_of_range(range: Range, part: Part) -> Range:
    partition, start, end = range
    middle = (start + end) // 2
    return {"whole": range, "first half": (partition, start, middle), "second half": (partition, middle, end)}[part]


def _migrated_event_lines(log: StoredLogReader, stream: str, range: Range) -> Iterator[str]:
    partition, at, end = range
    for batch in log.read(stream, partition, at, end):
        rows, offsets = iter(event_rows(batch)), batch.column(OFFSET_COLUMN).to_pylist()
        for kind, offset in zip(batch.column("_kind").to_pylist(), offsets, strict=True):
            if kind == KIND_EVENT:
                yield f"{stream}/{partition}/{offset}\t{next(rows).decode()}"


def _migrated_state_lines(handler: Handler, storage: Storage) -> Iterator[str]:
    handled = storage.handled(handler.name)
    assert handled is not None
    carrier = Carrier(handler.state, handled.shape)
    for number, known in sorted(handled.shards.items()):
        shard = carrier.shard(storage.shard(handler.name, handled.generation, number).load(known.version))
        yield from (f"{key!r}\t{record.hex()}" for key, record in sorted(shard.records.items()))


if __name__ == "__main__":
    migrate(msgspec.json.decode(sys.argv[1], type=MigrationCall))
