"""A real NATS server for tests: a process with JetStream, on a free loopback port, that can be killed and restarted."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.collect.fakes import DEADLINE_S

if TYPE_CHECKING:
    from nats.js import JetStreamContext

PROGRAM = Path(sys.executable).parent / "nats-server"


class NatsServer:
    """`more` is added to its configuration. Its port and its store stay the same over restarts."""

    def __init__(self, directory: Path, more: str = "") -> None:
        directory.mkdir(exist_ok=True)
        self.port = _free_port()
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
        self.start()
        try:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def talking(
    url: str, tls: ssl.SSLContext | None = None, *, reconnect: bool = True
) -> AsyncIterator[JetStreamContext]:
    """A connection of the test's own, to set up and look at the other side."""
    import nats

    async def quiet(error: Exception) -> None:
        pass

    client = await nats.connect(
        url, tls=tls, allow_reconnect=reconnect, reconnect_time_wait=0, max_reconnect_attempts=1, error_cb=quiet
    )
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def publish(js: JetStreamContext, subject: str, payloads: Sequence[bytes]) -> None:
    """Publish in order; done when all are acknowledged."""
    for start in range(0, len(payloads), 500):
        futures = [await js.publish_async(subject, payload) for payload in payloads[start : start + 500]]
        await asyncio.gather(*futures)
