"""The geofence in pathway: `python -m bench.peer_pathway VEHICLES on|off PARTITION FOLDER` prints events a second.

One worker, the only process on its core, with the keys that one of our workers has: those of a partition. Its input
are CSV files, which its own Rust code reads and parses: the faster of two inputs that were tried (of 400,000 events
given to it one by one from Python, not all were done after a minute on a busy machine). The same function runs in a
`stateful_many` reducer, which gets all rows of a key of a commit at once, a commit a second; their order is not said,
so they are sorted. The state is a tuple, and has what was emitted in the last commit; the table of states is the
output, and goes to the null sink, which costs no Python.

With recovery on, its persistence keeps the input since the start, written once a second, and a restart runs it all
again. Time ends when the last event was run, be it durable or not. The other kind, which keeps the state of operators
and would be the match of ours, asks for a licence key.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pathway as pw
import pyarrow as pa
from pyarrow import csv

from bench.fixes import PIECE, piece
from bench.fleet import Vehicle, geofence

EVENTS = 2_000_000
WARM = 1_000_000
FILE = 200_000
COMMIT_MS = 1_000
STATE_FIELDS = len(Vehicle.__struct_fields__)


class Row(msgspec.Struct, gc=False):
    """What the function reads of an event. The time is a number here: cheaper than a datetime."""

    at: int
    vehicle: str
    lat: float
    lon: float
    speed: float


_fresh = Vehicle()
Known: Any = msgspec.defstruct(
    "Known", [(name, Any, getattr(_fresh, name)) for name in Vehicle.__struct_fields__], gc=False
)
"""The state, made of a tuple: cheaper than our own class, which takes its fields by name."""


class FixSchema(pw.Schema):
    at: int
    vehicle: str
    lat: float
    lon: float
    speed: float


class Fence:
    """The reducer. The clock starts when it has run the events of the warm-up and is given the others, and stops when
    it has run those too, so that reading and parsing them counts."""

    def __init__(self, give_rest: Callable[[], None]) -> None:
        self.give_rest = give_rest
        self.done = self.emitted = 0
        self.began = 0.0

    def reduce(self, known: tuple[Any, ...] | None, rows: list[tuple[list[Any], int]]) -> tuple[Any, ...]:
        each = Known(*known[:STATE_FIELDS]) if known is not None else Known()
        rows.sort()
        emitted: list[Any] = []
        function = geofence.function
        for values, _ in rows:
            emitted.extend(function(each, Row(*values), None))
        self.done += len(rows)
        self.emitted += len(emitted)
        if self.done >= EVENTS or (self.done >= WARM and not self.began):
            self.advance()
        crossings = tuple((crossing.vehicle, crossing.entered, crossing.at, crossing.speed) for crossing in emitted)
        return each.inside, each.fixes, each.fastest, each.distance, each.lat, each.lon, crossings

    def advance(self) -> None:
        now = time.perf_counter()
        if self.began:
            assert self.emitted > 0, "nothing was emitted"
            print((EVENTS - WARM) / (now - self.began), flush=True)
            os._exit(0)  # a stream of files has no end
        self.began = now
        self.give_rest()


def write_files(folder: Path, vehicles: int, partition: int, first: int, end: int) -> None:
    """The events from the first number to the last, in files."""
    folder.mkdir(parents=True)
    for start in range(first // PIECE, end // PIECE, FILE // PIECE):
        pieces = [piece(partition, number, vehicles) for number in range(start, start + FILE // PIECE)]
        table = pa.Table.from_batches(pieces).select(["at", "vehicle", "lat", "lon", "speed"])
        table = table.set_column(0, "at", table.column("at").cast(pa.int64()))
        csv.write_csv(table, folder / f"{start:06}.csv")


def give(rest: Path, folder: Path) -> None:
    for file in sorted(rest.iterdir()):
        file.rename(folder / file.name)


def measure(root: Path, recovery: bool) -> None:
    fence = Fence(lambda: give(root / "rest", root / "fixes"))
    fixes = pw.io.csv.read(
        str(root / "fixes"), schema=FixSchema, mode="streaming", autocommit_duration_ms=COMMIT_MS, name="fixes"
    )
    reducer = pw.reducers.stateful_many(fence.reduce)
    state = reducer(fixes.at, fixes.vehicle, fixes.lat, fixes.lon, fixes.speed)
    states = fixes.groupby(fixes.vehicle).reduce(fixes.vehicle, state=state)
    pw.io.null.write(states)
    backend = pw.persistence.Backend.filesystem(str(root / "recovery"))
    config = pw.persistence.Config(backend, snapshot_interval_ms=1_000) if recovery else None
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=config)


def main(vehicles: int, recovery: bool, partition: int, root: Path) -> None:
    """`root` is an empty folder of the caller's, who removes it: this process ends in the middle of a stream."""
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[partition]])
    root /= str(partition)
    write_files(root / "fixes", vehicles, partition, 0, WARM)
    write_files(root / "rest", vehicles, partition, WARM, EVENTS)
    measure(root, recovery)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "on", int(sys.argv[3]), Path(sys.argv[4]))
