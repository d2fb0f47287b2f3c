"""Delivery for one webhook: reads its channel, stores messages, and sends each message until it is accepted.

    channel --> split --> store (durable) --> lanes --> transport --> receiver
                  position and messages in one transaction      done: deleted from the store

A crash can only lose the record that a message was accepted. The message is then sent again with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from penstock.core.access import Caller
from penstock.core.backoff import retry_after_s
from penstock.core.contracts import Channel, Delivery
from penstock.core.errors import BadParameter, Busy, NotFound, RequestError
from penstock.core.signing import sign
from penstock.core.tasks import cancel_all, first_of
from penstock.serve.connections import following
from penstock.serve.webhooks.address import Allowed, WebhookAddress, endpoint
from penstock.serve.webhooks.lanes import Lanes
from penstock.serve.webhooks.messages import Splitter
from penstock.serve.webhooks.model import (
    ChannelProgress,
    DeadMessage,
    DeliveryAttempts,
    Hook,
    WebhookMessage,
    WebhookProgress,
    WebhookState,
)
from penstock.serve.webhooks.shared_resources import Grant, Halt, SharedResources
from penstock.serve.webhooks.transport import WebhookUnreachable

AWAY_MAX = 8
"""Maximum number of a webhook's messages that are being sent at once."""
NOTING_MAX = 64
"""Maximum number of messages that are being sent, or were accepted but are not yet recorded as done.

Messages wait to be recorded while the disk is slow or full.
"""
PENDING_BYTES_MAX = 8 * 1024 * 1024
"""Maximum size in bytes of the waiting messages on disk. The total can exceed this by the size of one delivery."""
HELD_BYTES_MAX = 1024 * 1024
"""Maximum size in bytes of the new messages kept in memory, so that they do not have to be read again before they are
sent."""
FAILURES_MAX = 3
"""Number of consecutive failures after which the receiver is considered down.

Messages are then sent one at a time, with pauses in between.
"""
PAUSE_S_MAX = 60.0
NOT_YET_S = 1.0
GONE = 410
_ASKING = (429, 503)
T = TypeVar("T")
_log = logging.getLogger("penstock.webhooks")


