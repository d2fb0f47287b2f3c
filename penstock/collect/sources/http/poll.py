"""A source that polls a document. Each new document is one event or, with `items`, each new item in one of its arrays.

With `position` or `unique`, each item is stored exactly once, as long as it stays in the document from one poll to the
next: the source's position is committed in one transaction with each item. An item that appears and disappears between
two polls is missed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Unpack

import msgspec

from penstock.collect.sources.http.client import (
    HttpOptions,
    HttpRun,
    HttpSource,
    SourceEndpoint,
    backoff_of,
    endpoint_of,
)
from penstock.collect.sources.http.positions import (
    REMEMBER_MAX,
    Order,
    SeenDigests,
    apart,
    digest,
    is_after,
    is_json,
    items_at,
    mark_of,
    position_at,
    position_in,
    rank,
    require_order,
    require_unequal,
    value_at,
)
from penstock.collect.sources.http.response import HttpResponse, ResponseLost
from penstock.core.backoff import Backoff
from penstock.core.clock import loop_time
from penstock.core.errors import DeclarationError, SourceFailed

JITTER = 0.1
"""Random variation of a wait, as a fraction of `every`, so that many pollers do not poll at the same time."""
VALIDATOR_LENGTH_MAX = 1_024
"""Maximum length of an ETag. A longer one is ignored, and the document is then fetched again."""


@dataclass(frozen=True)
class ItemSelection:
    """Selects the new events in a document; see `fresh`, which is a pure function.

    `items` is the path of an array, "" if the document is the array, or None if the document is the event. `position`
    selects the items after the last position, in the order of positions. `unique` selects the items that are not among
    the last `remember` items.
    """

    items: str | None = None
    position: str | None = None
    order: Order = "number"
    unique: str | None = None
    remember: int = REMEMBER_MAX
    newest_first: bool = False

    def __post_init__(self) -> None:
        require_order(self.order, self.remember)
        if self.position is not None and self.unique is not None:
            raise DeclarationError("pass either `position` or `unique`, not both")
        if self.unique is not None and self.remember < 1:
            raise DeclarationError("`unique` requires `remember` to be at least 1")


class PollMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a poll: the validators of the last document that was read completely, and the items already put."""

    etag: str | None = None
    modified: str | None = None
    at: str | None = None
    seen: str = ""


@dataclass(frozen=True)
class PollSource(HttpSource):
    """Polls the document at `endpoint` every `every_s` seconds. Implements `contracts.Source`.

    With `resume`, the last position is sent as that query parameter. A response can take up to `answer_s` seconds and
    contain up to `body_bytes_max` bytes after decompression. Memory: about four times that size.
    """

    endpoint: SourceEndpoint
    every_s: float
    choice: ItemSelection = field(default_factory=ItemSelection)
    resume: str | None = None
    answer_s: float = 60.0
    body_bytes_max: int = 8 * 1024 * 1024
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.every_s <= 0 or self.answer_s <= 0:
            raise DeclarationError("`every` and `answer_s` must be above zero")
        if self.resume is not None and self.choice.position is None:
            raise DeclarationError("`resume` sends the last position: pass the path of its field as `position`")

    @property
    def kind(self) -> str:
        return "poll"

    def _begin(self, run: HttpRun) -> Callable[[], Awaitable[str]]:
        return _Polling(self, run).connection


class _Polling:
    """One run of a polling source: its position, kept across polls."""

    def __init__(self, source: PollSource, run: HttpRun) -> None:
        self._source = source
        self._run = run
        self._mark = position_in(PollMark, run.source_writer.mark)

    async def connection(self) -> str:
        """Poll the document until a poll fails."""
        while True:
            due = loop_time() + self._source.every_s * (1 + JITTER * (2 * random.random() - 1))
            await self._poll()
            self._run.status.state, self._run.status.error = "connected", None
            self._run.asked.fruitless = 0
            await asyncio.sleep(due - loop_time())

    async def _poll(self) -> None:
        """Poll the document once. Only reading the response has a deadline: putting events may take as long as the disk
        does.

        The validators are committed with the last item. If they were committed with an earlier item, the server would
        never send the items after it again. Validators belong to one address, so they are useless once the position in
        the query has changed.
        """
        source, mark = self._source, self._mark
        try:
            async with asyncio.timeout(source.answer_s):
                body, validators = await self._fetch()
        except TimeoutError:
            raise ResponseLost(f"the response took longer than {source.answer_s:g} s") from None
        if not body.strip():
            return
        items = await apart(len(body), fresh, body, source.choice, mark)
        if items is None:
            raise ResponseLost(f"there is no array at `{source.choice.items}` in the response; check `items`")
        if not items:
            self._mark = msgspec.structs.replace(mark, **validators)
        elif source.resume is None:
            raw, last = items[-1]
            items[-1] = raw, msgspec.structs.replace(last, **validators)
        await self._put(items)

    async def _put(self, items: list[tuple[bytes, PollMark]]) -> None:
        for raw, after in items:
            await self._run.source_writer.put(raw, mark_of(after))
            self._mark = after
            self._run.status.received += 1

    async def _fetch(self) -> tuple[bytes, dict[str, str | None]]:
        """Return the polled document, empty if it is unchanged, and its validators."""
        source, mark = self._source, self._mark
        headers = {"Accept": "application/json, */*;q=0.5", "Accept-Encoding": "gzip"}
        if mark.etag is not None:
            headers["If-None-Match"] = mark.etag
        if mark.modified is not None:
            headers["If-Modified-Since"] = mark.modified
        query = {source.resume: mark.at} if source.resume is not None and mark.at is not None else {}
        async with self._run.client.get(headers, query) as answer:
            if answer.status != 200:
                return b"", {}
            body = await answer.body(source.body_bytes_max)
            if not answer.whole and not await apart(len(body), is_json, body):
                raise ResponseLost("the response may have been cut off: the server does not announce its length")
            return body, _document_validators(answer)


