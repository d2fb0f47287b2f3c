"""Starts the Spark session with settings that measurably speed up small, frequent, durable micro-batches."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.analyze import archive, workers
from penstock.analyze.java import find_java
from penstock.analyze.scratch import scratch_folder
from penstock.app.loading import local_modules
from penstock.core.settings import Settings

Session = SparkSession
"""The session's type, for modules that only pass a session on and do not import Spark."""

_STREAMING = "spark.sql.streaming"
_PACKAGE = "org.apache.spark.sql.execution.streaming"

TASK_TRIES = 3
"""A task whose Python worker dies is run again immediately, which is faster than restarting its query."""

TEMPORARY_CHARS_MAX = 45
"""The kernel allows 107 characters for a socket's path. The scratch folder's name takes 18 of them, and the name of
Spark's file takes 43."""

# These must be set before the first checkpoint: they cannot be changed for an existing checkpoint.
_CHECKPOINTS = {
    # Verifies checksums, unlike the default, and does not fork a `chmod` for each file.
    f"{_STREAMING}.checkpointFileManagerClass": f"{_PACKAGE}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.stateStore.providerClass": f"{_PACKAGE}.state.RocksDBStateStoreProvider",
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STREAMING}.stateStore.checkpointFormatVersion": "2",
    f"{_STREAMING}.stateStore.rowChecksum.enabled": "true",
    f"{_STREAMING}.minBatchesToRetain": "20",
}

# Spark runs in one process on loopback and nobody inspects it, so there is no web page, history or console output.
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    f"{_STREAMING}.numRecentProgressUpdates": "30",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {directory}/spark.log
appender.file.filePattern = {directory}/spark.%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""

_PYTHON = """#!/bin/sh
# Python without the archives that Spark puts first: they hold sources only, which each process would compile. The
# module of workers is run by its file, without the package around it, which each process would load.
set -f
if [ "$1 $2" = "-m {module}" ]; then
  shift 2
  set -- -P {file} "$@"
fi
IFS=:
kept=
for part in $PYTHONPATH; do
  case $part in
    "$SPARK_HOME"/*.zip | "$SPARK_HOME"/*.jar) ;;
    *) kept=$kept${{kept:+:}}$part ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def carry(module: ModuleType, file: Path) -> None:
    """Let Spark's workers run functions from the user's module, which they cannot import, and import modules from the
    same folder."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _put_on_path(str(file.resolve().parent), first=True)


def _put_on_path(folder: str, *, first: bool) -> None:
    """Add a folder to the module search path of Spark's Python processes."""
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others] if first else [*others, folder])


def start_session(
    name: str, settings: Settings, *, logs: Path, warehouse: Path, java_options: Sequence[str] = ()
) -> SparkSession:
    """Start the JVM and the session. Takes a few seconds; there is one session per process. Spark's log is written to
    `logs`."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    scratch = scratch_folder()
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)  # takes precedence over `spark.local.dir`
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = _python(logs)
    os.environ["PYTHONSAFEPATH"] = "1"  # otherwise the working directory comes before the app's folder
    _put_on_path(str(Path.cwd()), first=False)
    os.environ[workers.VARIABLE] = str(_record_modules(logs))
    log4j = logs / "log4j2.properties"
    log4j.write_text(_LOG4J.format(directory=logs.resolve()))
    cores = settings.spark_cores or len(os.sched_getaffinity(0))
    builder = SparkSession.builder.appName(f"penstock {name}").master(f"local[{cores},{TASK_TRIES}]")
    archived = archive.java_options(archive.archive_file(java)) if settings.class_archive else []
    # quoted, because the paths can contain spaces
    files = [f'"-Dlog4j2.configurationFile=file:{log4j.resolve()}"', f'"-Djava.io.tmpdir={scratch}"']
    options = ["-Xss4m", "-XX:+UseSerialGC", *files, *archived]
    own = {
        "spark.driver.memory": f"{settings.spark_memory_mb}m",
        "spark.driver.extraJavaOptions": " ".join((*options, *java_options)),
        "spark.sql.shuffle.partitions": str(settings.state_partitions),
        "spark.sql.warehouse.dir": str(warehouse.resolve()),
        **_sockets(scratch),
        **_functions(),
        "spark.python.daemon.module": workers.__name__,
    }
    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)  # they print Java stacks of reported errors
    for key, value in (_CHECKPOINTS | _QUIET | own).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _python(folder: Path) -> str:
    """Write the start script for Spark's Python workers, and return the command to run.

    Each query starts several workers. With the script, starting a worker takes a third of a second of CPU time instead
    of a full second. Spark gives up on a worker that has not responded within ten seconds; without the script, workers
    that start together on a busy machine often need that long.
    """
    script = folder.resolve() / "python"
    file = shlex.quote(str(Path(workers.__file__).resolve()))
    script.write_text(_PYTHON.format(python=shlex.quote(sys.executable), module=workers.__name__, file=file))
    script.chmod(0o700)
    usable = Path(pyspark.__file__).is_file() and os.access(script, os.X_OK)  # not from an archive; not on `noexec`
    return str(script) if usable else sys.executable


def _record_modules(folder: Path) -> Path:
    """Write the names, files and digests of the local modules that this process has loaded to a file for the
    workers."""
    files = local_modules()
    digests = {file: digest for file in files.values() if (digest := workers.digest_of(file)) is not None}
    record = folder.resolve() / "modules.json"
    record.write_text(json.dumps({"files": files, "digests": digests}))
    return record


def _functions() -> dict[str, str]:
    """Return Spark's settings for plain Python functions, the only kind that views use. By default, Spark would run
    them through pandas, which is not a dependency, and raise an error if pandas is missing."""
    return {} if find_spec("pandas") else {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}


def _sockets(folder: Path) -> dict[str, str]:
    """Return Spark's settings that make Java and Python communicate through Unix sockets in `folder`, which only its
    owner can open. By default, they communicate through TCP ports. An unrelated program could then connect first, for
    example because it expects another server on the port. Spark would interpret its first bytes as a length and run out
    of memory."""
    if len(str(folder.parent)) > TEMPORARY_CHARS_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def java_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """Return the Java process of a session that this process started."""
    process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    return process
