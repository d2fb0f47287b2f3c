"""The events that are measured: fixes of vehicles, a partition at a time, as the front door would have written them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

import pyarrow as pa

from bench.fleet import Fix
from penstock.columns import place
from penstock.schema import event_schema

PARTITIONS = 2
PIECE = 10_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def piece(partition: int, number: int, vehicles: int) -> pa.RecordBatch:
    """Fixes of the vehicles of one partition. One in fifty crosses the fence, and comes back with the next."""
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
    return [name for name in every if place(name, PARTITIONS) == partition]
