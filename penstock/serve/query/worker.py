"""A process that runs queries, one at a time, and may be killed at any time. Of ours it imports the encoding alone.

DuckDB is in a process of its own because its limits do not hold in all cases: a function of one row, such as
`repeat('x', 1000000000)`, cannot be interrupted and is not counted against its memory. Here the kernel sees to both:
a limit on what the process may allocate, and an alarm that ends it. The answer is encoded here too, under the same
limits: a small result may have a long JSON. What it reads comes as open files in memory, which are sealed; it is given
no path, no connection and no environment.

A request is one message on the socket: JSON, with an open file for each table. The answer is one as well: JSON, with an
open file that has the encoded result, if there is one.
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
"""What a query may allocate besides what DuckDB counts: for its answer, and for what it does not count."""
GRACE_S = 1.0
"""How long after its time a query that does not heed the interrupt is left alive."""


def limit(memory_bytes: int, result_bytes: int) -> None:
    """What the kernel holds the process to from now on. Its answer is the only file that it may write."""
    Path("/proc/self/oom_score_adj").write_text("1000")  # if the machine runs out of memory, this process goes first
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
    """A new, empty database in memory that can reach nothing outside, and whose settings cannot be changed."""
    import duckdb

    made = duckdb.connect(
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
    made.execute("SET TimeZone = 'UTC'")
    made.execute("SET lock_configuration = true")
    return made


def tables(files: Sequence[int]) -> Iterator[Any]:
    """The tables in these files, not copied."""
    import pyarrow as pa

    for file in files:
        pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        yield pa.ipc.open_stream(pa.py_buffer(pages)).read_all()


def run(connection: Any, request: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], int]:
    """Run a query; the answer, and the open file with its result."""
    import duckdb

    from penstock.serve.query import encoding

    statements = connection.extract_statements(request["sql"])
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("this is not one SELECT")
    for number, table in enumerate(tables(files)):
        connection.register(f"input_{number}", table)
    found = connection.sql(request["sql"])
    types = [str(each) for each in found.types]
    reader = found.to_arrow_reader(BATCH_ROWS)
    encoding.distinct_names(reader.schema.names)  # before anything is read that cannot be encoded
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
    """Write at most so many rows; how many there were, and whether there are more."""
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
    """The same, with what may go wrong. A query that was `wrong` or `slow` leaves nothing behind; after anything else
    this process is not to be used again."""
    import duckdb

    from penstock.serve.query.encoding import UnfitResult

    try:
        found, result = run(connection, request, files)
        return found, [result]
    except duckdb.InterruptException:
        return {"error": "slow"}, []
    except UnfitResult as error:
        return {"error": "wrong", "message": str(error)[:MESSAGE_LENGTH_MAX]}, []
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH_MAX]
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return {"error": "long"}, []
        if is_of_memory(told):
            return {"error": "large"}, []
        if isinstance(error, duckdb.Error) and not isinstance(error, duckdb.InternalException):
            return {"error": "wrong", "message": str(error)[:MESSAGE_LENGTH_MAX]}, []
        return {"error": "failed", "message": told}, []


def is_of_memory(told: str) -> bool:
    """Whether an allocation has failed. That has a class of its own only where DuckDB counts."""
    words = ("OutOfMemory", "Out of Memory", "out of memory", "bad_alloc", "MemoryError", "malloc", "llocation failure")
    return any(word in told for word in words)


def serve(channel: socket.socket, memory_bytes: int, result_bytes: int) -> None:
    """Answer requests until the other side is gone. A database is used once, and made before it is needed."""
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
        gc.collect()  # what encodes a row of the client's columns is a class, which refers to itself
        connection = connect(memory_bytes)


def warm_up(memory_bytes: int) -> None:
    """Load what the first query would have to."""
    import pyarrow as pa

    connection = connect(memory_bytes)
    connection.register("input_0", pa.table({"x": [1]}))
    request = {"sql": "SELECT x FROM input_0", "rows": 1, "format": "json"}
    for result in answer(connection, request, [])[1]:
        os.close(result)
    connection.close()
    gc.collect()
    gc.freeze()  # the collections between queries look at nothing of this


def in_time(connection: Any, request: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    """Answer before the time is over: then the query is interrupted, and if it does not heed that, the process ends."""
    timer = threading.Timer(request["seconds"], connection.interrupt)
    timer.daemon = True
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_S)  # nobody handles this signal, so it kills
    timer.start()
    try:
        return answer(connection, request, files)
    finally:
        timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)


def bare_package() -> None:
    """Make the modules of `penstock` importable without its `__init__`, which imports most of them: they would take
    time at each start, and memory."""
    package = ModuleType("penstock")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["penstock"] = package


def main() -> None:
    bare_package()
    descriptor, memory_bytes, result_bytes = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=descriptor), memory_bytes, result_bytes)
    os._exit(0)  # without the good-byes of libraries


if __name__ == "__main__":
    main()
