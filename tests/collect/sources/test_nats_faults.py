"""The NATS source under faults: the server and the reading process are killed and connections are cut, at random.

`python -m tests.collect.sources.test_nats_faults DIRECTORY URL CASE` is the reading process, which is killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from penstock.app.app import App
from penstock.collect.ingress import Ingress
from penstock.collect.sources.nats.source import NatsSource
from penstock.core.clock import WallClock
from penstock.core.contracts import SourceStatus
from penstock.core.settings import Settings
from penstock.queue import EmbeddedLog
from tests.collect.sources.nats_server import NatsServer, talking
from tests.collect.support import in_loop
from tests.contracts.log import ROOT
from tests.network import close

if TYPE_CHECKING:
    from nats.js import JetStreamContext

pytest.importorskip("nats")
DEADLINE_S = 240.0
FAULTS = ("cut", "kill server", "kill reader")


@dataclass(frozen=True)
class Case:
    """A kind of stream, and how it is read. Every third event is on a subject that a filter excludes."""

    retention: str
    durable: str | None = None
    subjects: tuple[str, ...] = ()

    def takes(self, number: int) -> bool:
        return not self.subjects or number % 3 > 0


CASES = {
    "limits": Case("limits"),
    "filtered": Case("limits", subjects=("e.{kind}.ours",)),
    "workqueue": Case("workqueue", "us"),
    "interest": Case("interest", "us", ("e.{kind}.ours",)),
}


class Proxy:
    """Forwards bytes to the server, until it cuts every connection at an arbitrary point."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            await close(server)
            self.cut()
            await _until(lambda: not self._open)

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reader_on, writer_on = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, writer_on}
        self._open |= pair
        try:
            await asyncio.gather(_pass_on(reader, writer_on), _pass_on(reader_on, writer))
        finally:
            self._open -= pair


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    writer.transport.abort()


class Publisher:
    """Publishes numbers, each until it is acknowledged. `sequences` has the server's answer: the position of each.

    A resent number has the same id, so that the server stores it once. But it knows only the ids of events that
    it still has: one that was stored, read, acknowledged and deleted, all before a kill and without an answer to us, is
    stored again, as another event. So tries are distinguished: `n` is the number, `try` how often it was sent before.
    """

    def __init__(self, url: str, case: Case) -> None:
        self._url = url
        self._case = case
        self.sequences: dict[int, int] = {}
        self.stopping = False
        self._tries = 0

    async def run(self) -> None:
        """Publish; ends between two numbers, so that the position of each sent number is known at the end."""
        while self._tries or not self.stopping:
            with suppress(Exception):  # whatever the error, the same number is sent again
                async with talking(self._url, reconnect=False) as js:
                    await self._publish(js, len(self.sequences))
                    while not self.stopping:
                        await self._publish(js, len(self.sequences))
            await asyncio.sleep(0.01)

    async def _publish(self, js: JetStreamContext, number: int) -> None:
        self._tries += 1
        subject = f"e.k{number % 2}.ours" if number % 3 else "e.theirs"
        payload = json.dumps({"n": number, "try": self._tries}).encode()
        ack = await js.publish(subject, payload, timeout=1, headers={"Nats-Msg-Id": str(number)})
        self.sequences[number] = ack.seq
        self._tries = 0

    def expected(self) -> list[int]:
        """Return the numbers that should arrive, in order of the stream."""
        taken = [number for number in self.sequences if self._case.takes(number)]
        return sorted(taken, key=self.sequences.__getitem__)


class ReadingProcess:
    """The process that is killed. `output` collects its output, over all its lives."""

    def __init__(self, directory: Path, url: str, case: str, output: IO[bytes]) -> None:
        self._words = [sys.executable, "-m", "tests.collect.sources.test_nats_faults", str(directory), url, case]
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, cwd=ROOT, stdout=self._output, stderr=self._output)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the reading process has ended by itself"
        self._process.kill()
        self._process.wait()


