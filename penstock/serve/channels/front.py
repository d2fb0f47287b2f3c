"""The front of a view: each new change is cut once for each filter in use, and goes to all who wait for it in one pass.

Nobody else looks at a change that a filter does not show, so a thousand readers with ten filters cost ten looks. Who is
behind the front reads for itself until it meets it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from penstock.contracts import Change, Delivery, LiveView
from penstock.cursor import view_cursor
from penstock.serve.channels.cuts import INLINE_ROWS, Offered, Unknown, cut_all, looks
from penstock.serve.channels.lens import InUse, Lens
from penstock.serve.channels.waiting import Waiting

CHECK_S = 1.0
"""How often it looks whether the view was made anew: `wait` tells of versions only."""
PIECE_BYTES_MAX = 4 * 1024 * 1024
"""Changes that are looked at together: about 20 ms of a worker thread for each filter."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Most that is kept of the latest deliveries for a filter. Many filters have a share of it each: who has more to read
reads for itself."""
FILTERS_KEPT = 4
"""So many have all of it."""


class Place(Protocol):
    """Where a follower stands, and when it last was given something."""

    generation: int
    version: int
    given_at: float


class Front:
    """The latest deliveries of a view as they are seen through one lens: all there were after version `start` of a
    generation and up to version `reached`. Belongs to one event loop."""

    def __init__(self, lens: Lens, generation: int, version: int, kept_max: int) -> None:
        self.lens = lens
        self.error: Exception | None = None
        self._kept_max = kept_max
        self.waiting: Waiting[Place] = Waiting()
        self.skip(generation, version)

    def skip(self, generation: int, version: int) -> None:
        """Begin again at a version. Those who wait look for themselves."""
        self.generation, self.start, self.reached = generation, version, version
        self._versions: list[int] = []
        self._deliveries: list[Delivery] = []
        self._bytes = 0
        self.waiting.wake()

    def fail(self, error: Exception) -> None:
        """What is seen can't be made: those who look through this lens are told."""
        self.error = error
        self.waiting.wake()

    def covers(self, place: Place) -> bool:
        """Whether all that comes after a place is kept here."""
        return place.generation == self.generation and place.version >= self.start

    def after(self, version: int, most: int) -> list[tuple[int, Delivery]]:
        """The next deliveries after a version, with their own."""
        first = bisect_right(self._versions, version)
        return list(zip(self._versions[first : first + most], self._deliveries[first : first + most], strict=True))

    def add(self, reached: int, seen: Sequence[Change], now: float, bytes_max: int = KEPT_BYTES_MAX) -> None:
        """Go on to a version, with what is seen on the way, and hand it to all who wait."""
        self.reached = reached
        if not seen:
            return
        made = [Delivery("change", each.data, self._cursor(each.version)) for each in seen]
        self._versions += [each.version for each in seen]
        self._deliveries += made
        self._bytes += sum(len(each.data) for each in made)
        self._trim(bytes_max)
        for waiter in self.waiting:
            place = waiter.place
            if place.version >= seen[0].version or not waiter.takes(made):
                waiter.wake()
            else:
                place.version, place.given_at = reached, now

    def _cursor(self, version: int) -> str:
        return view_cursor(self.generation, version, self.lens.sight)

    def _trim(self, bytes_max: int) -> None:
        gone, kept = 0, len(self._versions)
        while kept - gone > self._kept_max or (self._bytes > bytes_max and kept - gone > 1):
            self._bytes -= len(self._deliveries[gone].data)
            gone += 1
        if gone:
            self.start = self._versions[gone - 1]
            del self._versions[:gone], self._deliveries[:gone]


