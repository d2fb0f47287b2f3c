"""A small HTTP server that behaves badly, and processes that read from it until they are killed.

The server speaks HTTP by hand, so that it can cut an answer anywhere. `python -m tests.collect.sources.origin` is a
nursery: it imports everything once, and for each line on its standard input forks a process that runs a source into a
real log.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlsplit

from penstock.collect.sources.http.ndjson import ndjson
from penstock.collect.sources.http.poll import poll
from penstock.collect.sources.http.sse import sse
from penstock.core.contracts import Source, SourceStatus
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from tests.collect.support import Rig, opened
from tests.memory_log import DEADLINE_S, MemoryLog
from tests.network import Asked

ROOT = Path(__file__).parents[3]
MAKERS: dict[str, Callable[..., Source]] = {"sse": sse, "ndjson": ndjson, "poll": poll}
KILLS_MIN = 3
PAUSE_S = 0.03
"""Slow enough that a reader is killed while events arrive, and not after the last."""
AHEAD = 30
"""A reader is shown this many more events than it is to be killed after: however late the kill comes, others follow."""
KILLS_S_MAX = 280.0
CONNECTING_S_MAX = 0.2
QUICK: dict[str, Any] = {"backoff_s": 0.001, "backoff_max_s": 0.02}


@dataclass
class Reply:
    """One answer, written piece by piece."""

    writer: asyncio.StreamWriter
    chunked: bool = False
    whole: bool = field(default=False, init=False)

    async def head(self, status: int = 200, *, chunked: bool = True, **headers: str) -> None:
        self.chunked = chunked
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += ["Transfer-Encoding: chunked"] if chunked else []
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        await self.writer.drain()

    async def end(self) -> None:
        """Send the end that the client was told to expect."""
        if self.chunked:
            self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        self.whole = True

    async def all(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        await self.head(status, chunked=False, Content_Length=str(len(body)), **headers)
        await self.send(body)
        await self.end()

    def cut(self) -> None:
        self.writer.transport.abort()

    async def stall(self) -> None:
        """Do nothing more: the server ends the answer when the client leaves."""
        await asyncio.get_running_loop().create_future()


Handler = Callable[[Asked, Reply], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Run a server; yields its address. An answer that the handler leaves open is cut off when it returns."""

    connections: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while await _one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            connections.discard(task)
            writer.transport.abort()

    async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        target = urlsplit(first.split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        reply = Reply(writer)
        answering = asyncio.ensure_future(handler(Asked(target.path, dict(parse_qsl(target.query)), headers), reply))
        leaving = asyncio.ensure_future(_left(reader, writer))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for future in (answering, leaving):
                future.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        return reply.whole and not writer.is_closing()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # a transport that was aborted closes its socket in the next round of the loop


def sending(*answers: bytes, seen: list[Asked] | None = None, ended: bool = True, **headers: str) -> Handler:
    """Run a server that gives these answers in order, and then only blank lines."""
    left = list(answers)

    async def handler(asked: Asked, reply: Reply) -> None:
        if seen is not None:
            seen.append(asked)
        await reply.head(200, chunked=True, **headers)
        if not left:
            while True:
                await reply.send(b"\n")
                await asyncio.sleep(0.02)
        await reply.send(left.pop(0))
        if ended:
            await reply.end()

    return handler


async def _left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the client has disconnected. It sends nothing while it waits for an answer."""
    while not reader.at_eof() and not writer.is_closing():
        await asyncio.sleep(0.005)


@asynccontextmanager
async def pulling(rig: Rig, source: Source, stream: str = "raw") -> AsyncIterator[SourceStatus]:
    """Run a source; cancel it at the end, as at a shutdown. A source that failed by itself is not an error here.

    It may finish connecting first, if that is quick: anyio leaves a socket to the garbage collector if it is cancelled
    in the very moment in which a connection is established.
    """
    status = SourceStatus()
    task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", stream), status))
    try:
        yield status
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECTING_S_MAX):
                while status.state == "connecting":
                    await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def outcome(handler: Handler, kind: str, path: str = "/", **options: Any) -> BaseException | None:
    """Return the error that ends a source with this server; the test fails if there is none."""
    async with opened(MemoryLog()) as rig, serving(handler) as url:
        source = MAKERS[kind](url + path, **QUICK, **options)
        task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus()))
        await asyncio.wait([task], timeout=DEADLINE_S)
        assert task.done(), "the source goes on"
        return task.exception()


def stored(log: MemoryLog) -> list[bytes]:
    return [row["data"] for row in log.rows["raw"][0]]


def event(number: int) -> bytes:
    return b'{"n": %d, "text": "%s"}' % (number, b"x" * (number * 7 % 90))


class Unreliable:
    """Serves `total` events at `/sse`, at `/groups` (several in one server-sent event), at `/ndjson` and at `/poll`,
    each with many faults.

    `taken` returns how many events the reader has durable: a polled document shows some more than those, so that a
    killed reader finds in it everything that it has not taken. Events from `shown` on are not there yet.
    """

    def __init__(self, draw: random.Random, total: int, taken: Callable[[], int], pause_s: float = 0.0) -> None:
        self.draw = draw
        self.pause_s = pause_s
        self.total = total
        self.shown = total
        self.taken = taken
        self.faults: dict[str, int] = {}

    def fault(self, name: str, chance: float) -> bool:
        happens = self.draw.random() < chance
        if happens:
            self.faults[name] = self.faults.get(name, 0) + 1
        return happens

    async def __call__(self, asked: Asked, reply: Reply) -> None:
        if self.fault("refuse", 0.1):
            return await reply.all(status=self.draw.choice([429, 500, 502, 503]), Retry_After="0")
        if self.fault("hang up", 0.1):
            return reply.cut()
        if asked.path == "/poll":
            return await self._document(reply)
        start = int(asked.headers.get("last-event-id") or asked.query.get("since") or -1) + 1
        if asked.path != "/groups" and self.fault("repeat", 0.4):
            start = max(0, start - self.draw.randrange(1, 60))
        kind = "application/x-ndjson" if asked.path == "/ndjson" else "text/event-stream"
        await reply.head(Content_Type=kind)
        return await self._follow(asked.path, start, reply)

    async def _follow(self, path: str, number: int, reply: Reply) -> None:
        while True:
            if number >= self.shown:
                await reply.send(b"\n" if path == "/ndjson" else b": still here\n\n")
                await asyncio.sleep(0.02)
                continue
            upto = min(self.shown, number + self.draw.randrange(1, 20))
            data = _framed(path, range(number, upto))
            if self.fault("truncate", 0.06):
                await reply.send(data[: self.draw.randrange(len(data))])
                return reply.cut() if self.draw.random() < 0.7 else None
            for start in range(0, len(data), size := self.draw.choice([7, 100, 10_000])):
                await reply.send(data[start : start + size])
            number = upto
            await asyncio.sleep(self.pause_s)
            if self.fault("stall", 0.01):
                return await reply.stall()
            if self.fault("delay", 0.1):
                await asyncio.sleep(0.01)
            if self.fault("end", 0.03):
                return await reply.end()

    async def _document(self, reply: Reply) -> None:
        """Send the newest items first, at least those that are not taken; new ones come with every poll."""
        taken = self.taken()
        newest = min(self.shown, taken + self.draw.randrange(0, 30))
        items = [json.loads(event(number)) for number in range(newest - 1, max(-1, taken - 40), -1)]
        body = json.dumps({"data": {"items": items}}).encode()
        if self.fault("truncate", 0.2):
            await reply.head(chunked=False, Content_Length=str(len(body)))
            await reply.send(body[: len(body) // 2])
            return reply.cut()
        if self.fault("stall", 0.02):
            return await reply.stall()
        return await reply.all(body, ETag=f'"{newest}"')


def _framed(path: str, numbers: range) -> bytes:
    events = list(map(event, numbers))
    if path == "/ndjson":
        return b"".join(raw + b"\n" for raw in events)
    if path == "/groups":
        return b'id: %d\ndata: {"events": [%b]}\n\n' % (numbers[-1], b",".join(events))
    return b"".join(b"id: %d\ndata: %b\n\n" % (number, raw) for number, raw in zip(numbers, events, strict=True))


@dataclass
class Nursery:
    """Starts readers, each in a separate process, on one directory."""

    process: subprocess.Popen[str]

    def start(self, kind: str, url: str, **options: Any) -> int:
        """Start a reader and return its process id. The one before it must be dead."""
        incoming, outgoing = self._pipes()
        incoming.write(json.dumps([kind, url, options]) + "\n")
        incoming.flush()
        return int(outgoing.readline())

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout


@contextmanager
def nursery(directory: Path) -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.collect.sources.origin", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            yield Nursery(process)
        finally:
            process.kill()


async def survives_kills(
    kind: str, directory: Path, total: int, path: str = "", parts: int = 5, **options: Any
) -> None:
    """Read from an unreliable server in processes that are killed at random, some twice as often as there are parts,
    until everything has arrived; then check that each event is there once and in order."""
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, pid, kills = random.Random(seed), 0, 0
    log = EmbeddedLog(directory)
    async with opened(log):
        pass
    log.close()
    reader = EmbeddedLogOpener(directory)()
    server = Unreliable(draw, total, lambda: reader.rows_between("raw", {}, reader.ends("raw")), PAUSE_S)
    with nursery(directory) as children:
        try:
            async with serving(server) as url, asyncio.timeout(KILLS_S_MAX):
                while server.taken() < total:
                    goal = min(total, server.taken() + draw.randrange(1, total // parts))
                    server.shown = min(total, goal + AHEAD)
                    pid = await asyncio.to_thread(children.start, kind, f"{url}/{path or kind}", **QUICK, **options)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(DEADLINE_S):
                            while server.taken() < goal:
                                await asyncio.sleep(0.002)
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        finally:
            reader.close()
    print("kills", kills, "faults", server.faults)
    assert kills >= KILLS_MIN
    assert read_all(directory) == [event(number) for number in range(total)]


def read_all(directory: Path) -> list[bytes]:
    log = EmbeddedLogOpener(directory)()
    try:
        batches = log.read("raw", 0, 0, log.ends("raw")[0])
        texts = [row["data"] for batch in batches for row in batch.to_pylist()]
    finally:
        log.close()
    return [json.dumps(json.loads(text)).encode() for text in texts]


async def read(directory: str, kind: str, url: str, options: dict[str, Any]) -> None:
    async with opened(EmbeddedLog(Path(directory), disk_reserve_bytes=0)) as rig:
        source = MAKERS[kind](url, **options)
        await source.run(rig.ingress.writer_for_source("feed", "raw"), SourceStatus())


def main(directory: str) -> None:
    import httpx  # noqa: F401  # before the fork, so that no child spends its short life on it

    for line in sys.stdin:
        with suppress(ChildProcessError):
            os.wait()
        pid = os.fork()
        if pid == 0:
            asyncio.run(read(directory, *json.loads(line)))
            os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
