"""Helpers shared by the tests of ingestion: event classes, an ingress over a log in memory, and a bare ASGI client."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, ParamSpec

import msgspec

from penstock.app.app import App
from penstock.collect.http import PostEndpoint
from penstock.collect.ingress import Ingress
from penstock.core.access import ANYONE, CALLER, Caller
from penstock.core.contracts import AdmissionLog, Source, SourceStatus
from penstock.core.cursor import AckSigner
from penstock.core.errors import PenstockError
from penstock.core.schema import Event, Record
from penstock.core.settings import Settings
from tests.clocks import ManualClock, until
from tests.memory_log import DEADLINE_S, MemoryLog

P = ParamSpec("P")
STALL = bytes(bytearray(b"a part that never comes"))


class Venue(Record):
    lat: float
    opened: datetime | None = None


class Fix(Event, id="fix_id", time="at"):
    fix_id: str
    at: datetime
    vehicle: str
    venue: Venue | None = None
    price: Decimal | None = None


def fix(number: int, vehicle: str = "v", **more: Any) -> dict[str, Any]:
    return {"fix_id": f"f{number}", "at": "2026-01-01T10:00:00Z", "vehicle": vehicle, **more}


def body(*values: Any) -> bytes:
    return msgspec.json.encode(values[0] if len(values) == 1 else values)


@dataclass
class Posted:
    """A request, as a writer takes it."""

    events: list[Any]
    key: str | None = None
    indexes: list[int] | None = None


@dataclass
class Rig:
    """An ingress, and its calls to its owner."""

    ingress: Ingress
    endpoint: PostEndpoint
    clock: ManualClock
    signer: AckSigner
    fatal: list[PenstockError] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)


@asynccontextmanager
async def opened(log: AdmissionLog, settings: Settings | None = None, **options: Any) -> AsyncIterator[Rig]:
    """A door with the streams `fixes` (keyed, and with these options), and `raw`; closed at the end."""
    app = App("test")
    app.stream("fixes", Fix, key="vehicle", **options)
    app.stream("raw")
    chosen, clock = settings or Settings(), ManualClock()
    fatal: list[PenstockError] = []
    commits: list[str] = []
    signer = AckSigner()
    ingress = Ingress(app.streams, log, chosen, clock, fatal.append, commits.append, signer)
    try:
        yield Rig(ingress, PostEndpoint(ingress, chosen), clock, signer, fatal, commits)
    finally:
        if isinstance(log, MemoryLog):
            log.gate.set()
        await ingress.close()


@asynccontextmanager
async def at_work(
    rig: Rig, source: Source, stream: str = "raw", *, connected: bool = False
) -> AsyncIterator[SourceStatus]:
    """Run a source under the name `feed`, if needed until it is connected; cancelled at the end, as at a
    shutdown."""
    status = SourceStatus()
    task = asyncio.create_task(source.run(rig.ingress.writer_for_source("feed", stream), status))
    try:
        if connected:
            await until(lambda: status.state == "connected" or task.done())
        yield status
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.raw)


async def post(
    endpoint: Callable[..., Awaitable[None]],
    stream: str,
    content: bytes | Iterable[bytes | None],
    *,
    query: bytes = b"",
    caller: Caller = ANYONE,
    **headers: str,
) -> Answer | None:
    """Send one request directly to the ASGI callable, part by part; at None the client disconnects."""
    upcoming: list[bytes | None] = [content] if isinstance(content, bytes) else list(content)
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if upcoming[0] is STALL:
            await asyncio.get_running_loop().create_future()
        part = upcoming.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(upcoming)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/v1/streams/{stream}",
        "query_string": query,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        CALLER: caller,
    }
    await asyncio.wait_for(endpoint(scope, receive, send), DEADLINE_S)
    if not sent:
        return None
    assert sent[-1]["more_body"] is False
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    content_sent = b"".join(message["body"] for message in sent[1:])
    assert int(named["content-length"]) == len(content_sent)
    return Answer(sent[0]["status"], named, content_sent)


async def answered(*args: Any, **named: Any) -> Answer:
    """Call `post` for a client that stays connected."""
    answer = await post(*args, **named)
    assert answer is not None
    return answer


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in a separate event loop."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*args, **named))

    return run
