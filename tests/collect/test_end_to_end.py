"""Ingestion with the real log and a real server: sockets, files and processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from bench import load
from penstock.core import failpoints
from penstock.core.access import Gate
from penstock.core.columns import event_rows
from penstock.core.settings import MIB, Settings
from penstock.http.guard import guarded
from penstock.queue import EmbeddedLog
from tests.clocks import until
from tests.collect.support import Rig, body, fix, in_loop, opened


@contextlib.contextmanager
def log_in(path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(path)
    try:
        yield log
    finally:
        log.close()


def stored(log: EmbeddedLog, stream: str) -> list[dict[str, Any]]:
    """Return all events of a stream, read back from its file."""
    events: list[dict[str, Any]] = []
    for partition, end in log.ends(stream).items():
        for batch in log.read(stream, partition, 0, end):
            events += map(msgspec.json.decode, event_rows(batch))
    return events


@contextlib.asynccontextmanager
async def served(rig: Rig) -> AsyncIterator[int]:
    """Run a server on a free port of the loopback; yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        guarded(rig.endpoint, Gate()), lifespan="off", log_level="critical", access_log=False, http="httptools"
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve([listener]))
    await until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running


@in_loop
async def test_what_was_answered_is_in_the_log_after_a_restart(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        async with opened(log) as rig, served(rig) as port, httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}/v1/streams/fixes"
            answers = await asyncio.gather(*(client.post(url, content=body(fix(n, f"v{n % 5}"))) for n in range(50)))
            assert {answer.status_code for answer in answers} == {200}
    with log_in(tmp_path) as log:
        async with opened(log) as rig:
            assert sorted(row["fix_id"] for row in stored(log, "fixes")) == sorted(f"f{n}" for n in range(50))
            again = await rig.ingress.post("fixes", body([fix(n, f"v{n % 5}") for n in range(50)]))
            assert (again.accepted, again.duplicates) == (0, 50)


@in_loop
async def test_an_id_sent_twice_in_one_request_is_stored_once_also_under_another_key(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        async with opened(log) as rig:
            content = body([fix(1, f"v{n}") for n in range(10)])
            receipt = await rig.ingress.post("fixes", content)
            assert (receipt.accepted, receipt.duplicates) == (1, 9)
            assert len(stored(log, "fixes")) == 1


@in_loop
async def test_ticks_dead_letters_and_events_live_side_by_side(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        async with opened(log) as rig:
            await rig.ingress.post("fixes", body(fix(1), {"bad": True}))
            await rig.ingress.tick("fixes")
            assert [row["fix_id"] for row in stored(log, "fixes")] == ["f1"]
            assert log.rows_between("fixes", {}, log.ends("fixes")) == 1 + 2
            (letter,) = stored(log, "fixes.rejected")
            assert letter["reason"] == "Object missing required field `fix_id`"


@in_loop
async def test_a_body_that_is_cut_by_a_reset_leaves_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    content = body([fix(n) for n in range(100)])
    with log_in(tmp_path) as log:
        async with opened(log) as rig, served(rig) as port:
            for _ in range(10):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /v1/streams/fixes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content))
                writer.write(content[: draw.randrange(len(content))])
                await writer.drain()
                writer.transport.abort()
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"http://127.0.0.1:{port}/v1/streams/fixes", content=body(fix(1000)))
                assert answer.json()["accepted"] == 1
            assert [row["fix_id"] for row in stored(log, "fixes")] == ["f1000"]
            assert not stored(log, "fixes.rejected")


@pytest.mark.parametrize("declared", [True, False])
@in_loop
async def test_a_client_that_sends_too_much_still_gets_its_answer(declared: bool, tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(64 * 1024)

    with log_in(tmp_path) as log:
        async with opened(log, Settings(body_bytes_max=MIB)) as rig, served(rig) as port, httpx.AsyncClient() as client:
            content = bytes(4 * MIB) if declared else chunks()
            answer = await client.post(f"http://127.0.0.1:{port}/v1/streams/fixes", content=content)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@in_loop
async def test_a_full_disk_is_507_and_nothing_of_it_stays(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path, disk_reserve_bytes=2**62)
    try:
        async with opened(log) as rig, served(rig) as port, httpx.AsyncClient() as client:
            answer = await client.post(f"http://127.0.0.1:{port}/v1/streams/fixes", content=body(fix(1)))
            assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
            assert int(answer.headers["retry-after"]) >= 1
            assert not stored(log, "fixes")
    finally:
        log.close()


@in_loop
async def test_many_connections_share_commits_and_lose_nothing(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        async with opened(log) as rig, served(rig) as port:
            bodies = (body(fix(n, f"v{n % 7}")) for n in range(2000))
            result = await asyncio.to_thread(
                load.run, "127.0.0.1", port, "/v1/streams/fixes", bodies, connections=32, seconds=60
            )
            assert (result.requests, result.errors) == (2000, 0)
            assert len({row["fix_id"] for row in stored(log, "fixes")}) == 2000
            assert rig.ingress.audits()["fixes"].commits < 1000


POST_ONE = """
import asyncio, sys
from pathlib import Path
from penstock.queue import EmbeddedLog
from tests.collect.support import answered, body, fix, opened

async def main():
    log = EmbeddedLog(Path(sys.argv[1]))
    async with opened(log) as rig:
        answer = await answered(rig.endpoint, "fixes", body(fix(1)))
        print(answer.json["accepted"], answer.json["duplicates"])
    log.close()

asyncio.run(main())
"""


def post_one(path: Path, traps: str = "") -> subprocess.CompletedProcess[str]:
    """Post the same event in a separate process."""
    return subprocess.run(
        [sys.executable, "-c", POST_ONE, str(path)],
        env=os.environ | {failpoints.VARIABLE: traps},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("point", "retried"),
    [("collect.before_append", "1 0"), ("collect.after_append", "0 1"), ("collect.before_answer", "0 1")],
)
def test_a_retry_after_a_kill_is_stored_exactly_once(point: str, retried: str, tmp_path: Path) -> None:
    killed = post_one(tmp_path, f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == ""
    again = post_one(tmp_path)
    assert again.stdout.strip() == retried, again.stderr
    with log_in(tmp_path) as log:
        assert [row["fix_id"] for row in stored(log, "fixes")] == ["f1"]


def test_importing_the_package_loads_no_server_and_no_arrow() -> None:
    script = """
import sys, penstock.collect
print([name for name in ("pyarrow", "websockets", "uvicorn", "starlette") if name in sys.modules])
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.strip() == "[]"


def test_no_writer_thread_outlives_its_door() -> None:
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")]
