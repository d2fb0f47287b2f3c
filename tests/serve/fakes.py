"""A log and a view in memory, and a real server on loopback to put them behind."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.access import ANYONE, CALLER, Caller
from penstock.access.grants import ALL
from penstock.columns import tick_batch, to_batch
from penstock.contracts import Change, Channel, Delivery, Page, Snapshot, Style
from penstock.errors import BadCursor
from penstock.schema import Event, event_schema
from penstock.serve.connections import Connections
from penstock.serve.deps import Deps
from penstock.serve.http import routes
from penstock.serve.problems import exception_handlers
from penstock.serve.protocol import OPTIONS, BoundedWebSocket, with_chunks
from penstock.serve.webhooks.crew import Around
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.routes import webhook_routes
from penstock.settings import Settings

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 240.0
QUICK = Settings(heartbeat_s=0.05)


class Reading(Event, id="n"):
    n: int
    text: str = ""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, with a deadline in place of sleeps that hang."""

    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await main

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the deadline is that of `run`."""
    while not condition():
        await asyncio.sleep(0.002)


class FakeLog:
    """A `LogReader` over lists, with the writes a test needs. Safe for threads."""

    def __init__(self, partitions: int = 2) -> None:
        self._lock = threading.RLock()
        self._generation = 1
        self._batches: dict[int, list[tuple[int, pa.RecordBatch]]] = {each: [] for each in range(partitions)}
        self._starts = dict.fromkeys(range(partitions), 0)
        self._ends = dict.fromkeys(range(partitions), 0)
        self.reads = 0
        self.error: Exception | None = None
        self.after_read: Callable[[], None] = lambda: None

    def write(self, partition: int, *numbers: int, at_s: float = 0.0, text: str = "") -> None:
        self.put(partition, *(Reading(n=number, text=text) for number in numbers), at_s=at_s)

    def put(self, partition: int, *events: Any, at_s: float = 0.0) -> None:
        """Write events of one class that have a number, `n`."""
        ids = [str(event.n) for event in events]
        now = EPOCH + timedelta(seconds=at_s)
        self._append(partition, to_batch(type(events[0]) if events else Reading, events, ids=ids, keys=ids, now=now))

    def tick(self, partition: int, at_s: float = 0.0) -> None:
        self._append(partition, tick_batch(event_schema(Reading), EPOCH + timedelta(seconds=at_s)))

    def _append(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self._batches[partition].append((self._ends[partition], batch))
            self._ends[partition] += batch.num_rows

    def trim(self, partition: int, before: int) -> None:
        with self._lock:
            self._starts[partition] = before

    def forget(self) -> None:
        """Let go of the batches that were trimmed."""
        with self._lock:
            for partition, batches in self._batches.items():
                start = self._starts[partition]
                self._batches[partition] = [each for each in batches if each[0] + each[1].num_rows > start]

    def remake(self) -> None:
        """The stream is deleted and made anew."""
        with self._lock:
            self._generation += 1
            for partition in self._batches:
                self._batches[partition] = []
                self._starts[partition] = self._ends[partition] = 0

    def generation(self, stream: str) -> int:
        return self._generation

    def starts(self, stream: str) -> Mapping[int, int]:
        with self._lock:
            return dict(self._starts)

    def ends(self, stream: str) -> Mapping[int, int]:
        with self._lock:
            return dict(self._ends)

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.reads += 1
            if self.error is not None:
                raise self.error
            if start < self._starts[partition] or end > self._ends[partition]:
                raise BadCursor(f"[{start}, {end}) is not wholly kept")
            batches = list(self._batches[partition])
        for first, batch in batches:
            low, high = max(start, first), min(end, first + batch.num_rows)
            if low < high:
                yield batch.slice(low - first, high - low)
        self.after_read()

    def wait(self, stream: str, seen: Mapping[int, int], timeout_s: float) -> Mapping[int, int]:
        raise NotImplementedError("the serve tier does not block on the log")

    def close(self) -> None:
        return


class FakeView:
    """A `LiveView` over a dictionary of rows keyed by `k`."""

    def __init__(self, kept: int = 1_000_000, *, remembers: bool = True) -> None:
        """One that does not remember knows of no change what was there before it."""
        self.remembers = remembers
        self.generation = 1
        self.version = 0
        self.rows: dict[str, bytes] = {}
        self._changes: list[Change] = []
        self._kept = kept
        self._news = asyncio.Event()

    @property
    def schema(self) -> pa.Schema | None:
        return pa.schema([("k", pa.string()), ("v", pa.int64())])

    def put(self, upserts: Mapping[str, Any], deletes: Sequence[str] = ()) -> None:
        before = tuple(map(self.rows.get, [*upserts, *deletes])) if self.remembers else None
        rows = {key: json.dumps({"k": key, "v": value}).encode() for key, value in upserts.items()}
        self.rows.update(rows)
        for key in deletes:
            self.rows.pop(key, None)
        self.version += 1
        keys = [json.dumps({"k": key}).encode() for key in deletes]
        data = b'{"upserts":[' + b",".join(rows.values()) + b'],"deletes":[' + b",".join(keys) + b"]}"
        self._changes = [*self._changes, Change(self.version, data, before)][-self._kept :]
        self._news.set()
        self._news = asyncio.Event()

    def remake(self) -> None:
        self.generation += 1
        self.version, self.rows, self._changes = 0, {}, []

    def snapshot(self) -> Snapshot:
        return Snapshot(self.version, list(self.rows.values()))

    def changes(self, after: int, limit: int) -> Sequence[Change] | None:
        first = self._changes[0].version if self._changes else self.version + 1
        if not first - 1 <= after <= self.version:
            return None
        return self._changes[after + 1 - first : after + 1 - first + limit]

    async def wait(self, after: int, timeout_s: float) -> bool:
        if self.version > after:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class NoChannel:
    """A `Channel` of which a test makes what it needs."""

    def through(self, where: str | None, select: str | None) -> Channel:
        raise AssertionError("not asked for")

    def asked_by(self, who: str) -> Channel:
        return self

    def part(self, where: str | None, select: str | None) -> Channel:
        raise AssertionError("not asked for")

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        raise AssertionError("not asked for")

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> Page:
        raise AssertionError("not asked for")

    async def last(self, limit: int) -> Page:
        raise AssertionError("not asked for")

    def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        raise AssertionError("not asked for")


def numbers(delivery: Delivery) -> list[int]:
    """The events of a stream's change, by their number."""
    return [event["n"] for event in json.loads(delivery.data)["events"]]


