"""The client for a running app: calls and subscriptions."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx
import msgspec

from penstock.client.answers import Answer, EventsOptions, Page, Receipt, Rows, RowsOptions, checked_page
from penstock.client.asking import EARLIEST, FollowTarget
from penstock.client.encoding import Sent, encode
from penstock.client.errors import ClientError, ServerError, Unreachable, certificate_refused
from penstock.client.following import Following, deliveries_by
from penstock.client.link import Dialer, WebSocketLink
from penstock.client.messages import Row, StreamMessage, ViewMessage, message_of, reader
from penstock.client.table import LiveTable
from penstock.client.timing import Retries, Timing
from penstock.client.transports import Deliveries, EventStreams, Http, Polling, Transport, refused

T = TypeVar("T")
F = TypeVar("F", bound=Following[Any])
Key = str | Callable[[], str]
"""A key or token, or a function that returns the current key or token. The function is called for each request and
connection."""
MIB = 1024 * 1024


class TableOptions(TypedDict, total=False):
    """Options for a live copy of a view."""

    where: str | None
    select: str | None
    transport: Literal["auto", "websocket", "sse", "poll"]


class FollowOptions(TableOptions, total=False):
    """Options for following a target, including where to start."""

    since: str | None


class Client:
    """A running app at `url`. Use it as an async context manager.

    Pass `tls` to accept certificates that the system does not trust, or to use a client certificate. `window` limits
    how many messages can wait for a subscription's slow reader, and `message_bytes_max` limits the size of one message.
    All WebSocket subscriptions share one connection.
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
        self.url = _checked_server_url(url)
        self.timing = timing or Timing()
        self._key = key
        self._http = httpx.AsyncClient(
            base_url=self.url, verify=True if tls is None else tls, limits=httpx.Limits(max_connections=None)
        )
        http = Http(self._http, self._key_headers, self.timing)
        self.dialer = Dialer(self.url, self._key_headers, tls, self.timing)
        self._link = WebSocketLink(self.dialer, window, message_bytes_max)
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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection. All subscriptions end."""
        await asyncio.gather(*(followed.aclose() for followed in self._followed), return_exceptions=True)
        await self._link.close()
        await self._http.aclose()

    async def publish(self, stream: str, events: Sent | Sequence[Sent] | bytes, *, key: str | None = None) -> Receipt:
        """Append events, and return when they are durable.

        `bytes` are sent unchanged, as one event for a stream without a class.

        Retries use the same `Idempotency-Key`, so the events are accepted only once. The key is random unless you pass
        `key`. Raises `ServerError` with code `invalid_events` if every event was rejected, and `Unreachable` if the
        outcome is unknown; if you passed your own `key`, you can safely try again.
        """
        body = events if isinstance(events, bytes) else encode(events)
        headers = {"Idempotency-Key": key or secrets.token_hex(16), "Content-Type": "application/json"}
        answer = await self.ask("POST", FollowTarget("stream", stream).path, content=body, headers=headers)
        return msgspec.json.decode(answer, type=Receipt)

    @overload
    async def rows(self, view: str, *, of: type[T], **wish: Unpack[RowsOptions]) -> Rows[T]: ...
    @overload
    async def rows(self, view: str, **wish: Unpack[RowsOptions]) -> Rows[Row]: ...
    async def rows(self, view: str, *, of: type[Any] = dict, **wish: Unpack[RowsOptions]) -> Rows[Any]:
        """Return the current rows of a view; `of` is a class to convert them to."""
        limit = wish.get("limit")
        target = FollowTarget("view", view, wish.get("where"), wish.get("select"))
        query = target.given(order=wish.get("order"), limit=None if limit is None else str(limit))
        page = checked_page(await self.ask("GET", target.path, query=query), "rows")
        return Rows(reader(of)(page["rows"]), page["cursor"], bool(page.get("truncated")))

    @overload
    def events(self, stream: str, *, of: type[T], **wish: Unpack[EventsOptions]) -> AsyncIterator[Page[T]]: ...
    @overload
    def events(self, stream: str, **wish: Unpack[EventsOptions]) -> AsyncIterator[Page[Row]]: ...
    async def events(
        self, stream: str, *, of: type[Any] = dict, **wish: Unpack[EventsOptions]
    ) -> AsyncIterator[Page[Any]]:
        """Yield pages of a stream's events after `since` (default: from the earliest event), up to the end of the
        stream.

        To continue later, pass the last page's cursor as `since`. `limit` applies to each page.
        """
        since, limit = wish.get("since", EARLIEST), wish.get("limit")
        target = FollowTarget("stream", stream, wish.get("where"), wish.get("select"))
        while True:
            query = target.given(since=since, limit=None if limit is None else str(limit))
            page = checked_page(await self.ask("GET", target.path, query=query), "events")
            yield Page(reader(of)(page["events"]), page["cursor"], bool(page.get("reset")))
            if not page.get("more"):
                return
            since = page["cursor"]

    @overload
    async def query(self, sql: str, *, of: type[T], limit: int | None = None) -> Answer[T]: ...
    @overload
    async def query(self, sql: str, *, limit: int | None = None) -> Answer[Row]: ...
    async def query(self, sql: str, *, of: type[Any] = dict, limit: int | None = None) -> Answer[Any]:
        """Return the result of a SELECT on views and recent events."""
        asked = {"sql": sql} | ({} if limit is None else {"limit": limit})
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        raw = await self.ask("POST", "/v1/query", content=msgspec.json.encode(asked), headers=headers)
        answer = msgspec.json.decode(raw, type=Answer[Any])
        return msgspec.structs.replace(answer, rows=reader(of)(answer.rows))

    @overload
    def follow(self, *, stream: str, of: type[T], **wish: Unpack[FollowOptions]) -> Following[StreamMessage[T]]: ...
    @overload
    def follow(self, *, stream: str, **wish: Unpack[FollowOptions]) -> Following[StreamMessage[Row]]: ...
    @overload
    def follow(self, *, view: str, of: type[T], **wish: Unpack[FollowOptions]) -> Following[ViewMessage[T]]: ...
    @overload
    def follow(self, *, view: str, **wish: Unpack[FollowOptions]) -> Following[ViewMessage[Row]]: ...
    @overload
    def follow(self, *, query: str, of: type[T], **wish: Unpack[FollowOptions]) -> Following[ViewMessage[T]]: ...
    @overload
    def follow(self, *, query: str, **wish: Unpack[FollowOptions]) -> Following[ViewMessage[Row]]: ...
    def follow(
        self,
        *,
        stream: str | None = None,
        view: str | None = None,
        query: str | None = None,
        of: type[Any] = dict,
        **wish: Unpack[FollowOptions],
    ) -> Following[Any]:
        """Follow a stream from now on or from `since`, a view (starting with all its rows), or a live query.

        A live query yields a `Snapshot` whenever its result changes.
        """
        read, target = reader(of), _follow_target(stream, view, query, wish)
        start = self._start(target, wish)
        return self._remember_following(
            Following(target, wish.get("since"), start, lambda came: message_of(came, read))
        )

    @overload
    def table(
        self, view: str, *, of: type[T], key: Sequence[str] | None = None, **wish: Unpack[TableOptions]
    ) -> LiveTable[T]: ...
    @overload
    def table(self, view: str, *, key: Sequence[str] | None = None, **wish: Unpack[TableOptions]) -> LiveTable[Row]: ...
    def table(
        self, view: str, *, of: type[Any] = dict, key: Sequence[str] | None = None, **wish: Unpack[TableOptions]
    ) -> LiveTable[Any]:
        """Return a copy of a view that is kept up to date. `key` names the view's key columns.

        Without `key`, the client looks up the key columns in the app's description, which requires permission to read
        everything.
        """

        async def asked() -> Sequence[str]:
            return key if key is not None else await self._key_of(view)

        target = _follow_target(None, view, None, wish)
        return self._remember_following(LiveTable(target, self._start(target, wish), asked, reader(of)))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Send a request to the app and return the body of a successful response.

        Retries as long as a retry can help, for up to `timing.call_s` seconds in total.
        """
        retries, deadline = Retries(self.timing), time.monotonic() + self.timing.call_s
        while True:
            failure: ClientError
            try:
                answer = await self._http.request(
                    method,
                    path,
                    params=query,
                    content=content,
                    headers={**(headers or {}), **self._key_headers()},
                    timeout=httpx.Timeout(self.timing.call_s, connect=self.timing.connect_s),
                )
                if answer.is_success:
                    return answer.content
                failure = await refused(answer)
                if not failure.retry:
                    raise failure
                delay = retries.failed(failure.retry_after_s)
            except (httpx.TransportError, httpx.DecodingError) as error:
                failure = Unreachable(f"{method} {self.url}{path}: {error or type(error).__name__}")
                if certificate_refused(error):
                    raise failure from error
                delay = retries.failed()
            if time.monotonic() + delay > deadline:
                raise failure
            await self.timing.sleep(delay)

    def _start(self, target: FollowTarget, wish: TableOptions) -> Callable[[str | None], Deliveries]:
        chosen = wish.get("transport", "auto")
        ways = list(self._transports.values()) if chosen == "auto" else [self._transports[chosen]]
        return lambda since: deliveries_by(ways, target, since)

    def _remember_following(self, followed: F) -> F:
        self._followed.add(followed)
        return followed

    async def _key_of(self, view: str) -> Sequence[str]:
        app = msgspec.json.decode(await self.ask("GET", "/v1/app"))
        for entry in app["views"]:
            if entry["name"] == view:
                return list(entry["key"])
        raise ServerError(404, "not_found", f"there is no view {view!r}")

    def _key_headers(self) -> dict[str, str]:
        key = self._key() if callable(self._key) else self._key
        return {} if key is None else {"Authorization": f"Bearer {key}"}


def _follow_target(stream: str | None, view: str | None, query: str | None, wish: TableOptions) -> FollowTarget:
    where, select = wish.get("where"), wish.get("select")
    named: dict[Literal["stream", "view", "query"], str | None] = {"stream": stream, "view": view, "query": query}
    targets = [FollowTarget(kind, name, where, select) for kind, name in named.items() if name is not None]
    if len(targets) != 1:
        raise TypeError("pass exactly one of stream, view and query")
    if query is not None and (where or select):
        raise TypeError("where and select cannot be used with a query; put them into its SQL")
    return targets[0]


def _checked_server_url(url: str) -> str:
    """Return a server's address after checking that it has no user, password, query or fragment: a secret in one of
    them would appear in logs."""
    if "@" in url or "?" in url or "#" in url:
        raise ValueError("a client's URL must not contain a user, password, query or fragment; pass a key as `key`")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a client's URL must begin with http:// or https:// and contain a host")
    return url.rstrip("/")
