"""A source that asks for a document again and again: each new one is an event, or each new item of an array in it.

Exactly once with `position` or `unique`, as long as an item stays in the document from one poll to the next: where the
source stands is committed in one transaction with each item. What comes and goes between two polls is missed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Unpack

import msgspec

from penstock.collect.sources.http.answer import Answer, Lost
from penstock.collect.sources.http.client import Asked, Client, Endpoint, HttpOptions, backoff_of, endpoint_of, pull
from penstock.collect.sources.http.positions import (
    REMEMBER_MAX,
    Order,
    Seen,
    apart,
    digest,
    is_after,
    is_json,
    items_at,
    mark_of,
    place_of,
    position_at,
    rank,
    require_order,
    require_unequal,
    value_at,
)
from penstock.collect.sources.reconnect import Backoff
from penstock.contracts import Intake, SourceStatus
from penstock.errors import DeclarationError, SourceFailed

JITTER = 0.1
"""The part of `every` by which a wait is made longer or shorter, so that many pollers do not come at once."""
VALIDATOR_LENGTH_MAX = 1_024
"""An ETag longer than that is left aside: the document is then fetched again."""


@dataclass(frozen=True)
class Choice:
    """Which events a document holds, and which of them are new. Pure: see `fresh`.

    `items`: the path of an array, "" if the document is one; None if the document is the event. `position`: only what
    is after the last position, in the order of positions. `unique`: only what is not among the last `remember` ones.
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
            raise DeclarationError("a poll goes by `position` or by `unique`, not by both")
        if self.unique is not None and self.remember < 1:
            raise DeclarationError("`unique` needs a `remember` of at least 1")


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a poll stands: the validators of the document it has read to its end, and what it has taken."""

    etag: str | None = None
    modified: str | None = None
    at: str | None = None
    seen: str = ""


@dataclass(frozen=True)
class PollSource:
    """Asks `endpoint` every `every_s` seconds. Implements `contracts.Source`.

    With `resume`, the last position is sent as that query parameter. An answer may take `answer_s` and have
    `body_bytes_max`, unpacked. Memory: about four times that.
    """

    endpoint: Endpoint
    every_s: float
    choice: Choice = field(default_factory=Choice)
    resume: str | None = None
    answer_s: float = 60.0
    body_bytes_max: int = 8 * 1024 * 1024
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.every_s <= 0 or self.answer_s <= 0:
            raise DeclarationError("`every` and `answer_s` are times in seconds, above zero")
        if self.resume is not None and self.choice.position is None:
            raise DeclarationError("`resume` sends the last position: name the field that has it by `position`")

    @property
    def kind(self) -> str:
        return "poll"

    @property
    def address(self) -> str:
        return self.endpoint.address

    async def run(self, intake: Intake, status: SourceStatus) -> None:
        """Poll until cancelled; what was put by then is durable before that goes on. Raises `SourceFailed`."""

        def begin(client: Client, asked: Asked) -> Callable[[], Awaitable[str]]:
            return _Polling(self, intake, status, client, asked).connection

        await pull(self.endpoint, self.backoff, intake, status, begin)


class _Polling:
    """One run of a source: where it stands, from poll to poll."""

    def __init__(self, source: PollSource, intake: Intake, status: SourceStatus, client: Client, asked: Asked) -> None:
        self._source = source
        self._intake = intake
        self._status = status
        self._client = client
        self._asked = asked
        self._place = place_of(Place, intake.mark)

    async def connection(self) -> str:
        """Poll until one goes wrong."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self._source.every_s * (1 + JITTER * (2 * random.random() - 1))
            await self._poll()
            self._status.state, self._status.error = "connected", None
            self._asked.fruitless = 0
            await asyncio.sleep(due - clock())

    async def _poll(self) -> None:
        """Only reading the answer has a deadline: putting events may take as long as the disk does. The validators are
        committed with the last item: with an earlier one, what follows it would never be sent again. They are those of
        one address, so they are of no use once the position in the query has moved."""
        source, place = self._source, self._place
        try:
            async with asyncio.timeout(source.answer_s):
                body, validators = await self._fetch()
        except TimeoutError:
            raise Lost(f"the answer took longer than {source.answer_s:g} s") from None
        if not body.strip():
            return
        found = await apart(len(body), fresh, body, source.choice, place)
        if found is None:
            raise Lost(f"there is no array at `{source.choice.items}` in the answer; check `items`")
        if not found:
            self._place = msgspec.structs.replace(place, **validators)
        elif source.resume is None:
            raw, last = found[-1]
            found[-1] = raw, msgspec.structs.replace(last, **validators)
        await self._put(found)

    async def _put(self, found: list[tuple[bytes, Place]]) -> None:
        for raw, after in found:
            await self._intake.put(raw, mark_of(after))
            self._place = after
            self._status.received += 1

    async def _fetch(self) -> tuple[bytes, dict[str, str | None]]:
        """The document, empty if it is the one we have, and its validators."""
        source, place = self._source, self._place
        headers = {"Accept": "application/json, */*;q=0.5", "Accept-Encoding": "gzip"}
        if place.etag is not None:
            headers["If-None-Match"] = place.etag
        if place.modified is not None:
            headers["If-Modified-Since"] = place.modified
        query = {source.resume: place.at} if source.resume is not None and place.at is not None else {}
        async with self._client.get(headers, query) as answer:
            if answer.status != 200:
                return b"", {}
            body = await answer.body(source.body_bytes_max)
            if not answer.whole and not await apart(len(body), is_json, body):
                raise Lost("the answer may have been cut off: the server does not say how long it is")
            return body, _validators(answer)


