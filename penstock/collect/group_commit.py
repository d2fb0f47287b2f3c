"""The bounded queue in front of one stream, and its group commit.

All state belongs to the event loop; the writer thread is given one group at a time and touches nothing else, so no lock
is needed. While a group is being written, requests queue up and form the next group. The slower the disk, the larger
the groups, up to the limit above which requests are refused.
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
from penstock.collect.stream_clock import StreamClock
from penstock.collect.writer import Commit, Writer, WriteTarget
from penstock.core.contracts import AdmissionLog, Clock
from penstock.core.errors import Overloaded, PenstockError, Stopping, StorageError, SyncFailed
from penstock.core.schema import Event
from penstock.core.settings import Settings
from penstock.core.times import to_micros

RETRY_AFTER_S_MAX = 30
RATE_WEIGHT = 0.2
"""The weight of the newest group in the measured rate. With this weight, a stall shows within a few groups."""
_log = logging.getLogger("penstock.collect")


class IngressReceipt(msgspec.Struct, frozen=True):
    """The outcome of one request, once it is durable. Encoded as JSON, it is the response to the client."""

    accepted: int
    duplicates: int
    rejected: int
    cursor: str | None
    errors: Sequence[Any] = ()
    ack: str | None = None
    shed: int | msgspec.UnsetType = msgspec.UNSET
    """Omitted from the response if nothing was shed."""


class OutcomeWaiter(Protocol):
    """The receiver of a request's outcome: an asyncio future, or a lighter object. It is called once, in the event
    loop.

    It must not raise: otherwise, the rest of its group would get no outcome.
    """

    def done(self) -> bool:
        """Return whether the receiver has stopped waiting."""

    def set_result(self, result: IngressReceipt, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def exception(self) -> object:
        """Called after `set_exception`, so that a future does not warn about an error that was never retrieved."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a group commit, called in the event loop: `on_commit` after a commit, `on_fatal` on an error that
    ends the process."""

    on_commit: Callable[[str], None]
    on_fatal: Callable[[PenstockError], None]


class IngressRequest(msgspec.Struct):
    """The events of one request of `size` bytes, its ingestion path, and its arrival time on the monotonic clock.

    `mark` is the name and position of a source. `key` identifies the request: on a retry, events without an id are
    recognised by the key and by their index in the request. If other events in the request were rejected, `indexes`
    contains the indexes of the remaining events. The group commit sets the remaining fields. `waiter` receives the
    outcome. `tick` and `event_time` are the log time and event time of a tick. `sifted` marks a request that a shedding
    stream has sampled: `shed` is the number of dropped events, and `indexes` contains the indexes of the remaining
    events.
    """

    events: Sequence[Any]
    size: int
    source: str = POST
    mark: tuple[str, str] | None = None
    key: str | None = None
    came: float = 0.0
    waiter: OutcomeWaiter | None = None
    tick: datetime | None = None
    event_time: datetime | None = None
    shed: int = 0
    sifted: bool = False
    indexes: Sequence[int] | None = None


def _commit_group(writer: Writer, group: list[IngressRequest]) -> Commit:
    tick = group[0].tick
    if tick is not None:
        return writer.tick(tick, group[0].event_time)
    return writer.commit(group, dict(request.mark for request in group if request.mark))


class Hold(NamedTuple):
    """A pause in accepting a stream's events: the reason, worded for users, and the number of seconds after which to
    retry."""

    reason: str
    retry_after_s: int


class GroupCommit:
    """The bounded queue of one stream. Call every method in the event loop; none of them blocks it."""

    def __init__(self, target: WriteTarget, log: AdmissionLog, settings: Settings, clock: Clock, hooks: Hooks) -> None:
        self.audit = Audit()
        self.stream_clock = StreamClock(target.event.__time_field__, to_micros(clock.now()))
        self._target = target
        self._log = log
        self._settings = settings
        self._clock = clock
        self._hooks = hooks
        self._waiting: deque[IngressRequest] = deque()
        self._pending_events = 0
        self._pending_bytes = 0
        self._busy = False
        self._stopping = False
        self._began = 0.0
        self._rate = 0.0
        self._hold: Hold | None = None
        self._released = asyncio.Event()
        self._groups: SimpleQueue[list[IngressRequest] | None] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def event(self) -> type[Event]:
        return self._target.event

    @property
    def pending_events(self) -> int:
        """The number of events that have been offered to the group commit but are not yet durable."""
        return self._pending_events

    def arrival_time(self) -> float:
        """Return the arrival time, on the monotonic clock, of a request offered to this group commit now."""
        return self._clock.monotonic()

    def require_room(self, request: IngressRequest) -> None:
        """Raise `Stopping` if the stream is stopping, or `Overloaded` with a retry time if the request does not fit."""
        if self._stopping:
            raise Stopping(f"stream {self._target.name} accepts no more events: Penstock is stopping")
        if not self._has_room(request):
            self.audit.of(request.source).refused += len(request.events) + request.shed
            hold = self._hold or Hold(
                f"has {self._pending_events} events waiting to be written to disk", self._retry_after_s()
            )
            raise Overloaded(f"stream {self._target.name} {hold.reason}", retry_after_s=hold.retry_after_s)

    def hold(self, hold: Hold | None) -> None:
        """Refuse all events for the stream until this method is called with None. Ticks are still accepted, so that
        time advances."""
        self._hold = hold
        if hold is None:
            self._released.set()
            self._released = asyncio.Event()

    @property
    def held(self) -> Hold | None:
        return self._hold

    async def room(self) -> None:
        """Wait until it is worth retrying a request that was refused as `Overloaded`."""
        if self._hold is not None:
            await self._released.wait()
        await self.drain()

    def offer(self, request: IngressRequest) -> asyncio.Future[IngressReceipt]:
        """Queue the events of one request; the future is done when they are durable.

        The events and the request's mark become durable together or not at all, and after those of all requests that
        were offered earlier. A failed commit fails all requests in its group with the same error. Raises the same
        errors as `require_room`. Cancelling the future does not withdraw the events.
        """
        self.require_room(request)
        future: asyncio.Future[IngressReceipt] = asyncio.get_running_loop().create_future()
        self._take(request, future)
        return future

    def mark(self, source: str) -> str | None:
        """Return a source's last durable mark in this stream."""
        return self._log.marks(self._target.name).get(source)

    def offer_for(self, waiter: OutcomeWaiter, request: IngressRequest) -> bool:
        """Queue a request as `offer` does, but report the outcome to a callback object instead of a future.

        Returns False, and counts nothing, where `offer` would raise.
        """
        if self._stopping or not self._has_room(request):
            return False
        self._take(request, waiter)
        return True

    def tick(self, at: datetime | None = None, event_time: datetime | None = None) -> asyncio.Future[IngressReceipt]:
        """Queue one tick for every partition of the stream, at `at` (default: now). `event_time` is the event time that
        the stream has reached."""
        self.require_room(IngressRequest((), 0))
        return self._enqueue_empty(at or self._clock.now(), event_time)

    async def drain(self) -> None:
        """Wait until everything offered to the group commit so far is durable or has failed."""
        if self._busy:
            await asyncio.wait([self._enqueue_empty()])

    def stop(self) -> None:
        """Refuse new events for the stream from now on. Pending events are still written."""
        self._stopping = True

    async def close(self) -> None:
        """Stop the group commit, wait for pending requests, and end the writer thread. Idempotent."""
        self.stop()
        await self.drain()
        if self._thread is not None:
            self._groups.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _has_room(self, request: IngressRequest) -> bool:
        if self._hold is not None and request.events:
            return False
        return self._fits(len(request.events), request.size)

    def _fits(self, count: int, size: int) -> bool:
        """Return whether a request fits into the stream's queue.

        An empty queue accepts any request, because the limits on request bodies already bound its size.
        """
        limits = self._settings
        return not self._pending_events or (
            self._pending_events + count <= limits.pending_events_max
            and self._pending_bytes + size <= limits.pending_bytes_max
        )

    def _take(self, request: IngressRequest, waiter: OutcomeWaiter) -> None:
        tally = self.audit.of(request.source)
        tally.received += len(request.events)
        tally.bytes += request.size
        request.waiter = waiter
        request.came = request.came or self._clock.monotonic()
        self._enqueue(request)

    def _enqueue_empty(
        self, tick: datetime | None = None, event_time: datetime | None = None
    ) -> asyncio.Future[IngressReceipt]:
        future: asyncio.Future[IngressReceipt] = asyncio.get_running_loop().create_future()
        self._enqueue(IngressRequest((), 0, waiter=future, tick=tick, event_time=event_time))
        return future

    def _enqueue(self, request: IngressRequest) -> None:
        self._waiting.append(request)
        self._pending_events += len(request.events)
        self._pending_bytes += request.size
        if not self._busy:
            self._busy = True
            self._hand_over(asyncio.get_running_loop())

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass the next group of requests to the writer thread, which is started with the first group."""
        if self._thread is None:
            name = f"penstock-write-{self._target.name}"
            self._thread = Thread(target=self._write, args=(loop,), name=name, daemon=True)
            self._thread.start()
        self._began = self._clock.monotonic()
        self._groups.put(self._next_group())

    def _next_group(self) -> list[IngressRequest]:
        """Remove and return the oldest requests in the stream's queue: at least one, and more as long as they have at
        most `group_events_max` events in all.

        A tick forms a group by itself.
        """
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
        """Run the writer thread: commit each group passed to it, and report once per group to the loop."""
        writer: Writer | None = None
        while (group := self._groups.get()) is not None:
            outcome: Commit | BaseException
            try:
                writer = writer or Writer(self._target, self._log, self._clock, self.stream_clock)
                outcome = _commit_group(writer, group)
            except BaseException as error:  # any error must reach the requests, and the thread must continue
                outcome = error
            loop.call_soon_threadsafe(self._settle, loop, group, outcome)

    def _settle(
        self, loop: asyncio.AbstractEventLoop, group: list[IngressRequest], outcome: Commit | BaseException
    ) -> None:
        """Handle the outcome of a group commit, in the event loop.

        Starts the next group first, to keep the disk busy.

        After a failed sync, nothing more is written, and waiting requests fail with the same error.
        """
        if isinstance(outcome, SyncFailed):
            self._stopping = True
            group.extend(self._waiting)
            self._waiting.clear()
        count = sum(len(request.events) for request in group)
        self._pending_events -= count
        self._pending_bytes -= sum(request.size for request in group)
        self._measure(count)
        if self._waiting:
            self._hand_over(loop)
        else:
            self._busy = False
        if isinstance(outcome, Commit):
            self._confirm(group, outcome)
        else:
            self._fail(group, outcome)

    def _confirm(self, group: list[IngressRequest], commit: Commit) -> None:
        self.audit.commits += 1
        now = self._clock.monotonic()
        for request, duplicates, ack in zip(group, commit.duplicates, commit.acks, strict=True):
            accepted = len(request.events) - duplicates
            if request.events:
                tally = self.audit.of(request.source)
                tally.accepted += accepted
                tally.duplicates += duplicates
                tally.waited(now - request.came)
            receipt = IngressReceipt(accepted, duplicates, 0, commit.cursor, (), ack)
            if request.shed:
                self.audit.of(request.source).shed += request.shed
                receipt = msgspec.structs.replace(receipt, shed=request.shed)
            waiter = request.waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(receipt)
        self._hooks.on_commit(self._target.name)

    def _fail(self, group: list[IngressRequest], error: BaseException) -> None:
        if not isinstance(error, PenstockError):
            _log.error("stream %s: a commit failed", self._target.name, exc_info=error)
            if isinstance(error, Exception):
                error = StorageError(f"stream {self._target.name}: the events could not be written")
        for request in group:
            self._count_failed(request)
            waiter = request.waiter
            if waiter is not None and not waiter.done():
                waiter.set_exception(copy.copy(error))
                waiter.exception()  # so that asyncio does not warn if the caller has stopped waiting
        if isinstance(error, SyncFailed):
            self._hooks.on_fatal(error)

    def _count_failed(self, request: IngressRequest) -> None:
        """Count a failed request.

        One-way events are lost, because no caller waits for the outcome. A source sends its events again, and they are
        counted again.
        """
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
        """Estimate how many seconds it takes to empty the stream's queue at the measured rate. Returns 1 to 30."""
        wait = self._pending_events / self._rate if self._rate > 0 else 1.0
        return max(1, min(RETRY_AFTER_S_MAX, math.ceil(wait)))
