"""One webhook at work: reads its channel, keeps what it gives as messages, and sends them until each is answered.

    channel --> split --> store (durable) --> lanes --> transport --> receiver
                  place and messages in one transaction        done: out of the store

What a crash can lose is only the knowledge that a message was answered: it is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from penstock.access import Caller
from penstock.contracts import Channel, Delivery
from penstock.errors import BadParameter, Busy, NotFound, RequestError
from penstock.serve.connections import first_of, following
from penstock.serve.webhooks.address import Allowed, Endpoint, endpoint
from penstock.serve.webhooks.lanes import Lanes
from penstock.serve.webhooks.messages import Splitter
from penstock.serve.webhooks.model import Dead, Hook, Known, Message, Place, State, Tries
from penstock.serve.webhooks.office import Halt, Office, Orders
from penstock.serve.webhooks.retry import retry_after_s
from penstock.serve.webhooks.transport import Unreachable
from penstock.signing import sign

AWAY_MAX = 8
"""Messages of one webhook on their way at once."""
NOTING_MAX = 64
"""Messages on their way, or answered and not yet noted as done on a disk that is slow or full."""
PENDING_BYTES_MAX = 8 * 1024 * 1024
"""Messages that wait are on the disk. A delivery may go over this by its own size."""
HELD_BYTES_MAX = 1024 * 1024
"""Bodies of new messages that are held in memory, to be sent without being read again."""
FAILURES_MAX = 3
"""After so many failures in a row the receiver is taken as down: one message at a time, with pauses between."""
PAUSE_S_MAX = 60.0
NOT_YET_S = 1.0
GONE = 410
_ASKING = (429, 503)
T = TypeVar("T")
_log = logging.getLogger("penstock.webhooks")


class Courier:
    """Belongs to one event loop; `run` is called once."""

    def __init__(self, hook: Hook, known: Known, office: Office, orders: Orders, split: Splitter) -> None:
        self.hook = hook
        self.place, self.tally, self.dead = known.place, known.tally, known.dead
        self._before: int | None = known.pending
        self.lanes = Lanes()
        self.retrying: dict[int, Tries] = {}
        self._office = office
        self._orders = orders
        self._split = split
        self._target = _endpoint(hook, office.allowed)
        self._patience = office.patience
        self._bodies: dict[int, bytes] = {}
        self._held = 0
        self._failures = 0
        self._paused_until = 0.0
        self._woken = asyncio.Event()
        self._space = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None

    async def run(self) -> None:
        """Work until cancelled. Raises `Halt`, or what went wrong: then another courier begins with what the store has.
        This one, cancelled at any time, may not know that its last change was made."""
        store, id = self._office.store, self.hook.id
        known, waiting = await store.read(lambda: (store.known(id), store.waiting(id)))
        self.place, self.tally, self.dead = known.place, known.tally, known.dead
        for message, tries in waiting:
            if tries is not None:
                self.retrying[message.number] = tries
            self.lanes.add(message, _monotonic(tries.due) if tries is not None else 0.0)
        self._before = None
        reading = asyncio.create_task(self._read(), name=f"webhook {self.hook.id} reads")
        sending = asyncio.create_task(self._dispatch(), name=f"webhook {self.hook.id} sends")
        await first_of(reading, sending)
        for task in (reading, sending):
            if not task.cancelled():
                task.result()

    @property
    def known(self) -> Known:
        pending = self.lanes.size if self._before is None else self._before
        return Known(self.place, self.tally, self.dead, pending)

    def revive(self, messages: list[Message]) -> None:
        """Dead letters that are to be tried again, behind what waits of their keys."""
        self.dead -= len(messages)
        for message in messages:
            self.lanes.add(message)
        self._woken.set()

    # reading

    async def _read(self) -> None:
        while True:
            try:
                caller = self._orders.caller()
                await self._follow(caller, self._orders.channel(caller))
            except Busy as error:  # the columns of a view are not known yet, or too many filters are in use
                await asyncio.sleep(error.retry_after_s)
            except RequestError as error:  # the stream is gone, the filter no longer fits, the grant was taken away
                raise Halt(State.STOPPED, error.message) from None

    async def _follow(self, caller: Caller, channel: Channel) -> None:
        """Take what comes, until what the caller may read has changed: then the channel must be asked for again."""
        try:
            async with following(channel, self.place.cursor) as deliveries:
                async for delivery in deliveries:
                    if self._orders.caller() is not caller:
                        return
                    await self._take(delivery)
                    await self._room()
        except NotFound:  # the engine has not made it yet
            await asyncio.sleep(NOT_YET_S)

    async def _take(self, delivery: Delivery) -> None:
        """Keep what a delivery has, and where it ends."""
        first, before, now = self.place.sequence, self.place.cursor, datetime.now(UTC)
        if delivery.cursor == self.place.cursor and delivery.kind in ("progress", "stall"):
            return
        bodies: dict[int, bytes] = {}

        def made() -> tuple[list[tuple[Message, bytes]], Place]:
            messages = self._split.split(delivery, first, now, before)
            bodies.update({message.number: body for message, body in messages})
            return messages, Place(delivery.cursor, first + len(messages))

        messages = await _durable(lambda: self._office.store.append(self.hook.id, made))
        self.place = Place(delivery.cursor, first + len(messages))
        for message in messages:
            if self._held + message.size <= HELD_BYTES_MAX:
                self._bodies[message.number] = bodies[message.number]
                self._held += message.size
            self.lanes.add(message)
        self._woken.set()

    async def _room(self) -> None:
        most = max(1, self._office.settings.webhook_pending_max)
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
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    def _start(self, now: float) -> None:
        """Send whatever may go now."""
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
        """Until something is done or added, or something is due that was not `now`, when it was looked for."""
        due = self.lanes.next_due()
        ends = [each for each in (due, self._paused_until) if each is not None and each > now]
        try:
            async with asyncio.timeout(max(0.0, min(ends) - time.monotonic()) if ends else None):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _deliver(self, message: Message) -> None:
        body = self._bodies.get(message.number)
        if body is None:
            body = await self._office.store.body(self.hook.id, message.number)
        error, asked_s = await self._try(message, body)
        if error is None:
            await self._succeed(message)
        else:
            await self._fail(message, error, asked_s)

    async def _try(self, message: Message, body: bytes) -> tuple[str | None, float | None]:
        """Send it once: what was wrong, None if it was taken; and how long we are asked to wait."""
        async with self._office.slots.one(self.hook.id, self._target.host):
            self._orders.caller()
            headers = sign(self._orders.secrets(), message.id(self.hook.id), int(time.time()), body)
            try:
                answer = await self._office.transport.post(self._target, headers, body)
            except Unreachable as error:
                return str(error), None
        if 200 <= answer.status < 300:
            return None, None
        if answer.status == GONE:
            raise Halt(State.DISABLED, "the receiver answered 410: it wants no more messages")
        if 300 <= answer.status < 400:
            return f"it answered {answer.status}; redirects are not followed", None
        asked_s = retry_after_s(answer.headers, datetime.now(UTC))
        if asked_s is not None and answer.status in _ASKING:
            self._pause(min(asked_s, self._patience.longest_s))
        return f"it answered {answer.status}", asked_s

    async def _succeed(self, message: Message) -> None:
        """The next of its lane need not wait until this is noted: after a crash both come again, in their order."""
        now, self._failures = datetime.now(UTC), 0
        self.tally = self.tally.taken(now)
        self._finish(message)
        await _durable(lambda: self._office.store.done(self.hook.id, message.number, now))

    async def _fail(self, message: Message, error: str, asked_s: float | None) -> None:
        now = datetime.now(UTC)
        self._slow_down()
        self.tally = self.tally.failed(error, now)
        before = self.retrying.get(message.number)
        tries = self._patience.after(before, error, now, self._office.chance, asked_s)
        if tries is None:
            await self._bury(message, Dead(now, before.count + 1 if before is not None else 1, error))
            return
        self.retrying[message.number] = tries
        await _durable(lambda: self._office.store.failed(self.hook.id, message.number, tries, now))
        self.lanes.back(message, _monotonic(tries.due))

    async def _bury(self, message: Message, dead: Dead) -> None:
        most = max(1, self._office.settings.webhook_dead_max)
        gone = await _durable(lambda: self._office.store.bury(self.hook.id, message.number, dead, most))
        self.tally = self.tally.forgot(gone)
        self.dead += 1 - gone
        _log.warning("webhook %s gives message %d up after %d tries", self.hook.id, message.number, dead.tries)
        self._finish(message)

    def _finish(self, message: Message) -> None:
        self.retrying.pop(message.number, None)
        if self._bodies.pop(message.number, None) is not None:
            self._held -= message.size
        self.lanes.done(message)
        self._woken.set()
        self._space.set()

    def _slow_down(self) -> None:
        """Messages that fail side by side are one sign that the receiver is down, not many."""
        if self._failures < FAILURES_MAX or self.lanes.away == 1:
            self._failures += 1
        if self._failures >= FAILURES_MAX:
            over = self._failures - FAILURES_MAX + 1
            self._pause(min(PAUSE_S_MAX, self._patience.delay_s(over, self._office.chance)))

    def _pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)


def _endpoint(hook: Hook, allowed: Allowed) -> Endpoint:
    try:
        return endpoint(hook.url, allowed)
    except BadParameter as error:
        raise Halt(State.STOPPED, error.message) from None


async def _durable(write: Callable[[], Awaitable[T]]) -> T:
    """The result of a write, which waits while the disk is full."""
    while True:
        try:
            return await write()
        except Busy as error:
            await asyncio.sleep(error.retry_after_s)


def _monotonic(due: datetime) -> float:
    return time.monotonic() + (due - datetime.now(UTC)) / timedelta(seconds=1)
