"""What was read from a socket and is not yet put: a bounded queue that drops the newest when full, and counts."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.contracts import Intake, SourceStatus

TURN = 64
"""Datagrams read, or events put, before others in the event loop have their turn: some 100 microseconds of each."""
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("9I")
_RCVBUF, _DROPS = 1, 8
"""Of Linux, since 4.12; Python has no names for them."""


class Unfit(NamedTuple):
    """A part of a datagram that is no event, and why."""

    raw: bytes
    reason: str


class Inbox:
    """Between a socket, read whenever it has something, and an intake that may make us wait.

    Read by plain `recv` in the loop's reader: the cheapest way that Python has (1.3 microseconds a datagram; a
    protocol of asyncio takes 17, of uvloop 1.7, `recvmsg` 1.9). One byte more than the largest datagram is asked for,
    so that one too large shows by its length.
    """

    def __init__(
        self, opened: socket.socket, status: SourceStatus, datagram_bytes_max: int, pending_max: int, bytes_max: int
    ) -> None:
        self.failure: OSError | None = None
        self._socket = opened
        self._status = status
        self._datagram_bytes_max = datagram_bytes_max
        self._pending_max = pending_max
        self._bytes_max = bytes_max
        self._pending: deque[bytes] = deque()
        self._bytes = 0
        self._drops = KernelDrops(opened)
        self._changed = asyncio.Event()
        self._closed = False

    def open(self) -> None:
        """Begin to read."""
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def close(self) -> None:
        """Read no more; what is pending can still be put. May be called again."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._socket)
            self._changed.set()

    async def put_all(self, intake: Intake, events: Callable[[bytes], Iterable[bytes | Unfit]]) -> None:
        """Put the events of each datagram, in order, until closed and empty. Raises what the intake raises."""
        turn = 0
        while await self._has_some():
            datagram = self._pending[0]
            for event in events(datagram):
                await self._put(intake, event)
                turn += 1
                if turn == TURN:
                    turn = 0
                    await asyncio.sleep(0)
            self._bytes -= len(self._pending.popleft())

    async def take_the_rest(self) -> None:
        """Read what is in the kernel still, which the sender has a right to expect, and close. A flood does not keep
        us: at most `pending_max` datagrams."""
        for _ in range(0, self._pending_max, TURN):
            if self._closed or self._read() < TURN:
                break
            await asyncio.sleep(0)
        self.close()

    def count_the_rest(self) -> None:
        """What could not be put by the end is lost."""
        self._status.lost += self._drops.since() + len(self._pending)
        self._pending.clear()

    async def _has_some(self) -> bool:
        while not self._pending:
            if self._closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _put(self, intake: Intake, event: bytes | Unfit) -> None:
        if isinstance(event, Unfit):
            await intake.reject(event.raw, event.reason)
        else:
            await intake.put(event)
        self._status.received += 1

    def _read(self) -> int:
        """Read up to a turn of datagrams. The kernel's drops are asked for last: later ones need a full socket, and
        that calls us again. So no timer is needed to see them all."""
        count, receive, size = 0, self._socket.recv, self._datagram_bytes_max + 1
        try:
            while count < TURN:
                datagram = receive(size)
                count += 1
                self._take(datagram)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.failure = error
            self.close()
        self._status.lost += self._drops.since()
        self._changed.set()
        return count

    def _take(self, datagram: bytes) -> None:
        size = len(datagram)
        if (
            size > self._datagram_bytes_max
            or len(self._pending) >= self._pending_max
            or self._bytes + size > self._bytes_max
        ):
            self._status.lost += 1
        else:
            self._pending.append(datagram)
            self._bytes += size


class KernelDrops:
    """What the kernel has dropped for a socket, where it says so.

    Linux counts for each socket, and `SO_MEMINFO` tells it at any time, by one call in a microsecond. The same figure
    as ancillary data (`SO_RXQ_OVFL`) needs `recvmsg`, half as dear again for each datagram, and comes only with the
    next datagram; in `/proc/net/udp` it stands among all sockets of the machine. Other systems do not tell: 0.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.known = sys.platform == "linux" and self._is_told()
        self._last = self._count() if self.known else 0

    def since(self) -> int:
        """How many since the last call. The kernel counts in 32 bits, and begins anew."""
        if not self.known:
            return 0
        last, self._last = self._last, self._count()
        return (self._last - last) % 2**32

    def _count(self) -> int:
        return self._figures()[_DROPS]

    def _figures(self) -> tuple[int, ...]:
        return _MEMINFO.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))

    def _is_told(self) -> bool:
        """Whether the answer is what we think, by a figure in it that is known from elsewhere."""
        try:
            return self._figures()[_RCVBUF] == self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        except (OSError, struct.error):
            return False
