"""Manages a class-data sharing archive of Spark's classes, which halves the time that Java needs to start Spark.

The archive is created by a separate process, which runs some queries and lets Java record the classes that it loaded.
Each archive is for one installation of Java and Spark, and is stored in the user's cache folder. Java uses an archive
only if it matches, and Penstock passes it to Java only if its checksum is correct.
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
from penstock.core.files import write_atomic

SPACE_BYTES = 1024 * 1024 * 1024
"""Free disk space below which no archive is created. An archive takes about 170 MB, and twice that while it is
written."""
BATCHES = 3
RUN_S_MAX = 300
_PIECE_BYTES = 8 * 1024 * 1024


def archive_file(java: Java, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the archive of Spark's classes for the installed Java and Spark. The file need not exist."""
    release = java.home / "release"
    known = release.read_text() if release.is_file() else ""
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    dates = [jar.stat().st_mtime_ns for jar in jars]  # Java treats a jar with a new date as a different jar
    parts = f"{java.home}\n{java.version}\n{known}\n{pyspark.__file__}\n{dates}"
    return cache_folder(environ) / f"spark-{blake2b(parts.encode(), digest_size=8).hexdigest()}.jsa"


def java_options(file: Path) -> list[str]:
    """Return the options that make Java use the archive of Spark's classes. The result is empty if there is no archive
    or its checksum is wrong."""
    return (
        [f"-XX:SharedArchiveFile={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if _is_whole_archive(file) else []
    )


def _archive_crc_file(file: Path) -> Path:
    return file.with_suffix(".crc")


def _is_whole_archive(file: Path) -> bool:
    try:
        return " " not in str(file) and _archive_crc_file(file).read_text().split("\n")[0] == _archive_checksum(file)
    except OSError:
        return False


def _remove_stale(folder: Path) -> None:
    """Delete the archives of Spark installations that no longer exist, for example in deleted environments."""
    for mark in folder.glob("spark-*.crc"):
        if not Path(mark.read_text().partition("\n")[2]).exists():
            for suffix in (".jsa", ".lock", ".draft", ".crc"):
                mark.with_suffix(suffix).unlink(missing_ok=True)


def _archive_checksum(file: Path) -> str:
    crc = 0
    with open(file, "rb") as content:
        while piece := content.read(_PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"


def start_archiving(*, nice: int = 0) -> subprocess.Popen[bytes] | None:
    """Start a process that creates the archive of Spark's classes, with the scheduling priority `nice`. Returns None if
    the archive already exists, or if there is not enough disk space for it."""
    file = archive_file(find_java())
    room = shutil.disk_usage(next(parent for parent in file.parents if parent.exists())).free
    if _is_whole_archive(file) or room < SPACE_BYTES:
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.analyze.archive", str(nice)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def make(file: Path) -> None:
    """Create the archive of Spark's classes if it does not exist. Does nothing if another process is creating it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if _is_whole_archive(file):  # created by another process in the meantime
            return
        _archive_crc_file(file).unlink(missing_ok=True)
        draft = file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            _record_classes(draft, Path(folder))
        draft.replace(file)
        write_atomic(_archive_crc_file(file), f"{_archive_checksum(file)}\n{pyspark.__file__}".encode(), durable=True)
        _remove_stale(file.parent)


def _record_classes(draft: Path, folder: Path) -> None:
    """Run queries like those in an app, and let Java save the loaded classes when it exits."""
    from penstock.analyze.session import start_session
    from penstock.core.settings import Settings

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
    """Run a windowed view and a plain view on a source written in Python, like the views of an app."""
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
    """A stream source that produces an endless series of numbers, a few at a time."""

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