class Fronts:
    """The fronts of one view, one for each lens in use, moved on together while someone follows. Belongs to the view's
    event loop."""

    def __init__(self, name: str, view: LiveView, key: tuple[str, ...], lenses: InUse, *, kept_max: int) -> None:
        self._name, self._view, self._key = name, view, key
        self._kept_max = kept_max
        self._lenses = lenses
        self._fronts: dict[Lens, Front] = {}
        self._pump_task: asyncio.Task[None] | None = None
        self._generation = self._reached = 0

    @contextmanager
    def attached(self, lens: Lens, who: str = "") -> Iterator[Front]:
        """The front of a lens, kept going while in the block. The first one in starts it all, the last one out stops
        it. `Busy` if too many other filters are in use, in all or by this caller."""
        try:
            with self._lenses.one(lens, who):
                if self._pump_task is None or self._pump_task.done():
                    self._fronts = {}
                    self._generation, self._reached = self._view.generation, self._view.version
                    self._pump_task = asyncio.create_task(self._pump(), name=f"front of {self._name}")
                if lens not in self._fronts:
                    self._fronts[lens] = Front(lens, self._generation, self._reached, self._kept_max)
                yield self._fronts[lens]
        finally:
            if lens not in self._lenses:
                self._fronts.pop(lens, None)
            if not self._lenses.readers and self._pump_task is not None:
                self._pump_task.cancel()
                self._pump_task = None

    async def _pump(self) -> None:
        try:
            while True:
                if self._view.generation == self._generation:
                    await self._view.wait(self._reached, CHECK_S)
                await self._advance()
                await asyncio.sleep(0)  # for those who read for themselves
        except Exception as error:
            for front in self._fronts.values():
                front.fail(error)

    async def _advance(self) -> None:
        """Look at the next changes through every lens."""
        view, generation = self._view, self._view.generation
        changes = self._next_changes() if generation == self._generation else None
        if changes is None:
            self._skip()
        elif changes:
            seen = await self._cut(changes, list(self._fronts))
            if view.generation != generation:
                return
            self._reached = changes[-1].version
            self._hand_out(seen)

    def _next_changes(self) -> Sequence[Change] | None:
        """The next changes, as many as the bound on bytes allows; None if they are not to be had, or it is too far
        behind to go through them."""
        behind = self._view.version - self._reached
        if behind == 0:
            return ()
        changes = self._view.changes(self._reached, self._kept_max) if 0 < behind <= self._kept_max else None
        if not changes:
            return None
        size = len(changes[0].data)
        for count, change in enumerate(changes[1:], 1):
            size += len(change.data)
            if size > PIECE_BYTES_MAX:
                return changes[:count]
        return changes

    def _skip(self) -> None:
        self._generation, self._reached = self._view.generation, self._view.version
        for front in self._fronts.values():
            front.skip(self._generation, self._reached)

    async def _cut(self, changes: Sequence[Change], lenses: Sequence[Lens]) -> Mapping[Lens, list[Change] | Exception]:
        """What is seen of changes through each lens: in a thread if there are many rows, or many lenses."""

        def look() -> dict[Lens, list[Change] | Exception]:
            offered = Offered(changes if any(lenses) else ())  # without a filter nothing is to be taken apart
            return {lens: _seen(offered, lens, self._key) if lens else list(changes) for lens in lenses}

        rows = sum(map(looks, changes)) * sum(map(bool, lenses))
        return look() if rows <= INLINE_ROWS else await asyncio.to_thread(look)

    def _hand_out(self, seen: Mapping[Lens, list[Change] | Exception]) -> None:
        now = asyncio.get_running_loop().time()
        share = FILTERS_KEPT * KEPT_BYTES_MAX // max(FILTERS_KEPT, len(self._fronts))
        for lens, front in tuple(self._fronts.items()):
            found = seen.get(lens)
            if found is None or isinstance(found, Unknown):
                front.skip(self._generation, self._reached)
            elif isinstance(found, Exception):
                front.fail(found)
            else:
                front.add(self._reached, found, now, share)


def _seen(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change] | Exception:
    try:
        return cut_all(offered, lens, key)
    except Exception as error:
        return error
