"""Live queries: queries that run again when their inputs have changed, and send the result when it has changed.

Followers of the same query share one evaluation, regardless of their transport. A slow follower gets the latest result
as soon as the follower is ready. Intermediate results are not kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.core.clock import loop_time
from penstock.core.contracts import Channel, Delivery, PageBody, Style
from penstock.core.cursor import QueryCursor, decode, encode
from penstock.core.errors import BadCursor, BadExpression, BadParameter, Busy, QueryTooLarge
from penstock.core.settings import Settings
from penstock.serve.channels.stream_reader import EARLIEST, LATEST
from penstock.serve.query.answers import QueryResponse
from penstock.serve.query.plan import QueryPlan

SHARE = 4
"""Length of the pause after each run, as a multiple of the running time. This limits a query to a fifth of a CPU
core."""
Run = Callable[[QueryPlan], Awaitable[QueryResponse]]
RequireSpace = Callable[["_Kept", int], None]
Versions = Callable[[tuple[str, ...]], Awaitable[tuple[object, ...]]]


class LiveQueries:
    """The queries that have followers, each run once for all of them. Not thread-safe."""

    def __init__(self, run: Run, versions: Versions, settings: Settings) -> None:
        self._run, self._versions, self._settings = run, versions, settings
        self._turns = asyncio.Semaphore(max(1, settings.queries_max // 2))
        self._kept: dict[Hashable, _Kept] = {}

    @contextmanager
    def following(self, plan: QueryPlan, who: str) -> Iterator[_Kept]:
        """Keep a query live for the duration of the block.

        Raises `Busy` if the query is not live yet and the limit is reached. A named caller who does not follow the
        query yet must leave room for other callers: `Busy` is also raised if the caller already follows half of the
        maximum number of queries. The same applies if the results of the caller's live queries use more than half of
        the memory.
        """
        key = plan.key
        kept = self._kept.get(key)
        if kept is None or who not in kept.followers:
            self._require_room(kept, who)
        if kept is None or kept.error is not None:
            pace_s = self._settings.live_query_ms / 1000
            kept = self._kept[key] = _Kept(plan, self._in_turn, self._versions, self._require_space, pace_s)
        kept.followers[who] += 1
        try:
            yield kept
        finally:
            kept.followers -= Counter([who])
            if not kept.followers:
                kept.task.cancel()
                if self._kept.get(key) is kept:
                    del self._kept[key]

    def _require_room(self, kept: _Kept | None, who: str) -> None:
        most = self._settings.live_queries_max
        if kept is None and len(self._kept) >= most:
            raise Busy(f"there are already {most} live queries, the maximum", retry_after_s=5)
        share = max(1, most // 2)
        if who and sum(who in query.followers for query in self._kept.values()) >= share:
            raise Busy(f"you already follow {share} live queries, the maximum for one caller", retry_after_s=5)
        half = self._settings.query_memory_bytes // 2
        if who and sum(query.size for query in self._kept.values() if who in query.followers) > half:
            raise Busy(f"the results of your live queries exceed {half // 2**20} MiB", retry_after_s=5)

    def _require_space(self, kept: _Kept, size: int) -> None:
        """Raise `QueryTooLarge` if a query's result does not fit into memory together with the other results.

        The latest result of each live query is held in memory.
        """
        most = self._settings.query_memory_bytes
        if size + sum(other.size for other in self._kept.values() if other is not kept) > most:
            raise QueryTooLarge(f"the results of all live queries together exceed {most // 2**20} MiB")

    async def _in_turn(self, plan: QueryPlan) -> QueryResponse:
        """Run a query when it is its turn.

        Live queries use at most half of the slots, so they do not delay one-time queries.
        """
        async with self._turns:
            return await self._run(plan)


class _Kept:
    """One live query, and its latest result, shared by all followers."""

    def __init__(
        self, plan: QueryPlan, run: Run, versions: Versions, require_space: RequireSpace, pace_s: float
    ) -> None:
        self._asked, self._run, self._versions = plan, run, versions
        self._require_space, self._pace_s = require_space, pace_s
        self.followers: Counter[str] = Counter()
        self.latest: Delivery | None = None
        self.error: Exception | None = None
        self._news = asyncio.Event()
        self._seen: tuple[object, ...] | None = None
        self.task = asyncio.create_task(self._keep_result_current(), name="live query")

    @property
    def size(self) -> int:
        """The size of the query's latest result in bytes."""
        return 0 if self.latest is None else len(self.latest.data)

    async def result(self, held: str | None, timeout_s: float | None) -> Delivery:
        """Return the query's latest result as soon as it differs from `held`, the result that the follower has, or
        after the timeout.

        There is no timeout for the first result. Raises the error that ended the query.
        """
        deadline = None if timeout_s is None else loop_time() + timeout_s
        while True:
            if self.error is not None:
                raise self.error
            if self.latest is not None and self.latest.cursor != held:
                return self.latest
            news = self._news
            try:
                async with asyncio.timeout_at(deadline if self.latest is not None else None):
                    await news.wait()
            except TimeoutError:
                assert self.latest is not None
                return self.latest

    async def _keep_result_current(self) -> None:
        took_s = 0.0
        while True:
            try:
                took_s = await self._look()
            except Busy as error:
                if self.latest is None:
                    return self._end_live_query(error)
            except Exception as error:
                return self._end_live_query(error)
            await asyncio.sleep(max(self._pace_s, SHARE * took_s))

    async def _look(self) -> float:
        """Run the query if its inputs have changed, and return its running time.

        Changes made while the query runs are picked up by the next run.
        """
        versions = await self._versions(self._asked.checked.reads)
        if versions == self._seen:
            return 0.0
        response = await self._run(self._asked)
        key = blake2b(self._asked.checked.sql.encode(), digest_size=32).digest()
        cursor = encode(QueryCursor(blake2b(response.data, digest_size=15, key=key).digest()))
        self._seen = versions
        if self.latest is None or self.latest.cursor != cursor:
            self._require_space(self, len(response.data))
            self.latest = Delivery("snapshot", response.data + b"}", cursor)
            self._wake_followers()
        return response.took_s

    def _end_live_query(self, error: Exception) -> None:
        self.error = error
        self._wake_followers()

    def _wake_followers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class QueryChannel:
    """A `Channel` of a query's results. Each result is a snapshot.

    A cursor identifies a result by its contents, so a client that resumes gets no snapshot if the result is unchanged.
    """

    def __init__(
        self, plan: Callable[[], Awaitable[QueryPlan]], live: LiveQueries, heartbeat_s: float, who: str = ""
    ) -> None:
        self._plan, self._live, self._heartbeat_s, self._who = plan, live, heartbeat_s, who

    def asked_by(self, who: str) -> Channel:
        return QueryChannel(self._plan, self._live, self._heartbeat_s, who)

    def through(self, where: str | None, select: str | None) -> Channel:
        message = "where and select cannot be used with a query: put the conditions and columns into its SQL"
        raise BadExpression(message, part="where", position=0)

    def part(self, where: str | None, select: str | None) -> Channel:
        return self.through(where, select)

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        raise BadExpression("a query is limited through the streams and views that it reads", part="where", position=0)

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> PageBody:
        if order is not None:
            raise BadParameter("order cannot be used with a query: put ORDER BY into its SQL", parameter="order")
        held = _held_result_cursor(since)
        with self._live.following(await self._plan(), self._who) as kept:
            if held == LATEST:
                held = (await kept.result(None, None)).cursor
            delivery = await kept.result(held, wait_s)
        cursor = msgspec.json.encode(delivery.cursor)
        return PageBody(delivery.data[:-1] + b',"cursor":' + cursor + b"}", delivery.cursor, delivery.cursor)

    async def last(self, limit: int) -> PageBody:
        return await self.page(None, limit)

    async def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        held = _held_result_cursor(since)
        with self._live.following(await self._plan(), self._who) as kept:
            delivery = await kept.result(None, None)
            known = held in (LATEST, delivery.cursor)
            while True:
                held, unsent = delivery.cursor, [_live_query_progress(delivery) if known else delivery]
                del delivery  # followers do not hold an old result while they wait
                yield unsent.pop()
                delivery = await kept.result(held, self._heartbeat_s)
                known = delivery.cursor == held


def _held_result_cursor(since: str | None) -> str | None:
    """Return the cursor of the result that a client has, or None if it has none."""
    if since is None or since == EARLIEST:
        return None
    if since != LATEST and not isinstance(decode(since), QueryCursor):
        raise BadCursor("this cursor is for a stream or view, not a query")
    return since


def _live_query_progress(delivery: Delivery) -> Delivery:
    return Delivery("progress", b"{}", delivery.cursor)