class DeliveryWorker:
    """The worker of one webhook. `run` is called once. Not thread-safe."""

    def __init__(
        self, hook: Hook, known: WebhookProgress, resources: SharedResources, grant: Grant, split: Splitter
    ) -> None:
        self.hook = hook
        self.progress, self.tally, self.dead = known.progress, known.tally, known.dead
        self._before: int | None = known.pending
        self.lanes = Lanes()
        self.retrying: dict[int, DeliveryAttempts] = {}
        self._resources = resources
        self._grant = grant
        self._split = split
        self._target = _endpoint_or_halt(hook, resources.allowed)
        self._patience = resources.patience
        self._bodies: dict[int, bytes] = {}
        self._held = 0
        self._failures = 0
        self._paused_until = 0.0
        self._woken = asyncio.Event()
        self._space = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None

    async def run(self) -> None:
        """Deliver the webhook's messages until cancelled. Raises `Halt`, or an unexpected error; a new worker then
        continues from the store.

        A cancelled worker might not know whether its last change was written.
        """
        store, id = self._resources.store, self.hook.id
        known, waiting = await store.read(lambda: (store.known(id), store.waiting(id)))
        self.progress, self.tally, self.dead = known.progress, known.tally, known.dead
        for message, tries in waiting:
            if tries is not None:
                self.retrying[message.number] = tries
            self.lanes.add(message, _retry_due_monotonic(tries.due) if tries is not None else 0.0)
        self._before = None
        reading = asyncio.create_task(self._read(), name=f"webhook {self.hook.id} reads")
        sending = asyncio.create_task(self._dispatch(), name=f"webhook {self.hook.id} sends")
        await first_of(reading, sending)
        for task in (reading, sending):
            if not task.cancelled():
                task.result()

    @property
    def known(self) -> WebhookProgress:
        pending = self.lanes.size if self._before is None else self._before
        return WebhookProgress(self.progress, self.tally, self.dead, pending)

    def revive(self, messages: list[WebhookMessage]) -> None:
        """Add a webhook's revived dead letters after the waiting messages with the same keys."""
        self.dead -= len(messages)
        for message in messages:
            self.lanes.add(message)
        self._woken.set()

    # reading

    async def _read(self) -> None:
        while True:
            try:
                caller = self._grant.caller()
                await self._follow(caller, self._grant.channel(caller))
            except Busy as error:  # the columns of a view are not known yet, or too many filters are in use
                await asyncio.sleep(error.retry_after_s)
            except RequestError as error:  # the stream is gone, the filter no longer matches, or the grant was revoked
                raise Halt(WebhookState.STOPPED, error.message) from None

    async def _follow(self, caller: Caller, channel: Channel) -> None:
        """Take the webhook's deliveries until the caller's permissions change. After that, the channel must be opened
        again."""
        try:
            async with following(channel, self.progress.cursor) as deliveries:
                async for delivery in deliveries:
                    if self._grant.caller() is not caller:
                        return
                    await self._take(delivery)
                    del delivery  # it has been stored, and the wait for room or for the next delivery can be long
                    await self._room()
        except NotFound:  # the engine has not created it yet
            await asyncio.sleep(NOT_YET_S)

    async def _take(self, delivery: Delivery) -> None:
        """Store a delivery's webhook messages, and the cursor after it."""
        first, before, now = self.progress.sequence, self.progress.cursor, datetime.now(UTC)
        if delivery.cursor == self.progress.cursor and delivery.kind in ("progress", "stall"):
            return
        bodies: dict[int, bytes] = {}

        def split_messages() -> tuple[list[tuple[WebhookMessage, bytes]], ChannelProgress]:
            messages = self._split.split(delivery, first, now, before)
            bodies.update({message.number: body for message, body in messages})
            return messages, ChannelProgress(delivery.cursor, first + len(messages))

        messages = await _durable(lambda: self._resources.store.append(self.hook.id, split_messages))
        self.progress = ChannelProgress(delivery.cursor, first + len(messages))
        for message in messages:
            if self._held + message.size <= HELD_BYTES_MAX:
                self._bodies[message.number] = bodies[message.number]
                self._held += message.size
            self.lanes.add(message)
        self._woken.set()

    async def _room(self) -> None:
        most = max(1, self._resources.settings.webhook_pending_max)
        while self.lanes.size >= most or self.lanes.bytes >= PENDING_BYTES_MAX:
            self._space.clear()
            await self._space.wait()

    # sending

    async def _dispatch(self) -> None:
        try:
            while True:
                self._woken.clear()
                if self._broken is not None:
                    raise self._broken
                now = time.monotonic()
                self._start(now)
                await self._rest(now)
        finally:
            await cancel_all(self._sending)

    def _start(self, now: float) -> None:
        """Send every webhook message that can be sent now."""
        most = 1 if self._failures >= FAILURES_MAX else AWAY_MAX
        while now >= self._paused_until and self.lanes.away < most and len(self._sending) < NOTING_MAX:
            message = self.lanes.take(now)
            if message is None:
                return
            task = asyncio.create_task(self._deliver(message), name=f"webhook {self.hook.id} message {message.number}")
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()
        self._woken.set()

    async def _rest(self, now: float) -> None:
        """Wait until a webhook message is done or added, or becomes due after `now`."""
        due = self.lanes.next_due()
        ends = [end for end in (due, self._paused_until) if end is not None and end > now]
        try:
            async with asyncio.timeout(max(0.0, min(ends) - time.monotonic()) if ends else None):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _deliver(self, message: WebhookMessage) -> None:
        body = self._bodies.get(message.number)
        if body is None:
            body = await self._resources.store.body(self.hook.id, message.number)
        error, asked_s = await self._try(message, body)
        if error is None:
            await self._succeed(message)
        else:
            await self._fail(message, error, asked_s)

    async def _try(self, message: WebhookMessage, body: bytes) -> tuple[str | None, float | None]:
        """Send a webhook message once. Returns the error, or None if it was accepted, and the delay that the receiver
        asked for."""
        async with self._resources.slots.one(self.hook.id, self._target.host):
            self._grant.caller()
            headers = sign(self._grant.secrets(), message.id(self.hook.id), int(time.time()), body)
            try:
                answer = await self._resources.transport.post(self._target, headers, body)
            except WebhookUnreachable as error:
                return str(error), None
        if 200 <= answer.status < 300:
            return None, None
        if answer.status == GONE:
            raise Halt(WebhookState.DISABLED, "the receiver returned 410: it does not want further messages")
        if 300 <= answer.status < 400:
            return f"the receiver returned {answer.status}; redirects are not followed", None
        asked_s = retry_after_s(answer.headers.get("retry-after"), datetime.now(UTC))
        if asked_s is not None and answer.status in _ASKING:
            self._pause(min(asked_s, self._patience.longest_s))
        return f"the receiver returned {answer.status}", asked_s

    async def _succeed(self, message: WebhookMessage) -> None:
        """Record a successful webhook delivery. The next message in the lane does not wait for this.

        After a crash both messages may be sent again, in order.
        """
        now, self._failures = datetime.now(UTC), 0
        self.tally = self.tally.taken(now)
        self._finish(message)
        await _durable(lambda: self._resources.store.done(self.hook.id, message.number, now))

    async def _fail(self, message: WebhookMessage, error: str, asked_s: float | None) -> None:
        now = datetime.now(UTC)
        self._slow_down()
        self.tally = self.tally.failed(error, now)
        before = self.retrying.get(message.number)
        tries = self._patience.after(before, error, now, self._resources.chance, asked_s)
        if tries is None:
            await self._bury(message, DeadMessage(now, before.count + 1 if before is not None else 1, error))
            return
        self.retrying[message.number] = tries
        await _durable(lambda: self._resources.store.failed(self.hook.id, message.number, tries, now))
        self.lanes.back(message, _retry_due_monotonic(tries.due))

    async def _bury(self, message: WebhookMessage, dead: DeadMessage) -> None:
        most = max(1, self._resources.settings.webhook_dead_max)
        gone = await _durable(lambda: self._resources.store.bury(self.hook.id, message.number, dead, most))
        self.tally = self.tally.forgot(gone)
        self.dead += 1 - gone
        _log.warning("webhook %s gave up on message %d after %d attempts", self.hook.id, message.number, dead.tries)
        self._finish(message)

    def _finish(self, message: WebhookMessage) -> None:
        self.retrying.pop(message.number, None)
        if self._bodies.pop(message.number, None) is not None:
            self._held -= message.size
        self.lanes.done(message)
        self._woken.set()
        self._space.set()

    def _slow_down(self) -> None:
        """Count a failed webhook delivery. Overlapping failures count only once, as a single sign that the receiver is
        down."""
        if self._failures < FAILURES_MAX or self.lanes.away == 1:
            self._failures += 1
        if self._failures >= FAILURES_MAX:
            over = self._failures - FAILURES_MAX + 1
            self._pause(min(PAUSE_S_MAX, self._patience.delay_s(over, self._resources.chance)))

    def _pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)


def _endpoint_or_halt(hook: Hook, allowed: Allowed) -> WebhookAddress:
    try:
        return endpoint(hook.url, allowed)
    except BadParameter as error:
        raise Halt(WebhookState.STOPPED, error.message) from None


async def _durable(write: Callable[[], Awaitable[T]]) -> T:
    """Run a write to the store of webhooks, and return its result. Retries while the disk is full."""
    while True:
        try:
            return await write()
        except Busy as error:
            await asyncio.sleep(error.retry_after_s)


def _retry_due_monotonic(due: datetime) -> float:
    return time.monotonic() + (due - datetime.now(UTC)) / timedelta(seconds=1)
