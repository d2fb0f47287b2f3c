"""Limit on the memory used by deliveries that have been read but not yet received by their clients."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

SMALL_BYTES = 16 * 1024
"""Deliveries up to this size are not counted, because the limits on filters and subscriptions already bound them."""


@dataclass
class _Piece:
    """Bytes held for clients, counted once for all holders of the same object."""

    data: bytes
    holders: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class _Waiting:
    who: str
    size: int
    granted: asyncio.Future[None]


class HeldBytes:
    """Bytes held for slow clients: at most `most` in total, and half of that per named caller.

    Bytes shared by several readers are counted once in the total, and once per caller. A delivery larger than the limit
    is allowed if nothing else is held. When the limit is reached, a delivery is dropped, and read again when there is
    room. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._own: Counter[str] = Counter()
        self._pieces: dict[int, _Piece] = {}
        self._waiting: deque[_Waiting] = deque()

    @contextmanager
    def keep(self, who: str, data: bytes, reservation: Reservation | None = None) -> Iterator[bool]:
        """Hold a delivery's bytes for the duration of the block. They replace `reservation`, if there is one.

        Yields False if there is no room. The caller must then drop the bytes.
        """
        if reservation is not None:
            self._uncount(reservation)
        taken = len(data) > SMALL_BYTES and self._take(who, data)
        self._grant()
        if not taken:
            yield len(data) <= SMALL_BYTES
        else:
            try:
                yield True
            finally:
                self._release(who, data)

    def has_room(self, who: str, data: bytes) -> bool:
        """Return whether `keep` would have room for a delivery's bytes now."""
        return len(data) <= SMALL_BYTES or self._fits(who, *self._costs(who, data))

    @asynccontextmanager
    async def reserved(self, who: str, size: int) -> AsyncIterator[Reservation]:
        """Wait, in order of arrival, until there is room for `size` bytes, and reserve it.

        The reservation lasts until the block ends or `give_back` is called.
        """
        reservation = Reservation(who, size if size > SMALL_BYTES else 0)
        if reservation.size:
            await self._wait(_Waiting(who, size, asyncio.get_running_loop().create_future()))
        try:
            yield reservation
        finally:
            self.give_back(reservation)

    def give_back(self, reservation: Reservation) -> None:
        """Release a delivery's reservation. Idempotent."""
        self._uncount(reservation)
        self._grant()

    def _uncount(self, reservation: Reservation) -> None:
        size, reservation.size = reservation.size, 0
        self._count(reservation.who, -size, -size)

    async def _wait(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._grant()
        try:
            await waiting.granted
        except asyncio.CancelledError:
            if waiting.granted.cancelled():
                self._waiting = deque(other for other in self._waiting if other is not waiting)
            else:
                self._count(waiting.who, -waiting.size, -waiting.size)
            self._grant()
            raise

    def _take(self, who: str, data: bytes) -> bool:
        own, total = self._costs(who, data)
        if not self._fits(who, own, total):
            return False
        self._pieces.setdefault(id(data), _Piece(data)).holders[who] += 1
        self._count(who, own, total)
        return True

    def _release(self, who: str, data: bytes) -> None:
        holders = self._pieces[id(data)].holders
        holders[who] -= 1
        if not holders.total():
            del self._pieces[id(data)]
        own, total = self._costs(who, data)
        self._count(who, -own, -total)
        self._grant()

    def _costs(self, who: str, data: bytes) -> tuple[int, int]:
        """Return the number of bytes that holding this delivery would add to the caller's count, and to the total."""
        piece = self._pieces.get(id(data))
        if piece is None:
            return len(data), len(data)
        return 0 if piece.holders[who] else len(data), 0

    def _fits(self, who: str, own: int, total: int) -> bool:
        share = self.most // 2 if who else self.most
        own_fits = own == 0 or self._own[who] == 0 or self._own[who] + own <= share
        return own_fits and (total == 0 or self.total == 0 or self.total + total <= self.most)

    def _count(self, who: str, own: int, total: int) -> None:
        self._own[who] += own
        self.total += total
        if not self._own[who]:
            del self._own[who]

    def _grant(self) -> None:
        """Wake the waiters whose bytes now fit. A waiter that would exceed its caller's share does not block other
        waiters."""
        for waiting in list(self._waiting):
            if not waiting.granted.done() and self._fits(waiting.who, waiting.size, waiting.size):
                self._waiting.remove(waiting)
                self._count(waiting.who, waiting.size, waiting.size)
                waiting.granted.set_result(None)


@dataclass
class Reservation:
    """Room reserved for a delivery that is about to be read."""

    who: str
    size: int
