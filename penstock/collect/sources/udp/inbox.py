"""A bounded queue of datagrams read from a socket and not yet put. When full, it drops new datagrams and counts
them."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.core.contracts import SourceStatus, SourceWriter

TURN = 64
"""Number of datagrams read, or events put, before other tasks of the event loop run. Either takes about 100
microseconds."""
_SO_MEMINFO = 55
_MEMINFO = struct.Struct("9I")
_RCVBUF, _DROPS = 1, 8
"""Indexes of figures in Linux's SO_MEMINFO (since 4.12); Python has no names for them."""


class Unfit(NamedTuple):
    """A part of a UDP datagram that is not an event, and the reason."""

    raw: bytes
    reason: str


class DatagramQueue:
    """The queue between a UDP socket, which is read whenever it has data, and a source writer, which may block.

    The socket is read with plain `recv` in a reader callback of the event loop, which is the cheapest way in Python
    (1.3 microseconds per datagram; an asyncio protocol takes 17, a uvloop protocol 1.7, and `recvmsg` 1.9). `recv` asks
    for one byte more than the largest datagram, so that a datagram that is too large is recognised by its length.
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
        """Start reading datagrams."""
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def close(self) -> None:
        """Stop reading datagrams; pending datagrams can still be put. Idempotent."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._socket)
            self._changed.set()

    async def put_all(self, source_writer: SourceWriter, events: Callable[[bytes], Iterable[bytes | Unfit]]) -> None:
        """Put the events in each datagram, in order, until closed and empty. Raises any error from the source
        writer."""
        turn = 0
        while await self._has_some():
            datagram = self._pending[0]
            for event in events(datagram):
                await self._put(source_writer, event)
                turn += 1
                if turn == TURN:
                    turn = 0
                    await asyncio.sleep(0)
            self._bytes -= len(self._pending.popleft())

    async def take_the_rest(self) -> None:
        """Read the datagrams still in the kernel and close.

        Reads at most `pending_max`, so that a flood of datagrams cannot delay closing.
        """
        for _ in range(0, self._pending_max, TURN):
            if self._closed or self._read() < TURN:
                break
            await asyncio.sleep(0)
        self.close()

    def count_the_rest(self) -> None:
        """Count as lost the datagrams that could not be put before the end."""
        self._status.lost += self._drops.since() + len(self._pending)
        self._pending.clear()

    async def _has_some(self) -> bool:
        while not self._pending:
            if self._closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def _put(self, source_writer: SourceWriter, event: bytes | Unfit) -> None:
        if isinstance(event, Unfit):
            await source_writer.reject(event.raw, event.reason)
        else:
            await source_writer.put(event)
        self._status.received += 1

    def _read(self) -> int:
        """Read up to `TURN` datagrams, then the kernel's drop count.

        The kernel drops more datagrams only while the socket is full, and a full socket triggers another call. So all
        drops are counted without a timer.
        """
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
    """The number of datagrams that the kernel dropped for a socket, if the system reports it.

    Linux counts drops per socket, and `SO_MEMINFO` returns the count at any time, in a microsecond. The two
    alternatives are slower. As ancillary data (`SO_RXQ_OVFL`), the count requires `recvmsg`, which costs half as much
    again per datagram, and it arrives only with the next datagram. In `/proc/net/udp`, the count is listed among those
    of all sockets of the machine. Other systems do not report the drops, so the count is 0.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.known = sys.platform == "linux" and self._is_supported()
        self._last = self._count() if self.known else 0

    def since(self) -> int:
        """Return how many datagrams the kernel has dropped since the last call. The kernel's counter has 32 bits and
        wraps."""
        if not self.known:
            return 0
        last, self._last = self._last, self._count()
        return (self._last - last) % 2**32

    def _count(self) -> int:
        return self._figures()[_DROPS]

    def _figures(self) -> tuple[int, ...]:
        return _MEMINFO.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))

    def _is_supported(self) -> bool:
        """Return whether the kernel's report of drops has the expected layout, by checking a figure that is also known
        from another option."""
        try:
            return self._figures()[_RCVBUF] == self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        except (OSError, struct.error):
            return False
