"""The front of a view: each new change is cut once for each filter in use, and goes to all who wait for it in one pass.

Nobody else looks at a change that a filter does not show, so a thousand readers with ten filters cost ten looks. A
reader that is behind the front reads for itself until it meets it.

If there is much to look at, those who see everything get it first. What filters show of it is made after that, in turns
of the callers who use them: one whose filters take long delays nobody but itself.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from penstock.contracts import Change, Delivery, LiveView
from penstock.cursor import view_cursor
from penstock.serve.channels.cuts import INLINE_ROWS, Offered, Unknown, cut_all, looks
from penstock.serve.channels.lens import InUse, Lens
from penstock.serve.channels.threads import TURN_S, in_turn
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


@dataclass
class _Look:
    """Changes, and the fronts that they are the next for, all of which have reached the same version."""

    generation: int
    start: int
    changes: Sequence[Change]
    fronts: Sequence[Front]
    seen: list[list[Change] | Exception] = field(default_factory=list)
    """What the first of the fronts show."""

    def through_all(self, key: tuple[str, ...], turn_s: float = float("inf")) -> _Look:
        """Look through the lens of each front until the turn is over, and at least through one. May take long."""
        over = time.monotonic() + turn_s
        offered = Offered(self.changes if any(front.lens for front in self.fronts) else ())  # else all is as it is
        for front in self.fronts:
            self.seen.append(_seen(offered, front.lens, key) if front.lens else list(self.changes))
            if time.monotonic() >= over:
                break
        return self


class Fronts:
    """The fronts of one view, one for each lens in use, moved on while someone follows. Belongs to the view's event
    loop."""

    def __init__(self, name: str, view: LiveView, key: tuple[str, ...], lenses: InUse, *, kept_max: int) -> None:
        self._name, self._view, self._key = name, view, key
        self._kept_max = kept_max
        self._lenses = lenses
        self._fronts: dict[Lens, Front] = {}
        self._pump_task: asyncio.Task[None] | None = None
        self._lanes: dict[str, asyncio.Task[None]] = {}
        """By caller: brings its filters up to what has been reached."""
        self._generation = self._reached = 0

    @contextmanager
    def attached(self, lens: Lens, who: str = "") -> Iterator[Front]:
        """The front of a lens, kept going while in the block. The first one in starts it all, the last one out stops
        it. `Busy` if too many other filters are in use, in all or by this caller."""
        try:
            with self._lenses.one(lens, who):
                if self._pump_task is None or self._pump_task.done():
                    self._stop()
                    self._generation, self._reached = self._view.generation, self._view.version
                    self._pump_task = asyncio.create_task(self._pump(), name=f"front of {self._name}")
                if lens not in self._fronts:
                    self._fronts[lens] = Front(lens, self._generation, self._reached, self._kept_max)
                yield self._fronts[lens]
        finally:
            if lens not in self._lenses:
                self._fronts.pop(lens, None)
            if not self._lenses.readers:
                self._stop()

    def _stop(self) -> None:
        for task in (self._pump_task, *self._lanes.values()):
            if task is not None:
                task.cancel()
        self._pump_task, self._lanes, self._fronts = None, {}, {}

    async def _pump(self) -> None:
        try:
            while True:
                if self._view.generation == self._generation:
                    await self._view.wait(self._reached, CHECK_S)
                self._advance()
                await asyncio.sleep(0)  # for those who read for themselves
        except Exception as error:
            _fail(self._fronts.values(), error)

    def _advance(self) -> None:
        """Hand the next changes to those who see everything, and to all if there is little to look at."""
        if self._view.generation != self._generation:
            self._skip()
            return
        changes = self._changes(self._reached, self._view.version)
        if changes is None:
            self._skip()
        elif changes:
            abreast = [front for front in self._fronts.values() if front.reached == self._reached and not front.error]
            filters = sum(bool(front.lens) for front in abreast)
            if sum(map(looks, changes)) * filters > INLINE_ROWS:
                abreast = [front for front in abreast if not front.lens]
            start, self._reached = self._reached, changes[-1].version
            self._hand_out(_Look(self._generation, start, changes, abreast).through_all(self._key))
            self._start_lanes()

    def _changes(self, start: int, end: int) -> Sequence[Change] | None:
        """The changes between two versions, as many as the bound on bytes allows; None if they are not to be had, or
        too many to go through."""
        if start == end:
            return ()
        changes = self._view.changes(start, end - start) if start < end <= start + self._kept_max else None
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

    def _start_lanes(self) -> None:
        """Have the fronts brought up that are behind. A lane that runs sees by itself that there is more."""
        if not any(self._is_behind(front) for front in self._fronts.values()):
            return
        for who in self._lenses.callers():
            if who not in self._lanes and self._behind(who):
                self._lanes[who] = asyncio.create_task(self._run(who), name=f"filters on {self._name}")

    async def _run(self, who: str) -> None:
        """Bring the filters of a caller up to what has been reached, turn by turn."""
        try:
            while self._behind(who):
                look = await in_turn(who, lambda: self._next_look(who))
                if look is not None:
                    self._hand_out(look)
        except Exception as error:
            _fail(self._behind(who), error)
        finally:
            if self._lanes.get(who) is asyncio.current_task():
                del self._lanes[who]

    def _behind(self, who: str) -> list[Front]:
        """Those of a caller's fronts that are furthest behind. None if the view is another by now: all begin again."""
        if self._view.generation != self._generation:
            return []
        fronts = [self._fronts[lens] for lens in self._lenses.used_by(who) if lens in self._fronts]
        behind = [front for front in fronts if self._is_behind(front)]
        last = min((front.reached for front in behind), default=0)
        return [front for front in behind if front.reached == last]

    def _is_behind(self, front: Front) -> bool:
        return front.error is None and front.reached < self._reached

    def _next_look(self, who: str) -> Callable[[], _Look] | None:
        """The work of a caller's turn. None if another who has the same filters has done it meanwhile, or if it
        can't be done: those who wait read for themselves then."""
        behind = self._behind(who)
        if not behind:
            return None
        start = behind[0].reached
        changes = self._changes(start, self._reached)
        if not changes:
            for front in behind:
                front.skip(self._generation, self._reached)
            return None
        return partial(_Look(self._generation, start, changes, behind).through_all, self._key, TURN_S)

    def _hand_out(self, look: _Look) -> None:
        """Give what was seen to those who wait, unless it was done before, or all has begun again."""
        if self._view.generation != look.generation:
            return
        now, reached = asyncio.get_running_loop().time(), look.changes[-1].version
        share = FILTERS_KEPT * KEPT_BYTES_MAX // max(FILTERS_KEPT, len(self._fronts))
        for front, found in zip(look.fronts, look.seen, strict=False):
            if (front.generation, front.reached) != (look.generation, look.start):
                continue
            if isinstance(found, Unknown):
                front.skip(look.generation, reached)
            elif isinstance(found, Exception):
                front.fail(found)
            else:
                front.add(reached, found, now, share)


def _fail(fronts: Iterable[Front], error: Exception) -> None:
    for front in fronts:
        front.fail(error)


def _seen(offered: Offered, lens: Lens, key: tuple[str, ...]) -> list[Change] | Exception:
    try:
        return cut_all(offered, lens, key)
    except Exception as error:
        return error
