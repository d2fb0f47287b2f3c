"""The time to load the state of a million keys from files into the memory of a new process.

The handler has run five batches, each of which changed almost every key. That leaves the maximum amount that a restore
ever has to read, which is a snapshot and four deltas of the same size; the next batch would write a new snapshot. The
time is measured from the start of the processes until the last of them has loaded its shards and checked them against
the ledger. The files are in the system's cache, as they would be after a process crash. First one process loads all
shards, and then there is one process per shard, as with workers.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.fixes import PARTITIONS
from bench.fleet import app, geofence
from bench.report import Figure
from penstock.core.contracts import LedgerEntry
from penstock.core.cursor import source_positions
from penstock.core.settings import Settings
from penstock.handlers.contracts import HandledShard
from penstock.handlers.shard import HASH_BYTES, NO_VERSION, Shard
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.handler import ShardOpener, opened_here
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.store import Done, read_handled

VEHICLES = 1_000_000
BATCHES = 5
BAR = "< 10 s"


def run() -> Iterator[Figure]:
    from bench.handlers import filled  # not in the processes that are measured

    with filled(VEHICLES, VEHICLES * BATCHES) as directory:
        run_batches(directory)
        every = list(range(PARTITIONS))
        name = f"restore: {VEHICLES:,} keys"
        yield Figure(f"{name}, one process", measure(directory, [every]), "s", bar=BAR)
        yield Figure(f"{name}, {PARTITIONS} processes", measure(directory, [[shard] for shard in every]), "s", bar=BAR)


def run_batches(directory: DataDirectory) -> None:
    """Do the work of Spark's workers and the driver for batches of this size, one shard after another."""
    from penstock.handlers.worker import HandlerWorker, Report, ShardWork
    from penstock.runtime.handlers import open_handler, plan

    storage, settings = EmbeddedStorage(directory), Settings(partitions=PARTITIONS)
    handler_plan = plan(app, geofence, str(Path(__file__).parent / "fleet.py"), storage, settings)
    worker = HandlerWorker(handler_plan)
    log = storage.log(disk_reserve_bytes=0)
    ledger = opened_here(open_handler(geofence, handler_plan, storage, log)).ledger
    origin = source_positions(ledger.state.origin)
    for number in range(BATCHES):
        start, end = ledger.state.end, _end(number)
        shards = {}
        for shard in range(PARTITIONS):
            known = ledger.state.shards.get(shard, HandledShard.of(Shard(), NO_VERSION))
            positions = (origin, source_positions(start), source_positions(end))
            *_, (_, report) = worker.run(ShardWork(shard, 0, known.version, known.digest, number, *positions))
            state = msgspec.msgpack.decode(report, type=Report).state
            assert state is not None
            shards[shard] = state
        ledger.commit(LedgerEntry(number, start, end, 1), Done(0, end), shards, 0, 0)
    ledger.close()


def _end(number: int) -> str:
    rows = VEHICLES // PARTITIONS * (number + 1)
    return json.dumps([{f"fixes/{partition}": rows for partition in range(PARTITIONS)}])


def measure(directory: DataDirectory, spread: list[list[int]]) -> float:
    """Return the number of seconds until every process has loaded its shards."""
    command = [sys.executable, "-m", "bench.restore", str(directory.root)]
    began = time.perf_counter()
    running = [subprocess.Popen([*command, *map(str, shards)], stdout=subprocess.PIPE, text=True) for shards in spread]
    counts = [int(process.stdout.readline()) for process in running if process.stdout is not None]
    ended = time.perf_counter()
    assert sum(counts) == VEHICLES, counts
    for process in running:
        process.communicate()
    return ended - began


def load(directory: DataDirectory, shards: list[int]) -> int:
    """Load shards as a worker would, with the cyclic garbage collector turned off, and return the number of keys."""
    gc.disable()
    handled = read_handled(directory.handler_ledger(geofence.name))
    assert handled is not None
    keys = 0
    held = []
    for number in shards:
        known = handled.shards[number]
        shard = ShardOpener(directory, geofence.name)(handled.generation, number).load(known.version)
        assert shard.digest.to_bytes(HASH_BYTES, "little") == known.digest
        keys += len(shard.records)
        held.append(shard)
    return keys


if __name__ == "__main__":
    print(load(DataDirectory(Path(sys.argv[1])), [int(shard) for shard in sys.argv[2:]]), flush=True)
