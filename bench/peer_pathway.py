"""The geofence in pathway: `python -m bench.peer_pathway VEHICLES on|off FOLDER` prints events a second on one core.

One worker, the only process on its core, with the keys that one of our two workers has. Its input are CSV files, which
its own Rust code reads and parses: by far the fastest of its inputs that was tried (events given to it one by one from
Python came to a fiftieth). The same function runs in a `stateful_many` reducer, which gets all rows of a key of a
commit at once, a commit a second; their order is not said, so they are sorted. The state is a tuple, and has what was
emitted in the last commit; the table of states is the output, and goes to the null sink, which costs no Python.

With recovery on, its persistence keeps the input since the start, synced once a second, and a restart runs it all
again. The other kind, which keeps the state of operators and would be the match of ours, asks for a licence key.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pathway as pw
import pyarrow as pa
from pyarrow import csv

from bench.fixes import PIECE, piece
from bench.fleet import Vehicle, geofence

EVENTS = 3_000_000
WARM = 1_000_000
STEP = 20_000
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


class FixSchema(pw.Schema):
    at: int
    vehicle: str
    lat: float
    lon: float
    speed: float


class Fence:
    """The reducer, and how many events it had run at some moments."""

    def __init__(self) -> None:
        self.done = self.emitted = 0
        self.steps: list[tuple[float, int]] = [(0.0, 0)]

    def reduce(self, known: tuple[Any, ...] | None, rows: list[tuple[list[Any], int]]) -> tuple[Any, ...]:
        each = Vehicle(*known[:STATE_FIELDS]) if known is not None else Vehicle()
        rows.sort()
        emitted: list[Any] = []
        function = geofence.function
        for values, _ in rows:
            emitted.extend(function(each, Row(*values), None))
        self.done += len(rows)
        self.emitted += len(emitted)
        if self.done >= min(EVENTS, self.steps[-1][1] + STEP):
            self.note()
        crossings = tuple((crossing.vehicle, crossing.entered, crossing.at, crossing.speed) for crossing in emitted)
        return each.inside, each.fixes, each.fastest, each.distance, each.lat, each.lon, crossings

    def note(self) -> None:
        self.steps.append((time.perf_counter(), self.done))
        if self.done >= EVENTS:
            print(self.rate(), flush=True)
            os._exit(0)  # a stream of files has no end

    def rate(self) -> float:
        assert self.emitted > 0, "nothing was emitted"
        began, before = next(step for step in self.steps if step[1] >= WARM)
        ended, after = self.steps[-1]
        return (after - before) / (ended - began)


def write_files(folder: Path, vehicles: int) -> None:
    folder.mkdir()
    for first in range(0, EVENTS // PIECE, FILE // PIECE):
        pieces = [piece(0, number, vehicles) for number in range(first, first + FILE // PIECE)]
        table = pa.Table.from_batches(pieces).select(["at", "vehicle", "lat", "lon", "speed"])
        table = table.set_column(0, "at", table.column("at").cast(pa.int64()))
        csv.write_csv(table, folder / f"{first:06}.csv")


def measure(root: Path, recovery: bool) -> None:
    fence = Fence()
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


def main(vehicles: int, recovery: bool, root: Path) -> None:
    """`root` is an empty folder of the caller's, who removes it: this process ends in the middle of a stream."""
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    write_files(root / "fixes", vehicles)
    measure(root, recovery)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "on", Path(sys.argv[3]))
