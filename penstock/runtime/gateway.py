"""The gateway process: ingress, sources, API and dashboard in one event loop."""

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

import pyarrow as pa
import uvicorn
import uvloop
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock import dashboard
from penstock.app.app import App
from penstock.app.declared import REJECTED_SUFFIX, ChangeStream, Inlet, Rollup, View
from penstock.app.graph import carried, change_keys, change_streams, read_streams
from penstock.app.loading import load
from penstock.collect.http import PREFIX, PostEndpoint
from penstock.collect.ingress import Ingress
from penstock.collect.protocol import post_protocol
from penstock.collect.publish import SUFFIX as PUBLISH_SUFFIX
from penstock.collect.publish import PublishEndpoint
from penstock.control import HealthStatus
from penstock.core.access import NO_POLICY, Gate, Policy, caller_of, read_policy
from penstock.core.clock import WallClock
from penstock.core.columns import change_schema
from penstock.core.contracts import Channel, SourceStatus
from penstock.core.cursor import AckSigner
from penstock.core.errors import EXIT_IO, PenstockError, SourceFailed
from penstock.core.schema import Rejected, event_schema
from penstock.core.settings import Settings, from_environment
from penstock.core.tasks import cancel_all
from penstock.core.times import from_micros
from penstock.http.compression import compressed
from penstock.http.edge import Handshake
from penstock.http.guard import Asgi, guarded
from penstock.http.origins import Receive, Scope, Send
from penstock.http.pending import PendingBytes
from penstock.http.problems import exception_handlers
from penstock.http.protocol import OPTIONS, BoundedWebSocket, with_chunks
from penstock.runtime import logs
from penstock.runtime.acks import Acks
from penstock.runtime.child import answer_call, on_end_of_parent
from penstock.runtime.comparison import Comparison
from penstock.runtime.control import ControlWatcher
from penstock.runtime.events import event_classes
from penstock.runtime.pressure import press
from penstock.runtime.retention import dead_letters, floor, retention
from penstock.runtime.states import HandlerStates, ShardCache
from penstock.runtime.status import Status
from penstock.runtime.storage import Storage
from penstock.runtime.views import view_spec
from penstock.runtime.wakeups import ChannelWaker
from penstock.runtime.webhooks import around, declared
from penstock.serve.channels.feed import FeedChannel
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.connections import Connections
from penstock.serve.deps import Deps
from penstock.serve.http import routes
from penstock.serve.query.queries import Queries
from penstock.serve.query.relations import FeedRelation, Relation, StreamRelation, ViewRelation
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.routes import webhook_routes
from penstock.store import StoredLiveView

SWITCH_INTERVAL_S = 0.0005
"""Seconds that a thread may hold the interpreter. With Python's default, a commit thread would wait 5 ms for its turn
at every step."""
RATES_S = 1.0
ACCESS_S = 1.0
TICK_S = 0.25
PRESSURE_S = 0.5
UNREAD_MS = 30_000
"""Milliseconds after which the kernel disconnects a client that does not accept the data sent to it."""
SOURCE_RETRY_S = 5.0
HSTS = ("strict-transport-security", "max-age=31536000")

log = logging.getLogger("penstock.gateway")


def server_config(
    asgi: Asgi,
    settings: Settings,
    http: type[HttpToolsProtocol] = HttpToolsProtocol,
    tls: ssl.SSLContext | None = None,
) -> uvicorn.Config:
    """Return the settings for the gateway's HTTP server, which are the same for every application."""
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
    """uvloop with a server that counts connections before the TLS handshake, and limits the handshake to less than a
    minute."""

    async def create_server(self, *given: Any, **options: Any) -> Any:
        factory, *others = given
        context = options.pop("ssl", None)
        if context is not None:
            factory = partial(Handshake, factory, context)
        return await super().create_server(factory, *others, **options)


