"""The geofence in pathway: `python -m bench.peer_pathway VEHICLES on|off PARTITION FOLDER` prints events per second.

There is one worker, which is the only process on its core and has the same keys as one of our workers: the keys of one
partition. The input consists of CSV files, which pathway's Rust code reads and parses. This was the faster of two kinds
of input that we tried; the other was to pass events from Python one by one, and on a busy machine some of 400,000
events were still pending after a minute. The same function runs in a `stateful_many` reducer, which gets all rows for a
key in a commit at once, with one commit per second. Their order is not specified, so they are sorted. The state is a
tuple, which includes the output of the last commit. The table of states is the output, and goes to the null sink, which
runs no Python code.

With recovery on, pathway stores all input since the start, written once a second, and processes all of it again after a
restart. The clock stops when the last event has been processed, whether it is durable or not. The other persistence
mode stores the state of operators and would be comparable to ours, but requires a licence key.
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
    """The event fields that the function reads. The time is a number here, because that is cheaper than a datetime."""

    at: int
    vehicle: str
    lat: float
    lon: float
    speed: float


_fresh = Vehicle()
Known: Any = msgspec.defstruct(
    "Known", [(name, Any, getattr(_fresh, name)) for name in Vehicle.__struct_fields__], gc=False
)
"""The state, created from a tuple. This is cheaper than our own class, whose fields are passed by name."""


class FixSchema(pw.Schema):
    at: int
    vehicle: str
    lat: float
    lon: float
    speed: float


class Fence:
    """The reducer. The clock starts after the warm-up, when the reducer receives the remaining events, and stops when
    it has processed them, so that the time to read and parse them counts."""

    def __init__(self, give_rest: Callable[[], None]) -> None:
        self.give_rest = give_rest
        self.done = self.emitted = 0
        self.began = 0.0

    def reduce(self, known: tuple[Any, ...] | None, rows: list[tuple[list[Any], int]]) -> tuple[Any, ...]:
        vehicle = Known(*known[:STATE_FIELDS]) if known is not None else Known()
        rows.sort()
        emitted: list[Any] = []
        function = geofence.function
        for values, _ in rows:
            emitted.extend(function(vehicle, Row(*values), None))
        self.done += len(rows)
        self.emitted += len(emitted)
        if self.done >= EVENTS or (self.done >= WARM and not self.began):
            self.advance()
        crossings = tuple((crossing.vehicle, crossing.entered, crossing.at, crossing.speed) for crossing in emitted)
        return vehicle.inside, vehicle.fixes, vehicle.fastest, vehicle.distance, vehicle.lat, vehicle.lon, crossings

    def advance(self) -> None:
        now = time.perf_counter()
        if self.began:
            assert self.emitted > 0, "nothing was emitted"
            print((EVENTS - WARM) / (now - self.began), flush=True)
            os._exit(0)  # a stream of files has no end
        self.began = now
        self.give_rest()


def write_files(folder: Path, vehicles: int, partition: int, first: int, end: int) -> None:
    """Write the events from the first number to the last to files."""
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
    """Run the benchmark. `root` is an empty folder, which the caller removes: this process ends in the middle of a
    stream."""
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[partition]])
    root /= str(partition)
    write_files(root / "fixes", vehicles, partition, 0, WARM)
    write_files(root / "rest", vehicles, partition, WARM, EVENTS)
    measure(root, recovery)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "on", int(sys.argv[3]), Path(sys.argv[4]))
