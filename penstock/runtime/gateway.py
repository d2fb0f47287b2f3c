"""The gateway process: front door, sources, API and dashboard in one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import uvicorn
import uvloop
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock import dashboard
from penstock.access import NO_POLICY, Gate, KeyFile, Policy, caller_of, read_policy
from penstock.app import App
from penstock.collect.door import REJECTED_SUFFIX, FrontDoor
from penstock.collect.edge import Handshake
from penstock.collect.http import PREFIX, PostEndpoint
from penstock.collect.protocol import post_protocol
from penstock.collect.publish import SUFFIX as PUBLISH_SUFFIX
from penstock.collect.publish import PublishEndpoint
from penstock.columns import change_schema
from penstock.contracts import Channel, SourceStatus
from penstock.cursor import AckSigner
from penstock.declared import ChangeStream, Inlet, Rollup, View
from penstock.errors import EXIT_IO, PenstockError, SourceFailed
from penstock.files import write_status
from penstock.graph import carried, change_streams, read_streams
from penstock.queue import EmbeddedLog
from penstock.rows import from_micros
from penstock.runtime import logs
from penstock.runtime.ack_key import read_or_create_key
from penstock.runtime.acks import Acks
from penstock.runtime.child import answer_call, on_end_of_parent
from penstock.runtime.clock import WallClock
from penstock.runtime.comparison import Comparison
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import event_classes
from penstock.runtime.guard import Asgi, guarded
from penstock.runtime.loading import load
from penstock.runtime.origins import Receive, Scope, Send
from penstock.runtime.pressure import press
from penstock.runtime.retention import dead_letters, floor, retention
from penstock.runtime.states import HandlerStates, ShardCache
from penstock.runtime.status import Status
from penstock.runtime.views import view_spec
from penstock.runtime.webhooks import around, declared
from penstock.schema import Rejected, event_schema
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.compression import compressed
from penstock.serve.connections import Connections
from penstock.serve.deps import Deps
from penstock.serve.http import routes
from penstock.serve.problems import exception_handlers
from penstock.serve.protocol import OPTIONS, BoundedWebSocket, with_chunks
from penstock.serve.query.queries import Queries
from penstock.serve.query.relations import FeedRelation, Relation, StreamRelation, ViewRelation
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.routes import webhook_routes
from penstock.settings import Settings, from_environment
from penstock.store import LiveTable

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter: short, or a commit thread waits 5 ms for its turn at every step."""
RATES_S = 1.0
ACCESS_S = 1.0
TICK_S = 0.25
PRESSURE_S = 0.5
UNREAD_MS = 30_000
"""A client that takes nothing of what was sent to it for so long is cut off by the kernel."""
SOURCE_RETRY_S = 5.0
HSTS = ("strict-transport-security", "max-age=31536000")

log = logging.getLogger("penstock.gateway")


def server_config(
    asgi: Asgi,
    settings: Settings,
    http: type[HttpToolsProtocol] = HttpToolsProtocol,
    tls: ssl.SSLContext | None = None,
) -> uvicorn.Config:
    """How the gateway's HTTP server is set up, for whatever application it serves."""
    config = uvicorn.Config(
        asgi,
        http=with_chunks(http),
        ws=BoundedWebSocket,
        **OPTIONS,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[HSTS] if tls is not None else [],
        timeout_keep_alive=max(1, int(settings.idle_s)),
        timeout_graceful_shutdown=max(1, int(settings.drain_s) - 3),
    )
    config.load()
    config.ssl = tls
    return config


class Loop(uvloop.Loop):
    """uvloop, with a server that counts connections before their TLS handshake, and gives it less than a minute."""

    async def create_server(self, *given: Any, **options: Any) -> Any:
        factory, *others = given
        context = options.pop("ssl", None)
        if context is not None:
            factory = partial(Handshake, factory, context)
        return await super().create_server(factory, *others, **options)