def body(delivery: Delivery) -> Any:
    return json.loads(delivery.data)


def description() -> dict[str, Any]:
    return {"name": "test", "version": "1", "state": "ready", "streams": [], "views": [], "sources": []}


def make_deps(
    streams: Mapping[str, Channel] | None = None, views: Mapping[str, Channel] | None = None, **changed: Any
) -> Deps:
    settings: Settings = changed.pop("settings", QUICK)
    connections = changed.pop("connections", None) or Connections(settings.connections_max)
    deps = Deps(
        streams=streams or {},
        views=views or {},
        describe=description,
        health=lambda: {"ready": True, "reasons": []},
        settings=settings,
        closing=asyncio.Event(),
        connections=connections,
    )
    return replace(deps, **changed)


def application(deps: Deps, caller: Caller | None = None, *, more: Sequence[BaseRoute] = ()) -> ASGIApp:
    """For one caller, who may do everything unless one is given. A caller belongs to one event loop, as a site does."""
    site = Starlette(routes=[*routes(deps), *more], exception_handlers=exception_handlers())
    one = caller or Caller("", ALL)

    async def as_caller(scope: Scope, receive: Receive, send: Send) -> None:
        await site({**scope, CALLER: one}, receive, send)

    return as_caller


@asynccontextmanager
async def serving(deps: Deps, caller: Caller | None = None) -> AsyncIterator[int]:
    """A real server on a free port of loopback, for one caller; gives the port."""
    async with _webhooks(deps) as more:
        async with _serving(application(deps, caller, more=more), deps) as port:
            yield port


@asynccontextmanager
async def _webhooks(deps: Deps) -> AsyncIterator[list[BaseRoute]]:
    """Webhooks of these channels, which may go to loopback."""
    settings = replace(deps.settings, webhook_private="127.0.0.0/8", webhook_backoff_s=0.01)
    around = Around(lambda name: ANYONE, lambda kind, of: ())
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(Path(folder) / "webhooks.db", settings, around)
        await registry.start(deps.channel)
        try:
            yield webhook_routes(registry, settings.body_s)
        finally:
            await registry.close()


@asynccontextmanager
async def _serving(site: ASGIApp, deps: Deps) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        site,
        http=with_chunks(HttpToolsProtocol),
        ws=BoundedWebSocket,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=5,
        **OPTIONS,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        await until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        deps.closing.set()
        server.should_exit = True
        await task
        listener.close()


@asynccontextmanager
async def background(work: Awaitable[None]) -> AsyncIterator[None]:
    """Run something beside the block; its failure is the block's."""
    task = asyncio.ensure_future(work)
    try:
        yield
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
