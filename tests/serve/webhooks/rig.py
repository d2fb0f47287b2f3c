"""Webhooks over a log and a view in memory, without the rest of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core.access import ANYONE, Caller, Grants
from penstock.core.schema import event_schema
from penstock.core.settings import Settings
from penstock.runtime.embedded.webhooks import WebhookStore
from penstock.serve.channels.stream import StreamChannel
from penstock.serve.channels.view import ViewChannel
from penstock.serve.deps import Deps
from penstock.serve.webhooks.dispatcher import RuntimeCallbacks
from penstock.serve.webhooks.model import Hook
from penstock.serve.webhooks.registry import Registry
from penstock.serve.webhooks.transport import WebhookTransport
from tests.clocks import until
from tests.serve.fakes import FakeLog, FakeView, Reading, make_deps
from tests.serve.webhooks.receiver import Receiver

LOOPBACK = "127.0.0.0/8"
QUICK = Settings(
    heartbeat_s=0.05,
    webhook_private=LOOPBACK,
    webhook_backoff_s=0.01,
    webhook_backoff_s_max=0.1,
    webhook_timeout_s=5.0,
)
READER = Grants((), ("x",))
KEYS = {"stream": ("text",), "view": ("k",)}


@dataclass
class Rig:
    """One stream and one view, both called `x`; events of the stream are keyed by their text. `people` are callers by
    their names."""

    log: FakeLog
    view: FakeView
    stream: StreamChannel
    deps: Deps
    registry: Registry
    people: dict[str, Caller] = field(default_factory=dict)

    def write(self, *numbers: int, key: str = "a") -> None:
        self.log.write(sum(key.encode()) % 2, *numbers, text=key)
        self.stream.wake()

    async def add(self, receiver: Receiver, caller: Caller = ANYONE, since: str = "latest", **more: Any) -> str:
        """Register, and wait until the challenge was answered."""
        webhook, secret = await self.registry.register(caller, wanted(receiver.url, **more), since)
        receiver.secrets.append(secret)
        await until(lambda: self.registry.get(caller, webhook["id"])["state"] == "active")
        return str(webhook["id"])

    def get(self, id: str) -> dict[str, Any]:
        return self.registry.get(ANYONE, id)


def replaced(**changed: Any) -> Settings:
    return replace(QUICK, **changed)


def wanted(url: str, kind: str = "stream", of: str = "x", **more: Any) -> Hook:
    return Hook("", url, kind, of, "", datetime.now(UTC), **more)


@asynccontextmanager
async def rigged(
    folder: Path,
    settings: Settings = QUICK,
    *,
    before: Rig | None = None,
    transport: WebhookTransport | None = None,
) -> AsyncIterator[Rig]:
    """Run the webhooks of a folder; with `before`, over the channels of an earlier rig."""
    log, view = (before.log, before.view) if before is not None else (FakeLog(), FakeView())
    people = before.people if before is not None else {"": ANYONE}
    stream = StreamChannel("x", log, settings, lambda: event_schema(Reading))
    deps = make_deps({"x": stream}, {"x": ViewChannel("x", view, settings, key=["k"])}, settings=settings)
    around = RuntimeCallbacks(people.get, lambda kind, of: KEYS[kind])
    registry = Registry(partial(WebhookStore, folder / "webhooks.db"), settings, around, transport)
    await registry.start(deps.channel)
    try:
        yield Rig(log, view, stream, deps, registry, people)
    finally:
        await registry.close()


async def settled(rig: Rig, id: str) -> None:
    """Wait until no message waits."""
    await until(lambda: rig.get(id)["pending"] == 0)
    await asyncio.sleep(0)
