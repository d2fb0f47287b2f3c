"""A log and a view in memory, and a real server on loopback to serve them."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.core.access import ANYONE, CALLER, Caller
from penstock.core.access.grants import ALL
from penstock.core.columns import tick_batch, to_batch
from penstock.core.contracts import Channel, Delivery, StreamSpec, ViewChange, ViewSnapshot
from penstock.core.schema import Event, event_schema
from penstock.core.settings import Settings
from penstock.http.problems import exception_handlers
from penstock.http.protocol import OPTIONS, BoundedWebSocket, with_chunks
from penstock.queue.gaps import chosen
from penstock.runtime.embedded.webhooks import WebhookStore
from penstock.serve.connections import Connections
from penstock.serve.deps import Deps
from penstock.serve.http import routes
from penstock.serve.webhooks.dispatcher import RuntimeCallbacks
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.routes import webhook_routes
from tests.clocks import until
from tests.memory_log import MemoryLog

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


class FakeLog(MemoryLog):
    """A log with one stream of readings, which has each of the names in `NAMES`, and faults for its readers. With
    `PENSTOCK_TEST_GAPS`, its offsets have gaps, as those of the embedded log."""

    NAMES = ("s", "x", "readings")

    def __init__(self, partitions: int = 2) -> None:
        super().__init__(chosen())
        self._spec = StreamSpec("s", event_schema(Reading), partitions)
        self.create(self._spec, names=self.NAMES)
        self.reads = self.counts = 0
        self.error: Exception | None = None
        self.after_read: Callable[[], None] = lambda: None

    def write(self, partition: int, *numbers: int, at_s: float = 0.0, text: str = "") -> None:
        self.put(partition, *(Reading(n=number, text=text) for number in numbers), at_s=at_s)

    def put(self, partition: int, *events: Any, at_s: float = 0.0) -> None:
        """Write events of one class that have a number, `n`."""
        ids = [str(event.n) for event in events]
        now = EPOCH + timedelta(seconds=at_s)
        batch = to_batch(type(events[0]) if events else Reading, events, ids=ids, keys=ids, now=now)
        self.insert("s", partition, batch)

    def tick(self, partition: int, at_s: float = 0.0) -> None:
        self.insert("s", partition, tick_batch(event_schema(Reading), EPOCH + timedelta(seconds=at_s)))

    def skip(self, partition: int, offsets: int) -> None:
        """Leave a gap."""
        self.leave_gap("s", partition, offsets)

    def trim(self, partition: int, before: int) -> None:
        self.trim_to("s", partition, before)

    def remake(self) -> None:
        """Recreate the stream."""
        self.create(self._spec, names=self.NAMES)

    def rows_between(self, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> int:
        self.counts += 1
        return super().rows_between(stream, start, end)

    def read(self, stream: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        yield from super().read(stream, partition, start, end)
        self.after_read()


class FakeView:
    """A `LiveView` over a dictionary of rows keyed by `k`."""

    def __init__(self, kept: int = 1_000_000, *, remembers: bool = True, schema: pa.Schema | None = None) -> None:
        """Without `remembers`, no change has the previous rows. By default, rows have the key and a number `v`."""
        self.remembers = remembers
        self._schema = pa.schema([("k", pa.string()), ("v", pa.int64())]) if schema is None else schema
        self.generation = 1
        self.version = 0
        self.rows: dict[str, bytes] = {}
        self._snapshot: ViewSnapshot | None = None
        self._changes: list[ViewChange] = []
        self._kept = kept
        self._news = asyncio.Event()
        self.waiting = 0
        self.reads = 0

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    def put(self, upserts: Mapping[str, Any], deletes: Sequence[str] = ()) -> None:
        self.put_rows({key: json.dumps({"k": key, "v": value}).encode() for key, value in upserts.items()}, deletes)

    def put_rows(self, rows: Mapping[str, bytes], deletes: Sequence[str] = ()) -> None:
        before = tuple(map(self.rows.get, [*rows, *deletes])) if self.remembers else None
        self.rows.update(rows)
        for key in deletes:
            self.rows.pop(key, None)
        self.version += 1
        keys = [json.dumps({"k": key}).encode() for key in deletes]
        data = b'{"upserts":[' + b",".join(rows.values()) + b'],"deletes":[' + b",".join(keys) + b"]}"
        self._changes = [*self._changes, ViewChange(self.version, data, before)][-self._kept :]
        self._wake()

    def remake(self) -> None:
        self.generation += 1
        self.version, self.rows, self._changes = 0, {}, []
        self._wake()

    def _wake(self) -> None:
        self._snapshot = None
        self._news.set()
        self._news = asyncio.Event()

    def trim(self) -> None:
        """Let go of all changes so far."""
        self._changes = []

    def snapshot(self) -> ViewSnapshot:
        self.reads += 1
        if self._snapshot is None:
            self._snapshot = ViewSnapshot(self.version, [self.rows[key] for key in sorted(self.rows)])
        return self._snapshot

    def changes(self, after: int, limit: int) -> Sequence[ViewChange] | None:
        self.reads += 1
        first = self._changes[0].version if self._changes else self.version + 1
        if not first - 1 <= after <= self.version:
            return None
        return self._changes[after + 1 - first : after + 1 - first + limit]

    async def wait(self, after: int, timeout_s: float) -> bool:
        generation = self.generation
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self.version <= after and self.generation == generation:
                    await self._news.wait()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1
        return True


def numbers(delivery: Delivery) -> list[int]:
    """Return the events of a stream's change, by their number."""
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
    """Return the application for one caller, an admin by default. Neither is thread-safe."""
    site = Starlette(routes=[*routes(deps), *more], exception_handlers=exception_handlers())
    one = caller or Caller("", ALL)

    async def as_caller(scope: Scope, receive: Receive, send: Send) -> None:
        await site({**scope, CALLER: one}, receive, send)

    return as_caller


@asynccontextmanager
async def serving(deps: Deps, caller: Caller | None = None) -> AsyncIterator[int]:
    """Run a real server on a free port of loopback, for one caller; yields the port."""
    async with _webhooks(deps) as more:
        async with _serving(application(deps, caller, more=more), deps) as port:
            yield port


@asynccontextmanager
async def _webhooks(deps: Deps) -> AsyncIterator[list[BaseRoute]]:
    """Yield the routes of webhooks of these channels, which may connect to loopback."""
    settings = replace(deps.settings, webhook_private="127.0.0.0/8", webhook_backoff_s=0.01)
    around = RuntimeCallbacks(lambda name: ANYONE, lambda kind, of: ())
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry(partial(WebhookStore, Path(folder) / "webhooks.db"), settings, around)
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
    """Run something beside the block; its failure fails the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
