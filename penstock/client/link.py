"""One WebSocket for all subscriptions of a client: opened for the first one, reopened when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

from penstock.client.asking import FollowTarget
from penstock.client.errors import (
    ConnectionLost,
    ServerError,
    TransportBlocked,
    Unreachable,
    certificate_refused,
    from_answer,
)
from penstock.client.hub import Hub, HubSubscription, LiveMessage
from penstock.client.messages import RawMessage
from penstock.client.timing import Retries, Timing
from penstock.client.transports import Deliveries, waited
from penstock.core.tasks import cancel_all

BROKEN = (OSError, TimeoutError, ConnectionClosed, EOFError, InvalidMessage, ConnectionLost)
"""The errors that a broken connection raises, at any stage."""
CLOSE_S = 1.0
STRIPPED = "upgrade_required"
"""The server received a plain request although the client asked for a WebSocket: an intermediary removed the
upgrade."""
TOO_LARGE = 1009
_quiet = logging.getLogger("penstock.client.websocket")
_quiet.setLevel(logging.INFO)  # at lower levels, the library would log the headers, including the key
_encode = msgspec.json.Encoder().encode


class _Direct(connect):
    """A connection that follows no redirects, because a key must not be sent to another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Dialer:
    """Opens a client's WebSockets to one server."""

    def __init__(
        self, url: str, headers: Callable[[], dict[str, str]], tls: ssl.SSLContext | None, timing: Timing
    ) -> None:
        """`url` begins with http or https, as it does for all other requests."""
        self._url = "ws" + url.removeprefix("http")
        self._headers = headers
        self._tls = tls if self._url.startswith("wss:") else None
        self.timing = timing

    async def dial(self, path: str, message_bytes_max: int) -> ClientConnection:
        """Open a WebSocket and return it. Raises `ServerError`, `TransportBlocked`, or one of the errors in `BROKEN`.

        The library pings the server, and closes a connection that does not respond.
        """
        half = self.timing.silence_s / 2
        options: dict[str, ssl.SSLContext] = {} if self._tls is None else {"ssl": self._tls}
        try:
            return await _Direct(
                self._url + path,
                additional_headers=self._headers(),
                compression=None,
                open_timeout=self.timing.connect_s,
                close_timeout=CLOSE_S,
                ping_interval=half,
                ping_timeout=half,
                max_size=message_bytes_max,
                logger=_quiet,
                **options,  # type: ignore[arg-type]
            )
        except InvalidStatus as refused:
            answer = refused.response
            kind = answer.headers.get("content-type", "")
            error = from_answer(answer.status_code, kind, bytes(answer.body or b""), answer.headers.get("retry-after"))
            if error.code == STRIPPED or (error.code is None and not error.retry):
                raise TransportBlocked(f"the WebSocket handshake failed with status {error.status}") from None
            raise error from None
        except InvalidMessage:
            raise  # not an HTTP response, for example because the connection was cut
        except InvalidHandshake as error:
            raise TransportBlocked(str(error)) from None


class WebSocketLink:
    """The WebSocket transport, shared by all subscriptions."""

    def __init__(self, dialer: Dialer, window: int, message_bytes_max: int) -> None:
        self._dialer = dialer
        self._most = message_bytes_max
        self._hub = Hub(window)
        self._retries = Retries(dialer.timing)
        self._out: asyncio.Queue[LiveMessage] = asyncio.Queue()
        self._running: asyncio.Task[None] | None = None
        self._pauses: set[asyncio.Task[None]] = set()

    async def deliveries(self, target: FollowTarget, since: str | None) -> Deliveries:
        """Yield deliveries, as `Transport` requires. They wait in a queue bounded by the subscription's window."""
        came: deque[RawMessage | Exception] = deque()
        news = asyncio.Event()

        def give(message: RawMessage | Exception) -> None:
            came.append(message)
            news.set()

        subscription = HubSubscription(target, since, give, Retries(self._dialer.timing))
        self._say(self._hub.add(subscription))
        self._start()
        try:
            while True:
                while not came:
                    news.clear()
                    await news.wait()
                following = came.popleft()
                if isinstance(following, Exception):
                    raise following
                yield following
                self._say(self._hub.take(subscription))
        finally:
            self._say(self._hub.remove(subscription))
            if self._hub.empty and self._running is not None:
                self._running.cancel()

    async def close(self) -> None:
        """End the client's WebSocket. All subscriptions must already have ended."""
        await cancel_all([*self._pauses, *([self._running] if self._running is not None else [])])

    def _say(self, said: list[LiveMessage]) -> None:
        for message in said:
            self._out.put_nowait(message)

    def _start(self) -> None:
        if self._running is None or self._running.done() or self._running.cancelling():
            before = self._running
            self._running = asyncio.create_task(self._run(before))

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        """Connect the WebSocket, and reconnect whenever the connection ends. Returns when no subscription is left."""
        if before is not None:
            await asyncio.wait([before])
        while not self._hub.empty:
            try:
                reason, retry_after_s = await self._connect()
            except Exception as error:
                self._hub.fail(error)
                return
            await waited(self._retries, reason, retry_after_s)

    async def _connect(self) -> tuple[Exception, float | None]:
        """Run one connection of the client's WebSocket.

        Returns the reason why it ended, and the delay that the server asked for. Raises errors that retrying cannot
        fix.
        """
        try:
            connection = await self._dialer.dial("/v1/live", self._most)
            await self._serve(connection)
        except BROKEN as error:
            if certificate_refused(error):
                raise Unreachable(str(error)) from error
            return error, None
        except ServerError as error:
            if not error.retry:
                raise
            return error, error.retry_after_s
        return ConnectionLost("the connection was closed"), None

    async def _serve(self, connection: ClientConnection) -> None:
        """Use one WebSocket connection until it breaks."""
        while not self._out.empty():  # discard messages meant for the previous connection
            self._out.get_nowait()
        self._say(self._hub.opened())
        speaking = asyncio.create_task(self._speak(connection))
        try:
            await self._listen(connection)
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == TOO_LARGE:
                raise ServerError(200, "too_large", f"a message is larger than {self._most} bytes") from None
            raise
        finally:
            self._hub.lost()
            await cancel_all([speaking])
            await connection.close()

    async def _listen(self, connection: ClientConnection) -> None:
        # while windows are full, there might be no messages for minutes or longer; pings show whether the connection is
        # alive
        while True:
            try:
                message = msgspec.json.decode(await connection.recv())
            except msgspec.DecodeError:
                raise ConnectionLost("a message is not JSON") from None
            for ended, delay_s in self._hub.hear(message):
                self._pause(ended, delay_s)
            if "cursor" in message:
                self._retries.succeeded()

    def _pause(self, ended: HubSubscription, delay_s: float) -> None:
        """After a delay, restart a client's subscription that the server has ended. Other subscriptions continue."""

        async def again() -> None:
            await ended.retries.sleep(delay_s)
            self._say(self._hub.again(ended))

        pause = asyncio.create_task(again())
        self._pauses.add(pause)
        pause.add_done_callback(self._pauses.discard)

    async def _speak(self, connection: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            while True:
                await connection.send(_encode(await self._out.get()).decode())
