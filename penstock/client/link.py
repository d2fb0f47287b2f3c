"""One WebSocket for all subscriptions of a client: opened when there is one, opened again when it breaks."""

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

from penstock.client.asking import Target
from penstock.client.backoff import Backoff, Timing
from penstock.client.errors import Lost, NotSpoken, ServerError, Unreachable, certificate_refused, from_answer
from penstock.client.hub import Hub, Said, Subscription
from penstock.client.messages import Delivery
from penstock.client.transports import Deliveries, waited

BROKEN = (OSError, TimeoutError, ConnectionClosed, EOFError, InvalidMessage, Lost)
"""What a connection that breaks looks like, whenever it does."""
CLOSE_S = 1.0
STRIPPED = "upgrade_required"
"""The server saw a plain request where the client asked for a WebSocket: something between took that out."""
TOO_LARGE = 1009
_quiet = logging.getLogger("penstock.client.websocket")
_quiet.setLevel(logging.INFO)  # more would be the headers, and the key with them
_encode = msgspec.json.Encoder().encode


class _Direct(connect):
    """Without redirects: a key must not go to whom it was not meant for."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Dialer:
    """How WebSockets to one server are opened."""

    def __init__(
        self, url: str, headers: Callable[[], dict[str, str]], tls: ssl.SSLContext | None, timing: Timing
    ) -> None:
        """`url` begins with http or https, as that of everything else."""
        self._url = "ws" + url.removeprefix("http")
        self._headers = headers
        self._tls = tls if self._url.startswith("wss:") else None
        self.timing = timing

    async def dial(self, path: str, message_bytes_max: int) -> ClientConnection:
        """An open connection; raises `ServerError`, `NotSpoken`, or one of `BROKEN`.

        The library pings, and ends a connection that does not answer."""
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
                raise NotSpoken(f"a WebSocket's handshake was answered with {error.status}") from None
            raise error from None
        except InvalidMessage:
            raise  # no HTTP at all, as from a connection that was cut
        except InvalidHandshake as error:
            raise NotSpoken(str(error)) from None


class Link:
    """The transport that is a WebSocket, shared by all who follow something."""

    def __init__(self, dialer: Dialer, window: int, message_bytes_max: int) -> None:
        self._dialer = dialer
        self._most = message_bytes_max
        self._hub = Hub(window)
        self._backoff = Backoff(dialer.timing)
        self._out: asyncio.Queue[Said] = asyncio.Queue()
        self._running: asyncio.Task[None] | None = None
        self._pauses: set[asyncio.Task[None]] = set()

    async def deliveries(self, target: Target, since: str | None) -> Deliveries:
        """As `Transport` says. What comes is kept in a queue, which the window of the subscription bounds."""
        came: deque[Delivery | Exception] = deque()
        news = asyncio.Event()

        def give(each: Delivery | Exception) -> None:
            came.append(each)
            news.set()

        subscription = Subscription(target, since, give, Backoff(self._dialer.timing))
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
        """End the connection. Nothing may be following any more."""
        tasks = [*self._pauses, *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _say(self, said: list[Said]) -> None:
        for each in said:
            self._out.put_nowait(each)

    def _start(self) -> None:
        if self._running is None or self._running.done() or self._running.cancelling():
            before = self._running
            self._running = asyncio.create_task(self._run(before))

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        """Connect again and again. Ends when it is cancelled, or all subscriptions have got an error."""
        if before is not None:
            await asyncio.wait([before])
        while not self._hub.empty:
            try:
                reason, retry_after_s = await self._connect()
            except Exception as error:
                self._hub.fail(error)
                return
            await waited(self._backoff, reason, retry_after_s)

    async def _connect(self) -> tuple[Exception, float | None]:
        """One connection. Returns why it ended, and what the server says of when to come back; raises what no retry
        helps."""
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
        return Lost("it was closed"), None

    async def _serve(self, connection: ClientConnection) -> None:
        """One connection, until it breaks."""
        while not self._out.empty():  # what was to be said on the connection before
            self._out.get_nowait()
        self._say(self._hub.opened())
        speaking = asyncio.create_task(self._speak(connection))
        try:
            await self._listen(connection)
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == TOO_LARGE:
                raise ServerError(200, "too_large", f"a message has more than {self._most} bytes") from None
            raise
        finally:
            self._hub.lost()
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            await connection.close()

    async def _listen(self, connection: ClientConnection) -> None:
        while True:  # nothing may come for long, while windows are full: whether it lives is for pings to find out
            try:
                message = msgspec.json.decode(await connection.recv())
            except msgspec.DecodeError:
                raise Lost("a message is not JSON") from None
            for ended, delay_s in self._hub.hear(message):
                self._pause(ended, delay_s)
            if "cursor" in message:
                self._backoff.succeeded()

    def _pause(self, ended: Subscription, delay_s: float) -> None:
        """Make a subscription that the server has ended anew, after a while; the others go on."""

        async def again() -> None:
            await ended.backoff.sleep(delay_s)
            self._say(self._hub.again(ended))

        pause = asyncio.create_task(again())
        self._pauses.add(pause)
        pause.add_done_callback(self._pauses.discard)

    async def _speak(self, connection: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            while True:
                await connection.send(_encode(await self._out.get()).decode())
