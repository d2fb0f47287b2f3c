"""A source that listens for UDP datagrams. Each datagram, or each line of a datagram, is one event.

Senders get no response, so delivery is not guaranteed. But events that were put are durable as always, and losses are
counted. A datagram that reaches our socket is either put (`received`), or lost because it was too large or there was no
room for it in the kernel or here (`lost`).

    socket (kernel, buffer_bytes) --> inbox (pending_max, pending_bytes_max) --> source writer

Both buffers drop the newest datagrams when they are full, so queued datagrams stay in order, and the first part of a
burst is kept without gaps. The socket is still read while the inbox is full, which is cheap, so that the loss is
counted on every system.
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

from penstock.collect.sources.reconnect import keep_connected
from penstock.collect.sources.udp.inbox import DatagramQueue, Unfit
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError, SourceFailed

MIB = 1024 * 1024
DATAGRAM_BYTES_MAX = 65_507
"""The largest IPv4 datagram: 65,535 bytes minus the IP and UDP headers."""
FINISH_S = 3.0
"""Seconds that a stopped source waits for the source writer to accept the datagrams that were read."""
_log = logging.getLogger("penstock.collect")
_REASONS = {
    errno.EADDRINUSE: "another program is listening there; stop it, or choose another port",
    errno.EACCES: "this user is not allowed to listen on that port; choose one above 1023",
    errno.EPERM: "this user is not allowed to listen on that port; choose one above 1023",
    errno.EADDRNOTAVAIL: "this machine does not have that address; choose one of its addresses",
}


def whole(datagram: bytes) -> Iterable[bytes]:
    """Return a UDP datagram as one event."""
    return (datagram,)


def each_line(datagram: bytes) -> Iterable[bytes]:
    """Return each line of a datagram as one event.

    A datagram without lines becomes an empty event, so that it shows up as a dead letter.
    """
    return [line for line in map(bytes.strip, datagram.split(b"\n")) if line] or (b"",)


@dataclass(frozen=True)
class UdpSource:
    """Listens for datagrams on `host` and `port`. Implements `contracts.Source`.

    `events` returns the events of a datagram and must not raise. UDP has no authentication: anyone who can reach the
    port can send to it, and can forge the sender's address. So an address that other machines can reach is accepted
    only with `anyone`.

    Memory: up to `pending_max` datagrams with `pending_bytes_max` bytes in total and, in the kernel, twice
    `buffer_bytes` if the kernel grants that much. A datagram larger than `datagram_bytes_max` is dropped, never
    truncated.
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
            raise DeclarationError(f"{self.port} is not a valid port; use 1 to 65535")
        if not 1 <= self.datagram_bytes_max <= 65_535:
            raise DeclarationError(f"datagram_bytes_max is {self.datagram_bytes_max}; it must be from 1 to 65535")
        if self.pending_max < 1 or self.buffer_bytes < 1 or self.pending_bytes_max < self.datagram_bytes_max:
            raise DeclarationError(f"{self.address}: its buffers must hold at least one datagram of the largest size")
        if not self.anyone and not (self.host == "localhost" or _is_loopback(self.host)):
            raise DeclarationError(f"{self.address} {_NOT_FOR_ANYONE}")

    @property
    def address(self) -> str:
        return f"udp://[{self.host}]:{self.port}" if ":" in self.host else f"udp://{self.host}:{self.port}"

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Listen for datagrams until cancelled. Datagrams received by then are put and settled before the cancellation
        propagates.

        Putting takes at most `FINISH_S`, and settling takes as long as `keep_connected` allows. Datagrams that were not
        put by then are counted as lost.
        """
        await keep_connected(
            lambda: self._listen(source_writer, status), source_writer, status, self.backoff, self.address
        )

    async def _listen(self, source_writer: SourceWriter, status: SourceStatus) -> str:
        """Listen on one UDP socket until it fails. Returns a message that tells users why."""
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
            family, _, _, _, socket_address = infos[0]
            opened = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as error:
            return f"could not listen: {error}"
        with opened:
            self._bind(opened, socket_address)
            inbox = DatagramQueue(opened, status, self.datagram_bytes_max, self.pending_max, self.pending_bytes_max)
            status.state, status.error = "connected", None
            return await self._forward(inbox, source_writer)

    def _bind(self, opened: socket.socket, socket_address: Any) -> None:
        if not self.anyone and not _is_loopback(socket_address[0]):
            raise SourceFailed(f"{self.address} ({socket_address[0]}) {_NOT_FOR_ANYONE}")
        opened.setblocking(False)
        self._widen(opened)
        try:
            opened.bind(socket_address)
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, error.strerror)
            raise SourceFailed(f"cannot listen on {self.address}: {reason}") from None

    def _widen(self, opened: socket.socket) -> None:
        """Ask for the socket's buffer size and log what was granted.

        Linux reports twice the size, because it also counts its overhead for each datagram (768 bytes for a small one),
        and never grants more than the administrator allows. macOS refuses a size that is too large.
        """
        with suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        given = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        if sys.platform == "linux":
            given //= 2
        if given >= self.buffer_bytes:
            _log.info("source %s: the kernel granted a buffer of %d bytes", self.address, given)
            return
        _log.warning(
            "source %s: the kernel granted a buffer of %d bytes instead of %d, so bursts lose more datagrams; to raise "
            "it on Linux: sysctl -w net.core.rmem_max=%d",
            self.address,
            given,
            self.buffer_bytes,
            self.buffer_bytes,
        )

    async def _forward(self, inbox: DatagramQueue, source_writer: SourceWriter) -> str:
        """Put datagrams in a separate task, which our cancellation does not reach, so that no event is lost in
        between."""
        inbox.open()
        putting = asyncio.create_task(inbox.put_all(source_writer, self.events))
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
    "would accept datagrams from anyone who can reach it, since UDP has no authentication; listen on 127.0.0.1 or set "
    "anyone=True if you trust the network"
)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class UdpOptions(TypedDict, total=False):
    """The options common to `udp` and the sources of metrics; see `UdpSource`."""

    anyone: bool
    datagram_bytes_max: int
    buffer_bytes: int
    pending_max: int
    pending_bytes_max: int


def udp(host: str, port: int, *, lines: bool = False, **options: Unpack[UdpOptions]) -> UdpSource:
    """Create a source whose events are datagrams or, with `lines`, the lines of datagrams. Opens nothing."""
    return UdpSource(host, port, events=each_line if lines else whole, **options)
