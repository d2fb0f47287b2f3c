"""The events used in the benchmarks: vehicle positions, one partition at a time, as the gateway would have written
them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

import pyarrow as pa

from bench.fleet import Fix
from penstock.core.columns import partition_of
from penstock.core.schema import event_schema

PARTITIONS = 2
PIECE = 10_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def piece(partition: int, number: int, vehicles: int) -> pa.RecordBatch:
    """Return fixes for the vehicles in one partition. One fix in fifty is across the fence, and the next one is back on
    the other side."""
    first = number * PIECE
    chosen = names(partition, vehicles)
    mine = [chosen[(first + index) % len(chosen)] for index in range(PIECE)]
    ids = [f"{partition}-{first + index}" for index in range(PIECE)]
    times = [NOW + timedelta(milliseconds=first + index) for index in range(PIECE)]
    columns = {
        "fix": ids,
        "at": times,
        "vehicle": mine,
        "lat": [52.0 + (index % 50 == 0) for index in range(PIECE)],
        "lon": [13.0 + index % 7 / 100 for index in range(PIECE)],
        "speed": [float((first + index) % 130) for index in range(PIECE)],
        "_id": ids,
        "_key": mine,
        "_ingest_time": times,
        "_kind": [0] * PIECE,
    }
    return pa.RecordBatch.from_pydict(columns, schema=event_schema(Fix))


@cache
def names(partition: int, vehicles: int) -> list[str]:
    every = (f"vehicle-{number}" for number in range(vehicles))
    return [name for name in every if partition_of(name, PARTITIONS) == partition]
