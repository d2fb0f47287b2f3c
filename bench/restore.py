"""From the files of a million keys' state to that state in the memory of a new process.

The handler has run five batches, each of which touched about every key. That is the most that is ever read: a snapshot
and four deltas of its size; with the next batch a new snapshot is due. Time runs from the start of the processes to the
moment that the last has its shards, checked against the ledger; the files are in the system's cache, as they are after
a crash of a process. First one process for all shards, then one for each, as workers take them.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.fixes import PARTITIONS
from bench.fleet import geofence
from bench.report import Figure
from penstock.runtime.directory import DataDirectory
from penstock.runtime.states import ShardOpener
from penstock.shard import HASH_BYTES
from penstock.store import read_handled

VEHICLES = 1_000_000
BATCHES = 5
BAR = "< 10 s"


def run() -> Iterator[Figure]:
    from bench.handlers import BATCH, filled, measure_ours, session  # not in the processes that are measured

    with filled(VEHICLES, BATCH * BATCHES) as directory:
        with session(directory) as spark:
            measure_ours(spark, directory)
        every = list(range(PARTITIONS))
        name = f"restore: {VEHICLES:,} keys"
        yield Figure(f"{name}, one process", measure(directory, [every]), "s", bar=BAR)
        yield Figure(f"{name}, {PARTITIONS} processes", measure(directory, [[each] for each in every]), "s", bar=BAR)


def measure(directory: DataDirectory, spread: list[list[int]]) -> float:
    """Seconds until every process has the shards that it is given."""
    command = [sys.executable, "-m", "bench.restore", str(directory.root)]
    began = time.perf_counter()
    running = [subprocess.Popen([*command, *map(str, shards)], stdout=subprocess.PIPE, text=True) for shards in spread]
    told = [int(each.stdout.readline()) for each in running if each.stdout is not None]
    ended = time.perf_counter()
    assert sum(told) == VEHICLES, told
    for each in running:
        each.communicate()
    return ended - began


def load(directory: DataDirectory, shards: list[int]) -> int:
    """Load shards as a worker does, cycle collector off; gives how many keys they have."""
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
    print(load(DataDirectory(Path(sys.argv[1])), [int(each) for each in sys.argv[2:]]), flush=True)