class Gateway:
    """Everything of one app that faces the network. Belongs to one event loop."""

    def __init__(self, app: App, directory: DataDirectory, settings: Settings, policy: Policy = NO_POLICY) -> None:
        self.app = app
        self.directory = directory
        self.settings = settings
        self.gate = Gate(policy, KeyFile(directory.keys), rate=settings.rate_max, carried=carried(app))
        self.origins = policy.origins
        self.closing = asyncio.Event()
        self.exit_status = 0
        self.log = EmbeddedLog(
            directory.streams, disk_reserve_bytes=settings.disk_reserve_bytes, classes=event_classes(app)
        )
        signer = AckSigner(read_or_create_key(directory.ack_key))
        self.door = FrontDoor(app.streams, self.log, settings, WallClock(), self._fatal, self._committed, signer)
        self.tables = {view.name: self._table(view) for view in app.views}
        self.streams = {
            name: StreamChannel(name, self.log, settings, schema) for name, schema in self._schemas().items()
        }
        self.views = {
            view.name: ViewChannel(view.name, self.tables[view.name], settings, key=view.key) for view in app.views
        }
        self.sources = {inlet.name: SourceStatus() for inlet in app.inlets}
        self.connections = Connections(settings.connections_max, held_bytes_max=settings.held_bytes_max)
        self.acks = Acks(app, directory, self.log, self.tables, settings, signer)
        self.shards = ShardCache(settings.shown_state_bytes_max)
        told = around(app, self.gate, self.log, self.tables, self._fatal)
        self.webhooks = Registry(directory.webhooks, settings, told, declared=declared(app))
        self.queries = Queries(self._relations(), settings)
        self.status = Status(app, directory, settings, self.log, self.door, self.tables, self.sources, self.connections)
        self.status.readings = {
            **{name: each.describe for name, each in self.streams.items()},
            **{name: each.describe for name, each in self.views.items()},
        }
        self.status.webhooks = self.webhooks.describe
        self.status.keys_error = lambda: self.gate.keys_error
        self.status.webhooks_broken = lambda: self.webhooks.broken is not None

    def _table(self, view: View) -> LiveTable:
        spec, path = view_spec(view, self.settings), self.directory.view_file(view.name)
        return LiveTable(path, spec, buffered_changes=self.settings.buffered_changes)

    def _schemas(self) -> dict[str, Callable[[], pa.Schema | None]]:
        """The streams by name, and how the types of each are found out. A view's are known once its query was built."""
        events = {stream.name: stream.event for stream in (*self.app.streams, *self.app.outputs)}
        events |= {stream.name + REJECTED_SUFFIX: Rejected for stream in self.app.streams}
        made = {name: partial(event_schema, event) for name, event in events.items()}
        read = sorted(change_streams(self.app))
        changes = {ChangeStream(view).name: partial(_changes_of, self.tables[view]) for view in read}
        return {**made, **changes}

    def _feeds(self, channels: Mapping[str, Channel]) -> dict[str, Channel]:
        """The feeds of these channels, by their own names."""
        return {
            feed.name: FeedChannel(channels[feed.of], feed.condition, feed.select, source=feed.of)
            for feed in self.app.feeds
            if feed.of in channels
        }

    def _relations(self) -> dict[str, Relation]:
        """What can be queried, by name."""
        most, size = self.settings.query_events_max, self.settings.query_memory_bytes
        found: dict[str, Relation] = {
            name: StreamRelation(name, self.log, schema, events_max=most, bytes_max=size)
            for name, schema in self._schemas().items()
        }
        found |= {name: ViewRelation(name, table) for name, table in self.tables.items()}
        feeds = [feed for feed in self.app.feeds if feed.of in found]
        parts = {each.name: FeedRelation(found[each.of], each.condition, each.select, source=each.of) for each in feeds}
        return found | parts

    def _committed(self, stream: str) -> None:
        self.streams[stream].wake()
        self.status.note_commit(stream)

    def _fatal(self, error: PenstockError) -> None:
        """The disk failed to take a write: nothing was acknowledged, and nothing more may be."""
        log.critical("%s", error)
        os._exit(EXIT_IO)

    def asgi(self) -> Asgi:
        """The one ASGI application: posts go straight to the front door, the rest through the routes."""
        self.deps = deps = Deps(
            streams={**self.streams, **self._feeds(self.streams)},
            views={**self.views, **self._feeds(self.views)},
            describe=self.status.describe,
            health=self.status.health,
            settings=self.settings,
            closing=self.closing,
            connections=self.connections,
            events={stream.name: stream.event for stream in self.app.streams},
            states={
                handler.name: HandlerStates(handler, self.directory, self.log, self.shards).get
                for handler in self.app.handlers
            },
            state_inputs={handler.name: read_streams(self.app, handler) for handler in self.app.handlers},
            acks=self.acks.describe,
            queries=self.queries,
            rollups={each.name: each.declared.by for each in self.app.keepers if isinstance(each, Rollup)},
        )
        post = PostEndpoint(self.door, self.settings, self.acks)
        publish = PublishEndpoint(self.door, self.closing, window=self.settings.publish_window)
        paths = [*routes(deps), *webhook_routes(self.webhooks, self.settings.body_s), *dashboard.routes()]
        site = compressed(
            Starlette(routes=paths, exception_handlers=exception_handlers()), self.settings.compress_bytes_min
        )

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(PREFIX):
                await post(scope, receive, send)
            elif scope["type"] == "websocket" and scope["path"].endswith(PUBLISH_SUFFIX):
                stream = scope["path"].removeprefix(PREFIX).removesuffix(PUBLISH_SUFFIX)
                with self.connections.one(caller_of(scope).name):
                    await publish(stream, scope, receive, send)
            else:
                await site(scope, receive, send)

        return guarded(answer, self.gate, self.origins)

    async def run(self, listener: socket.socket) -> int:
        """Serve until told to stop, then drain: stop accepting, let sources and commits finish, close the log."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        await asyncio.gather(*(table.load() for table in self.tables.values()))
        background = [asyncio.create_task(each, name=name) for name, each in self._background()]
        protocol = post_protocol(self.door, self.settings, self.gate)
        server = uvicorn.Server(server_config(self.asgi(), self.settings, protocol, self.gate.tls))
        await self.webhooks.start(self.deps.channel)
        serving = asyncio.create_task(server._serve([listener]))
        now = datetime.now(UTC)
        for name in self.door.streams:
            await self.door.tick(name, now)
        await asyncio.wait([serving, asyncio.create_task(self.closing.wait())], return_when=asyncio.FIRST_COMPLETED)
        self.closing.set()
        server.should_exit = True
        await asyncio.wait([serving])
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self.webhooks.close()
        await self.door.close()
        self.acks.close()
        self.shards.close()
        self.queries.close()
        self.log.close()
        for table in self.tables.values():
            table.close()
        return self.exit_status

    def stop(self) -> None:
        """Begin to stop. May be called again."""
        self.status.stopping = True
        self.closing.set()

    def _background(self) -> list[tuple[str, Any]]:
        tables = [(f"view {name}", table.run()) for name, table in self.tables.items()]
        sources = [(f"source {inlet.name}", self._pull(inlet)) for inlet in self.app.inlets]
        timed = any(handler.timers or len(handler.reads) > 1 for handler in self.app.handlers) or bool(self.app.views)
        ticks = [("ticks", self._ticks())] if timed else []
        pressure = [("pressure", self._pressure())] if self.settings.lag_events_max else []
        always = [("rates", self._rates()), ("upkeep", self._upkeep()), ("access", self._access())]
        return [*tables, *sources, *ticks, *pressure, *always]

    async def _pull(self, inlet: Inlet) -> None:
        """Run a source for ever. One that breaks says so and is tried again, unless it says that this is no use; it
        stops nothing else."""
        status, intake = self.sources[inlet.name], None
        while True:
            try:
                intake = intake or self.door.intake_for_source(inlet.name, inlet.into)
                await intake.settle()  # what was put before must be durable: the source goes on from its mark
                await inlet.source.run(intake, status)
            except SourceFailed as error:
                log.error("source %s failed for good: %s", inlet.name, error)
                status.state, status.error = "failed", error.message
                return
            except Exception as error:
                log.exception("source %s failed", inlet.name)
                status.state, status.error = "failed", f"{type(error).__name__}: {error}"
            await asyncio.sleep(SOURCE_RETRY_S)

    async def _access(self) -> None:
        """See keys that were made, rotated or revoked, and certificates that were renewed."""
        while True:
            await asyncio.sleep(ACCESS_S)
            try:
                self.gate.take(await asyncio.to_thread(self.gate.look))
            except Exception:
                log.exception("changes of access were not seen")

    async def _rates(self) -> None:
        said = b""
        while True:
            self.status.note_rates(time.monotonic())
            health = msgspec.json.encode(self.status.health())
            if health != said and await asyncio.to_thread(write_status, self.directory.health_status, health):
                said = health
            await asyncio.sleep(RATES_S)

    async def _pressure(self) -> None:
        while True:
            press(self.door, self.status.behind, self.settings.lag_events_max)
            await asyncio.sleep(PRESSURE_S)

    async def _ticks(self) -> None:
        """Let time pass in the log though no event comes: for handlers' timers, where one stream waits for another, and
        for the last windows of a stream that is silent. All streams get the same log time, and with it a handler has
        everything that came before; event time goes its own way in each."""
        while True:
            await asyncio.sleep(TICK_S)
            now = datetime.now(UTC)
            idle = self.status.idle(now)
            for name in self.status.together({*self.status.due(now), *idle}):
                told = idle.get(name)
                try:
                    await self.door.tick(name, now, from_micros(told) if told is not None else None)
                except PenstockError as error:
                    log.warning("no tick for stream %s: %s", name, error)

    async def _upkeep(self) -> None:
        """Retention and merging, off the event loop. A stream that cannot be kept up does not hold up the others."""
        while True:
            await asyncio.sleep(self.settings.upkeep_s)
            for name in [*self.door.streams, *(f"{each}{REJECTED_SUFFIX}" for each in self.door.streams)]:
                try:
                    await asyncio.to_thread(self._keep_up, name)
                except PenstockError as error:
                    log.error("upkeep of stream %s: %s", name, error)

    def _keep_up(self, name: str) -> None:
        declared = {stream.name: stream for stream in self.app.streams}
        needed = floor(self.app, self.directory, self.log, name)
        if name in declared:
            self.log.trim(name, retention(declared[name], self.settings, needed))
        else:
            self.log.trim(name, dead_letters(self.settings))
        self.log.merge(name)


def _changes_of(table: LiveTable) -> pa.Schema | None:
    """The schema of the changes of a view."""
    return None if table.schema is None else change_schema(table.schema)


def ask_if_exposed(gate: Gate, listener: socket.socket) -> None:
    """Ask everyone for a key if other machines can reach us, though the file of keys may be gone since the start."""
    if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        gate.close()


def _allow_many_files() -> None:
    """As many open connections as the administrator allows; shells often set a lower limit for no reason."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    logs.configure()
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of each request that is none: anyone can send those
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    child = answer_call()
    app = load(child.call.target).app
    Comparison(app, child.call.target, child.directory, from_environment()).require_streams()
    assert child.call.socket_fd is not None
    listener = socket.socket(fileno=child.call.socket_fd)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _allow_many_files()

    async def serve() -> int:
        policy = read_policy(Path(child.call.access) if child.call.access else None)
        gateway = Gateway(app, child.directory, from_environment(), policy)
        ask_if_exposed(gateway.gate, listener)
        loop = asyncio.get_running_loop()
        on_end_of_parent(child.call, lambda: loop.call_soon_threadsafe(gateway.stop))
        return await gateway.run(listener)

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
