"""A part of a stream or view, served under a name of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from penstock.contracts import Channel, Delivery, Page, Style


class FeedChannel:
    """A `Channel` through which another is seen. Cursors are those of the other.

    Its filter is made when it is used, and shared from then on: what columns a view has may not be known before.
    """

    def __init__(self, of: Channel, where: str | None, select: str | None, *, source: str = "") -> None:
        """`source` is the name of the other."""
        self._of, self._where, self._select = of, where, select
        self.source = source

    def made_of(self, part: Callable[[Channel], Channel]) -> FeedChannel:
        """The same feed of a part of the other."""
        return FeedChannel(part(self._of), self._where, self._select, source=self.source)

    @property
    def _seen(self) -> Channel:
        return self._of.part(self._where, self._select)

    def asked_by(self, who: str) -> FeedChannel:
        return self.made_of(lambda other: other.asked_by(who))

    def through(self, where: str | None, select: str | None) -> Channel:
        return self._seen.through(where, select)

    def part(self, where: str | None, select: str | None) -> Channel:
        return self._seen.part(where, select)

    def limited(self, where: str, claims: Mapping[str, Any]) -> Channel:
        return self._seen.limited(where, claims)

    async def page(self, since: str | None, limit: int | None, wait_s: float = 0, order: str | None = None) -> Page:
        return await self._seen.page(since, limit, wait_s, order)

    async def last(self, limit: int) -> Page:
        return await self._seen.last(limit)

    def follow(self, since: str | None, style: Style | None = None) -> AsyncIterator[Delivery]:
        return self._seen.follow(since, style)
