"""A real NATS server for tests, a process that can be killed and restarted, and helpers for tests of the source."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.collect.sources.nats.source import NatsSource
from penstock.core.contracts import SourceStatus
from penstock.core.errors import SourceFailed
from tests.clocks import until
from tests.collect.support import Rig, at_work, opened
from tests.memory_log import DEADLINE_S, MemoryLog
from tests.network import unlikely_port

if TYPE_CHECKING:
    from nats.js import JetStreamContext

PROGRAM = Path(sys.executable).parent / "nats-server"


class NatsServer:
    """`more` is added to its configuration. Its port and its store stay the same over restarts."""

    def __init__(self, directory: Path, more: str = "") -> None:
        directory.mkdir(exist_ok=True)
        self.port = unlikely_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "log"
        self._config = directory / "nats.conf"
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{directory}/store", sync_interval: always }}\n'
            f'log_file: "{self._log}"\n{more}\n'
        )

    @contextmanager
    def running(self) -> Iterator[NatsServer]:
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen([PROGRAM, "-c", self._config])
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert time.monotonic() < deadline, self._log.read_text() if self._log.exists() else "no log"
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@asynccontextmanager
async def talking(
    url: str, tls: ssl.SSLContext | None = None, credentials: str | None = None, *, reconnect: bool = True
) -> AsyncIterator[JetStreamContext]:
    """Open a separate connection, to set up and inspect the server."""
    import nats

    async def quiet(error: Exception) -> None:
        pass

    client = await nats.connect(
        url,
        tls=tls,
        user_credentials=credentials,
        allow_reconnect=reconnect,
        reconnect_time_wait=0,
        max_reconnect_attempts=1,
        error_cb=quiet,
        connect_timeout=int(DEADLINE_S),
    )
    try:
        yield client.jetstream(timeout=DEADLINE_S)
    finally:
        await client.close()


async def publish(js: JetStreamContext, subject: str, payloads: Sequence[bytes]) -> None:
    """Publish in order; returns when all are acknowledged."""
    for start in range(0, len(payloads), 500):
        futures = [await js.publish_async(subject, payload) for payload in payloads[start : start + 500]]
        await asyncio.gather(*futures)


@asynccontextmanager
async def pulling(rig: Rig, url: str, **options: Any) -> AsyncIterator[SourceStatus]:
    source = NatsSource(url, "EVENTS", **{"backoff_s": 0.001, "backoff_max_s": 0.01, **options})
    async with at_work(rig, source) as status:
        yield status


async def failure(url: str, **options: Any) -> str:
    """Return the message of the error with which a source ends."""
    async with opened(MemoryLog()) as rig:
        status = SourceStatus()
        source = NatsSource(url, "EVENTS", **options)
        with pytest.raises(SourceFailed) as caught:
            await asyncio.wait_for(source.run(rig.ingress.writer_for_source("feed", "raw"), status), 60)
        assert (status.state, status.error) == ("failed", caught.value.message)
        return caught.value.message


def stored(log: MemoryLog) -> list[bytes]:
    return [row["data"] for row in log.rows["raw"][0]] if "raw" in log.rows else []


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def messages(js: JetStreamContext) -> int:
    return (await js.stream_info("EVENTS")).state.messages


async def consumers(js: JetStreamContext) -> list[str]:
    return sorted(consumer.name for consumer in await js.consumers_info("EVENTS"))


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def read(url: str, log: MemoryLog, count: int, **options: Any) -> SourceStatus:
    """Run a source until the log has `count` events, then stop it."""
    async with opened(log) as rig, pulling(rig, url, **options) as status:
        await until(lambda: len(stored(log)) >= count and status.state == "connected")
    return status


async def is_empty(js: JetStreamContext) -> bool:
    return await messages(js) == 0
