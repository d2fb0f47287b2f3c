"""Processes for the tests of the sources that read files: one that reads until it is killed, others that write.

`python -m tests.collect.sources.file_workers read DIRECTORY SOURCE` runs a source, given as JSON, into the log in
DIRECTORY, in a child that it forks for each line of its input: slow imports happen once. `... log
PATH MODE SEED` writes lines and rotates, `... drop PATH SEED` drops files of all formats, until its input ends;
then it prints how many.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import itertools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.collect.ingress import Ingress
from penstock.collect.sources.files.tail import TailSource
from penstock.core.clock import WallClock
from penstock.core.contracts import Source, SourceStatus
from penstock.core.schema import KIND_EVENT, Event
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog

ROOT = Path(__file__).parents[3]
WRITTEN_S = 0.004


class Row(Event):
    """A row of a dropped file: the file, the row, and values that CSV has as text."""

    file: str
    row: int
    price: float
    open: bool
    note: str | None = None


def source(spec: dict[str, Any]) -> Source:
    options = dict(spec)
    kind = options.pop("kind")
    if kind == "tail":
        return TailSource(**options)
    from penstock.collect.sources.files.folder import FolderSource

    return FolderSource(**options)


@asynccontextmanager
async def reading(directory: Path, spec: dict[str, Any]) -> AsyncIterator[tuple[EmbeddedLog, SourceStatus]]:
    """Run a source on a real log; cancel it at the end, as at a shutdown."""
    app = App("test")
    app.stream("raw")
    app.stream("rows", Row)
    log = EmbeddedLog(directory, disk_reserve_bytes=0)
    status = SourceStatus()
    ingress = Ingress(app.streams, log, Settings(), WallClock(), lambda error: None, lambda stream: None)
    stream = "raw" if spec["kind"] == "tail" else "rows"
    task = asyncio.create_task(source(spec).run(ingress.writer_for_source("files", stream), status))
    try:
        yield log, status
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await ingress.close()
        log.close()


class Crash(Exception):
    """The process ends here."""


class CrashingWriter:
    """A source writer of a process that ends after some events. A prefix of the events put is durable."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._entries: list[tuple[bytes | None, str | None]] = []
        self._durable = 0
        self._left = 0
        self._runs = 0

    @property
    def event(self) -> type[Event]:
        return Row

    @property
    def event_bytes_max(self) -> int:
        return 1 << 20

    @property
    def mark(self) -> str | None:
        return next((mark for _, mark in reversed(self._entries[: self._durable]) if mark is not None), None)

    @property
    def events(self) -> list[bytes]:
        return [raw for raw, _ in self._entries if raw is not None]

    @property
    def durable_events(self) -> list[bytes]:
        return [raw for raw, _ in self._entries[: self._durable] if raw is not None]

    def restart(self, events_max: int, events_min: int = 1) -> None:
        self._runs += 1
        self._durable = self._draw.randint(self._durable, len(self._entries))
        del self._entries[self._durable :]
        self._left = self._draw.randint(events_min, events_max)

    async def put(self, raw: bytes, mark: str | None = None) -> asyncio.Future[None]:
        return await self._take(raw, mark)

    async def reject(self, raw: bytes, reason: str, mark: str | None = None) -> asyncio.Future[None]:
        return await self._take(None, mark)

    async def note(self, mark: str) -> asyncio.Future[None]:
        return await self._take(None, mark)

    async def settle(self) -> None:
        self._durable = len(self._entries)

    async def _take(self, raw: bytes | None, mark: str | None) -> asyncio.Future[None]:
        self._left -= 1
        if self._left < 0:
            raise Crash
        self._entries.append((raw, mark))
        durable = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, self._sync, durable, len(self._entries), self._runs)
        return durable

    def _sync(self, durable: asyncio.Future[None], count: int, run: int) -> None:
        if run == self._runs and not durable.done():
            self._durable = max(self._durable, count)
            durable.set_result(None)


def stored(log: EmbeddedLog, stream: str) -> list[dict[str, Any]]:
    end = log.ends(stream)[0]
    rows = [row for batch in log.read(stream, 0, 0, end) for row in batch.to_pylist()] if end else []
    return [row for row in rows if row["_kind"] == KIND_EVENT]


class Worker:
    """One of the processes of this module."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "tests.collect.sources.file_workers", *map(str, words)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._heard() == "at work"

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run_and_kill(self, seconds: float) -> None:
        """Let a child of the reader work for a while, then kill it with kill -9."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        child = int(self._heard())
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        os.kill(child, signal.SIGKILL)
        assert self._heard() == f"ended {signal.SIGKILL:d}"

    def end(self) -> str:
        """Close its input, and return the last line that it prints."""
        said, _ = self._process.communicate(timeout=60)
        return said.strip()


async def _run(directory: str, spec: str) -> None:
    async with reading(Path(directory), json.loads(spec)):
        await asyncio.get_running_loop().create_future()


