"""A source that pulls messages from a WebSocket: each message is one event."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from penstock.collect.sources.addresses import address_parts, without_secrets
from penstock.collect.sources.reconnect import keep_connected
from penstock.core.backoff import Backoff
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import DeclarationError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


@dataclass(frozen=True)
class WebSocketSource:
    """Pulls messages from `url` and reconnects whenever the connection ends. Implements `contracts.Source`.

    `hello` is sent after each connect, for servers that need a request. A peer that leaves a ping unanswered for
    `ping_s` is considered dead. At most `queue_max` messages of `message_bytes_max` wait in memory; beyond that, the
    socket is not read, which slows down the sender. Messages sent while the source is disconnected are missed, because
    a WebSocket has no position.
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
            raise DeclarationError(f"{self.address!r} is not a WebSocket URL: it must begin with ws:// or wss://")

    @property
    def kind(self) -> str:
        return "websocket"

    @property
    def address(self) -> str:
        return without_secrets(self.url)

    async def run(self, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Pull messages until cancelled. Messages read by then are put and settled before the cancellation propagates.

        Waits at most `close_s` for the peer, and as long as `keep_connected` allows for the log. Raises only if the
        source writer fails.
        """
        await keep_connected(
            lambda: self._connection(source_writer, status), source_writer, status, self.backoff, self.address
        )

    async def _connection(self, source_writer: SourceWriter, status: SourceStatus) -> str:
        """Run one WebSocket connection of the source. Returns a message that tells users why it ended."""
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
                await self._pull(connection, source_writer, status)
        except ConnectionClosed as error:
            return f"the connection ended: {error}"
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            return f"could not connect: {_websocket_cause(error, self.url)}"
        return "the connection ended"

    async def _pull(self, connection: ClientConnection, source_writer: SourceWriter, status: SourceStatus) -> None:
        """Read the WebSocket in a separate task, which our cancellation does not reach, so that no message is lost in
        between."""
        reader = asyncio.create_task(_read_websocket(connection, source_writer, status))
        try:
            await asyncio.shield(reader)
        except asyncio.CancelledError:
            await self._finish(connection, reader)
            raise

    async def _finish(self, connection: ClientConnection, reader: asyncio.Task[None]) -> None:
        """Close the WebSocket from our side, while the reader continues to the last message before the peer's close
        frame."""
        closing = asyncio.create_task(connection.close())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.close_s):
                await asyncio.gather(reader, closing, return_exceptions=True)


def _websocket_cause(error: Exception, url: str) -> str:
    """Return why a source's WebSocket could not be opened, leaving out any address in the library's message, including
    a proxy's."""
    from websockets.exceptions import InvalidProxy, InvalidStatus, InvalidURI, SecurityError

    refused = error.__cause__ or error.__context__
    if isinstance(error, SecurityError | ValueError | InvalidURI) and isinstance(refused, InvalidStatus):
        try:
            place = urljoin(url, refused.response.headers["Location"])
        except ValueError:
            place = ""
        return f"the server redirects to {without_secrets(place)}, but redirects are not followed"
    if isinstance(error, InvalidURI | ValueError):
        return f"the address is not a WebSocket URL: {getattr(error, 'msg', type(error).__name__)}"
    if isinstance(error, InvalidProxy):
        return "the proxy address in the environment is invalid"
    return str(error) or type(error).__name__


async def _read_websocket(connection: ClientConnection, source_writer: SourceWriter, status: SourceStatus) -> None:
    """Put each WebSocket message, as bytes; the decoder checks for valid UTF-8. Ends with `ConnectionClosed`."""
    while True:
        message = await connection.recv(decode=False)
        await source_writer.put(message)
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
    """Create a source with one event per message. Opens nothing. See `WebSocketSource` for the options."""
    return WebSocketSource(
        url,
        hello=hello,
        backoff=Backoff(backoff_s, backoff_max_s),
        ping_s=ping_s,
        message_bytes_max=message_bytes_max,
    )
