"""The time from the command to the first healthy response.

The baseline is a bare PySpark program that starts a session and runs one micro-batch of the same aggregation.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.report import Figure
from bench.running import free_port, healthy, start

BARE = """
import os, sys, tempfile
from penstock.analyze.java import find_java
os.environ["JAVA_HOME"] = str(find_java().home)
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "1")
rows = spark.readStream.format("rate").load().groupBy((F.col("value") % 10).alias("k")).count()
query = rows.writeStream.outputMode("update").foreachBatch(lambda frame, number: frame.toArrow()).start()
while query.lastProgress is None:
    pass
os._exit(0)
"""


def run() -> Iterator[Figure]:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", BARE], check=True, capture_output=True)
    bare_s = time.monotonic() - began
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        answered_s, ready_s = measure(Path(folder))
    yield Figure("start: to the first response", answered_s * 1000, "ms")
    yield Figure("start: to healthy", ready_s * 1000, "ms", bare_s * 1000, "bare PySpark to its first micro-batch")


def measure(folder: Path) -> tuple[float, float]:
    port = free_port()
    began = time.monotonic()
    with start(folder, port) as process:
        answered = 0.0
        while not (state := healthy(f"http://127.0.0.1:{port}")):
            if state is not None:
                answered = answered or time.monotonic() - began
            time.sleep(0.02)
        ready = time.monotonic() - began
        process.terminate()
    return answered, ready
