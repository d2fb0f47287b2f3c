"""The bounded queue in front of one stream, and its group commit.

All state belongs to the event loop; the writer thread is handed one group at a time and knows nothing else, so there is
no lock. While a group is on its way to the disk, requests gather; they are the next group. So the slower the disk, the
larger the groups, up to the bound at which requests are refused.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.collect.audit import ONE_WAY, POST, Audit
from penstock.collect.reached import Reached
from penstock.collect.writer import Commit, Target, Writer
from penstock.contracts import Clock, Log
from penstock.errors import Overloaded, PenstockError, Stopping, StorageError, SyncFailed
from penstock.rows import to_micros
from penstock.schema import Event
from penstock.settings import Settings

RETRY_AFTER_S_MAX = 30
RATE_WEIGHT = 0.2
"""How much the newest group counts in the measured rate: a stall shows within a few groups."""
_log = logging.getLogger("penstock.collect")


class Receipt(msgspec.Struct, frozen=True):
    """What became of one request, once that is durable. Encoded as it is, it is the answer to the client."""

    accepted: int
    duplicates: int
    rejected: int
    cursor: str | None
    errors: Sequence[Any] = ()
    ack: str | None = None
    shed: int | msgspec.UnsetType = msgspec.UNSET
    """Left out of the answer if there are none."""


class Waiter(Protocol):
    """Who waits for the outcome of a request: an asyncio future, or less. Called in the event loop, once.

    Must not raise: the rest of its group would never hear.
    """

    def done(self) -> bool:
        """Whether it has gone away."""

    def set_result(self, result: Receipt, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def exception(self) -> object:
        """Called after `set_exception`, so that a future does not complain of an error that nobody looked at."""


@dataclass(frozen=True)
class Hooks:
    """Who is told of what, always in the event loop: a commit of a stream, and an error after which to exit."""

    on_commit: Callable[[str], None]
    on_fatal: Callable[[PenstockError], None]


class Request(msgspec.Struct):
    """The events of one request, which came in `size` bytes by one way, at a time of the monotonic clock.

    `mark` is a source's name and how far it was read. `key` tells the request from all others: events that have no id
    of their own are known by it, and by their `places` in the request if some of it were rejected, if they come again.
    The intake fills in who waits for the outcome, `tick` and the event time that is `told` with it, and, once it is
    `sifted` because the stream sheds, how many of the events went and the places that the others had.
    """

    events: Sequence[Any]
    size: int
    source: str = POST
    mark: tuple[str, str] | None = None
    key: str | None = None
    came: float = 0.0
    waiter: Waiter | None = None
    tick: datetime | None = None
    told: datetime | None = None
    shed: int = 0
    sifted: bool = False
    places: Sequence[int] | None = None


def _committed(writer: Writer, group: list[Request]) -> Commit:
    tick = group[0].tick
    if tick is not None:
        return writer.tick(tick, group[0].told)
    return writer.commit(group, dict(each.mark for each in group if each.mark))


class Hold(NamedTuple):
    """Why a stream takes nothing for a while, for people, and after how long it is worth to ask again."""

    reason: str
    retry_after_s: int


class StreamIntake:
    """Takes events for one stream. Every method is called in the event loop, and none blocks it."""

    def __init__(self, target: Target, log: Log, settings: Settings, clock: Clock, hooks: Hooks) -> None:
        self.audit = Audit()
        self.reached = Reached(target.event.__time_field__, to_micros(clock.now()))
        self._target = target
        self._log = log
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._waiting: deque[Request] = deque()
        self._pending_events = 0
        self._pending_bytes = 0
        self._busy = False
        self._stopping = False
        self._began = 0.0
        self._rate = 0.0
        self._hold: Hold | None = None
        self._released = asyncio.Event()
        self._groups: SimpleQueue[list[Request] | None] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def event(self) -> type[Event]:
        return self._target.event

    @property
    def pending_events(self) -> int:
        """Events that were offered and are not durable yet."""
        return self._pending_events

    def now(self) -> float:
        """The time by which is measured how long a request took."""
        return self._clock.monotonic()

    def require_room(self, request: Request) -> None:
        """Raise `Stopping`, or `Overloaded` with the time after which a retry should find room."""
        if self._stopping:
            raise Stopping(f"stream {self._target.name} takes no more events: Penstock is stopping")
        if not self._has_room(request):
            self.audit.of(request.source).refused += len(request.events) + request.shed
            hold = self._hold or Hold(f"has {self._pending_events} events waiting for the disk", self._retry_after_s())
            raise Overloaded(f"stream {self._target.name} {hold.reason}", retry_after_s=hold.retry_after_s)

    def hold(self, hold: Hold | None) -> None:
        """Take no events until this is called with None. Ticks are taken: time goes on."""
        self._hold = hold
        if hold is None:
            self._released.set()
            self._released = asyncio.Event()

    @property
    def held(self) -> Hold | None:
        return self._hold

    async def room(self) -> None:
        """Wait until it is worth to offer again what was refused as `Overloaded`."""
        if self._hold is not None:
            await self._released.wait()
        await self.drain()

    def offer(self, request: Request) -> asyncio.Future[Receipt]:
        """Queue the events of one request; the future is done when they are durable.

        They become durable together or not at all, after every request that was offered before, and with them the
        request's mark. A failed commit fails the requests of its group with that error. Raises as `require_room`.
        Cancelling the future withdraws nothing.
        """
        self.require_room(request)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._take(request, future)
        return future

    def mark(self, source: str) -> str | None:
        """The last mark of a source that is durable."""
        return self._log.marks(self._target.name).get(source)

    def offer_for(self, waiter: Waiter, request: Request) -> bool:
        """The same for someone who is told, and does not await. False, and nothing counted, where `offer` raises."""
        if self._stopping or not self._has_room(request):
            return False
        self._take(request, waiter)
        return True

    def tick(self, at: datetime | None = None, told: datetime | None = None) -> asyncio.Future[Receipt]:
        """Queue one tick for every partition, at a time that is now if it is not given. It says that event time has
        come to `told`."""
        self.require_room(Request((), 0))
        return self._enqueue_empty(at or self._clock.now(), told)

    async def drain(self) -> None:
        """Wait until everything offered so far is durable or has failed."""
        if self._busy:
            await asyncio.wait([self._enqueue_empty()])

    def stop(self) -> None:
        """Refuse new events from now on; those pending go on."""
        self._stopping = True

    async def close(self) -> None:
        """Stop, wait for what is pending, end the thread. May be called again."""
        self.stop()
        await self.drain()
        if self._thread is not None:
            self._groups.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _has_room(self, request: Request) -> bool:
        if self._hold is not None and request.events:
            return False
        return self._fits(len(request.events), request.size)

    def _fits(self, count: int, size: int) -> bool:
        """An empty queue takes any request: its size is bounded by the limits of a body."""
        limits = self._settings
        return not self._pending_events or (
            self._pending_events + count <= limits.pending_events_max
            and self._pending_bytes + size <= limits.pending_bytes_max
        )

    def _take(self, request: Request, waiter: Waiter) -> None:
        tally = self.audit.of(request.source)
        tally.received += len(request.events)
        tally.bytes += request.size
        request.waiter = waiter
        request.came = request.came or self._clock.monotonic()
        self._enqueue(request)

    def _enqueue_empty(self, tick: datetime | None = None, told: datetime | None = None) -> asyncio.Future[Receipt]:
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._enqueue(Request((), 0, waiter=future, tick=tick, told=told))
        return future

    def _enqueue(self, request: Request) -> None:
        self._waiting.append(request)
        self._pending_events += len(request.events)
        self._pending_bytes += request.size
        if not self._busy:
            self._busy = True
            self._hand_over(asyncio.get_running_loop())

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the next group to the writer thread, which is started by the first."""
        if self._thread is None:
            name = f"penstock-write-{self._target.name}"
            self._thread = Thread(target=self._write, args=(loop,), name=name, daemon=True)
            self._thread.start()
        self._began = self._clock.monotonic()
        self._groups.put(self._next_group())

    def _next_group(self) -> list[Request]:
        """The oldest requests, at least one, up to `group_events_max` events. A tick is a group by itself."""
        group = [self._waiting.popleft()]
        room = self._settings.group_events_max - len(group[0].events)
        while self._waiting and not group[0].tick:
            request = self._waiting[0]
            room -= len(request.events)
            if room < 0 or request.tick:
                break
            group.append(self._waiting.popleft())
        return group

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """The writer thread: commit what is handed over, tell the loop once for each group."""
        writer: Writer | None = None
        while (group := self._groups.get()) is not None:
            outcome: Commit | BaseException
            try:
                writer = writer or Writer(self._target, self._log, self._clock, self.reached)
                outcome = _committed(writer, group)
            except BaseException as error:  # whatever it is, the requests must hear of it and the thread go on
                outcome = error
            loop.call_soon_threadsafe(self._settle, loop, group, outcome)

    def _settle(self, loop: asyncio.AbstractEventLoop, group: list[Request], outcome: Commit | BaseException) -> None:
        """Back in the event loop: start the next group first, so that the disk works while answers leave.

        After a failed sync nothing is written any more: what waits fails with it.
        """
        if isinstance(outcome, SyncFailed):
            self._stopping = True
            group.extend(self._waiting)
            self._waiting.clear()
        count = sum(len(each.events) for each in group)
        self._pending_events -= count
        self._pending_bytes -= sum(each.size for each in group)
        self._measure(count)
        if self._waiting:
            self._hand_over(loop)
        else:
            self._busy = False
        if isinstance(outcome, Commit):
            self._confirm(group, outcome)
        else:
            self._fail(group, outcome)

    def _confirm(self, group: list[Request], commit: Commit) -> None:
        self.audit.commits += 1
        now = self._clock.monotonic()
        for request, duplicates, ack in zip(group, commit.duplicates, commit.acks, strict=True):
            accepted = len(request.events) - duplicates
            if request.events:
                tally = self.audit.of(request.source)
                tally.accepted += accepted
                tally.duplicates += duplicates
                tally.waited(now - request.came)
            receipt = Receipt(accepted, duplicates, 0, commit.cursor, (), ack)
            if request.shed:
                self.audit.of(request.source).shed += request.shed
                receipt = msgspec.structs.replace(receipt, shed=request.shed)
            waiter = request.waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(receipt)
        self._hooks.on_commit(self._target.name)

    def _fail(self, group: list[Request], error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            _log.error("stream %s: a commit failed", self._target.name, exc_info=error)
            if isinstance(error, Exception):
                error = StorageError(f"stream {self._target.name}: the events could not be written")
        for request in group:
            self._count_failed(request)
            waiter = request.waiter
            if waiter is not None and not waiter.done():
                waiter.set_exception(copy.copy(error))
                waiter.exception()  # a caller that no longer waits is no reason for a warning
        if isinstance(error, SyncFailed):
            self._hooks.on_fatal(error)

    def _count_failed(self, request: Request) -> None:
        """Of what was sent one-way nobody hears: it is lost. A source offers its events again, and they count anew."""
        tally = self.audit.of(request.source)
        if request.source == ONE_WAY:
            tally.lost += len(request.events)
            tally.shed += request.shed
        else:
            tally.failed += len(request.events) + request.shed

    def _measure(self, count: int) -> None:
        elapsed = max(self._clock.monotonic() - self._began, 1e-6)
        self._rate += RATE_WEIGHT * (count / elapsed - self._rate)

    def _retry_after_s(self) -> int:
        """How long the queue takes to empty at the measured rate, within 1 to 30 s."""
        wait = self._pending_events / self._rate if self._rate > 0 else 1.0
        return max(1, min(RETRY_AFTER_S_MAX, math.ceil(wait)))
