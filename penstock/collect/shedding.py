"""Load shedding: a group commit that drops some events, if the stream's declaration allows it, instead of refusing all.

It starts shedding when the queue is more than half full, and stops when the queue is down to a quarter. It also sheds
while the runtime reports that the stream is read too slowly. A shed event is not stored anywhere; it is reported to its
sender and counted.

Whether a request fits is decided before sampling, based on an estimate of how many of its events will be kept.
Otherwise, a request could be refused because of the sampling result and be sampled again on a retry. Fewer events would
then be kept than their weights indicate.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

import msgspec

from penstock.app.shed import Shed
from penstock.collect.group_commit import GroupCommit, Hooks, IngressReceipt, IngressRequest, OutcomeWaiter
from penstock.collect.writer import WriteTarget, texts_of
from penstock.core.columns import some_columns
from penstock.core.contracts import AdmissionLog, Clock
from penstock.core.filters import Filter, compiled
from penstock.core.schema import Event, event_schema
from penstock.core.settings import Settings

BEGIN, END = 0.5, 0.25
"""Fill levels of the queue at which shedding begins and ends. Like a hold, shedding ends at half the level at which it
begins."""
HASH_BYTES = 8


class Shedding(NamedTuple):
    """The state of a shedding stream: the reason (worded for users), the start time, and whether the stream is read too
    slowly."""

    reason: str
    since: datetime
    lags: bool


class Sieve:
    """Samples requests: decides which events in a request are kept, and with what weight."""

    def __init__(self, shed: Shed, event: type[Event], random: Random) -> None:
        self._event = event
        self._unless: Filter | None = None if shed.unless is None else compiled(event_schema(event), shed.unless, None)
        self._looked_at: tuple[Sequence[Any], list[bool]] = ((), [])
        self._keep = shed.keep or 0.0
        self._bound = int(self._keep * 2 ** (8 * HASH_BYTES))
        self._weight = shed.weight
        self._has_id = event.__id_field__ is not None
        self._id_texts: Callable[[Sequence[Any]], list[str | None]] = texts_of(event, event.__id_field__)
        self._random = random

    def expected(self, events: Sequence[Any]) -> int:
        """Estimate how many of the events will be kept under load. The result is always the same for the same
        events."""
        important = 0 if self._unless is None else sum(self._important(events))
        return important + math.ceil((len(events) - important) * self._keep)

    def _important(self, events: Sequence[Any]) -> list[bool]:
        """Return, for each event, whether the stream's `unless` holds.

        The last result is cached, because a request is checked for room first and sifted later.
        """
        if self._unless is None:
            return [False] * len(events)
        if self._looked_at[0] is not events:
            mask = self._unless.mask(some_columns(self._event, events, self._unless.asked))
            self._looked_at = events, mask.to_pylist()
        return self._looked_at[1]

    def sift(self, request: IngressRequest) -> None:
        """Remove the shed events from a request. Call it once per request: a retried request contains all its events
        again."""
        kept, indexes = [], []
        important, names = self._important(request.events), self._names(request)
        before = _kept_indexes(request)
        for index, event, is_important, name in zip(before, request.events, important, names, strict=True):
            if is_important:
                kept.append(event)
            elif self._keep and self._draws(name):
                kept.append(self._weighed(event))
            else:
                continue
            indexes.append(index)
        request.size = request.size * len(kept) // len(request.events)
        request.shed = len(request.events) - len(kept)
        request.events, request.indexes, request.sifted = kept, indexes, True
        self._looked_at = (), []

    def _names(self, request: IngressRequest) -> Sequence[str | None]:
        """Return, for each event to sample, a name that stays the same on a retry, or None if the event has no such
        name."""
        if not self._has_id and request.key is not None:
            return [f"{request.key}/{index}" for index in _kept_indexes(request)]
        return self._id_texts(request.events)

    def _draws(self, name: str | None) -> bool:
        """Return whether to keep an event under load. If it has a name, the name's hash decides, so a retry has the
        same result, even after a restart.

        Otherwise, the result is random.
        """
        if name is None:
            return self._random.random() < self._keep
        return int.from_bytes(blake2b(name.encode(), digest_size=HASH_BYTES).digest(), "big") < self._bound

    def _weighed(self, event: Any) -> Any:
        """Return the kept event with its weight set. If the sender also sampled its events and set a weight, the two
        weights are multiplied."""
        if self._weight is None:
            return event
        return msgspec.structs.replace(event, **{self._weight: getattr(event, self._weight) / self._keep})


class SheddingGroupCommit(GroupCommit):
    """The group commit of a stream declared with `shed`. It is a separate class so that other streams are not slowed
    down."""

    def __init__(
        self,
        target: WriteTarget,
        log: AdmissionLog,
        settings: Settings,
        clock: Clock,
        hooks: Hooks,
        shed: Shed,
        random: Random | None = None,
    ) -> None:
        super().__init__(target, log, settings, clock, hooks)
        self._sieve = Sieve(shed, target.event, random or Random())
        self._lag: str | None = None
        self._is_crowded = False
        self._since: datetime | None = None

    def shed(self, reason: str | None) -> None:
        """Start shedding because the stream is read too slowly. Shedding continues until this method is called with
        None."""
        self._lag = reason

    @property
    def shedding(self) -> Shedding | None:
        """The current state of shedding, or None if the stream is not shedding."""
        reason = self._lag or self._crowd()
        if reason is None:
            self._since = None
            return None
        self._since = self._since or self._clock.now()
        return Shedding(reason, self._since, self._lag is not None)

    def _crowd(self) -> str | None:
        limits, part = self._settings, END if self._is_crowded else BEGIN
        self._is_crowded = (
            self._pending_events > part * limits.pending_events_max
            or self._pending_bytes > part * limits.pending_bytes_max
        )
        return f"has {self._pending_events} events waiting to be written to disk" if self._is_crowded else None

    def _has_room(self, request: IngressRequest) -> bool:
        count = len(request.events)
        if not count or self._hold is not None or request.sifted or self.shedding is None:
            return super()._has_room(request)
        expected = self._sieve.expected(request.events)
        return self._fits(expected, request.size * expected // count)

    def _take(self, request: IngressRequest, waiter: OutcomeWaiter) -> None:
        size = request.size
        if request.events and not request.sifted and self.shedding is not None:
            self._sieve.sift(request)
        if request.shed:
            tally = self.audit.of(request.source)
            tally.received += request.shed
            tally.bytes += size - request.size
        if request.shed and not request.events and request.mark is None:
            self._give_up(request, waiter)
        else:
            super()._take(request, waiter)

    def _give_up(self, request: IngressRequest, waiter: OutcomeWaiter) -> None:
        """Report the outcome of a request with no events left after shedding, without waiting for the disk or keeping
        the request in memory."""
        self.audit.of(request.source).shed += request.shed
        receipt = IngressReceipt(0, 0, 0, None, shed=request.shed)
        asyncio.get_running_loop().call_soon(_report_outcome, waiter, receipt)


def _kept_indexes(request: IngressRequest) -> Sequence[int]:
    """Return the indexes, in the original request, of the events that were not shed."""
    return range(len(request.events)) if request.indexes is None else request.indexes


def _report_outcome(waiter: OutcomeWaiter, receipt: IngressReceipt) -> None:
    if not waiter.done():
        waiter.set_result(receipt)
