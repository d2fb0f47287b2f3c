"""A log in memory with the behaviour that `contracts.Log` states, and handles to stall it or make it fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.contracts import NO_MARKS, Admission, Position, Retention, StreamSpec
from penstock.schema import KIND_EVENT

DEADLINE_S = 60.0


class MemoryLog:
    """Rows by stream and partition. `gate` closed: admits wait. `faults`: raised by the next admits, one each."""

    def __init__(self) -> None:
        self.specs: dict[str, StreamSpec] = {}
        self.rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
        self.marked: dict[str, dict[str, str]] = {}
        self.admits: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.faults: list[Exception] = []

    def declare(self, spec: StreamSpec) -> None:
        self.specs[spec.name] = spec
        self.rows.setdefault(spec.name, {partition: [] for partition in range(spec.partitions)})

    def admit(
        self, stream: str, batches: Mapping[int, pa.RecordBatch], marks: Mapping[str, str] = NO_MARKS
    ) -> Admission:
        assert self.gate.wait(DEADLINE_S), "the gate was left closed"
        if self.faults:
            raise self.faults.pop(0)
        self.admits.append(stream)
        unique, seen = self.specs[stream].unique_ids > 0, self._ids(stream)
        first, duplicates, originals = {}, {}, {}
        for partition, batch in batches.items():
            assert batch.schema == self.specs[stream].schema
            kept = self.rows[stream][partition]
            first[partition], known, known_at = len(kept), [], []
            for index, row in enumerate(batch.to_pylist(maps_as_pydicts="strict")):
                if unique and row["_id"] is not None and row["_id"] in seen:
                    known.append(index)
                    known_at.append(seen[row["_id"]])
                    continue
                seen[row["_id"]] = Position(partition, len(kept))
                kept.append(row)
            duplicates[partition], originals[partition] = known, known_at
        self.marked.setdefault(stream, {}).update(marks)
        return Admission(first, duplicates, originals)

    def last_sequence(self, stream: str, partition: int, producer: str) -> int | None:
        raise NotImplementedError

    def marks(self, stream: str) -> Mapping[str, str]:
        return self.marked.get(stream, {})

    def _ids(self, stream: str) -> dict[object, Position]:
        return {
            row["_id"]: Position(partition, offset)
            for partition, rows in self.rows[stream].items()
            for offset, row in enumerate(rows)
        }

    def append(self, stream: str, partition: int, batch: pa.RecordBatch, *, producer: str, sequence: int) -> Position:
        raise AssertionError("the collect tier admits, it does not append")

    def generation(self, stream: str) -> int:
        return 7

    def starts(self, stream: str) -> Mapping[int, int]:
        return dict.fromkeys(self.rows[stream], 0)

    def ends(self, stream: str) -> Mapping[int, int]:
        return {partition: len(rows) for partition, rows in self.rows[stream].items()}

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        rows = self.rows[stream][partition][start:end]
        yield pa.RecordBatch.from_pylist(rows, schema=self.specs[stream].schema)

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        return self.ends(stream)

    def trim(self, stream: str, retention: Retention) -> Mapping[int, int]:
        return self.starts(stream)

    def merge(self, stream: str) -> int:
        return 0

    def close(self) -> None:
        pass

    def events(self, stream: str) -> list[dict[str, Any]]:
        """All events of a stream, partition after partition, without ticks."""
        partitions = self.rows[stream].values()
        return [row for rows in partitions for row in rows if row["_kind"] == KIND_EVENT]


class ManualClock:
    """Time that stands still until it is set."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
