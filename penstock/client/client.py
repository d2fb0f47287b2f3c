"""The client of one running app: calls, and what is followed."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx
import msgspec

from penstock.client.answers import Answer, EventsWish, Page, Receipt, Rows, RowsWish, sound_page
from penstock.client.asking import EARLIEST, Target
from penstock.client.backoff import Backoff, Timing
from penstock.client.encoding import Sent, encode
from penstock.client.errors import ClientError, ServerError, Unreachable, certificate_refused
from penstock.client.following import Following, deliveries_by
from penstock.client.link import Dialer, Link
from penstock.client.messages import Row, StreamMessage, ViewMessage, message_of, reader
from penstock.client.table import LiveTable
from penstock.client.transports import Deliveries, EventStreams, Http, Polling, Transport, refused

T = TypeVar("T")
F = TypeVar("F", bound=Following[Any])
Key = str | Callable[[], str]
"""A key or token; or a function that gives the present one, called for each request and each connection."""
MIB = 1024 * 1024


class TableWish(TypedDict, total=False):
    """How a copy of a view is followed."""

    where: str | None
    select: str | None
    transport: Literal["auto", "websocket", "sse", "poll"]


class FollowWish(TableWish, total=False):
    """How something is followed, and from where."""

    since: str | None


class Client:
    """A running app at `url`. Use it as an async context manager.

    `tls` is for certificates that the system does not know, and for one of your own. `window` bounds the messages that
    wait for a slow user of one subscription, `message_bytes_max` the size of one. All that is followed by WebSocket
    shares one connection.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Key | None = None,
        tls: ssl.SSLContext | None = None,
        timing: Timing | None = None,
        window: int = 16,
        message_bytes_max: int = 64 * MIB,
    ) -> None:
        self.url = _checked(url)
        self.timing = timing or Timing()
        self._key = key
        self._http = httpx.AsyncClient(
            base_url=self.url, verify=True if tls is None else tls, limits=httpx.Limits(max_connections=None)
        )
        http = Http(self._http, self._headers, self.timing)
        self.dialer = Dialer(self.url, self._headers, tls, self.timing)
        self._link = Link(self.dialer, window, message_bytes_max)
        self._transports: dict[str, Transport] = {
            "websocket": self._link,
            "sse": EventStreams(http, message_bytes_max),
            "poll": Polling(http, time.monotonic),
        }
        self._followed: WeakSet[Following[Any]] = WeakSet()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of every connection. What is still followed ends."""
        await asyncio.gather(*(each.aclose() for each in self._followed), return_exceptions=True)
        await self._link.close()
        await self._http.aclose()

    async def publish(self, stream: str, events: Sent | Sequence[Sent] | bytes, *, key: str | None = None) -> Receipt:
        """Append events; returns when they are durable. It is tried again under one `Idempotency-Key`, so they count
        once; `key` is that, and drawn at random unless given. `bytes` are sent as they are: one event of a stream that
        has no class.

        `ServerError` with code `invalid_events` if none of them fits. `Unreachable` if it is not known whether they
        came: give a `key`, and you can go on trying.
        """
        body = events if isinstance(events, bytes) else encode(events)
        headers = {"Idempotency-Key": key or secrets.token_hex(16), "Content-Type": "application/json"}
        answer = await self.ask("POST", Target("stream", stream).path, content=body, headers=headers)
        return msgspec.json.decode(answer, type=Receipt)

    @overload
    async def rows(self, view: str, *, of: type[T], **wish: Unpack[RowsWish]) -> Rows[T]: ...
    @overload
    async def rows(self, view: str, **wish: Unpack[RowsWish]) -> Rows[Row]: ...
    async def rows(self, view: str, *, of: type[Any] = dict, **wish: Unpack[RowsWish]) -> Rows[Any]:
        """The rows of a view now; `of` is a class to make of them."""
        limit = wish.get("limit")
        target = Target("view", view, wish.get("where"), wish.get("select"))
        query = target.given(order=wish.get("order"), limit=None if limit is None else str(limit))
        page = sound_page(await self.ask("GET", target.path, query=query), "rows")
        return Rows(reader(of)(page["rows"]), page["cursor"], bool(page.get("truncated")))

    @overload
    def events(self, stream: str, *, of: type[T], **wish: Unpack[EventsWish]) -> AsyncIterator[Page[T]]: ...
    @overload
    def events(self, stream: str, **wish: Unpack[EventsWish]) -> AsyncIterator[Page[Row]]: ...
    async def events(
        self, stream: str, *, of: type[Any] = dict, **wish: Unpack[EventsWish]
    ) -> AsyncIterator[Page[Any]]:
        """What a stream has after `since` (from the earliest event, unless given), page by page, up to its end. The
        cursor of the last page is where to begin another time. `limit` is of one page."""
        since, limit = wish.get("since", EARLIEST), wish.get("limit")
        target = Target("stream", stream, wish.get("where"), wish.get("select"))
        while True:
            query = target.given(since=since, limit=None if limit is None else str(limit))
            page = sound_page(await self.ask("GET", target.path, query=query), "events")
            yield Page(reader(of)(page["events"]), page["cursor"], bool(page.get("reset")))
            if not page.get("more"):
                return
            since = page["cursor"]

    @overload
    async def query(self, sql: str, *, of: type[T], limit: int | None = None) -> Answer[T]: ...
    @overload
    async def query(self, sql: str, *, limit: int | None = None) -> Answer[Row]: ...
    async def query(self, sql: str, *, of: type[Any] = dict, limit: int | None = None) -> Answer[Any]:
        """The result of a SELECT over views and recent events."""
        asked = {"sql": sql} | ({} if limit is None else {"limit": limit})
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        raw = await self.ask("POST", "/v1/query", content=msgspec.json.encode(asked), headers=headers)
        found = msgspec.json.decode(raw, type=Answer[Any])
        return msgspec.structs.replace(found, rows=reader(of)(found.rows))

    @overload
    def follow(self, *, stream: str, of: type[T], **wish: Unpack[FollowWish]) -> Following[StreamMessage[T]]: ...
    @overload
    def follow(self, *, stream: str, **wish: Unpack[FollowWish]) -> Following[StreamMessage[Row]]: ...
    @overload
    def follow(self, *, view: str, of: type[T], **wish: Unpack[FollowWish]) -> Following[ViewMessage[T]]: ...
    @overload
    def follow(self, *, view: str, **wish: Unpack[FollowWish]) -> Following[ViewMessage[Row]]: ...
    @overload
    def follow(self, *, query: str, of: type[T], **wish: Unpack[FollowWish]) -> Following[ViewMessage[T]]: ...
    @overload
    def follow(self, *, query: str, **wish: Unpack[FollowWish]) -> Following[ViewMessage[Row]]: ...
    def follow(
        self,
        *,
        stream: str | None = None,
        view: str | None = None,
        query: str | None = None,
        of: type[Any] = dict,
        **wish: Unpack[FollowWish],
    ) -> Following[Any]:
        """The messages of a stream, from now on unless `since` says otherwise; of a view, its rows first; or of a query
        that is kept live, a `Snapshot` whenever its result has changed."""
        read, target = reader(of), _target(stream, view, query, wish)
        start = self._start(target, wish)
        return self._kept(Following(target, wish.get("since"), start, lambda came: message_of(came, read)))

    @overload
    def table(
        self, view: str, *, of: type[T], key: Sequence[str] | None = None, **wish: Unpack[TableWish]
    ) -> LiveTable[T]: ...
    @overload
    def table(self, view: str, *, key: Sequence[str] | None = None, **wish: Unpack[TableWish]) -> LiveTable[Row]: ...
    def table(
        self, view: str, *, of: type[Any] = dict, key: Sequence[str] | None = None, **wish: Unpack[TableWish]
    ) -> LiveTable[Any]:
        """A copy of a view that is kept up to date. `key` names the view's key columns; without it the app is asked,
        for which one must be allowed to read everything."""

        async def asked() -> Sequence[str]:
            return key if key is not None else await self._key_of(view)

        target = _target(None, view, None, wish)
        return self._kept(LiveTable(target, self._start(target, wish), asked, reader(of)))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """The body of a good answer. Tried again while a retry can help, for `timing.call_s` in all."""
        backoff, deadline = Backoff(self.timing), time.monotonic() + self.timing.call_s
        while True:
            failure: ClientError
            try:
                answer = await self._http.request(
                    method,
                    path,
                    params=query,
                    content=content,
                    headers={**(headers or {}), **self._headers()},
                    timeout=httpx.Timeout(self.timing.call_s, connect=self.timing.connect_s),
                )
                if answer.is_success:
                    return answer.content
                failure = await refused(answer)
                if not failure.retry:
                    raise failure
                delay = backoff.failed(failure.retry_after_s)
            except (httpx.TransportError, httpx.DecodingError) as error:
                failure = Unreachable(f"{method} {self.url}{path}: {error or type(error).__name__}")
                if certificate_refused(error):
                    raise failure from error
                delay = backoff.failed()
            if time.monotonic() + delay > deadline:
                raise failure
            await self.timing.sleep(delay)

    def _start(self, target: Target, wish: TableWish) -> Callable[[str | None], Deliveries]:
        chosen = wish.get("transport", "auto")
        ways = list(self._transports.values()) if chosen == "auto" else [self._transports[chosen]]
        return lambda since: deliveries_by(ways, target, since)

    def _kept(self, followed: F) -> F:
        self._followed.add(followed)
        return followed

    async def _key_of(self, view: str) -> Sequence[str]:
        app = msgspec.json.decode(await self.ask("GET", "/v1/app"))
        for each in app["views"]:
            if each["name"] == view:
                return list(each["key"])
        raise ServerError(404, "not_found", f"there is no view {view!r}")

    def _headers(self) -> dict[str, str]:
        key = self._key() if callable(self._key) else self._key
        return {} if key is None else {"Authorization": f"Bearer {key}"}


def _target(stream: str | None, view: str | None, query: str | None, wish: TableWish) -> Target:
    where, select = wish.get("where"), wish.get("select")
    named: dict[Literal["stream", "view", "query"], str | None] = {"stream": stream, "view": view, "query": query}
    found = [Target(kind, name, where, select) for kind, name in named.items() if name is not None]
    if len(found) != 1:
        raise TypeError("say what to follow: a stream, a view or a query")
    if query is not None and (where or select):
        raise TypeError("a query says itself what it selects")
    return found[0]


def _checked(url: str) -> str:
    """An address without what does not belong into it; a secret in it would be in logs."""
    if "@" in url or "?" in url or "#" in url:
        raise ValueError("the url of a client has no user, password, query or fragment; give a key as `key`")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the url of a client begins with http:// or https:// and has a host")
    return url.rstrip("/")
