"""The geofence in bytewax: `python -m bench.peer_bytewax VEHICLES on|off PARTITION [LOG]` prints events a second.

One worker, the only process on its core, with the keys that one of our workers has: those of a partition. It calls the
same function, in a `stateful_batch`: the operator that hands a key all its values of a batch at once, which is faster
than one call a value. Its input are (key, event) pairs, so that no step is needed to find the key, in batches of
100,000, the fastest size of three that were tried. The events are Python objects that were made before the clock runs;
with LOG, the folder of our streams, they are read from there and made as they are needed, as ours are. What comes out
is counted and dropped. With recovery on, the state of the keys that changed goes to a SQLite store once a second.
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
from penstock.queue import EmbeddedLogOpener
from penstock.rows import to_events

EVENTS = 500_000
"""Distinct events: they come again and again, as often as there is time for."""
BATCH = 100_000
WARM_S = 2.0
SECONDS = 10.0
EPOCH = timedelta(seconds=1)

Pair = tuple[str, Fix]
Batches = Callable[[int], list[Pair]]


def from_memory(vehicles: int, partition: int) -> Batches:
    """Batches of events that exist already."""
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
    """Batches of events that are read from a partition of our log, and made, at each call."""
    log = EmbeddedLogOpener(folder)()
    turns = log.ends("fixes")[partition] // BATCH

    def batch(number: int) -> list[Pair]:
        first = number % turns * BATCH
        read = log.read("fixes", partition, first, first + BATCH)
        return [(event.vehicle, event) for each in read for event in to_events(Fix, each)]

    return batch


class Feed(StatefulSourcePartition[Pair, int]):
    """Gives batches until the time is up; keeps when the first one after the warm-up was asked for."""

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
    """The state of one vehicle. A snapshot is a tuple, which is pickled faster than an object."""

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
        each = self.vehicle
        return each.inside, each.fixes, each.fastest, each.distance, each.lat, each.lon


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
    """Time runs until everything that was given is done, and durable if recovery is on."""
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
