"""Queries that are kept live: run again when what they read has changed, and sent when the result has.

Followers of the same query share one evaluation, whatever transport they are on. One who is slow gets the latest
result when it is ready for it; those in between are not kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.contracts import Channel, Delivery, Page, Style
from penstock.cursor import QueryCursor, decode, encode
from penstock.errors import BadCursor, BadExpression, BadParameter, Busy, QueryTooLarge
from penstock.serve.channels.pieces import EARLIEST, LATEST
from penstock.serve.query.answers import Answer
from penstock.serve.query.plan import Plan
from penstock.settings import Settings

SHARE = 4
"""A query rests this many times as long as it took, so that none takes more than a fifth of a processor."""
Run = Callable[[Plan], Awaitable[Answer]]
RequireSpace = Callable[["_Kept", int], None]
Versions = Callable[[tuple[str, ...]], Awaitable[tuple[object, ...]]]


class LiveQueries:
    """The queries that someone follows just now, each once. Belongs to one event loop."""

    def __init__(self, run: Run, versions: Versions, settings: Settings) -> None:
        self._run, self._versions, self._settings = run, versions, settings
        self._turns = asyncio.Semaphore(max(1, settings.queries_max // 2))
        self._kept: dict[Hashable, _Kept] = {}

    @contextmanager
    def following(self, plan: Plan, who: str) -> Iterator[_Kept]:
        """Keep a query live while in the block. `Busy` if it is another one than those there are, and too many, or half
        of what may be are this caller's: there is always room for another. One without a name has no share."""
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
            raise Busy(f"all {most} queries that may be live are taken", retry_after_s=5)
        share = max(1, most // 2)
        if who and sum(who in each.followers for each in self._kept.values()) >= share:
            raise Busy(f"you keep {share} queries live, and no one may keep more", retry_after_s=5)
        half = self._settings.query_memory_bytes // 2
        if who and sum(each.size for each in self._kept.values() if who in each.followers) > half:
            raise Busy(f"the results of your live queries have more than {half // 2**20} MiB", retry_after_s=5)

    def _require_space(self, kept: _Kept, size: int) -> None:
        """The latest result of each live query is held. `QueryTooLarge` if this one does not fit beside the others."""
        most = self._settings.query_memory_bytes
        if size + sum(each.size for each in self._kept.values() if each is not kept) > most:
            raise QueryTooLarge(f"the results of all live queries together may have {most // 2**20} MiB")

    async def _in_turn(self, plan: Plan) -> Answer:
        """Run a query when it is its turn. Live ones take half of the places at most: who asks once is not held up."""
        async with self._turns:
            return await self._run(plan)


class _Kept:
    """One query, and its latest result as every follower gets it."""

    def __init__(self, plan: Plan, run: Run, versions: Versions, require_space: RequireSpace, pace_s: float) -> None:
        self._asked, self._run, self._versions = plan, run, versions
        self._require_space, self._pace_s = require_space, pace_s
        self.followers: Counter[str] = Counter()
        self.latest: Delivery | None = None
        self.error: Exception | None = None
        self._news = asyncio.Event()
        self._seen: tuple[object, ...] | None = None
        self.task = asyncio.create_task(self._keep(), name="live query")

    @property
    def size(self) -> int:
        """The bytes of the latest result."""
        return 0 if self.latest is None else len(self.latest.data)

    async def result(self, held: str | None, timeout_s: float | None) -> Delivery:
        """The latest result: as soon as it is another one than is held, or when the time is over. A first one is
        always waited for. Raises what has ended the query."""
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
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

    async def _keep(self) -> None:
        took_s = 0.0
        while True:
            try:
                took_s = await self._look()
            except Busy as error:
                if self.latest is None:
                    return self._end(error)
            except Exception as error:
                return self._end(error)
            await asyncio.sleep(max(self._pace_s, SHARE * took_s))

    async def _look(self) -> float:
        """Run the query if there is something new, and say how long that took. What comes while it runs is found new
        the next time."""
        versions = await self._versions(self._asked.checked.reads)
        if versions == self._seen:
            return 0.0
        found = await self._run(self._asked)
        key = blake2b(self._asked.checked.sql.encode(), digest_size=32).digest()
        cursor = encode(QueryCursor(blake2b(found.data, digest_size=15, key=key).digest()))
        self._seen = versions
        if self.latest is None or self.latest.cursor != cursor:
            self._require_space(self, len(found.data))
            self.latest = Delivery("snapshot", found.data + b"}", cursor)
            self._tell()
        return found.took_s

    def _end(self, error: Exception) -> None:
        self.error = error
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class QueryChannel:
    """A `Channel` of the results of a query. Each is a snapshot; a cursor names a result by what is in it, so one who
    comes back is sent nothing if it is still the same."""

    def __init__(
        self, plan: Callable[[], Awaitable[Plan]], live: LiveQueries, heartbeat_s: float, who: str = ""
    ) -> None:
        self._plan, self._live, self._heartbeat_s, self._who = plan, live, heartbeat_s, who

    def asked_by(self, who: str) -> Channel:
        return QueryChannel(self._plan, self._live, self._heartbeat_s, who)

    def through(self, where: str | None, select: str | None) -> Channel:
        raise BadExpression("a query has its conditions and columns in its own text", part="where", position=0)

    def part(self, where: str | None, select: str | None) -> Channel:
        return self.through(where, select)

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        raise BadExpression("a query is limited by what it reads", part="where", position=0)

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> Page:
        if order is not None:
            raise BadParameter("a query has its order in its own text", parameter="order")
        held = _held(since)
        with self._live.following(await self._plan(), self._who) as kept:
            if held == LATEST:
                held = (await kept.result(None, None)).cursor
            found = await kept.result(held, wait_s)
        cursor = msgspec.json.encode(found.cursor)
        return Page(found.data[:-1] + b',"cursor":' + cursor + b"}", found.cursor, found.cursor)

    async def last(self, limit: int) -> Page:
        return await self.page(None, limit)

    async def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        held = _held(since)
        with self._live.following(await self._plan(), self._who) as kept:
            first = await kept.result(None, None)
            yield _progress(first) if held in (LATEST, first.cursor) else first
            held = first.cursor
            while True:
                found = await kept.result(held, self._heartbeat_s)
                yield _progress(found) if found.cursor == held else found
                held = found.cursor


def _held(since: str | None) -> str | None:
    """What a client has by its own account; None if it has nothing."""
    if since is None or since == EARLIEST:
        return None
    if since != LATEST and not isinstance(decode(since), QueryCursor):
        raise BadCursor("this cursor is of a stream or view, not of a query")
    return since


def _progress(found: Delivery) -> Delivery:
    return Delivery("progress", b"{}", found.cursor)
