"""A source that listens for UDP datagrams. Each is one event, or each line of it.

Nobody is answered, so nothing is promised of what is sent; but what is put is kept as ever, and what is lost is
counted. A datagram that arrives at our socket is in the end put (`received`), or it was too large or found no room in
the kernel or with us (`lost`).

    socket (kernel, buffer_bytes) --> inbox (pending_max, pending_bytes_max) --> intake

Both buffers drop the newest when they are full: what is on its way stays in order, and the older half of a burst is
kept whole. The socket is read on while the inbox is full, which is cheap, so that the loss is seen on every system.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypedDict, Unpack

from penstock.collect.sources.reconnect import Backoff, keep_connected
from penstock.collect.sources.udp.inbox import Inbox, Unfit
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed

MIB = 1024 * 1024
DATAGRAM_BYTES_MAX = 65_507
"""The largest datagram of IPv4: 65,535 bytes less the headers of IP and UDP."""
FINISH_S = 3.0
"""How long a source that is told to stop waits until the intake has taken what was read."""
_log = logging.getLogger("penstock.collect")
_REASONS = {
    errno.EADDRINUSE: "another program listens there; end it, or choose another port",
    errno.EACCES: "this user may not listen on that port; choose one above 1023",
    errno.EPERM: "this user may not listen on that port; choose one above 1023",
    errno.EADDRNOTAVAIL: "this machine does not have that address; choose one of its own",
}


def whole(datagram: bytes) -> Iterable[bytes]:
    """A datagram as one event."""
    return (datagram,)


def each_line(datagram: bytes) -> Iterable[bytes]:
    """Each line as one event. A datagram without any is one that is empty, so that it is seen as a dead letter."""
    return [line for line in map(bytes.strip, datagram.split(b"\n")) if line] or (b"",)


@dataclass(frozen=True)
class UdpSource:
    """Listens on `host` and `port`. Implements `contracts.Source`.

    `events` makes the events of a datagram and must not raise. UDP has no authentication: a sender is whoever reaches
    the port, and may give any address as its own. So an address beyond this machine is taken only with `anyone`.

    Memory: `pending_max` datagrams of `pending_bytes_max` together; in the kernel, twice `buffer_bytes`, if it gives
    that much. A datagram over `datagram_bytes_max` is lost whole, never cut.
    """

    host: str
    port: int
    _: KW_ONLY
    kind: str = "udp"
    events: Callable[[bytes], Iterable[bytes | Unfit]] = whole
    anyone: bool = False
    datagram_bytes_max: int = DATAGRAM_BYTES_MAX
    buffer_bytes: int = 4 * MIB
    pending_max: int = 10_000
    pending_bytes_max: int = 8 * MIB
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65_535:
            raise DeclarationError(f"{self.port} is not a port that senders can know; it is from 1 to 65535")
        if not 1 <= self.datagram_bytes_max <= 65_535:
            raise DeclarationError(f"datagram_bytes_max is {self.datagram_bytes_max}; it is from 1 to 65535")
        if self.pending_max < 1 or self.buffer_bytes < 1 or self.pending_bytes_max < self.datagram_bytes_max:
            raise DeclarationError(f"{self.address}: its buffers must have room for one datagram of the largest size")
        if not self.anyone and not (self.host == "localhost" or _is_loopback(self.host)):
            raise DeclarationError(f"{self.address} {_NOT_FOR_ANYONE}")

    @property
    def address(self) -> str:
        return f"udp://[{self.host}]:{self.port}" if ":" in self.host else f"udp://{self.host}:{self.port}"

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Listen until cancelled. What had come by then is put and settled before the cancellation goes on, within
        `FINISH_S` for the intake and as long as `keep_connected` gives the log; what is left then is counted as lost.
        """
        await keep_connected(lambda: self._listen(intake, status), intake, status, self.backoff, self.address)

    async def _listen(self, intake: Intake, status: SourceStatus) -> str:
        """From opening the socket to its end; returns why it ended, for people."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
            family, _, _, _, place = found[0]
            opened = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as error:
            return f"could not listen: {error}"
        with opened:
            self._bind(opened, place)
            inbox = Inbox(opened, status, self.datagram_bytes_max, self.pending_max, self.pending_bytes_max)
            status.state, status.error = "connected", None
            return await self._forward(inbox, intake)

    def _bind(self, opened: socket.socket, place: Any) -> None:
        if not self.anyone and not _is_loopback(place[0]):
            raise SourceFailed(f"{self.address} ({place[0]}) {_NOT_FOR_ANYONE}")
        opened.setblocking(False)
        self._widen(opened)
        try:
            opened.bind(place)
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, error.strerror)
            raise SourceFailed(f"cannot listen on {self.address}: {reason}") from None

    def _widen(self, opened: socket.socket) -> None:
        """Ask for the buffer and say what there is. Linux gives twice what it says, since it counts its own part of
        each datagram too (768 bytes for a small one), and never more than the administrator allows; macOS refuses."""
        with suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        given = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        if sys.platform == "linux":
            given //= 2
        if given >= self.buffer_bytes:
            _log.info("feed %s: the kernel gives a buffer of %d bytes", self.address, given)
            return
        _log.warning(
            "feed %s: the kernel gives a buffer of %d bytes, not the %d asked for, so more is lost in a burst; remedy "
            "on Linux: sysctl -w net.core.rmem_max=%d",
            self.address,
            given,
            self.buffer_bytes,
            self.buffer_bytes,
        )

    async def _forward(self, inbox: Inbox, intake: Intake) -> str:
        """Put in a task of its own, which a cancellation of ours does not touch, so no event falls between."""
        inbox.open()
        putting = asyncio.create_task(inbox.put_all(intake, self.events))
        try:
            await asyncio.shield(putting)
        except asyncio.CancelledError:
            await inbox.take_the_rest()
            await asyncio.wait([putting], timeout=FINISH_S)
            raise
        finally:
            inbox.close()
            putting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await putting
            inbox.count_the_rest()
        return f"the socket failed: {inbox.failure}"


_NOT_FOR_ANYONE = (
    "would take datagrams from anyone who reaches it, since UDP has no authentication; listen on 127.0.0.1, or say "
    "anyone=True if you trust the network"
)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class UdpOptions(TypedDict, total=False):
    """What `udp` and the sources of metrics take alike; `UdpSource` says what each means."""

    anyone: bool
    datagram_bytes_max: int
    buffer_bytes: int
    pending_max: int
    pending_bytes_max: int


def udp(host: str, port: int, *, lines: bool = False, **options: Unpack[UdpOptions]) -> UdpSource:
    """Datagrams as events, or with `lines` each line of them. Making one opens nothing."""
    return UdpSource(host, port, events=each_line if lines else whole, **options)