def _validators(answer: Answer) -> dict[str, str | None]:
    found = {"etag": answer.header("etag"), "modified": answer.header("last-modified")}
    return {name: value if value and len(value) <= VALIDATOR_LENGTH_MAX else None for name, value in found.items()}


def fresh(body: bytes, choice: Choice, place: Place) -> list[tuple[bytes, Place]] | None:
    """The events of a document that are new, each with the place after it; None if the array is missing.

    No place has validators: whoever stops in the middle must be given the whole document again.
    """
    items = [body.strip()] if choice.items is None else items_at(body, choice.items)
    if items is None:
        return None
    if choice.newest_first:
        items.reverse()
    if choice.position is not None:
        return list(_after(items, choice, choice.position, place))
    if choice.unique is not None:
        return list(_unseen(items, choice, choice.unique, place))
    return [(item, Place()) for item in items]


def _after(items: list[bytes], choice: Choice, path: str, place: Place) -> Iterator[tuple[bytes, Place]]:
    """Items without a position cannot be told from those taken before, so they are an error and not a guess."""
    placed = []
    for item in items:
        at = position_at(item, path)
        if at is None:
            raise SourceFailed(f"an item has no `{path}`; name a field that every item has, or use `unique`")
        placed.append((at, item))
    if choice.order is not None:
        placed.sort(key=lambda each: rank(each[0], choice.order))  # type: ignore[arg-type, return-value]
    last: tuple[str, bytes] | None = None
    for at, item in placed:
        if last is not None and last[0] == at and choice.order is not None:
            require_unequal(path, at, item, last[1])
            continue
        last = (at, item)
        if is_after(at, place.at, choice.order):
            yield item, Place(at=at)


def _unseen(items: list[bytes], choice: Choice, path: str, place: Place) -> Iterator[tuple[bytes, Place]]:
    """What is still in the document is seen again, so that it is not forgotten while it may come once more."""
    digests = [digest(value_at(item, path) or item) for item in items]
    if len(set(digests)) > choice.remember:
        raise SourceFailed(
            f"the document has {len(items)} items, more than the {choice.remember} that can be remembered; "
            "ask for fewer at once, or go by `position`"
        )
    seen = Seen.of(place.seen, choice.remember)
    known = set(seen)
    for each in digests:
        if each in known:
            seen.add(each)
    for each, item in zip(digests, items, strict=True):
        if each not in known:
            known.add(each)
            seen.add(each)
            yield item, Place(seen=seen.text)


def poll(
    url: str,
    *,
    every: float,
    items: str | None = None,
    position: str | None = None,
    order: Order = Choice.order,
    unique: str | None = None,
    remember: int = Choice.remember,
    newest_first: bool = Choice.newest_first,
    resume: str | None = None,
    answer_s: float = PollSource.answer_s,
    body_bytes_max: int = PollSource.body_bytes_max,
    **options: Unpack[HttpOptions],
) -> PollSource:
    """A document that is asked for every `every` seconds. `PollSource` and `Choice` say what the options mean.
    Making one opens nothing."""
    return PollSource(
        endpoint_of(url, answer_s, options),
        every,
        Choice(items, position, order, unique, remember, newest_first),
        resume,
        answer_s,
        body_bytes_max,
        backoff_of(options),
    )
