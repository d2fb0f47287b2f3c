"""Helpers shared by the tests of following: a server of the serve tier on fakes, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from penstock.client import Client, Timing
from penstock.core.settings import Settings
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from tests.serve.fakes import FakeLog, FakeView, description, make_deps, serving

QUICK = Timing(base_s=0.005, cap_s=0.05, wait_s=0.2, call_s=10)
LIVELY = Settings(heartbeat_s=0.05, page_events=6, buffered_changes=8)
TRANSPORTS: tuple[Literal["websocket", "sse", "poll"], ...] = ("websocket", "sse", "poll")


@dataclass
class Stage:
    """A stream `x` and a view `x`, whose key is `k`, with their server."""

    log: FakeLog
    view: FakeView
    stream: StreamChannel
    deps: Deps
    port: int

    def write(self, *numbers: int, partition: int = 0) -> None:
        self.log.write(partition, *numbers)
        self.stream.wake()


@asynccontextmanager
async def staged(settings: Settings = LIVELY, **options: Any) -> AsyncIterator[Stage]:
    log, view = FakeLog(), FakeView(**options)
    stream = StreamChannel("x", log, settings)
    views = {"x": ViewChannel("x", view, settings, key=["k"])}
    described = description() | {"views": [{"name": "x", "key": ["k"]}]}
    deps = make_deps(streams={"x": stream}, views=views, settings=settings, describe=lambda: described)
    async with serving(deps) as port:
        yield Stage(log, view, stream, deps, port)


@asynccontextmanager
async def connected(port: int, timing: Timing = QUICK, **options: Any) -> AsyncIterator[Client]:
    async with Client(f"http://127.0.0.1:{port}", timing=timing, **options) as client:
        yield client