class Gateway:
    """All parts of one app that face the network. Not thread-safe."""

    def __init__(self, app: App, storage: Storage, settings: Settings, policy: Policy = NO_POLICY) -> None:
        self.app = app
        self.storage = storage
        self.settings = settings
        self.gate = Gate(
            policy, storage.keys(), rate=settings.rate_max, carried=carried(app), change_keys=change_keys(app)
        )
        self.origins = policy.origins
        self.closing = asyncio.Event()
        self.exit_status = 0
        self.log = storage.log(event_classes(app), disk_reserve_bytes=settings.disk_reserve_bytes)
        signer = AckSigner(storage.ack_key())
        self.ingress = Ingress(app.streams, self.log, settings, WallClock(), self._fatal, self._committed, signer)
        self.tables = {view.name: self._table(view) for view in app.views}
        self.streams = {
            name: StreamChannel(name, self.log, settings, schema) for name, schema in self._schemas().items()
        }
        self.views = {
            view.name: ViewChannel(view.name, self.tables[view.name], settings, key=view.key) for view in app.views
        }
        self.sources = {inlet.name: SourceStatus() for inlet in app.inlets}
        self.connections = Connections(settings.connections_max, held_bytes_max=settings.held_bytes_max)
        self.pending = PendingBytes(settings.pending_bytes_max)
        self.acks = Acks(app, storage, self.log, self.tables, settings, signer)
        self.shards = ShardCache(settings.shown_state_bytes_max)
        resources = around(app, self.gate, self.log, self.tables, self._fatal)
        self.webhooks = Registry(storage.open_webhooks, settings, resources, declared=declared(app))
        self.queries = Queries(self._relations(), settings)
        self.channel = storage.control()
        self.control = ControlWatcher(self.channel)
        self.status = Status(
            app, self.control, settings, self.log, self.ingress, self.tables, self.sources, self.connections
        )
        self.status.readings = {
            **{name: channel.describe for name, channel in self.streams.items()},
            **{name: channel.describe for name, channel in self.views.items()},
        }
        self.status.webhooks = self.webhooks.describe
        self.status.keys_error = lambda: self.gate.keys_error
        self.status.webhooks_broken = lambda: self.webhooks.broken is not None

    def _table(self, view: View) -> StoredLiveView:
        spec = view_spec(view, self.settings)
        return self.storage.live_view(spec, buffered_changes=self.settings.buffered_changes)

    def _schemas(self) -> dict[str, Callable[[], pa.Schema | None]]:
        """Return, for each stream, a function that finds its column types. A view's types are known once its query has
        been built."""
        events = {stream.name: stream.event for stream in (*self.app.streams, *self.app.outputs)}
        events |= {stream.name + REJECTED_SUFFIX: Rejected for stream in self.app.streams}
        schemas = {name: partial(event_schema, event) for name, event in events.items()}
        read = sorted(change_streams(self.app))
        changes = {ChangeStream(view).name: partial(_changes_schema, self.tables[view]) for view in read}
        return {**schemas, **changes}

    def _feeds(self, channels: Mapping[str, Channel]) -> dict[str, Channel]:
        """Return the feeds of these channels, by feed name."""
        return {
            feed.name: FeedChannel(channels[feed.of], feed.condition, feed.select, source=feed.of)
            for feed in self.app.feeds
            if feed.of in channels
        }

    def _relations(self) -> dict[str, Relation]:
        """Return the relations that can be queried, by name."""
        most, size = self.settings.query_events_max, self.settings.query_memory_bytes
        relations: dict[str, Relation] = {
            name: StreamRelation(name, self.log, schema, events_max=most, bytes_max=size)
            for name, schema in self._schemas().items()
        }
        relations |= {name: ViewRelation(name, table) for name, table in self.tables.items()}
        feeds = [feed for feed in self.app.feeds if feed.of in relations]
        parts = {
            feed.name: FeedRelation(relations[feed.of], feed.condition, feed.select, source=feed.of) for feed in feeds
        }
        return relations | parts

    def _committed(self, stream: str) -> None:
        self.streams[stream].wake()
        self.status.note_commit(stream)

    def _fatal(self, error: PenstockError) -> None:
        """End the process immediately after a failed write to disk. Nothing in that write was acknowledged, and nothing
        after it may be acknowledged."""
        log.critical("%s", error)
        os._exit(EXIT_IO)

    def asgi(self) -> Asgi:
        """Return the ASGI application, which sends posts straight to the ingress and everything else through the
        routes."""
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
                handler.name: HandlerStates(handler, self.storage, self.log, self.shards).get
                for handler in self.app.handlers
            },
            state_inputs={handler.name: read_streams(self.app, handler) for handler in self.app.handlers},
            acks=self.acks.describe,
            queries=self.queries,
            rollups={
                view_handler.name: view_handler.declared.by
                for view_handler in self.app.view_handlers
                if isinstance(view_handler, Rollup)
            },
        )
        post = PostEndpoint(self.ingress, self.settings, self.acks, self.pending)
        publish = PublishEndpoint(self.ingress, self.closing, window=self.settings.publish_window)
        paths = [*routes(deps), *webhook_routes(self.webhooks, self.settings.body_s), *dashboard.routes()]
        application = Starlette(routes=paths, exception_handlers=exception_handlers())
        application.router.redirect_slashes = False  # a redirect would contain the Host that the client sent
        site = compressed(application, self.settings.compress_bytes_min)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(PREFIX):
                await post(scope, receive, send)
            elif scope["type"] == "websocket" and scope["path"].endswith(PUBLISH_SUFFIX):
                stream = scope["path"].removeprefix(PREFIX).removesuffix(PUBLISH_SUFFIX)
                with self.connections.one(caller_of(scope).name):
                    await publish(stream, scope, receive, send)
            else:
                await site(scope, receive, send)

        return guarded(answer, self.gate, self.origins, dashboard.is_file)

    async def run(self, listener: socket.socket) -> int:
        """Run the gateway until a stop is requested, then drain: stop accepting requests, let sources and commits
        finish, and close the log."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        await asyncio.gather(*(table.load() for table in self.tables.values()))
        background = [asyncio.create_task(coroutine, name=name) for name, coroutine in self._background()]
        ours = {stream.name for stream in self.app.streams}
        wakers = [ChannelWaker(self.log, channel) for name, channel in self.streams.items() if name not in ours]
        protocol = post_protocol(self.ingress, self.settings, self.gate, self.pending)
        server = uvicorn.Server(server_config(self.asgi(), self.settings, protocol, self.gate.tls))
        await self.webhooks.start(self.deps.channel)
        serving = asyncio.create_task(server._serve([listener]))
        now = datetime.now(UTC)
        for name in self.ingress.streams:
            await self.ingress.tick(name, now)
        closing = asyncio.create_task(self.closing.wait())
        await asyncio.wait([serving, closing], return_when=asyncio.FIRST_COMPLETED)
        self.closing.set()
        server.should_exit = True
        await asyncio.wait([serving, closing])
        await cancel_all(background)
        for waker in wakers:
            waker.close()
        await self.webhooks.close()
        await self.ingress.close()
        self.acks.close()
        self.shards.close()
        self.queries.close()
        self.log.close()
        for table in self.tables.values():
            table.close()
        return self.exit_status

    def stop(self) -> None:
        """Request a stop of the gateway. Can be called again."""
        self.status.stopping = True
        self.closing.set()

    def _background(self) -> list[tuple[str, Any]]:
        tables = [(f"view {name}", table.run()) for name, table in self.tables.items()]
        sources = [(f"source {inlet.name}", self._pull(inlet)) for inlet in self.app.inlets]
        timed = any(handler.timers or len(handler.reads) > 1 for handler in self.app.handlers) or bool(self.app.views)
        ticks = [("ticks", self._ticks())] if timed else []
        pressure = [("pressure", self._pressure())] if self.settings.lag_events_max else []
        always = [("rates", self._rates()), ("upkeep", self._upkeep()), ("access", self._access())]
        control = ("control", self.control.run())  # first, because the other tasks start from its messages
        return [control, *tables, *sources, *ticks, *pressure, *always]

    async def _pull(self, inlet: Inlet) -> None:
        """Run a source until it is cancelled. A failure is logged, and the source is retried unless the source reports
        that retrying is useless. Nothing else stops."""
        status, source_writer = self.sources[inlet.name], None
        while True:
            try:
                source_writer = source_writer or self.ingress.writer_for_source(inlet.name, inlet.into)
                await source_writer.settle()  # earlier events must be durable, because the source resumes at its mark
                await inlet.source.run(source_writer, status)
            except SourceFailed as error:
                log.error("source %s failed permanently: %s", inlet.name, error)
                status.state, status.error = "failed", error.message
                return
            except Exception as error:
                log.exception("source %s failed", inlet.name)
                status.state, status.error = "failed", f"{type(error).__name__}: {error}"
            await asyncio.sleep(SOURCE_RETRY_S)

    async def _access(self) -> None:
        """Reload keys that were added, rotated or revoked, and certificates that were renewed."""
        while True:
            await asyncio.sleep(ACCESS_S)
            try:
                self.gate.take(await asyncio.to_thread(self.gate.look))
            except Exception:
                log.exception("cannot reload keys and certificates")

    async def _rates(self) -> None:
        published: HealthStatus | None = None
        while True:
            self.status.note_rates(time.monotonic())
            health = self.status.health_status()
            if health != published and await asyncio.to_thread(self.channel.publish, health):
                published = health
            await asyncio.sleep(RATES_S)

    async def _pressure(self) -> None:
        while True:
            press(self.ingress, self.status.behind, self.settings.lag_events_max)
            await asyncio.sleep(PRESSURE_S)

    async def _ticks(self) -> None:
        """Append ticks, which advance the time in the log while no events arrive. Timers, handlers that read several
        streams, and the last windows of a silent stream need them. All streams get the same log time, so a handler
        knows that it has received all earlier events; event time is separate in each stream."""
        while True:
            await asyncio.sleep(TICK_S)
            now = datetime.now(UTC)
            idle = self.status.idle(now)
            for name in self.status.together({*self.status.due(now), *idle}):
                event_time_us = idle.get(name)
                try:
                    await self.ingress.tick(
                        name, now, from_micros(event_time_us) if event_time_us is not None else None
                    )
                except PenstockError as error:
                    log.warning("could not append a tick to stream %s: %s", name, error)

    async def _upkeep(self) -> None:
        """Run the log's retention and merging outside the event loop. A failing stream does not hold up other
        streams."""
        while True:
            await asyncio.sleep(self.settings.upkeep_s)
            for name in [*self.ingress.streams, *(f"{stream}{REJECTED_SUFFIX}" for stream in self.ingress.streams)]:
                try:
                    await asyncio.to_thread(self._keep_up, name)
                except PenstockError as error:
                    log.error("upkeep of stream %s: %s", name, error)

    def _keep_up(self, name: str) -> None:
        declared = {stream.name: stream for stream in self.app.streams}
        needed = floor(self.app, self.storage, self.log, name)
        if name in declared:
            self.log.trim(name, retention(declared[name], self.settings, needed))
        else:
            self.log.trim(name, dead_letters(self.settings))
        self.log.merge(name)


def _changes_schema(table: StoredLiveView) -> pa.Schema | None:
    """Return the schema of a view's changes."""
    return None if table.schema is None else change_schema(table.schema)


def ask_if_exposed(gate: Gate, listener: socket.socket) -> None:
    """Require keys if other machines can reach the gateway, even if the key file was deleted after the start."""
    if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        gate.close()


def _allow_many_files() -> None:
    """Raise the limit on open files to the maximum that the administrator allows. Shells often set a lower limit for no
    reason."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    logs.configure()
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns about each invalid request, which anyone can send
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    child = answer_call()
    app = load(child.call.target).app
    Comparison(app, child.call.target, child.storage, from_environment()).require_streams()
    assert child.call.socket_fd is not None
    listener = socket.socket(fileno=child.call.socket_fd)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _allow_many_files()

    async def serve() -> int:
        policy = read_policy(Path(child.call.access) if child.call.access else None)
        gateway = Gateway(app, child.storage, from_environment(), policy)
        ask_if_exposed(gateway.gate, listener)
        loop = asyncio.get_running_loop()
        on_end_of_parent(child.call, lambda: loop.call_soon_threadsafe(gateway.stop))
        return await gateway.run(listener)

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
