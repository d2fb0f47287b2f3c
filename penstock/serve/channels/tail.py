"""The tail of a stream: each new piece is read and encoded once, for all who follow it.

Those who see everything get it first. What filters show of it is made after that, in turns of the callers who use them:
one whose filters take long delays nobody but itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.contracts import Delivery, LogReader
from penstock.cursor import stream_cursor
from penstock.errors import BadCursor
from penstock.serve.channels.lens import InUse, Lens
from penstock.serve.channels.pieces import Extent, Offsets, Piece, extent, join, read_piece
from penstock.serve.channels.threads import TURN_S, for_follower, in_turn
from penstock.serve.channels.waiting import Take, Waiting

POLL_S = 0.25
"""Another process may write the stream, and then nobody calls `wake`."""
PIECE_BYTES_MAX = 1024 * 1024
RING_BYTES_MAX = 16 * 1024 * 1024


def change_of(generation: int, piece: Piece, lens: Lens) -> Delivery | None:
    """What a follower is given of a piece; None if it sees nothing of it. May take long: called in a thread."""
    rows = [row for row in piece.rows(lens) if row is not None]
    if not rows:
        return None
    return Delivery("change", b'{"events":' + join(rows) + b"}", stream_cursor(generation, piece.after), len(rows))


class Place(Protocol):
    """Where a follower stands: its next entry, None while it reads the log by itself; and when it last was given
    something."""

    offsets: Offsets
    number: int | None
    given_at: float


_Made = Delivery | Exception | None
_NOT_MADE = LookupError("this was not looked at through that lens")


class Entry:
    """One piece of the stream, and what followers are given of it: made once for each lens. Belongs to one event loop
    from when it is on the ring."""

    def __init__(self, generation: int, piece: Piece, lenses: Sequence[Lens] = ()) -> None:
        """Makes what is seen through the lenses. May take long: called in a thread."""
        self._generation = generation
        self._piece = piece
        self._changes: dict[Lens, _Made] = {}
        self._making: dict[Lens, asyncio.Task[_Made]] = {}
        self.before, self.after = piece.start, piece.after
        self.size = piece.size
        for lens in lenses:
            self._keep(lens, self._make(lens))

    @property
    def empty(self) -> bool:
        """Whether there is no event in it: ticks alone are no change."""
        return not self._piece.events

    def make(self, lenses: Sequence[Lens]) -> list[_Made]:
        """Make what is seen through the first of the lenses, at least one, until a turn is over. Called in a thread."""
        made, over = list[_Made](), time.monotonic() + TURN_S
        for lens in lenses:
            made.append(self._make(lens))
            if time.monotonic() >= over:
                break
        return made

    def keep(self, lens: Lens, made: _Made) -> None:
        """Keep what was made, unless it was made twice."""
        if lens not in self._changes:
            self._keep(lens, made)

    def made(self, lens: Lens) -> _Made:
        """What is seen through a lens, if it was made before; an error if it was not, or could not be."""
        return self._changes.get(lens, _NOT_MADE)

    async def change(self, lens: Lens, who: str) -> Delivery | None:
        """What is seen through a lens: at once if it was made before, else in a turn of the caller."""
        if lens not in self._changes:
            self.keep(lens, await asyncio.shield(self._making.get(lens) or self._begin(lens, who)))
        found = self._changes[lens]
        if isinstance(found, Exception):
            raise found
        return found

    def forget(self, lens: Lens) -> None:
        self.size -= _size(self._changes.pop(lens, None))

    def _begin(self, lens: Lens, who: str) -> asyncio.Task[_Made]:
        task = self._making[lens] = asyncio.create_task(for_follower(who, self._make, lens))
        task.add_done_callback(lambda _: self._making.pop(lens))
        return task

    def _make(self, lens: Lens) -> _Made:
        """If it fails, it is those who look through this lens that fail."""
        try:
            return change_of(self._generation, self._piece, lens)
        except Exception as error:
            return error

    def _keep(self, lens: Lens, made: _Made) -> None:
        self._changes[lens] = made
        self.size += _size(made)


def _size(made: _Made) -> int:
    return len(made.data) if isinstance(made, Delivery) else 0


@dataclass
class _Lane:
    """How far the filters of one caller have come on the ring: the entry that is looked at, and the filters through
    which that has yet to be done."""

    number: int
    left: list[Lens]
    task: asyncio.Task[None] | None = None

    def is_to_make(self, number: int, lens: Lens) -> bool:
        return self.number < number or (self.number == number and lens in self.left)


class Tail:
    """A bounded ring of the latest pieces, numbered without gaps, filled only while someone follows.

    Belongs to one event loop; the log is read in a thread. `first` is the number of the oldest entry, `next` of the one
    to come, `position` how far the log was read: after the last entry, with nothing but ticks in between.
    """

    def __init__(self, log: LogReader, stream: str, *, entries_max: int, events_max: int, filters_max: int) -> None:
        self._log = log
        self._stream = stream
        self._entries_max = max(1, entries_max)
        self._events_max = events_max
        self.lenses = InUse(stream, filters_max)
        self._pump_task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._waiting: dict[Lens, Waiting[Place]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._looked = asyncio.Event()
        self.first = self.next = 0
        self._forget()

    def _forget(self) -> None:
        self._looked.clear()
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
        self._lanes = {}
        self.now: Extent | None = None
        self.error: Exception | None = None
        self.position: Offsets = {}
        self._clear_ring()

    def _clear_ring(self) -> None:
        """A number is never used again, so every follower finds itself off the ring."""
        self._ring: deque[Entry] = deque()
        self.first = self.next = self.next + 1

    @contextmanager
    def attached(self, lens: Lens, who: str = "") -> Iterator[None]:
        """Keep the tail going while in the block, and new pieces ready to be seen through the lens. The first one in
        starts it, the last one out stops it. `Busy` if too many other filters are in use, in all or by this caller."""
        try:
            with self.lenses.one(lens, who):
                if self._pump_task is None or self._pump_task.done():
                    self._forget()
                    self._pump_task = asyncio.create_task(self._pump(), name=f"tail of {self._stream}")
                self._waiting.setdefault(lens, Waiting())
                yield
        finally:
            if lens not in self.lenses:
                self._waiting.pop(lens, None)
                for entry in self._ring:
                    entry.forget(lens)
            if not self.lenses.readers and self._pump_task is not None:
                self._pump_task.cancel()
                self._pump_task = None
                self._forget()

    def wake(self) -> None:
        """Say that the log has grown. Called in the event loop; costs nothing if nobody follows."""
        self._woken.set()

    async def ready(self) -> None:
        """Return once the log was looked at, or could not be."""
        while self.now is None and self.error is None:
            await self._looked.wait()

    async def news(self, place: Place, lens: Lens, take: Take | None, timeout_s: float) -> bool:
        """True as soon as anything of the tail has changed that a follower must look at; False when `timeout_s` has
        passed. What it does not see, and what it takes, moves its place on."""
        return await self._waiting[lens].wait(place, take, timeout_s)

    def entry(self, number: int) -> Entry | None:
        """The entry of that number; None if it is not there yet, or no longer."""
        if self.first <= number < self.next:
            return self._ring[number - self.first]
        return None

    def meet(self, offsets: Offsets) -> tuple[Offsets, int] | None:
        """The nearest boundary of the ring at or after `offsets`, and the number of the entry that begins there.

        None while the tail has not read as far as that.
        """
        for index, entry in enumerate(self._ring):
            if _reaches(entry.before, offsets):
                return entry.before, self.first + index
        return (self.position, self.next) if _reaches(self.position, offsets) else None

    async def _pump(self) -> None:
        while True:
            self._woken.clear()
            try:
                everything = [lens for lens in self.lenses if not lens]
                now, entry = await asyncio.to_thread(self._advance, self.now, self.position, everything)
            except Exception as error:
                self.error = error
                self._tell()
                return
            self._take(now, entry)
            if self.position == now.ends:
                await self._rest()

    def _advance(self, before: Extent | None, position: Offsets, lenses: Sequence[Lens]) -> tuple[Extent, Entry | None]:
        """One look at the log, and the next piece of it. No entry: the position is not one of this log."""
        now = extent(self._log, self._stream)
        if before is None or before.generation != now.generation or not _reaches(now.ends, position):
            return now, None
        limits = {"events_max": self._events_max, "bytes_max": PIECE_BYTES_MAX}
        try:
            piece = read_piece(self._log, self._stream, position, now.ends, **limits)
        except BadCursor:
            return now, None
        if self._log.generation(self._stream) != now.generation:
            return now, None
        return now, Entry(now.generation, piece, lenses)

    def _take(self, now: Extent, entry: Entry | None) -> None:
        fresh = self.now is None or now.ends != self.now.ends
        self.now = now
        if entry is None:
            self._clear_ring()
            self.position = dict(now.ends)
        else:
            self.position = entry.after
            if not entry.empty:
                self._push(entry)
                self._hand_out(entry)
                return
        if fresh or entry is None:
            self._tell()

    def _push(self, entry: Entry) -> None:
        self._ring.append(entry)
        self.next += 1
        self._shrink()

    def is_coming(self, number: int, lens: Lens, who: str) -> bool:
        """Whether a caller's filter is about to be applied to an entry. Then those who wait are handed it."""
        entry, lane = self.entry(number), self._lanes.get(who)
        if entry is None or lane is None or entry.made(lens) is not _NOT_MADE:
            return False
        return lane.is_to_make(number, lens)

    async def look(self, entry: Entry, lens: Lens, who: str) -> Delivery | None:
        """What is seen of an entry. It grows when it is seen through another lens."""
        size = entry.size
        try:
            return await entry.change(lens, who)
        finally:
            if entry.size > size:
                self._shrink()

    def _shrink(self) -> None:
        """Let the oldest entries go if there are too many, or if they are too large: they are a few hundred."""
        size = sum(each.size for each in self._ring)
        while len(self._ring) > self._entries_max or (size > RING_BYTES_MAX and len(self._ring) > 1):
            size -= self._ring.popleft().size
            self.first += 1

    def _hand_out(self, entry: Entry) -> None:
        """Give the latest entry to all who see everything, and have it looked at for the others."""
        self._looked.set()
        number = self.next - 1
        for lens in tuple(self._waiting):
            self._give(entry, number, lens)
        for who in self.lenses.callers():
            if who not in self._lanes:
                lane = self._lanes[who] = _Lane(number, self.lenses.used_by(who))
                lane.task = asyncio.create_task(self._run(lane, who), name=f"filters on {self._stream}")

    def _give(self, entry: Entry, number: int, lens: Lens) -> None:
        """Give an entry to all who wait for it and look through a lens, in one pass. Others who are behind look for
        themselves."""
        change, now = entry.made(lens), asyncio.get_running_loop().time()
        for waiter in self._waiting.get(lens, ()):
            place = waiter.place
            if place.number is not None and place.number > number:
                continue
            if change is _NOT_MADE and lens and place.number == number:
                continue
            if place.number != number or isinstance(change, Exception) or (change and not waiter.takes((change,))):
                waiter.wake()
                continue
            place.offsets, place.number = entry.after, number + 1
            place.given_at = now if change else place.given_at

    async def _run(self, lane: _Lane, who: str) -> None:
        """Look at the entries through the filters of a caller until there is no further one."""
        try:
            while lane.number < self.next:
                entry = self.entry(lane.number)
                if entry is not None and await self._look_through(entry, lane, who):
                    lane.number += 1
                else:
                    lane.number = max(self.first, lane.number)
                    self._wake(self.lenses.used_by(who))
        finally:
            if self._lanes.get(who) is lane:
                del self._lanes[who]

    async def _look_through(self, entry: Entry, lane: _Lane, who: str) -> bool:
        """Look at one entry through the filters of a caller, turn by turn, and give it out; False if it has left the
        ring before that was done. Those who wait for it read the log then."""
        lane.left = self.lenses.used_by(who)

        def next_work() -> Callable[[], list[_Made]] | None:
            """What others who have the same filters have not made meanwhile."""
            lane.left = [lens for lens in lane.left if lens in self.lenses and entry.made(lens) is _NOT_MADE]
            return partial(entry.make, tuple(lane.left)) if lane.left else None

        while lane.left:
            if self.entry(lane.number) is not entry:
                return False
            made = await in_turn(who, next_work) or []
            for lens, change in zip(lane.left, made, strict=False):
                if lens in self.lenses:
                    entry.keep(lens, change)
                    self._give(entry, lane.number, lens)
            lane.left = lane.left[len(made) :]
            self._shrink()
        return True

    def _wake(self, lenses: Sequence[Lens]) -> None:
        for lens in lenses:
            if lens in self._waiting:
                self._waiting[lens].wake()

    def _tell(self) -> None:
        self._looked.set()
        self._wake(tuple(self._waiting))

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await self._woken.wait()
        except TimeoutError:
            return


def _reaches(place: Offsets, offsets: Offsets) -> bool:
    """Whether a position is at or after another in every partition."""
    return place.keys() == offsets.keys() and all(place[partition] >= offset for partition, offset in offsets.items())
