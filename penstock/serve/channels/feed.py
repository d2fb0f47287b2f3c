"""A part of a stream or view, served under its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from penstock.core.contracts import Channel, Delivery, PageBody, Style


class FeedChannel:
    """A `Channel` that filters another channel, and has the same cursors.

    The feed's filter is not compiled until it is used, because the columns of a view might be unknown before that.
    """

    def __init__(self, of: Channel, where: str | None, select: str | None, *, source: str = "") -> None:
        """`source` is the name of the other channel."""
        self._of, self._where, self._select = of, where, select
        self.source = source

    def over_part(self, part: Callable[[Channel], Channel]) -> FeedChannel:
        """Return the same feed, but over the part of its source channel that `part` returns."""
        return FeedChannel(part(self._of), self._where, self._select, source=self.source)

    @property
    def _seen(self) -> Channel:
        return self._of.part(self._where, self._select)

    def asked_by(self, who: str) -> FeedChannel:
        return self.over_part(lambda other: other.asked_by(who))

    def through(self, where: str | None, select: str | None) -> Channel:
        return self._seen.through(where, select)

    def part(self, where: str | None, select: str | None) -> Channel:
        return self._seen.part(where, select)

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        return self._seen.limited(where, claims)

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> PageBody:
        return await self._seen.page(since, limit, wait_s, order)

    async def last(self, limit: int) -> PageBody:
        return await self._seen.last(limit)

    def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        return self._seen.follow(since, style)
