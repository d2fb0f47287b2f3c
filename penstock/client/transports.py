"""Server-sent events and long polling: continuous delivery from a target, with automatic reconnects."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import httpx
import msgspec

from penstock.client.asking import FollowTarget
from penstock.client.errors import (
    ConnectionLost,
    ServerError,
    TransportBlocked,
    Unreachable,
    certificate_refused,
    from_answer,
    from_problem,
)
from penstock.client.messages import RawMessage, delivery
from penstock.client.pages import deliveries_of
from penstock.client.timing import Retries, Timing
from penstock.core.sse import SseEvent, SseParser, TooLong

Deliveries = AsyncGenerator[RawMessage, None]
AT_ONCE_S = 1.0
"""If an empty response to a long poll arrives in less than this time, the server did not wait."""
POLL_GRACE_S = 15.0
_log = logging.getLogger("penstock.client")


class Transport(Protocol):
    """A client's method of following a target."""

    def deliveries(self, target: FollowTarget, since: str | None) -> Deliveries:
        """Yield every message of the target after `since`, exactly once and in order, across reconnects.

        Ends only with an error that retrying cannot fix: `ServerError`, or `TransportBlocked` if this transport
        does not work here.
        """


class Http:
    """HTTP requests to one server, for the transports."""

    def __init__(self, client: httpx.AsyncClient, headers: Callable[[], dict[str, str]], timing: Timing) -> None:
        self.client = client
        self.headers = headers
        self.timing = timing

    def timeout(self, read_s: float) -> httpx.Timeout:
        return httpx.Timeout(read_s, connect=self.timing.connect_s, pool=self.timing.connect_s)


async def refused(answer: httpx.Response) -> ServerError:
    """Return the client's error for an unsuccessful response."""
    body = await answer.aread()
    return from_answer(
        answer.status_code, answer.headers.get("content-type", ""), body, answer.headers.get("retry-after")
    )


async def resumed(once: Callable[[str | None, Retries], Deliveries], since: str | None, retries: Retries) -> Deliveries:
    """Yield a client's deliveries over one connection after another, each continuing where the last one ended."""
    position = since
    while True:
        retry_after_s = None
        try:
            async with aclosing(once(position, retries)) as deliveries:
                async for came in deliveries:
                    position = came.cursor
                    retries.succeeded()
                    yield came
        except ServerError as error:
            if not error.retry:
                raise
            retry_after_s = error.retry_after_s
            reason: Exception = error
        except (ConnectionLost, httpx.TransportError, httpx.DecodingError) as error:
            if certificate_refused(error):
                raise Unreachable(str(error)) from error
            reason = error
        else:
            reason = ConnectionLost("the response ended")
        await waited(retries, reason, retry_after_s)


async def waited(retries: Retries, reason: Exception, retry_after_s: float | None) -> None:
    """Wait after a failed connection, and log it."""
    delay_s = retries.failed(retry_after_s)
    _log.info("not connected (%s); retrying in %.2f s", reason or type(reason).__name__, delay_s)
    await retries.sleep(delay_s)


class EventStreams:
    """The transport that receives server-sent events."""

    def __init__(self, http: Http, message_bytes_max: int) -> None:
        self._http = http
        self._most = message_bytes_max

    def deliveries(self, target: FollowTarget, since: str | None) -> Deliveries:
        def once(position: str | None, retries: Retries) -> Deliveries:
            return self._once(target, position, retries)

        return resumed(once, since, Retries(self._http.timing))

    async def _once(self, target: FollowTarget, since: str | None, retries: Retries) -> Deliveries:
        path, query = target.live(since)
        headers = {**self._http.headers(), "Accept": "text/event-stream"}
        timeout = self._http.timeout(self._http.timing.silence_s)
        async with self._http.client.stream("GET", path, params=query, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                raise await refused(answer)
            if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
                raise TransportBlocked("the response is not an event stream")
            parser = SseParser(self._most)
            async for piece in answer.aiter_bytes():
                for event in _transport_events(parser, piece):
                    if (came := _delivery_of(event)) is not None:
                        yield came
                if parser.retry_ms is not None:
                    retries.retry(parser.retry_ms)


def _transport_events(parser: SseParser, piece: bytes) -> list[SseEvent]:
    try:
        return list(parser.feed(piece))
    except TooLong as error:
        raise ServerError(200, "too_large", str(error)) from None


def _delivery_of(event: SseEvent) -> RawMessage | None:
    """Return a server-sent event as a delivery, or None if it is not one. If it is an `error`, raises the error that it
    describes."""
    if event.data is None:
        return None
    try:
        data: Any = msgspec.json.decode(event.data.decode(errors="replace"))
    except msgspec.DecodeError:
        raise ConnectionLost(f"the data of {event.type!r} is not JSON") from None
    if event.type == "error":
        raise from_problem(data)
    return delivery(event.type, data, event.id)


class Polling:
    """The transport that uses long polling."""

    def __init__(self, http: Http, clock: Callable[[], float]) -> None:
        self._http = http
        self._clock = clock

    def deliveries(self, target: FollowTarget, since: str | None) -> Deliveries:
        def once(position: str | None, retries: Retries) -> Deliveries:
            return self._once(target, position, retries)

        return resumed(once, since, Retries(self._http.timing))

    async def _once(self, target: FollowTarget, since: str | None, retries: Retries) -> Deliveries:
        """Poll repeatedly and yield the messages in each page. Ends when a poll fails, or returns nothing without
        waiting."""
        if target.kind == "query":
            raise TransportBlocked("live queries cannot be polled")
        while True:
            began = self._clock()
            messages = await self._page(target, since)
            for message in messages:
                since = message.cursor
                yield message
            if messages:
                continue
            if self._clock() - began < min(AT_ONCE_S, self._http.timing.wait_s):
                raise ConnectionLost("the server answered a long poll without waiting")
            retries.succeeded()

    async def _page(self, target: FollowTarget, since: str | None) -> list[RawMessage]:
        path, query = target.page(since, self._http.timing.wait_s)
        timeout = self._http.timeout(self._http.timing.wait_s + POLL_GRACE_S)
        answer = await self._http.client.get(path, params=query, headers=self._http.headers(), timeout=timeout)
        if answer.status_code != 200:
            raise await refused(answer)
        try:
            page = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            raise ConnectionLost("the page is not JSON") from None
        return deliveries_of(page, since)