def stored(directory: Path) -> list[tuple[int, int]]:
    """Return the events in the log, in its order: number and try."""
    if not directory.exists():
        return []
    log = EmbeddedLog(directory, read_only=True)
    try:
        end = log.ends("raw")[0]
        rows = [row["data"] for batch in log.read("raw", 0, 0, end) for row in batch.to_pylist()]
    except Exception:  # there is no such stream yet
        return []
    finally:
        log.close()
    events = map(json.loads, rows)
    return [(event["n"], event["try"]) for event in events]


def check(events: list[tuple[int, int]], expected: list[int], case: Case) -> None:
    """Check that no event is stored twice, and that all acknowledged ones are stored, in order of the stream; of a
    number that the server stored twice, the last one was."""
    assert len(set(events)) == len(events)
    last = {number: place for place, (number, _) in enumerate(events)}
    assert sorted(last, key=last.__getitem__) == expected
    assert len(last) == len(events) or case.retention != "limits"


async def suffer(tmp_path: Path, name: str, rounds: int, seed: int) -> None:
    """Cause `rounds` random faults; then wait undisturbed until everything has arrived."""
    draw, case, directory = random.Random(seed), CASES[name], tmp_path / "log"
    faults = [*FAULTS, *draw.choices(FAULTS, (4, 1, 2), k=rounds - len(FAULTS))]
    draw.shuffle(faults)
    with NatsServer(tmp_path / "nats").running() as server, open(tmp_path / "told", "wb") as output:
        async with talking(server.url) as js:
            await js.add_stream(name="EVENTS", subjects=["e.>"], retention=case.retention)
        async with Proxy(server.port).listening() as proxy:
            reading = ReadingProcess(directory, proxy.url, name, output)
            reading.start()
            await _until(lambda: b"connected" in (tmp_path / "told").read_bytes())
            publisher = Publisher(server.url, case)
            publishing = asyncio.create_task(publisher.run())
            for fault in faults:
                await asyncio.sleep(draw.uniform(0.05, 0.6))  # the moment of a fault is the random part of this test
                if fault == "cut":
                    proxy.cut()
                elif fault == "kill server":
                    server.kill()
                    await asyncio.sleep(draw.uniform(0, 0.2))
                    await asyncio.to_thread(server.start)
                else:
                    reading.kill()
                    reading.start()
                    await asyncio.sleep(draw.uniform(0.5, 2.0))
            publisher.stopping = True
            await publishing
            expected = publisher.expected()
            try:
                await _until(lambda: {number for number, _ in stored(directory)} >= set(expected))
            except TimeoutError:
                missing = sorted(set(expected) - {number for number, _ in stored(directory)})
                output.flush()
                said = (tmp_path / "told").read_text()[-2000:]
                raise AssertionError(f"{len(missing)} of {len(expected)} are missing: {missing[:20]}\n{said}") from None
            finally:
                reading.kill()
    print(f"{name}: {len(expected)} events, {dict(Counter(faults))}")
    check(stored(directory), expected, case)
    text = (tmp_path / "told").read_text()
    assert "were removed" not in text
    assert "Traceback" not in text


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", CASES)
@in_loop
async def test_every_acknowledged_event_is_in_the_log_once_and_in_order(tmp_path: Path, name: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    await suffer(tmp_path, name, 3, seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
@in_loop
async def test_every_acknowledged_event_is_in_the_log_once_and_in_order_over_many_faults(
    tmp_path: Path, name: str
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    await suffer(tmp_path, name, 150, seed)


async def main(directory: str, url: str, case: str) -> None:
    chosen = CASES[case]
    app = App("test")
    app.stream("raw", partitions=1)
    log = EmbeddedLog(Path(directory), disk_reserve_bytes=0)
    ingress = Ingress(app.streams, log, Settings(), WallClock(), lambda error: None, lambda stream: None)
    source = NatsSource(
        url,
        "EVENTS",
        durable=chosen.durable,
        subjects=chosen.subjects,
        pending_max=50,
        silent_s=3,
        backoff_s=0.01,
        backoff_max_s=0.2,
    )
    status = SourceStatus()
    running = asyncio.create_task(source.run(ingress.writer_for_source("feed", "raw"), status))
    while status.state != "connected" and not running.done():
        await asyncio.sleep(0.01)
    print("connected", flush=True)
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
