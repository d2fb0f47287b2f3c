"""The query process is safe whatever text it gets: the check before it is not the only protection."""

from __future__ import annotations

import json
import mmap
import os
import socket
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.core import columns
from penstock.serve.query import worker
from penstock.serve.query.sources import SharedFile

SPACE = 64 * 2**20
secret_of_ours = pa.table({"x": [1]})

REACHING_OUT = [
    "SELECT * FROM secret_of_ours", "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM read_blob('/etc/passwd')", "SELECT * FROM glob('/*')",
    "SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')", "COPY (SELECT 1) TO '/tmp/penstock-query-test'",
    "ATTACH '/tmp/penstock-query-test.db'", "INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.duckdb_extension'",
    "SET memory_limit = '1TB'", "SET threads = 64", "SET enable_external_access = true", "RESET memory_limit",
    "SET lock_configuration = false", "SET python_enable_replacements = true", "SET temp_directory = '/tmp'",
    "SELECT getenv('HOME')", "EXPORT DATABASE '/tmp/penstock-query-test'", "SET TimeZone = 'Europe/Berlin'",
    "PRAGMA enable_profiling", "SET log_query_path = '/tmp/penstock-query-test'",
]  # fmt: skip


@pytest.mark.parametrize("sql", REACHING_OUT)
def test_the_database_reaches_nothing_outside_and_its_settings_stay(sql: str) -> None:
    connection = worker.connect(SPACE)
    try:
        with pytest.raises(duckdb.Error):
            connection.execute(sql).fetchall()
    finally:
        connection.close()
    assert not list(Path("/tmp").glob("penstock-query-test*"))


@pytest.mark.parametrize(
    "sql", ["SELECT 1; SELECT 2", "CREATE TABLE x (a INT)", "PRAGMA version", "INSERT INTO x VALUES (1)"]
)
def test_only_one_select_is_run(sql: str) -> None:
    connection = worker.connect(SPACE)
    try:
        reply, files = worker.answer(connection, {"sql": sql, "rows": 10, "format": "json"}, [])
    finally:
        connection.close()
    assert reply["error"] in ("failed", "wrong")
    assert files == []


def test_rows_are_cut_where_they_should_be() -> None:
    table = SharedFile(pa.table({"x": range(5_000)}))
    connection = worker.connect(SPACE)
    try:
        for rows, count, more in ((10, 10, True), (5_000, 5_000, False), (4_999, 4_999, True), (9_999, 5_000, False)):
            request = {"sql": "SELECT x FROM temp.main.input_0", "rows": rows, "format": "arrow", "cursors": {}}
            reply, (result,) = worker.answer(connection, request, [table.descriptor])
            assert (reply["rows"], reply["truncated"]) == (count, more)
            os.lseek(result, 0, os.SEEK_SET)
            with open(result, "rb") as file:
                assert pa.ipc.open_stream(file).read_all().num_rows == count
    finally:
        connection.close()


def test_the_tables_of_a_query_cannot_be_changed() -> None:
    """This holds even for a process that has escaped from the engine: the same pages are read by the next query."""
    table = SharedFile(pa.table({"x": [1]}))
    for change in (
        lambda: os.pwrite(table.descriptor, b"y", 0),
        lambda: os.ftruncate(table.descriptor, 0),
        lambda: os.ftruncate(table.descriptor, table.size + 1),
        lambda: mmap.mmap(table.descriptor, 0, prot=mmap.PROT_WRITE),
    ):
        with pytest.raises(PermissionError):
            change()
    assert table.table().to_pylist() == [{"x": 1}]


def test_a_long_run_of_queries_leaves_nothing_of_their_columns_behind() -> None:
    connection = worker.connect(SPACE)
    try:
        for number in range(3):
            request = {"sql": f"SELECT {{'m{number}': 1}} AS c{number}", "rows": 1, "format": "json"}
            _, (result,) = worker.answer(connection, request, [])
            os.close(result)
        assert columns._json_struct.cache_info().currsize == 0
    finally:
        connection.close()


def test_a_request_and_its_answer_are_one_message_each() -> None:
    """The longest text that the check accepts, and the longest error, fit."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * worker.MESSAGE_BYTES_MAX)
        text = json.dumps({"sql": "x" * (worker.MESSAGE_BYTES_MAX - 1_000)}).encode()
        assert socket.send_fds(ours, [text], []) == len(text)
        assert len(theirs.recv(worker.MESSAGE_BYTES_MAX)) == len(text)
