"""Load shedding: an intake that gives up events, as its stream's declaration allows, rather than refuse them all.

It sheds while the queue before the disk is more than half full, until it is down to a quarter; and while the runtime
says that the stream is read too slowly. What is shed is durable nowhere: it is told to its sender, and counted.

Whether a request finds room is decided before its events are drawn, by how many are to be expected. Were those refused
that drew a kept event, and drawn again when they are sent again, fewer would be kept than their weights say.
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

from penstock.collect.intake import Hooks, Receipt, Request, StreamIntake, Waiter
from penstock.collect.writer import Target, texts_of
from penstock.columns import some_columns
from penstock.contracts import Clock, Log
from penstock.filters import Filter, compiled
from penstock.schema import Event, event_schema
from penstock.settings import Settings
from penstock.shed import Shed

BEGIN, END = 0.5, 0.25
"""How full the queue is when shedding begins, and when it ends: as for a hold, at half of what it began with."""
HASH_BYTES = 8


class Shedding(NamedTuple):
    """That a stream sheds: why, for people, since when, and whether because it is read too slowly."""

    reason: str
    since: datetime
    lags: bool


class Sieve:
    """Which events of a request are kept, and what they weigh."""

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
        """How many of the events are to be kept, about; the same each time for the same events."""
        important = 0 if self._unless is None else sum(self._important(events))
        return important + math.ceil((len(events) - important) * self._keep)

    def _important(self, events: Sequence[Any]) -> list[bool]:
        """For which events `unless` holds. Of the last ones that were asked for it is remembered: a request is looked
        at once to see whether there is room for it, and once more to sift it."""
        if self._unless is None:
            return [False] * len(events)
        if self._looked_at[0] is not events:
            mask = self._unless.mask(some_columns(self._event, events, self._unless.asked))
            self._looked_at = events, mask.to_pylist()
        return self._looked_at[1]

    def sift(self, request: Request) -> None:
        """Leave in a request what is kept of it. To be done once: a request that is offered again is as it was."""
        kept, places = [], []
        important, names = self._important(request.events), self._names(request)
        before = _places(request)
        for place, event, is_important, name in zip(before, request.events, important, names, strict=True):
            if is_important:
                kept.append(event)
            elif self._keep and self._draws(name):
                kept.append(self._weighed(event))
            else:
                continue
            places.append(place)
        request.size = request.size * len(kept) // len(request.events)
        request.shed = len(request.events) - len(kept)
        request.events, request.places, request.sifted = kept, places, True
        self._looked_at = (), []

    def _names(self, request: Request) -> Sequence[str | None]:
        """What each event is known by if it is sent again."""
        if not self._has_id and request.key is not None:
            return [f"{request.key}/{place}" for place in _places(request)]
        return self._id_texts(request.events)

    def _draws(self, name: str | None) -> bool:
        """By a hash, so that who is sent again fares the same, after a restart too; with no name, at random."""
        if name is None:
            return self._random.random() < self._keep
        return int.from_bytes(blake2b(name.encode(), digest_size=HASH_BYTES).digest(), "big") < self._bound

    def _weighed(self, event: Any) -> Any:
        """The event with its weight, which is more if its sender has sampled too, and said so."""
        if self._weight is None:
            return event
        return msgspec.structs.replace(event, **{self._weight: getattr(event, self._weight) / self._keep})


class SheddingIntake(StreamIntake):
    """The intake of a stream that may shed. Others are none the slower for it."""

    def __init__(
        self,
        target: Target,
        log: Log,
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
        """Shed because the stream is read too slowly, until this is called with None."""
        self._lag = reason

    @property
    def shedding(self) -> Shedding | None:
        """Why it sheds just now, if it does."""
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
        return f"has {self._pending_events} events waiting for the disk" if self._is_crowded else None

    def _has_room(self, request: Request) -> bool:
        count = len(request.events)
        if not count or self._hold is not None or request.sifted or self.shedding is None:
            return super()._has_room(request)
        expected = self._sieve.expected(request.events)
        return self._fits(expected, request.size * expected // count)

    def _take(self, request: Request, waiter: Waiter) -> None:
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

    def _give_up(self, request: Request, waiter: Waiter) -> None:
        """Of which nothing is left need not wait for the disk, nor be held in memory meanwhile."""
        self.audit.of(request.source).shed += request.shed
        receipt = Receipt(0, 0, 0, None, shed=request.shed)
        asyncio.get_running_loop().call_soon(_tell, waiter, receipt)


def _places(request: Request) -> Sequence[int]:
    """The places of its events in the request as it came."""
    return range(len(request.events)) if request.places is None else request.places


def _tell(waiter: Waiter, receipt: Receipt) -> None:
    if not waiter.done():
        waiter.set_result(receipt)
