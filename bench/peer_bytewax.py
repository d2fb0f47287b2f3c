"""The geofence in bytewax: `python -m bench.peer_bytewax VEHICLES on|off PARTITION [LOG]` prints events per second.

There is one worker, which is the only process on its core and has the same keys as one of our workers: the keys of one
partition. It calls the same function in a `stateful_batch`, an operator that passes all values for a key in a batch at
once, which is faster than one call per value. The input consists of (key, event) pairs, so no step is needed to find
the key, in batches of 100,000, the fastest of three sizes that we tried. The events are Python objects that are created
before the clock starts. With LOG, the folder of our streams, the events are read from there and created as they are
needed, as in Penstock. The output is counted and discarded. With recovery on, the state of changed keys is written to a
SQLite store once a second.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main

from bench.fixes import PIECE, piece
from bench.fleet import Crossing, Fix, Vehicle, geofence
from penstock.handlers.rows import to_events
from penstock.queue import EmbeddedLogOpener

EVENTS = 500_000
"""The number of distinct events. They are repeated until the time is up."""
BATCH = 100_000
WARM_S = 2.0
SECONDS = 10.0
EPOCH = timedelta(seconds=1)

Pair = tuple[str, Fix]
Batches = Callable[[int], list[Pair]]


def from_memory(vehicles: int, partition: int) -> Batches:
    """Return a function that yields batches of existing events."""
    batches = [
        [
            (event.vehicle, event)
            for number in range(first, first + BATCH // PIECE)
            for event in to_events(Fix, piece(partition, number, vehicles))
        ]
        for first in range(0, EVENTS // PIECE, BATCH // PIECE)
    ]
    return lambda number: batches[number % len(batches)]


def from_log(folder: Path, partition: int) -> Batches:
    """Return a function that reads a batch from a partition of our log each time it is called."""
    log = EmbeddedLogOpener(folder)()
    turns = log.ends("fixes")[partition] // BATCH

    def batch(number: int) -> list[Pair]:
        first = number % turns * BATCH
        read = log.read("fixes", partition, first, first + BATCH)
        return [(event.vehicle, event) for record_batch in read for event in to_events(Fix, record_batch)]

    return batch


class Feed(StatefulSourcePartition[Pair, int]):
    """Returns batches until the time is up; records when the first one after the warm-up was requested."""

    def __init__(self, batches: Batches, number: int) -> None:
        self.batches, self.number = batches, number
        self.began = self.counted_from = 0.0
        self.counted = 0

    def next_batch(self) -> Iterable[Pair]:
        now = time.perf_counter()
        self.began = self.began or now
        if now > self.began + WARM_S:
            self.counted_from = self.counted_from or now
            if now > self.counted_from + SECONDS:
                raise StopIteration
            self.counted += BATCH
        self.number += 1
        return self.batches(self.number - 1)

    def snapshot(self) -> int:
        return self.number


class Source(FixedPartitionedSource[Pair, int]):
    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.feed: Feed | None = None

    def list_parts(self) -> list[str]:
        return ["0"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Feed:
        self.feed = Feed(self.batches, resume_state or 0)
        return self.feed


class Fence(op.StatefulBatchLogic[Fix, Crossing, tuple[Any, ...]]):
    """The state of one vehicle. A snapshot is a tuple, because it can be pickled faster than an object."""

    __slots__ = ("vehicle",)

    def __init__(self, known: tuple[Any, ...] | None) -> None:
        fields = {} if known is None else dict(zip(Vehicle.__struct_fields__, known, strict=True))
        self.vehicle = Vehicle(**fields)

    def on_batch(self, values: list[Fix]) -> tuple[Iterable[Crossing], bool]:
        emitted: list[Crossing] = []
        vehicle, function = self.vehicle, geofence.function
        for fix in values:
            emitted.extend(function(vehicle, fix, None))
        return emitted, False

    def snapshot(self) -> tuple[Any, ...]:
        vehicle = self.vehicle
        return vehicle.inside, vehicle.fixes, vehicle.fastest, vehicle.distance, vehicle.lat, vehicle.lon


class Counter(StatelessSinkPartition[Any]):
    def __init__(self) -> None:
        self.count = 0

    def write_batch(self, items: list[Any]) -> None:
        self.count += len(items)


class Sink(DynamicSink[Any]):
    def __init__(self) -> None:
        self.counter = Counter()

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Counter:
        return self.counter


def measure(batches: Batches, recovery: RecoveryConfig | None) -> float:
    """Return events per second, measured until all input has been processed and, if recovery is on, is durable."""
    source, sink = Source(batches), Sink()
    flow = Dataflow("fleet")
    crossings = op.stateful_batch("geofence", op.input("fixes", flow, source), Fence)
    op.output("crossings", crossings, sink)
    run_main(flow, epoch_interval=EPOCH, recovery_config=recovery)
    ended = time.perf_counter()
    assert source.feed is not None
    assert sink.counter.count > 0, "nothing was emitted"
    return source.feed.counted / (ended - source.feed.counted_from)


def main(vehicles: int, recovery: bool, partition: int, log: Path | None) -> None:
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[partition]])
    batches = from_log(log, partition) if log is not None else from_memory(vehicles, partition)
    gc.collect()
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        if recovery:
            init_db_dir(Path(folder), 1)
        print(measure(batches, RecoveryConfig(folder) if recovery else None))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "on", int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
