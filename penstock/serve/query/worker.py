"""The process that runs queries, one at a time. It can be killed at any time.

The only other module of this project that it imports is `encoding`.

DuckDB runs in a separate process because its limits do not always hold. A function call on one row, such as
`repeat('x', 1000000000)`, cannot be interrupted, and its memory is not counted. Here the kernel enforces both limits:
it bounds the memory that the process can allocate, and ends the process with an alarm. The result is encoded here too,
under the same limits, because the JSON of a small result can be long. The inputs are sealed in-memory files. The
process receives no paths, no connections, and only the environment variables that Python needs.

A request is one message on the socket: JSON, with an open file for each table. The response is also one message: JSON
and, if there is a result, an open file that contains it in encoded form.
"""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MESSAGE_BYTES_MAX = 192 * 1024
MESSAGE_LENGTH_MAX = 2_000
BATCH_ROWS = 1_000
SPARE_BYTES = 64 * 1024 * 1024
"""Bytes that a query can allocate beyond DuckDB's own limit, for its result and for memory that DuckDB does not
count."""
GRACE_S = 1.0
"""Number of seconds between the time limit and the moment when a query that ignores the interrupt is killed."""


def limit(memory_bytes: int, result_bytes: int) -> None:
    """Limit this query process's memory, the size of the files it writes and the number of its open files. Disable core
    dumps."""
    # if the machine runs out of memory, this process is killed first
    Path("/proc/self/oom_score_adj").write_text("1000")
    status = Path("/proc/self/status").read_text()
    allocated = int(status.partition("VmData:")[2].split()[0]) * 1024
    for which, most in (
        (resource.RLIMIT_DATA, allocated + memory_bytes + SPARE_BYTES),
        (resource.RLIMIT_FSIZE, result_bytes),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))
    os.nice(5)


def connect(memory_bytes: int) -> Any:
    """Return a new, empty in-memory database for a query. It cannot access anything outside, and its settings cannot be
    changed."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "python_scan_all_frames": "false",
            "temp_directory": "",
            "max_temp_directory_size": "0B",
            "memory_limit": f"{memory_bytes}B",
            "threads": "1",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def tables(files: Sequence[int]) -> Iterator[Any]:
    """Yield the query's input tables in these files, without copying them."""
    import pyarrow as pa

    for file in files:
        pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        yield pa.ipc.open_stream(pa.py_buffer(pages)).read_all()


def run(connection: Any, request: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], int]:
    """Run a query. Returns the reply, and the open file with its result."""
    import duckdb

    from penstock.serve.query import encoding

    statements = connection.extract_statements(request["sql"])
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("this is not one SELECT")
    for number, table in enumerate(tables(files)):
        connection.register(f"input_{number}", table)
    relation = connection.sql(request["sql"])
    types = [str(column_type) for column_type in relation.types]
    reader = relation.to_arrow_reader(BATCH_ROWS)
    encoding.column_names(reader.schema.names)  # so that a result that cannot be encoded is not read
    result = os.memfd_create("result", os.MFD_CLOEXEC)
    gathered = os.memfd_create("gathered", os.MFD_CLOEXEC)
    try:
        rows, truncated = write(reader, gathered, request["rows"])
        [table] = tables([gathered])
        tidy, kinds = encoding.tidied(table, types)
        with open(result, "wb", closefd=False) as file:
            if request["format"] == "arrow":
                encoding.write_arrow(file, tidy, request["cursors"], truncated=truncated)
            else:
                encoding.write_json(file, tidy, kinds, truncated=truncated)
    except BaseException:
        os.close(result)
        raise
    finally:
        os.close(gathered)
    return {"rows": rows, "truncated": truncated}, result


def write(reader: Any, result: int, rows_max: int) -> tuple[int, bool]:
    """Write at most `rows_max` rows of a query's result. Return how many were written, and whether there are more."""
    import pyarrow as pa

    rows = 0
    with open(result, "wb", closefd=False) as file, pa.ipc.new_stream(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch.slice(0, rows_max - rows))
            rows += batch.num_rows
            if rows > rows_max:
                return rows_max, True
    return rows, False


def answer(connection: Any, request: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """Run a query, and return its result or error.

    After the errors `wrong`, `slow` and `long`, the process can be used again. After any other error, it cannot.
    """
    import duckdb

    from penstock.serve.query.encoding import UnfitResult

    try:
        reply, result = run(connection, request, files)
        return reply, [result]
    except duckdb.InterruptException:
        return {"error": "slow"}, []
    except UnfitResult as error:
        return {"error": "wrong", "message": str(error)[:MESSAGE_LENGTH_MAX]}, []
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH_MAX]
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return {"error": "long"}, []
        if is_memory_error(message):
            return {"error": "large"}, []
        if isinstance(error, duckdb.Error) and not isinstance(error, duckdb.InternalException):
            return {"error": "wrong", "message": str(error)[:MESSAGE_LENGTH_MAX]}, []
        return {"error": "failed", "message": message}, []


def is_memory_error(message: str) -> bool:
    """Return whether a query's error is a failed allocation. DuckDB has its own error class only for memory that it
    counts."""
    words = ("OutOfMemory", "Out of Memory", "out of memory", "bad_alloc", "MemoryError", "malloc", "llocation failure")
    return any(word in message for word in words)


def serve(channel: socket.socket, memory_bytes: int, result_bytes: int) -> None:
    """Run queries until the parent disconnects. Each database is used once, and created before it is needed."""
    warm_up(memory_bytes)
    connection = connect(memory_bytes)
    limit(memory_bytes, result_bytes)
    channel.send(b'{"ready":true}')
    while True:
        message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 32)
        if not message:
            return
        reply, results = in_time(connection, json.loads(message), files)
        socket.send_fds(channel, [json.dumps(reply).encode()], results)
        for file in [*files, *results]:
            os.close(file)
        connection.close()
        gc.collect()  # frees the class that encodes rows with the client's columns, which refers to itself
        connection = connect(memory_bytes)


def warm_up(memory_bytes: int) -> None:
    """Run a first query, so that no client waits for modules to load."""
    import pyarrow as pa

    connection = connect(memory_bytes)
    connection.register("input_0", pa.table({"x": [1]}))
    request = {"sql": "SELECT x FROM input_0", "rows": 1, "format": "json"}
    for result in answer(connection, request, [])[1]:
        os.close(result)
    connection.close()
    gc.collect()
    gc.freeze()  # garbage collections between queries skip everything loaded so far


def in_time(connection: Any, request: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """Run a query within its time limit.

    At the limit the query is interrupted. If it ignores the interrupt, the process is killed.
    """
    timer = threading.Timer(request["seconds"], connection.interrupt)
    timer.daemon = True
    # the signal has no handler, so it kills the process
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_S)
    timer.start()
    try:
        return answer(connection, request, files)
    finally:
        timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)


def bare_package() -> None:
    """Make the modules of `penstock` importable without running its `__init__`.

    The package's `__init__` imports most of its modules, which would use memory and slow down each start.
    """
    package = ModuleType("penstock")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["penstock"] = package


def main() -> None:
    bare_package()
    descriptor, memory_bytes, result_bytes = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=descriptor), memory_bytes, result_bytes)
    os._exit(0)  # skips the libraries' exit handlers


if __name__ == "__main__":
    main()
