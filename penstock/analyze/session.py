"""The Spark session, with the settings that were measured to matter for small, frequent, durable micro-batches."""

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
from penstock.fingerprints.code import is_local
from penstock.settings import Settings

Session = SparkSession
"""For those who hand a session on and know nothing else of Spark."""

_STREAMING = "spark.sql.streaming"
_PACKAGE = "org.apache.spark.sql.execution.streaming"

TASK_TRIES = 3
"""A task whose Python worker dies is run again at once, which is sooner than by a restart of its query."""

TEMPORARY_CHARS_MAX = 45
"""The kernel takes 107 characters as the path of a socket. Of those, 18 are our folder's name and 43 Spark's file's."""

# From the first checkpoint on: these cannot be changed for one that exists.
_CHECKPOINTS = {
    # Verifies checksums, which the default one does not, and forks no `chmod` for each file.
    f"{_STREAMING}.checkpointFileManagerClass": f"{_PACKAGE}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.stateStore.providerClass": f"{_PACKAGE}.state.RocksDBStateStoreProvider",
    f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STREAMING}.stateStore.checkpointFormatVersion": "2",
    f"{_STREAMING}.stateStore.rowChecksum.enabled": "true",
    f"{_STREAMING}.minBatchesToRetain": "20",
}

# One process on loopback that no one looks into: no web page, no history, no talk on the console.
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
    """Let Spark's workers run functions of the user's module, which they have no file to import from, and import the
    files beside it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _put_on_path(str(file.resolve().parent), first=True)


def _put_on_path(folder: str, *, first: bool) -> None:
    """Set where Spark's Python processes look for modules."""
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others] if first else [*others, folder])


def start_session(
    name: str, settings: Settings, *, logs: Path, warehouse: Path, java_options: Sequence[str] = ()
) -> SparkSession:
    """Start the JVM and the session: some seconds. One a process; Spark's log goes to `logs`."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    scratch = scratch_folder()
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)  # it wins over `spark.local.dir`
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = _python(logs)
    os.environ["PYTHONSAFEPATH"] = "1"  # or the working directory comes before the folder of the app
    _put_on_path(str(Path.cwd()), first=False)
    os.environ[workers.VARIABLE] = str(_record_modules(logs))
    log4j = logs / "log4j2.properties"
    log4j.write_text(_LOG4J.format(directory=logs.resolve()))
    cores = settings.spark_cores or len(os.sched_getaffinity(0))
    builder = SparkSession.builder.appName(f"penstock {name}").master(f"local[{cores},{TASK_TRIES}]")
    archived = archive.java_options(archive.archive_file(java)) if settings.class_archive else []
    # in quotes, as the paths may have blanks
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
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)  # they print Java stacks of errors that we report
    for key, value in (_CHECKPOINTS | _QUIET | own).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _python(folder: Path) -> str:
    """The Python of Spark's workers, of which each query starts some: a third of a second of processor each, where it
    would be one. Spark gives up on one that has not answered in ten, which they need when many start on a busy machine.
    """
    script = folder.resolve() / "python"
    file = shlex.quote(str(Path(workers.__file__).resolve()))
    script.write_text(_PYTHON.format(python=shlex.quote(sys.executable), module=workers.__name__, file=file))
    script.chmod(0o700)
    usable = Path(pyspark.__file__).is_file() and os.access(script, os.X_OK)  # not out of an archive; not on `noexec`
    return str(script) if usable else sys.executable


def _record_modules(folder: Path) -> Path:
    """Write down the local modules that this process has loaded, with their files and digests of those, for the
    workers."""
    known = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    files = {
        name: os.path.realpath(file)
        for name, file in sorted(known.items())
        if file and file.endswith(".py") and is_local(file)
    }
    digests = {file: found for file in files.values() if (found := workers.digest_of(file)) is not None}
    record = folder.resolve() / "modules.json"
    record.write_text(json.dumps({"files": files, "digests": digests}))
    return record


def _functions() -> dict[str, str]:
    """Plain Python functions in views need nothing else. Spark would run them by way of pandas, which is not one of our
    dependencies, and refuse them where it is missing."""
    return {} if find_spec("pandas") else {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}


def _sockets(folder: Path) -> dict[str, str]:
    """Java and Python talk by files in `folder`, which only their owner may open. By ports, as they would otherwise, a
    program that looks for a server it knew may come first: Spark takes its first bytes for a length, and runs out of
    memory."""
    if len(str(folder.parent)) > TEMPORARY_CHARS_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def java_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The process of a session that was started here."""
    process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    return process