def _document_validators(answer: HttpResponse) -> dict[str, str | None]:
    headers = {"etag": answer.header("etag"), "modified": answer.header("last-modified")}
    return {name: value if value and len(value) <= VALIDATOR_LENGTH_MAX else None for name, value in headers.items()}


def fresh(body: bytes, choice: ItemSelection, mark: PollMark) -> list[tuple[bytes, PollMark]] | None:
    """Return the new events of a polled document, each with the state after it, or None if the array is missing.

    The states contain no validators, because after an interruption the server must send the whole document again.
    """
    items = [body.strip()] if choice.items is None else items_at(body, choice.items)
    if items is None:
        return None
    if choice.newest_first:
        items.reverse()
    if choice.position is not None:
        return list(_items_after(items, choice, choice.position, mark))
    if choice.unique is not None:
        return list(_unseen_items(items, choice, choice.unique, mark))
    return [(item, PollMark()) for item in items]


def _items_after(
    items: list[bytes], choice: ItemSelection, path: str, mark: PollMark
) -> Iterator[tuple[bytes, PollMark]]:
    """Yield a document's items after the last position. Raises for an item without a position, because guessing could
    repeat or lose the item."""
    placed = []
    for item in items:
        at = position_at(item, path)
        if at is None:
            raise SourceFailed(f"an item has no `{path}`; either use a field that every item has, or use `unique`")
        placed.append((at, item))
    if choice.order is not None:
        placed.sort(key=lambda entry: rank(entry[0], choice.order))  # type: ignore[arg-type, return-value]
    last: tuple[str, bytes] | None = None
    for at, item in placed:
        if last is not None and last[0] == at and choice.order is not None:
            require_unequal(path, at, item, last[1])
            continue
        last = (at, item)
        if is_after(at, mark.at, choice.order):
            yield item, PollMark(at=at)


def _unseen_items(
    items: list[bytes], choice: ItemSelection, path: str, mark: PollMark
) -> Iterator[tuple[bytes, PollMark]]:
    """Yield a document's items not seen before.

    Items still in the document are marked as seen again, so that they are not forgotten.
    """
    digests = [digest(value_at(item, path) or item) for item in items]
    if len(set(digests)) > choice.remember:
        raise SourceFailed(
            f"the document has {len(items)} items, more than the limit of {choice.remember}; "
            "request fewer at once, or use `position`"
        )
    seen = SeenDigests.of(mark.seen, choice.remember)
    known = set(seen)
    for item_digest in digests:
        if item_digest in known:
            seen.add(item_digest)
    for item_digest, item in zip(digests, items, strict=True):
        if item_digest not in known:
            known.add(item_digest)
            seen.add(item_digest)
            yield item, PollMark(seen=seen.text)


def poll(
    url: str,
    *,
    every: float,
    items: str | None = None,
    position: str | None = None,
    order: Order = ItemSelection.order,
    unique: str | None = None,
    remember: int = ItemSelection.remember,
    newest_first: bool = ItemSelection.newest_first,
    resume: str | None = None,
    answer_s: float = PollSource.answer_s,
    body_bytes_max: int = PollSource.body_bytes_max,
    **options: Unpack[HttpOptions],
) -> PollSource:
    """Create a source that polls a document every `every` seconds. Opens nothing.

    See `PollSource` and `ItemSelection` for the options.
    """
    return PollSource(
        endpoint_of(url, answer_s, options),
        every,
        ItemSelection(items, position, order, unique, remember, newest_first),
        resume,
        answer_s,
        body_bytes_max,
        backoff_of(options),
    )
