"""Whether `migrate` does the same twice: stored events and state of an earlier version, brought to the newest one in
processes that differ in all that must not matter (see `determinism.py`, which has them).

What is compared is what is read: `python -m penstock.runtime.migrations CALL` writes a line for each event or key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from penstock.analyze.batches import advance
from penstock.app import App
from penstock.columns import event_rows
from penstock.declared import Handler, Stream, Where
from penstock.errors import NotFound
from penstock.evolution import Carrier, misfit, shape_of
from penstock.queue import EmbeddedLog
from penstock.runtime.determinism import RUNS, both, run_apart
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import event_streams, open_log
from penstock.runtime.loading import load
from penstock.runtime.rehearsal import Part
from penstock.runtime.states import ShardOpener
from penstock.schema import KIND_EVENT, migrate_of
from penstock.store import read_handled

MODULE = "penstock.runtime.migrations"
Range = tuple[int, int, int]
"""A partition, and the offsets [start, end) of it."""


class MigrationCall(msgspec.Struct, frozen=True):
    """What a process is to do: read a part of these ranges of streams, and carry over the state of these handlers."""

    target: str
    data: str
    folder: str
    run: str
    part: Part
    streams: Mapping[str, Sequence[Range]]
    handlers: Sequence[str]


class Migrated(NamedTuple):
    """What two runs of one `migrate` came to: over so many events, or keys; and the first difference, if any."""

    where: Where
    name: str
    values: int
    difference: str | None = None

    def __str__(self) -> str:
        if self.difference is not None:
            return f"{self.where}: {self.name}: {self.difference}"
        if not self.values:
            return f"{self.name}: migrate NOT TESTED: it takes stored data of an earlier version, and --data to find it"
        return f"{self.name}: migrate over {self.values:,} stored values, twice, no difference"


def examine_migrations(
    app: App, target: str, data: Path | None, events_max: int, without: frozenset[str] = frozenset()
) -> list[Migrated]:
    """Run each `migrate` of an app twice, but for those of the streams and handlers of `without`, on what a data
    directory has for it. The directory is only read."""
    streams = [each for each in event_streams(app) if migrate_of(each.event) and each.name not in without]
    handlers = [each for each in app.handlers if migrate_of(each.state) and each.name not in without]
    with TemporaryDirectory(prefix="penstock-") as folder:
        if data is not None and (streams or handlers):
            directory = DataDirectory(data.resolve())
            log = open_log(app, directory)
            ranges = {each.name: _ranges(log, each, events_max) for each in streams}
            log.close()
            names = [each.name for each in handlers if _is_older(each, directory)]
            for run, part, seed, zone in RUNS:
                (Path(folder) / run).mkdir(exist_ok=True)
                call = MigrationCall(
                    str(Path(target).absolute()), str(directory.root), folder, run, part, ranges, names
                )
                run_apart(MODULE, msgspec.json.encode(call).decode(), seed, zone)
        found = [(each.where, f"stream {each.name}") for each in streams]
        found += [(each.where, f"handler {each.name}") for each in handlers]
        return [_compared(Path(folder), where, name) for where, name in found]


def _ranges(log: EmbeddedLog, stream: Stream, count: int) -> list[Range]:
    """The first events of a stream, if some may be of an earlier version."""
    try:
        starts, ends = log.starts(stream.name), log.ends(stream.name)
    except NotFound:
        return []
    if not log.is_evolved(stream.name):
        return []
    return [(each, starts[each], end) for each, end in advance(starts, ends, count).items()]


def _is_older(handler: Handler, directory: DataDirectory) -> bool:
    handled = read_handled(directory.handler_ledger(handler.name))
    older = handled is not None and handled.shape != shape_of(handler.state)
    return older and handled is not None and misfit(handled.shape, handler.state) is None


def _trace(folder: Path, run: str, name: str) -> Path:
    return folder / f"{name}.{run}.migrated"


def _compared(folder: Path, where: Where, name: str) -> Migrated:
    one, two = (_values(_trace(folder, run, name)) for run in ("one", "two"))
    for place in one | two:
        if one.get(place) != two.get(place):
            told = both(one.get(place), two.get(place))
            return Migrated(where, name, len(one), f"two runs of migrate differ for {place}: {told}")
    return Migrated(where, name, len(one))


def _values(file: Path) -> dict[str, str]:
    """What a run has written down, by the place of each event, or by key."""
    if not file.exists():
        return {}
    parts = (line.partition("\t") for line in file.read_text().splitlines())
    return {place: value for place, _, value in parts}


def migrate(call: MigrationCall) -> None:
    """Read a part of what there is, and write it down."""
    app, directory, folder = load(call.target).app, DataDirectory(Path(call.data)), Path(call.folder)
    os.chdir(folder / call.run)  # only now: an app may find its files from where it is started
    log = open_log(app, directory)
    for stream, ranges in call.streams.items():
        _write(
            call, f"stream {stream}", (line for each in ranges for line in _events(log, stream, _part(each, call.part)))
        )
    log.close()
    for handler in app.handlers:
        if handler.name in call.handlers and call.part != "first half":
            _write(call, f"handler {handler.name}", _keys(handler, directory))


def _write(call: MigrationCall, name: str, lines: Iterator[str]) -> None:
    with _trace(Path(call.folder), call.run, name).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def _part(range: Range, part: Part) -> Range:
    partition, start, end = range
    middle = (start + end) // 2
    return {"whole": range, "first half": (partition, start, middle), "second half": (partition, middle, end)}[part]


def _events(log: EmbeddedLog, stream: str, range: Range) -> Iterator[str]:
    partition, at, end = range
    for batch in log.read(stream, partition, at, end):
        rows = iter(event_rows(batch))
        for number, kind in enumerate(batch.column("_kind").to_pylist(), at):
            if kind == KIND_EVENT:
                yield f"{stream}/{partition}/{number}\t{next(rows).decode()}"
        at += batch.num_rows


def _keys(handler: Handler, directory: DataDirectory) -> Iterator[str]:
    handled = read_handled(directory.handler_ledger(handler.name))
    assert handled is not None
    carrier, files = Carrier(handler.state, handled.shape), ShardOpener(directory, handler.name)
    for number, known in sorted(handled.shards.items()):
        shard = carrier.shard(files(handled.generation, number).load(known.version))
        yield from (f"{key!r}\t{record.hex()}" for key, record in sorted(shard.records.items()))


if __name__ == "__main__":
    migrate(msgspec.json.decode(sys.argv[1], type=MigrationCall))
