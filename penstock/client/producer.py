"""A producer with a durable outbox: accepted events arrive exactly once, no matter what fails in between."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from penstock.client.client import MIB, Client
from penstock.client.encoding import Sent, encode
from penstock.client.errors import (
    ClientError,
    OutboxFull,
    ServerError,
    TransportBlocked,
    Unreachable,
    certificate_refused,
)
from penstock.client.link import BROKEN
from penstock.client.outbox import Outbox, Queued, Rejection
from penstock.client.sending import Post, Sender, SenderCallbacks, Socket
from penstock.client.timing import Retries
from penstock.core.errors import DiskFull
from penstock.core.failpoints import reach
from penstock.core.tasks import cancel_all

T = TypeVar("T")
MESSAGE_BYTES_MAX = MIB
EVENTS_MAX = 10_000
OVERHEAD_BYTES = 64
"""Number of bytes counted for each message in addition to its size, so that the number of small messages is limited
too."""
DISK_FULL_S = 1.0
"""Seconds to wait before retrying a write when the disk is full."""
_log = logging.getLogger("penstock.client")


class Producer:
    """Sends events to one stream, from its own file at `path`. Use it as an async context manager.

    `bytes_max` limits the total size of the messages in the file; when the file is full, `send` waits
    (`when_full="wait"`) or raises `OutboxFull` (`"refuse"`). `on_rejected` is called once for each message with events
    that the server rejected; such messages are also kept (see `rejected`). `transport` is `websocket`, `post`, or
    `auto`, which uses a WebSocket where one works.
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
        """The error that blocks sending until someone fixes its cause, or None. Sending is still retried."""
        self.shed = 0
        """The number of events that the server dropped because it was overloaded, as the stream's declaration
        allows."""
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
        """The number of the producer's messages not yet acknowledged."""
        return len(self._sizes) + len(self._taken)

    async def __aenter__(self) -> Producer:
        self._outbox = await self._in_thread(lambda: Outbox(self._path))
        self._sizes = deque((seq, size + OVERHEAD_BYTES) for seq, size in await self._in_thread(self._outbox.sizes))
        self._bytes = sum(size for _, size in self._sizes)
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._send())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop sending. Unacknowledged messages stay in the producer's file, and are sent when it is opened again."""
        await cancel_all(self._tasks)
        self._fail(ClientError("the producer was closed"))
        if self._outbox is not None:
            await self._in_thread(self._outbox.close)
        self._thread.shutdown()

    async def send(self, events: Sent | Sequence[Sent]) -> None:
        """Accept an event, or several events to be sent together, into the outbox.

        Returns when the events are synced to the file. From then on, they will arrive exactly once.

        Events are sent in the order of the `send` calls. If a call is cancelled or raises a disk error, it is unknown
        whether its events were accepted, except for `DiskFull`: then they were not accepted.
        """
        body = encode(events)
        if len(body) > MESSAGE_BYTES_MAX or (isinstance(events, Sequence) and len(events) > EVENTS_MAX):
            raise ClientError(f"a single send can contain at most {MESSAGE_BYTES_MAX} bytes and {EVENTS_MAX} events")
        async with self._order:  # waiters keep their order
            await self._room(len(body) + OVERHEAD_BYTES)
            durable = asyncio.get_running_loop().create_future()
            self._bytes += len(body) + OVERHEAD_BYTES
            self._taken.append((body, durable))
        self._work.set()
        await durable

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the server has acknowledged everything accepted so far. Raises `TimeoutError` after `timeout_s`.

        Raises `ServerError` if the server refuses a message and retrying cannot help; the message stays in the file.
        """
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: not self.pending or self.error or self._failure)
        self._raise_failure()
        if self.pending and self.error is not None:
            raise self.error

    async def rejected(self) -> list[Rejection]:
        """Return the last 10,000 messages with events that the server rejected, except messages deleted by
        `forget_rejected`."""
        assert self._outbox is not None, "open it first"
        return await self._in_thread(self._outbox.rejected)

    async def forget_rejected(self, up_to: Rejection) -> None:
        """Delete this rejected message, and all earlier ones, from the file."""
        assert self._outbox is not None, "open it first"
        outbox = self._outbox
        await self._in_thread(lambda: outbox.forget_rejected(up_to.seq))

    async def _room(self, size: int) -> None:
        """Wait, or refuse, while the outbox is full. An empty outbox accepts a message of any size."""

        def is_room() -> bool:
            return self._failure is not None or not self._bytes or self._bytes + size <= self._bytes_max

        if not is_room() and self._refuses:
            raise OutboxFull(f"the outbox is full: it holds {self._bytes} bytes, and the limit is {self._bytes_max}")
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
        """Fail all waiting calls of the producer, because its file accepts no more messages."""
        self._failure = self._failure or error
        self._refuse(len(self._taken), error)

    def _refuse(self, count: int, error: BaseException) -> None:
        """Raise `error` in the `send` calls of the first `count` messages that are waiting to be written to the
        outbox."""
        for body, durable in self._taken[:count]:
            self._bytes -= len(body) + OVERHEAD_BYTES
            if not durable.done():
                durable.set_exception(error)
        del self._taken[:count]

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _write(self) -> None:
        """Write new messages to the outbox, one commit after another."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                try:
                    await self._commit()
                except DiskFull:  # earlier messages are in the file, and there may be room later
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
        except DiskFull as error:  # messages that arrived during this commit are left for the next one
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
        for rejection in news:
            self._report_rejection(rejection)
        async with self._changed:
            self._changed.notify_all()

    def _report_rejection(self, rejection: Rejection) -> None:
        _log.warning("%s: events of message %s were rejected: %s", self.stream, rejection.seq, rejection.errors[:3])
        if self._on_rejected is not None:
            try:
                self._on_rejected(rejection)
            except Exception:
                _log.exception("on_rejected failed; the rejected events are kept")

    async def _send(self) -> None:
        """Send the outbox's messages over one connection after another, until cancelled."""
        retries = Retries(self._client.timing)
        sender = self._sender(self._transport != "post")
        while True:
            retry_after_s = None
            try:
                await sender.send()
            except TransportBlocked as error:
                if self._transport == "websocket":
                    await self._blocked(Unreachable(str(error)))
                sender = self._sender(websocket=False)
            except ServerError as error:
                retry_after_s = error.retry_after_s
                if not error.retry:
                    await self._blocked(error)
            except (*BROKEN, Unreachable) as error:
                _log.info("%s: not connected (%s); retrying", self.stream, error or type(error).__name__)
                if certificate_refused(error):
                    await self._blocked(Unreachable(str(error)))
            except Exception as error:
                _log.exception("%s: sending failed", self.stream)
                await self._blocked(ClientError(f"sending failed: {error!r}"))
            if sender.progressed:
                retries.succeeded()
                sender.progressed = False
            await retries.pause(retry_after_s)

    def _sender(self, websocket: bool) -> Sender:
        assert self._outbox is not None
        outbox = self._outbox
        name = f"{outbox.generation:012x}"
        way = Socket if websocket else Post

        async def load(seq: int, count: int, bytes_max: int) -> list[Queued]:
            return await self._in_thread(lambda: outbox.after(seq, count, bytes_max))

        return way(
            self._client,
            self.stream,
            name,
            SenderCallbacks(self._wait_for_messages, load, self._acknowledge, self._reject),
        )

    async def _blocked(self, error: ClientError) -> None:
        self.error = error
        async with self._changed:
            self._changed.notify_all()

    async def _wait_for_messages(self, seq: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._sizes) and self._sizes[-1][0] > seq)

    def _acknowledge(self, seq: int, shed: int) -> None:
        self.shed += shed
        self.error = None
        self._acknowledged = max(self._acknowledged, seq)
        self._work.set()

    def _reject(self, seq: int, errors: list[dict[str, Any]]) -> None:
        self._rejections.append((seq, errors))
