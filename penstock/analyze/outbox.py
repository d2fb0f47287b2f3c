"""What a shard emits in a batch, on its way from the worker to the driver.

A little goes through Spark, in a row for each payload. What is more goes by way of a file beside the shard's state, of
which Spark is given the whereabouts: so a batch may emit any amount, and neither Java nor the driver holds it. The file
need not be durable. If it is lost, so is the batch, which runs again and writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa

from penstock.files import disk_errors

INLINE_BYTES_MAX = 4 * 1024 * 1024
FILED = -2
"""In place of the number of an output: where the payloads are."""
ALIGNMENT = 64


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """Where a file has the payload of an output."""

    output: int
    start: int
    size: int


class Filed(msgspec.Struct, array_like=True, frozen=True):
    """A file of payloads."""

    path: str
    payloads: list[Payload]


class Outbox:
    """Takes a shard's payloads, and gives the rows that tell the driver of them. `path` is where the file would be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._filed: list[Payload] = []

    def add(self, output: int, payload: bytes) -> None:
        self._held.append((output, payload))
        self._held_bytes += len(payload)
        if self._held_bytes > INLINE_BYTES_MAX:
            self._file()

    def rows(self) -> list[tuple[int, bytes]]:
        if not self._filed:
            return self._held
        self._file()
        return [(FILED, msgspec.msgpack.encode(Filed(str(self._path), self._filed)))]

    def _file(self) -> None:
        """Move what is held to the file: a new one, unless this outbox has begun it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors(self._path), open(self._path, "ab" if self._filed else "wb") as file:
            self._filed += [_written(file, output, payload) for output, payload in self._held]
        self._held, self._held_bytes = [], 0


def _written(file: BinaryIO, output: int, payload: bytes) -> Payload:
    start = file.tell()
    file.write(payload.ljust(-(-len(payload) // ALIGNMENT) * ALIGNMENT, b"\0"))
    return Payload(output, start, len(payload))


class Inbox:
    """The other end: what a batch's shards have given, by output and shard."""

    def __init__(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        self._held: dict[int, dict[int, list[pa.Buffer]]] = {}
        self._files: list[Path] = []
        for shard, output, payload in rows:
            if output == FILED:
                self._open(shard, msgspec.msgpack.decode(payload, type=Filed))
            else:
                self._put(shard, output, pa.py_buffer(payload))

    def _open(self, shard: int, filed: Filed) -> None:
        """Mapped, so that a payload comes to memory when it is read."""
        self._files.append(Path(filed.path))
        with pa.memory_map(filed.path) as file:
            whole = file.read_buffer()
        for each in filed.payloads:
            self._put(shard, each.output, whole.slice(each.start, each.size))

    def _put(self, shard: int, output: int, payload: pa.Buffer) -> None:
        self._held.setdefault(output, {}).setdefault(shard, []).append(payload)

    def pop(self, output: int) -> list[tuple[int, list[pa.Buffer]]]:
        """An output's payloads by shard, in order."""
        return sorted(self._held.pop(output, {}).items())

    def __bool__(self) -> bool:
        return bool(self._held)

    def clear(self) -> None:
        """Remove the files: the batch is done."""
        for path in self._files:
            path.unlink(missing_ok=True)
