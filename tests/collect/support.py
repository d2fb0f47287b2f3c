"""What the tests of the front door share: event classes, a door over a log in memory, and a bare ASGI client."""

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

from penstock.access import ANYONE, CALLER
from penstock.app import App
from penstock.collect.door import FrontDoor
from penstock.collect.http import PostEndpoint
from penstock.contracts import Log, Source, SourceStatus
from penstock.cursor import AckSigner
from penstock.errors import PenstockError
from penstock.schema import Event, Record
from penstock.settings import Settings
from tests.collect.fakes import DEADLINE_S, ManualClock, MemoryLog

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
    places: list[int] | None = None


@dataclass
class Rig:
    """A front door, and what it told its owner."""

    door: FrontDoor
    endpoint: PostEndpoint
    clock: ManualClock
    signer: AckSigner
    fatal: list[PenstockError] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)


@asynccontextmanager
async def opened(log: Log, settings: Settings | None = None, **options: Any) -> AsyncIterator[Rig]:
    """A door with the streams `fixes` (keyed, and with these options), and `raw`; closed at the end."""
    app = App("test")
    app.stream("fixes", Fix, key="vehicle", **options)
    app.stream("raw")
    chosen, clock = settings or Settings(), ManualClock()
    fatal: list[PenstockError] = []
    commits: list[str] = []
    signer = AckSigner()
    door = FrontDoor(app.streams, log, chosen, clock, fatal.append, commits.append, signer)
    try:
        yield Rig(door, PostEndpoint(door, chosen), clock, signer, fatal, commits)
    finally:
        if isinstance(log, MemoryLog):
            log.gate.set()
        await door.close()


@asynccontextmanager
async def at_work(
    rig: Rig, source: Source, stream: str = "raw", *, connected: bool = False
) -> AsyncIterator[SourceStatus]:
    """A source that runs under the name `feed`, if need be until it is connected; cancelled at the end, as at a
    shutdown."""
    status = SourceStatus()
    task = asyncio.create_task(source.run(rig.door.intake_for_source("feed", stream), status))
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
    **headers: str,
) -> Answer | None:
    """One request straight to the ASGI callable. Its parts come one by one; at None the client goes away."""
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
        CALLER: ANYONE,
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
    """`post`, for a client that stays."""
    found = await post(*args, **named)
    assert found is not None
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*args, **named))

    return run
