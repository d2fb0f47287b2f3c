"""Server-sent events and long polling: a target as deliveries without end, through every break."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import httpx
import msgspec

from penstock.client.asking import Target
from penstock.client.backoff import Backoff, Timing
from penstock.client.errors import (
    Lost,
    NotSpoken,
    ServerError,
    Unreachable,
    certificate_refused,
    from_answer,
    from_problem,
)
from penstock.client.messages import Delivery, delivery
from penstock.client.pages import deliveries_of
from penstock.client.sse import SseEvent, SseParser

Deliveries = AsyncGenerator[Delivery, None]
AT_ONCE_S = 1.0
"""An answer to a long poll that says nothing new and comes so soon did not wait."""
POLL_GRACE_S = 15.0
_log = logging.getLogger("penstock.client")


class Transport(Protocol):
    """A way to follow a target."""

    def deliveries(self, target: Target, since: str | None) -> Deliveries:
        """Every message from `since` on, in order, none left out and none twice, through every break of a connection.

        Ends only by an error that no retry helps: `ServerError`, or `NotSpoken` if this transport does not work here.
        """


class Http:
    """Requests to one server, as the transports need them."""

    def __init__(self, client: httpx.AsyncClient, headers: Callable[[], dict[str, str]], timing: Timing) -> None:
        self.client = client
        self.headers = headers
        self.timing = timing

    def timeout(self, read_s: float) -> httpx.Timeout:
        return httpx.Timeout(read_s, connect=self.timing.connect_s, pool=self.timing.connect_s)


async def refused(answer: httpx.Response) -> ServerError:
    """The error of an answer that is no success."""
    body = await answer.aread()
    return from_answer(
        answer.status_code, answer.headers.get("content-type", ""), body, answer.headers.get("retry-after")
    )


async def resumed(once: Callable[[str | None, Backoff], Deliveries], since: str | None, backoff: Backoff) -> Deliveries:
    """One connection after the other, each from where the last one ended."""
    position = since
    while True:
        retry_after_s = None
        try:
            async with aclosing(once(position, backoff)) as deliveries:
                async for came in deliveries:
                    position = came.cursor
                    backoff.succeeded()
                    yield came
        except ServerError as error:
            if not error.retry:
                raise
            retry_after_s = error.retry_after_s
            reason: Exception = error
        except (Lost, httpx.TransportError, httpx.DecodingError) as error:
            if certificate_refused(error):
                raise Unreachable(str(error)) from error
            reason = error
        else:
            reason = Lost("the answer ended")
        await waited(backoff, reason, retry_after_s)


async def waited(backoff: Backoff, reason: Exception, retry_after_s: float | None) -> None:
    """Wait after a failure, and say so to whoever reads the log."""
    delay_s = backoff.failed(retry_after_s)
    _log.info("not connected (%s); trying again in %.2f s", reason or type(reason).__name__, delay_s)
    await backoff.sleep(delay_s)


class EventStreams:
    """Server-sent events."""

    def __init__(self, http: Http, message_bytes_max: int) -> None:
        self._http = http
        self._most = message_bytes_max

    def deliveries(self, target: Target, since: str | None) -> Deliveries:
        def once(position: str | None, backoff: Backoff) -> Deliveries:
            return self._once(target, position, backoff)

        return resumed(once, since, Backoff(self._http.timing))

    async def _once(self, target: Target, since: str | None, backoff: Backoff) -> Deliveries:
        path, query = target.live(since)
        headers = {**self._http.headers(), "Accept": "text/event-stream"}
        timeout = self._http.timeout(self._http.timing.silence_s)
        async with self._http.client.stream("GET", path, params=query, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                raise await refused(answer)
            if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
                raise NotSpoken("the answer is no event stream")
            parser = SseParser(self._most)
            async for piece in answer.aiter_bytes():
                for event in _parsed(parser, piece):
                    if (came := _delivery_of(event)) is not None:
                        yield came
                if parser.retry_ms is not None:
                    backoff.retry(parser.retry_ms)


def _parsed(parser: SseParser, piece: bytes) -> list[SseEvent]:
    try:
        return list(parser.feed(piece))
    except ValueError as error:
        raise ServerError(200, "too_large", str(error)) from None


def _delivery_of(event: SseEvent) -> Delivery | None:
    """The delivery of an event; None for what is none. Raises the problem of an `error`."""
    try:
        data: Any = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        raise Lost(f"the data of {event.type!r} is not JSON") from None
    if event.type == "error":
        raise from_problem(data)
    return delivery(event.type, data, event.id)


class Polling:
    """Long polling."""

    def __init__(self, http: Http, clock: Callable[[], float]) -> None:
        self._http = http
        self._clock = clock

    def deliveries(self, target: Target, since: str | None) -> Deliveries:
        def once(position: str | None, backoff: Backoff) -> Deliveries:
            return self._once(target, position, backoff)

        return resumed(once, since, Backoff(self._http.timing))

    async def _once(self, target: Target, since: str | None, backoff: Backoff) -> Deliveries:
        """Page after page, until one fails, or comes too soon with nothing."""
        if target.kind == "query":
            raise NotSpoken("a query that is kept live is not polled")
        while True:
            began = self._clock()
            found = await self._page(target, since)
            for each in found:
                since = each.cursor
                yield each
            if found:
                continue
            if self._clock() - began < min(AT_ONCE_S, self._http.timing.wait_s):
                raise Lost("a long poll did not wait")
            backoff.succeeded()

    async def _page(self, target: Target, since: str | None) -> list[Delivery]:
        path, query = target.page(since, self._http.timing.wait_s)
        timeout = self._http.timeout(self._http.timing.wait_s + POLL_GRACE_S)
        answer = await self._http.client.get(path, params=query, headers=self._http.headers(), timeout=timeout)
        if answer.status_code != 200:
            raise await refused(answer)
        try:
            page = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            raise Lost("the page is not JSON") from None
        return deliveries_of(page, since)