def _read(directory: str, spec: str) -> None:
    print("at work", flush=True)
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(_run(directory, spec))
        print(child, flush=True)
        print("ended", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)


def _told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Rotator:
    """Rotates a log as logrotate does, in one of its ways."""

    def __init__(self, path: Path, mode: str, draw: random.Random) -> None:
        self.path, self.mode, self.draw, self.turn = path, mode, draw, 0
        self.file = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def rotate(self, late: list[bytes]) -> None:
        """Rotate. `late` is written to the old file after it was renamed, before the new one is opened."""
        self.turn += 1
        if self.mode == "date":
            target = self.path.with_name(f"{self.path.name}-2026{self.turn:06}")
        else:
            self._shift()
            target = self.path.with_name(f"{self.path.name}.1")
        if self.mode == "copytruncate":
            self._write(late)
            shutil.copyfile(self.path, target)
            os.truncate(self.path, 0)
            return
        self.path.rename(target)
        self._write(late)
        os.close(self.file)
        self.file = self._open()
        if self.mode == "compress":
            _pack(target)

    def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            os.write(self.file, line)

    def _shift(self) -> None:
        for number in range(self.turn, 0, -1):
            for ending in ("", ".gz"):
                old = self.path.with_name(f"{self.path.name}.{number}{ending}")
                if old.exists():
                    old.rename(self.path.with_name(f"{self.path.name}.{number + 1}{ending}"))

    def write(self, line: bytes) -> None:
        """Write a line, sometimes in two parts, so that the reader sees half a line."""
        cut = self.draw.randrange(len(line)) if self.draw.random() < 0.1 else 0
        os.write(self.file, line[:cut])
        if cut:
            time.sleep(self.draw.random() * WRITTEN_S)
        os.write(self.file, line[cut:])


def _pack(path: Path) -> None:
    packed = path.with_name(f"{path.name}.gz")
    with open(path, "rb") as plain, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(plain, target)
    shutil.copystat(path, packed)
    path.unlink()


def log_lines() -> Iterator[bytes]:
    for number in itertools.count():
        yield b"%d %s\n" % (number, b"x" * (number * 7919 % 200))


def _log(path: str, mode: str, seed: str) -> None:
    draw = random.Random(f"{seed} writer")
    rotator = Rotator(Path(path), mode, draw)
    print("at work", flush=True)
    upcoming = log_lines()
    for line in upcoming:
        rotator.write(line)
        if draw.random() < 0.1:
            time.sleep(draw.random() * 10 * WRITTEN_S)
        if draw.random() < 0.02:
            rotator.rotate(list(itertools.islice(upcoming, draw.randrange(4))))
        if _told_to_end():
            break
    print(next(upcoming).split()[0].decode())


def row(file: str, number: int) -> dict[str, Any]:
    note = None if number % 3 else f'a "note", {number}\nin two lines'
    return {"file": file, "row": number, "price": number / 4, "open": number % 2 == 0, "note": note}


def file_rows(index: int) -> list[dict[str, Any]]:
    return [row(f"{index:05}", number) for number in range(index * 37 % 400)]


def as_bytes(kind: str, rows: list[dict[str, Any]]) -> bytes:
    if kind == "ndjson":
        return b"".join(json.dumps(record).encode() + b"\n" for record in rows)
    if kind == "ndjson.gz":
        return gzip.compress(as_bytes("ndjson", rows))
    if kind == "json":
        return json.dumps(rows, indent=1).encode()
    if kind == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row("", 0)))
        writer.writeheader()
        writer.writerows(record | {"open": "yes" if record["open"] else "no"} for record in rows)
        return text.getvalue().encode()
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    schema = pa.schema(
        [
            ("file", pa.string()),
            ("row", pa.int64()),
            ("price", pa.float64()),
            ("open", pa.bool_()),
            ("note", pa.string()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), sink, row_group_size=50)
    return sink.getvalue()


KINDS = ("ndjson", "json", "csv", "parquet", "ndjson.gz")


def _drop(path: str, seed: str) -> None:
    """Drop files, renamed into place or written in place, in one go or in two."""
    draw = random.Random(f"{seed} writer")
    as_bytes("parquet", [])
    print("at work", flush=True)
    for index in itertools.count():
        kind = KINDS[index % len(KINDS)]
        data = as_bytes(kind, file_rows(index))
        target = Path(path) / f"{index:05}.{kind}"
        if draw.random() < 0.5:
            hidden = target.with_name(f".{target.name}")
            hidden.write_bytes(data)
            hidden.rename(target)
        else:
            cut = draw.randrange(len(data) + 1)
            with open(target, "wb", buffering=0) as file:
                file.write(data[:cut])
                time.sleep(draw.random() * 10 * WRITTEN_S)
                file.write(data[cut:])
        if _told_to_end():
            print(index + 1)
            return
        time.sleep(draw.random() * 20 * WRITTEN_S)


def main(action: str, *words: str) -> None:
    if action == "read":
        _read(*words)
    elif action == "log":
        _log(*words)
    else:
        _drop(*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
