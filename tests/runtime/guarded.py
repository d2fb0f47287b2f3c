"""A gateway without Spark behind a real server, set up as `Gateway.run` does it, and clients for it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import trustme
import uvicorn
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock import App, Context, Event, State
from penstock.collect.protocol import post_protocol
from penstock.core.access import KeyFile, Policy
from penstock.core.settings import Settings
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.storage import EmbeddedStorage
from penstock.runtime.gateway import Gateway, Loop, server_config
from tests.clocks import until
from tests.memory_log import DEADLINE_S

Result = TypeVar("Result")


class Reading(Event):
    k: str
    n: int = 0


class Other(Event):
    k: str


class SeenKey(Event):
    k: str


class Seen(State):
    count: int = 0


def make_app() -> App:
    app = App("guarded")
    first = app.stream("a", Reading, key="k")
    app.stream("b", Other, key="k")
    app.sql("v", "SELECT k, count(*) AS n FROM a GROUP BY k", key="k")

    @app.handler("h", reads=first, key="k", state=Seen, emits=SeenKey)
    def h(seen: Seen, event: Reading, ctx: Context) -> None:
        seen.count += 1

    return app


@dataclass
class Running:
    """`asgi` has the path of each request that did not take the fast path, `errors` the uncaught exceptions."""

    gateway: Gateway
    port: int
    loop: asyncio.AbstractEventLoop
    server: uvicorn.Server
    asgi: list[str] = field(default_factory=list)
    errors: list[MutableMapping[str, Any]] = field(default_factory=list)
    verify: ssl.SSLContext | bool = False
    """The verification of the gateway's certificate by clients, if it has one."""

    @property
    def keys(self) -> KeyFile:
        store = self.gateway.storage.keys()
        assert isinstance(store, KeyFile)
        return store

    @property
    def scheme(self) -> str:
        return "http" if self.gateway.gate.tls is None else "https"

    def do(self, what: Callable[[], Result]) -> Result:
        """Call a function in the gateway's event loop."""

        async def call() -> Result:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(DEADLINE_S)

    def reload(self) -> None:
        """Do what the gateway does each second."""
        self.do(lambda: self.gateway.gate.take(self.gateway.gate.look()))

    def add(self, name: str, *grants: str, rate: float = 0.0) -> str:
        """Add a key, known to the gateway; returns its text."""
        _, text = self.keys.add(name, grants, rate=rate)
        self.reload()
        return text

    def client(self, key: str | None = None, **more: Any) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"{self.scheme}://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, headers=headers, timeout=DEADLINE_S, **({"verify": self.verify} | more))

    def trust(self, authority: trustme.CA) -> None:
        """Let clients trust certificates signed by this authority."""
        self.verify = ssl.create_default_context()
        authority.configure_trust(self.verify)

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        with self.client(key) as client:
            return client.get(path)

    def post(self, stream: str, key: str | None = None, events: Any = None, **headers: str) -> httpx.Response:
        with self.client(key) as client:
            return client.post(f"/v1/streams/{stream}", json=events or {"k": "x"}, headers=headers)

    def socket(self, path: str, key: str | None = None, **more: Any) -> AbstractContextManager[ClientConnection]:
        """Open a WebSocket, without TLS: this client reads and writes at once, in two threads, against which Python
        3.11 does not guard a TLS connection. One in a thousand hung."""
        assert self.gateway.gate.tls is None
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"ws://127.0.0.1:{self.port}{path}"
        options: Any = {"additional_headers": headers, "compression": None, "proxy": None} | more
        connection: AbstractContextManager[ClientConnection] = connect(url, **options)
        return connection

    def opened(self, path: str, key: str | None = None, **more: Any) -> int:
        """Return 101, or the status with which a WebSocket is refused."""
        try:
            with self.socket(path, key, **more):
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    def talk(self, path: str, key: str | None = None, say: dict[str, str] | None = None) -> int | str:
        """Return the gateway's answer to a WebSocket over TLS: its event, or else the status."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        options: Any = {"ssl": self.verify, "server_hostname": "localhost", "proxy": None}
        url = f"wss://127.0.0.1:{self.port}{path}"

        async def talked() -> int | str:
            try:
                async with connect_async(url, additional_headers=headers, **options) as live:
                    if say is None:
                        return 101
                    await live.send(json.dumps(say))
                    return str(json.loads(await live.recv())["event"])
            except InvalidStatus as error:
                return error.response.status_code

        return asyncio.run(asyncio.wait_for(talked(), DEADLINE_S))


@contextmanager
def running(
    root: Path, policy: Policy | None = None, settings: Settings | None = None, app: App | None = None
) -> Iterator[Running]:
    """Run a gateway on a free port; any uncaught exception fails the test."""
    directory = DataDirectory(root)
    directory.make()
    started: Future[Running] = Future()

    def serve() -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(_serve(app or make_app(), directory, policy or Policy(), settings or Settings(), started))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        running = started.result(DEADLINE_S)
        yield running
        assert running.errors == []
    finally:
        if started.done() and started.exception() is None:
            started.result().do(started.result().gateway.stop)
            started.result().server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


async def _serve(
    app: App, directory: DataDirectory, policy: Policy, settings: Settings, started: Future[Running]
) -> None:
    loop = asyncio.get_running_loop()
    try:
        gateway = Gateway(app, EmbeddedStorage(directory), settings, policy)
        application, asgi = gateway.asgi(), list[str]()

        async def observed(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            asgi.append(scope["path"])
            await application(scope, receive, send)

        listener = socket.create_server(("127.0.0.1", 0))
        protocol = post_protocol(gateway.ingress, settings, gateway.gate, gateway.pending)
        server = uvicorn.Server(server_config(observed, settings, protocol, gateway.gate.tls))
        running = Running(gateway, listener.getsockname()[1], loop, server, asgi)
        loop.set_exception_handler(lambda _, context: running.errors.append(context))
        await asyncio.gather(*(table.load() for table in gateway.tables.values()))
        await gateway.webhooks.start(gateway.deps.channel)
        tables = [asyncio.create_task(table.run()) for table in gateway.tables.values()]
        serving = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
    except BaseException as error:
        started.set_exception(error)
        raise
    started.set_result(running)
    await serving
    for task in tables:
        task.cancel()
    await asyncio.gather(*tables, return_exceptions=True)
    await gateway.webhooks.close()
    await gateway.ingress.close()
    gateway.queries.close()
    gateway.acks.close()
    gateway.log.close()
    for table in gateway.tables.values():
        table.close()
