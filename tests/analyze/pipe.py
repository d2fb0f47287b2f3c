"""One view from a real log to a real table, run as the engine runs it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock import App, Event
from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.frames import build, inputs
from penstock.analyze.pruning import prune
from penstock.analyze.source import read_stream, register
from penstock.analyze.streaming_query import SparkQuery
from penstock.app.declared import View
from penstock.core.clock import WallClock
from penstock.core.columns import to_batch
from penstock.core.contracts import StreamSpec
from penstock.core.schema import event_schema
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.store import ViewSpec, ViewTable

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Fix(Event, id="fix_id", time="at"):
    fix_id: str
    at: datetime
    vehicle: str
    speed: float


app = App("fleet")
fixes = app.stream("fixes", Fix, key="vehicle", late_after=timedelta(minutes=2))
busiest = app.sql("busiest", "SELECT vehicle, count(*) AS n FROM fixes GROUP BY vehicle", key="vehicle")


def fix(number: int, vehicle: str = "v1", speed: float = 10.0, at: datetime = NOON) -> Fix:
    return Fix(fix_id=str(number), at=at, vehicle=vehicle, speed=speed)


class Pipe:
    """One view from a real log to a real table, started and stopped as the engine does."""

    def __init__(self, spark: SparkSession, root: Path, view: View) -> None:
        self.spark, self.root, self.view = spark, root, view
        self.log = EmbeddedLog(root / "streams")
        self.log.declare(StreamSpec("fixes", event_schema(Fix), 2))
        register(spark, EmbeddedLogOpener(root / "streams"))
        self.query = self._query()

    def _query(self) -> SparkQuery:
        spec = ViewSpec(self.view.name, self.view.key, None, None, None, 100, 10**6)
        self.table = ViewTable(self.root / "view.db", spec, clock=WallClock())
        return SparkQuery(self.view, Checkpoint(self.root / "checkpoint"), self.table, 1)

    def append(self, number: int, *events: Fix) -> None:
        nothing: list[str | None] = [None] * len(events)
        batch = to_batch(Fix, events, ids=nothing, keys=nothing, now=NOON)
        self.log.append("fixes", number % 2, batch, producer="test", sequence=number)

    def run(self, *, clean: bool = True) -> list[str]:
        """Start, read everything, stop; returns what the repair dropped."""

        def read(stream: str, schema: StructType) -> DataFrame:
            return read_stream(self.spark, stream, schema, rows_max=1000, wait_s=0.01)

        frame = prune(self.spark, lambda reader: build(self.spark, self.view, inputs(app, self.view, reader, {})), read)
        dropped = self.query.start(frame, trigger_ms=0, clean=clean)
        assert self.query.query is not None
        self.query.query.processAllAvailable()
        self.query.stop()
        return dropped

    def restart(self) -> None:
        self.table.close()
        self.query = self._query()

    def counts(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.root / "view.db")) as file:
            rows = [msgspec.json.decode(data) for (data,) in file.execute("SELECT data FROM rows")]
        return {row["vehicle"]: row["n"] for row in rows}

    def close(self) -> None:
        self.table.close()
        self.log.close()
