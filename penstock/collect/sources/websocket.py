"""A source that pulls a WebSocket feed: each message is one event."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from penstock.collect.sources.reconnect import Backoff, address_parts, keep_connected, without_secrets
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


@dataclass(frozen=True)
class WebSocketSource:
    """Pulls `url` and reconnects whenever the connection ends. Implements `contracts.Source`.

    `hello` is sent after each connect, for feeds that want to be asked. A peer that leaves a ping unanswered for
    `ping_s` is taken for dead. At most `queue_max` messages of `message_bytes_max` wait in memory; past that the socket
    is not read, so the sender feels it. What is sent while nobody is connected is missed: the feed has no position.
    """

    url: str = field(repr=False)
    hello: str | None = field(default=None, repr=False)
    backoff: Backoff = field(default_factory=Backoff)
    ping_s: float = 20.0
    open_s: float = 10.0
    close_s: float = 5.0
    message_bytes_max: int = 8 * 1024 * 1024
    queue_max: int = 8

    def __post_init__(self) -> None:
        parts = address_parts(self.url)
        if parts is None or parts.scheme not in ("ws", "wss"):
            raise DeclarationError(
                f"{self.address!r} is not the address of a WebSocket: that begins with ws:// or wss://"
            )

    @property
    def kind(self) -> str:
        return "websocket"

    @property
    def address(self) -> str:
        return without_secrets(self.url)

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Pull until cancelled. What was read by then is put and settled before the cancellation goes on.

        That takes `close_s` at most for the peer and as much for the log. Raises only if the intake cannot go on.
        """
        await keep_connected(lambda: self._connection(intake, status), intake, status, self.backoff, self.address)

    async def _connection(self, intake: Intake, status: SourceStatus) -> str:
        """One connection from its opening to its end; returns why it ended, for people."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            async with connect(
                self.url,
                open_timeout=self.open_s,
                close_timeout=self.close_s,
                ping_interval=self.ping_s,
                ping_timeout=self.ping_s,
                max_size=self.message_bytes_max,
                max_queue=self.queue_max,
                compression=None,
            ) as connection:
                status.state, status.error = "connected", None
                if self.hello is not None:
                    await connection.send(self.hello)
                await self._pull(connection, intake, status)
        except ConnectionClosed as error:
            return f"the connection ended: {error}"
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            return f"could not connect: {_cause(error, self.url)}"
        return "the connection ended"

    async def _pull(self, connection: ClientConnection, intake: Intake, status: SourceStatus) -> None:
        """Read in a task of its own, which a cancellation of ours does not touch, so no message falls between."""
        reader = asyncio.create_task(_read(connection, intake, status))
        try:
            await asyncio.shield(reader)
        except asyncio.CancelledError:
            await self._finish(connection, reader)
            raise

    async def _finish(self, connection: ClientConnection, reader: asyncio.Task[None]) -> None:
        """Close from our side, while the reader goes on to the last message before the peer's answer."""
        closing = asyncio.create_task(connection.close())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.close_s):
                await asyncio.gather(reader, closing, return_exceptions=True)


def _cause(error: Exception, url: str) -> str:
    """Why a connection could not be opened, without the addresses that the library's words hold: ours, that of a
    redirect, or that of a proxy."""
    from websockets.exceptions import InvalidProxy, InvalidStatus, InvalidURI, SecurityError

    refused = error.__cause__ or error.__context__
    if isinstance(error, SecurityError | ValueError | InvalidURI) and isinstance(refused, InvalidStatus):
        try:
            place = urljoin(url, refused.response.headers["Location"])
        except ValueError:
            place = ""
        return f"the server redirects to {without_secrets(place)}, which is not followed"
    if isinstance(error, InvalidURI | ValueError):
        return f"this is not the address of a WebSocket: {getattr(error, 'msg', type(error).__name__)}"
    if isinstance(error, InvalidProxy):
        return "the proxy of the environment has an address that cannot be used"
    return str(error) or type(error).__name__


async def _read(connection: ClientConnection, intake: Intake, status: SourceStatus) -> None:
    """Put each message, as bytes: whether text is valid UTF-8 is for the decoder to say. Ends by `ConnectionClosed`."""
    while True:
        message = await connection.recv(decode=False)
        await intake.put(message)
        status.received += 1


def websocket(
    url: str,
    *,
    hello: str | None = None,
    backoff_s: float = Backoff.first_s,
    backoff_max_s: float = Backoff.most_s,
    ping_s: float = WebSocketSource.ping_s,
    message_bytes_max: int = WebSocketSource.message_bytes_max,
) -> WebSocketSource:
    """A feed of one event a message. See `WebSocketSource` for what the options mean; making one opens nothing."""
    return WebSocketSource(
        url,
        hello=hello,
        backoff=Backoff(backoff_s, backoff_max_s),
        ping_s=ping_s,
        message_bytes_max=message_bytes_max,
    )
