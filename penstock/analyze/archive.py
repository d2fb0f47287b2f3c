"""An archive of Spark's classes, loaded and checked once: with it Java starts Spark in half the time.

It is Java's own class-data sharing. The archive is made by a process of its own, which runs some queries and has Java
write down what it loaded; it belongs to one Java and one Spark, and is kept in the user's cache. Java looks at it only
if it fits, and we only if its checksum does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.analyze.fetching import fetch
from penstock.analyze.java import Java, cache_folder, find_java
from penstock.files import write_atomic

SPACE_BYTES = 1024 * 1024 * 1024
"""Free disk space below which no archive is made. One takes about 170 MB, and twice that for a moment."""
BATCHES = 3
RUN_S_MAX = 300
_PIECE_BYTES = 8 * 1024 * 1024


def archive_file(java: Java, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the archive of this Java and this Spark is, or would be."""
    release = java.home / "release"
    known = release.read_text() if release.is_file() else ""
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    dates = [each.stat().st_mtime_ns for each in jars]  # to Java a jar of another date is another jar
    parts = f"{java.home}\n{java.version}\n{known}\n{pyspark.__file__}\n{dates}"
    return cache_folder(environ) / f"spark-{blake2b(parts.encode(), digest_size=8).hexdigest()}.jsa"


def java_options(file: Path) -> list[str]:
    """The options that have Java use an archive; none if there is none, or it is not what was written."""
    return [f"-XX:SharedArchiveFile={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if _is_whole(file) else []


def _mark(file: Path) -> Path:
    return file.with_suffix(".crc")


def _is_whole(file: Path) -> bool:
    try:
        return " " not in str(file) and _mark(file).read_text().split("\n")[0] == _checksum(file)
    except OSError:
        return False


def _remove_stale(folder: Path) -> None:
    """Remove the archives of Sparks that are no longer there, as those of environments that were removed."""
    for mark in folder.glob("spark-*.crc"):
        if not Path(mark.read_text().partition("\n")[2]).exists():
            for suffix in (".jsa", ".lock", ".draft", ".crc"):
                mark.with_suffix(suffix).unlink(missing_ok=True)


def _checksum(file: Path) -> str:
    crc = 0
    with open(file, "rb") as content:
        while piece := content.read(_PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"


def start_making(*, nice: int = 0) -> subprocess.Popen[bytes] | None:
    """Begin to make the archive, in a process that gives way to others by `nice`; None if it is there, or there is no
    room for it."""
    file = archive_file(find_java())
    room = shutil.disk_usage(next(each for each in file.parents if each.exists())).free
    if _is_whole(file) or room < SPACE_BYTES:
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.analyze.archive", str(nice)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def make(file: Path) -> None:
    """Make an archive, if there is none. If another process is at it already, do nothing."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if _is_whole(file):  # another process has made it since we looked
            return
        _mark(file).unlink(missing_ok=True)
        draft = file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            _record(draft, Path(folder))
        draft.replace(file)
        write_atomic(_mark(file), f"{_checksum(file)}\n{pyspark.__file__}".encode(), durable=True)
        _remove_stale(file.parent)


def _record(draft: Path, folder: Path) -> None:
    """Run what an app runs, and have Java write down its classes as it ends."""
    from penstock.analyze.session import start_session
    from penstock.settings import Settings

    recording = (f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    spark = start_session(
        "archive", Settings(class_archive=0), logs=folder, warehouse=folder / "warehouse", java_options=recording
    )
    exercise(spark, folder)
    process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(RUN_S_MAX)


def exercise(spark: SparkSession, folder: Path) -> None:
    """A windowed view and a plain one on a source in Python, as the views of an app are."""
    spark.dataSource.register(_Numbers)
    done: list[int] = []

    def output(frame: DataFrame, batch_id: int) -> None:
        done.append(fetch(frame).num_rows)

    numbers = spark.readStream.format(_Numbers.name()).load()
    timed = numbers.withColumn("at", F.timestamp_seconds("number")).withWatermark("at", "1 minute")
    views = {
        "windows": timed.groupBy(F.window("at", "1 minute")).agg(F.avg("number"), F.count("*")),
        "groups": numbers.groupBy((numbers.number % 7).alias("group")).count(),
    }
    for name, view in views.items():
        goal, deadline = len(done) + BATCHES, time.monotonic() + RUN_S_MAX
        writer = view.writeStream.outputMode("update").option("checkpointLocation", str(folder / name))
        query = writer.foreachBatch(output).start()
        while len(done) < goal and query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()


class _Numbers(DataSource):
    """Some numbers at a time, without end."""

    @classmethod
    def name(cls) -> str:
        return "penstock-numbers"

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _NumbersReader()


class _NumbersReader(DataSourceStreamReader):
    step = 10

    def initialOffset(self) -> dict[str, int]:
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"number": start["number"] + self.step}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((start["number"], end["number"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": list(range(*partition.value))})


if __name__ == "__main__":
    os.nice(int(sys.argv[1]) if sys.argv[1:] else 0)
    make(archive_file(find_java()))
