"""A producer with a durable outbox: what it has taken arrives, once, whatever ends in between."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, TypeVar

from penstock.client.backoff import Backoff
from penstock.client.client import MIB, Client
from penstock.client.encoding import Sent, encode
from penstock.client.errors import (
    ClientError,
    NotSpoken,
    OutboxFull,
    ServerError,
    Unreachable,
    certificate_refused,
)
from penstock.client.link import BROKEN
from penstock.client.outbox import Outbox, Queued, Rejection
from penstock.client.sending import Desk, Post, Sender, Socket
from penstock.errors import DiskFull
from penstock.failpoints import reach

T = TypeVar("T")
MESSAGE_BYTES_MAX = MIB
EVENTS_MAX = 10_000
OVERHEAD_BYTES = 64
"""What a message counts besides its own bytes, so that small ones are bounded too."""
DISK_FULL_S = 1.0
"""How long to leave a full disk alone before what is to be noted is tried again."""
_log = logging.getLogger("penstock.client")


class Producer:
    """Sends events to one stream, from a file at `path` that is its own. Use it as an async context manager.

    `bytes_max` bounds what waits in the file; when it is full, `send` waits (`when_full="wait"`) or raises `OutboxFull`
    (`"refuse"`). `on_rejected` is called once for each message of which the server refused events; they are also kept,
    see `rejected`. `transport` is `websocket`, `post`, or `auto`: a WebSocket where one works.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        path: str | os.PathLike[str],
        *,
        bytes_max: int = 64 * MIB,
        when_full: Literal["wait", "refuse"] = "wait",
        transport: Literal["auto", "websocket", "post"] = "auto",
        on_rejected: Callable[[Rejection], None] | None = None,
    ) -> None:
        self.stream = stream
        self.error: ClientError | None = None
        """Why nothing can be sent just now, if a retry does not help; it is tried all the same."""
        self.shed = 0
        """Events that the server has given up since it is overloaded, as their stream allows."""
        self._client = client
        self._path = path
        self._bytes_max = bytes_max
        self._refuses = when_full == "refuse"
        self._transport = transport
        self._on_rejected = on_rejected
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox")
        self._outbox: Outbox | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sizes: deque[tuple[int, int]] = deque()
        self._taken: list[tuple[bytes, asyncio.Future[None]]] = []
        self._acknowledged = 0
        self._rejections: list[tuple[int, list[dict[str, Any]]]] = []
        self._bytes = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Condition()
        self._work = asyncio.Event()
        self._order = asyncio.Lock()

    @property
    def pending(self) -> int:
        """Messages that are not acknowledged yet."""
        return len(self._sizes) + len(self._taken)

    async def __aenter__(self) -> Producer:
        self._outbox = await self._in_thread(lambda: Outbox(self._path))
        self._sizes = deque((seq, size + OVERHEAD_BYTES) for seq, size in await self._in_thread(self._outbox.sizes))
        self._bytes = sum(size for _, size in self._sizes)
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._send())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop sending. What is not acknowledged stays in the file, for the next one who opens it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(ClientError("the producer was closed"))
        if self._outbox is not None:
            await self._in_thread(self._outbox.close)
        self._thread.shutdown()

    async def send(self, events: Sent | Sequence[Sent]) -> None:
        """Take an event, or several that are to be sent together. Returns when they are in the file, and synced: from
        then on they arrive, once. Events are sent in the order in which `send` was called. If it raises what the disk
        says, or is cancelled, it is not known whether they were taken; `DiskFull` means that they were not."""
        body = encode(events)
        if len(body) > MESSAGE_BYTES_MAX or (isinstance(events, Sequence) and len(events) > EVENTS_MAX):
            raise ClientError(f"one send has at most {MESSAGE_BYTES_MAX} bytes and {EVENTS_MAX} events")
        async with self._order:  # those who wait for room keep their places
            await self._room(len(body) + OVERHEAD_BYTES)
            durable = asyncio.get_running_loop().create_future()
            self._bytes += len(body) + OVERHEAD_BYTES
            self._taken.append((body, durable))
        self._work.set()
        await durable

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when the server has acknowledged all that was taken. `TimeoutError` if that takes longer;
        `ServerError` if the server refuses to have it, and a retry does not help: it stays in the file."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: not self.pending or self.error or self._failure)
        self._raise_failure()
        if self.pending and self.error is not None:
            raise self.error

    async def rejected(self) -> list[Rejection]:
        """Messages of which the server refused events, the last 10,000, until they are forgotten."""
        assert self._outbox is not None, "open it first"
        return await self._in_thread(self._outbox.rejected)

    async def forget_rejected(self, up_to: Rejection) -> None:
        """Somebody has seen to all of them up to this one."""
        assert self._outbox is not None, "open it first"
        outbox = self._outbox
        await self._in_thread(lambda: outbox.forget_rejected(up_to.seq))

    async def _room(self, size: int) -> None:
        """Wait, or refuse, while the outbox is full. One that is empty takes anything."""

        def is_room() -> bool:
            return self._failure is not None or not self._bytes or self._bytes + size <= self._bytes_max

        if not is_room() and self._refuses:
            raise OutboxFull(f"the outbox has {self._bytes} of {self._bytes_max} bytes")
        if not is_room():
            async with self._changed:
                await self._changed.wait_for(is_room)
        self._raise_failure()
        if self._outbox is None:
            raise ClientError("open the producer first, with `async with`")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        """The file does not take any more: nothing more is promised."""
        self._failure = self._failure or error
        self._refuse(len(self._taken), error)

    def _refuse(self, count: int, error: BaseException) -> None:
        """Raise `error` from the `send` of the first `count` messages that wait to be written."""
        for body, durable in self._taken[:count]:
            self._bytes -= len(body) + OVERHEAD_BYTES
            if not durable.done():
                durable.set_exception(error)
        del self._taken[:count]

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _write(self) -> None:
        """Whatever has come meanwhile, in one commit after the other."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                try:
                    await self._commit()
                except DiskFull:  # what was taken before is there, and there may be room later
                    await self._client.timing.sleep(DISK_FULL_S)
                    self._work.set()
        except Exception as error:
            self._fail(error)
            async with self._changed:
                self._changed.notify_all()

    async def _commit(self) -> None:
        assert self._outbox is not None
        outbox, acknowledged = self._outbox, self._acknowledged
        taken, rejections = list(self._taken), list(self._rejections)
        bodies = [body for body, _ in taken]
        committing = self._in_thread(lambda: outbox.commit(bodies, acknowledged, rejections))
        try:
            numbers, news = await asyncio.shield(committing)
        except DiskFull as error:  # messages that came during this commit were not part of it: the next one has them
            self._refuse(len(taken), error)
            raise
        del self._taken[: len(taken)], self._rejections[: len(rejections)]
        reach("outbox.committed")
        self._sizes.extend((seq, len(body) + OVERHEAD_BYTES) for seq, body in zip(numbers, bodies, strict=True))
        while self._sizes and self._sizes[0][0] <= acknowledged:
            self._bytes -= self._sizes.popleft()[1]
        for _, durable in taken:
            if not durable.done():
                durable.set_result(None)
        for each in news:
            self._tell(each)
        async with self._changed:
            self._changed.notify_all()

    def _tell(self, rejection: Rejection) -> None:
        _log.warning("%s refused events of message %s: %s", self.stream, rejection.seq, rejection.errors[:3])
        if self._on_rejected is not None:
            try:
                self._on_rejected(rejection)
            except Exception:
                _log.exception("what is called with rejected events has failed; they are kept")

    async def _send(self) -> None:
        """For ever: send what is there, by a connection after the other."""
        backoff = Backoff(self._client.timing)
        sender = self._sender(self._transport != "post")
        while True:
            retry_after_s = None
            try:
                await sender.send()
            except NotSpoken as error:
                if self._transport == "websocket":
                    await self._blocked(Unreachable(str(error)))
                sender = self._sender(websocket=False)
            except ServerError as error:
                retry_after_s = error.retry_after_s
                if not error.retry:
                    await self._blocked(error)
            except (*BROKEN, Unreachable) as error:
                _log.info("%s: not connected (%s); trying again", self.stream, error or type(error).__name__)
                if certificate_refused(error):
                    await self._blocked(Unreachable(str(error)))
            except Exception as error:
                _log.exception("%s: sending failed", self.stream)
                await self._blocked(ClientError(f"sending failed: {error!r}"))
            if sender.progressed:
                backoff.succeeded()
                sender.progressed = False
            await backoff.pause(retry_after_s)

    def _sender(self, websocket: bool) -> Sender:
        assert self._outbox is not None
        outbox = self._outbox
        name = f"{outbox.generation:012x}"
        way = Socket if websocket else Post

        async def load(seq: int, count: int, bytes_max: int) -> list[Queued]:
            return await self._in_thread(lambda: outbox.after(seq, count, bytes_max))

        return way(self._client, self.stream, name, Desk(self._news, load, self._acknowledge, self._reject))

    async def _blocked(self, error: ClientError) -> None:
        self.error = error
        async with self._changed:
            self._changed.notify_all()

    async def _news(self, seq: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._sizes) and self._sizes[-1][0] > seq)

    def _acknowledge(self, seq: int, shed: int) -> None:
        self.shed += shed
        self.error = None
        self._acknowledged = max(self._acknowledged, seq)
        self._work.set()

    def _reject(self, seq: int, errors: list[dict[str, Any]]) -> None:
        self._rejections.append((seq, errors))
