"""From the files of a million keys' state to that state in the memory of a new process.

The handler has run five batches, each of which touched about every key. That is the most that is ever read: a snapshot
and four deltas of its size; with the next batch a new snapshot is due. Time runs from the start of the processes to the
moment that the last has its shards, checked against the ledger; the files are in the system's cache, as they are after
a crash of a process. First one process for all shards, then one for each, as workers take them.
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
import pyarrow as pa

from bench.fixes import PARTITIONS
from bench.fleet import app, geofence
from bench.report import Figure
from penstock.contracts import HandledShard, Output
from penstock.cursor import source_positions
from penstock.runtime.directory import DataDirectory
from penstock.runtime.states import ShardOpener
from penstock.settings import Settings
from penstock.shard import HASH_BYTES, NOTHING, Shard
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
        yield Figure(f"{name}, {PARTITIONS} processes", measure(directory, [[each] for each in every]), "s", bar=BAR)


def run_batches(directory: DataDirectory) -> None:
    """What Spark's workers and the driver would do of batches of this size, one shard after the other."""
    from penstock.analyze.worker import Report, ShardWork, Worker
    from penstock.runtime.handlers import open_ledger, plan

    made = plan(app, geofence, str(Path(__file__).parent / "fleet.py"), directory, Settings(partitions=PARTITIONS))
    worker = Worker(made)
    ledger = open_ledger(geofence, made, directory, worker.log)
    origin = source_positions(ledger.state.origin)
    for number in range(BATCHES):
        start, end = ledger.state.end, _end(number)
        shards = {}
        for shard in range(PARTITIONS):
            known = ledger.state.shards.get(shard, HandledShard.of(Shard(), NOTHING))
            positions = (origin, source_positions(start), source_positions(end))
            *_, (_, told) = worker.run(ShardWork(shard, 0, known.version, known.digest, number, *positions))
            state = msgspec.msgpack.decode(told, type=Report).state
            assert state is not None
            shards[shard] = state
        ledger.commit(Output(number, start, end, 1, pa.table({})), Done(0, end), shards, 0, 0)
    ledger.close()


def _end(number: int) -> str:
    rows = VEHICLES // PARTITIONS * (number + 1)
    return json.dumps([{f"fixes/{partition}": rows for partition in range(PARTITIONS)}])


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
