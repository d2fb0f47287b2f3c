"""The ingress of one stream: decodes bodies, offers their events to the group commit, and stores dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from penstock.collect.audit import ONE_WAY, POST
from penstock.collect.decode import BodyDecoder, Decoded, RejectedEvent
from penstock.collect.group_commit import GroupCommit, IngressReceipt, IngressRequest
from penstock.core.errors import InvalidEvents, MalformedBody
from penstock.core.schema import Rejected
from penstock.http.body_threads import BodyThreads

ERRORS_MAX = 100
"""Maximum number of rejections listed in a response; the dead letters contain all of them."""
LARGE_BODY_BYTES = 64 * 1024
"""Bodies above this size, and smaller ones with invalid events, are decoded in a thread, so that decoding them does not
delay other requests."""


class StreamIngress:
    """A stream's decoder, its group commit, and the group commit of its dead letters. Not thread-safe."""

    def __init__(
        self,
        stream: str,
        decoder: BodyDecoder,
        group_commit: GroupCommit,
        dead_letters: GroupCommit,
        threads: BodyThreads,
    ) -> None:
        self.stream = stream
        self.decoder = decoder
        self.group_commit = group_commit
        self.dead_letters = dead_letters
        self._threads = threads
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, who: str) -> asyncio.Lock:
        """Return the lock of a caller's published messages that cannot be taken at once. All connections of the caller
        share it, so that at most one of these messages is decoded at a time."""
        return self._turns.setdefault(who, asyncio.Lock())

    async def post(
        self,
        body: bytes,
        *,
        lines: bool,
        durable: bool,
        key: str | None = None,
        who: str = "",
        apart: bool = False,
        admit: Callable[[int], None] = lambda count: None,
    ) -> IngressReceipt:
        """Accept one request body. With `durable`, returns when its events and dead letters are durable; otherwise at
        once.

        `key` identifies the request, as in `IngressRequest`. `who` is the caller's name. `apart` means that
        `decode_whole` has already failed for the body. `admit` is called with the number of events before any of them
        is accepted, and can raise an error to refuse them. Raises `InvalidEvents` if every event was rejected and
        `MalformedBody` if the body is not JSON, both after the dead letters are stored; `TooLarge` for too many events;
        `Busy` or `StorageError` if nothing could be written.
        """
        decoded = await self.decode(body, who=who, lines=lines, apart=apart)
        admit(len(decoded.events) + len(decoded.rejections))
        if decoded.rejections:
            return await self._post_partly(decoded, len(body), durable, key)
        request = IngressRequest(decoded.events, len(body), POST if durable else ONE_WAY, key=key)
        receipt = self.group_commit.offer(request)
        return await receipt if durable else _one_way_receipt(request)

    async def decode(self, body: bytes, *, who: str = "", lines: bool = False, apart: bool = False) -> Decoded:
        """Decode a body; a large body, or one with invalid events, is decoded in a thread, when it is the turn of the
        caller `who`. If `apart`, its events are known not to decode as a whole. Raises `TooLarge`, or `Overloaded` if
        too many bytes are waiting."""
        if len(body) > LARGE_BODY_BYTES:
            return await self._threads.run(who, len(body), partial(self.decoder.decode, body, lines=lines))
        decoded = None if apart else self.decoder.decode_whole(body, lines=lines)
        if decoded is not None:
            return decoded
        return await self._threads.run(who, len(body), partial(self.decoder.decode_apart, body, lines=lines))

    def count_rejected(self, count: int, source: str) -> None:
        """Count the stream's events that have become dead letters."""
        tally = self.group_commit.audit.of(source)
        tally.received += count
        tally.rejected += count

    async def _post_partly(self, decoded: Decoded, size: int, durable: bool, key: str | None) -> IngressReceipt:
        """Accept a body with rejected events.

        The dead letters are stored first: if that fails, the client can retry without duplicates.
        """
        count, rejected = len(decoded.events), len(decoded.rejections)
        source = POST if durable else ONE_WAY
        request = IngressRequest(decoded.events, size, source, key=key, indexes=decoded.indexes)
        self.group_commit.require_room(request)
        kept = self.dead_letters.offer(IngressRequest(letters(decoded.rejections), size, source))
        self.count_rejected(rejected, source)
        if durable:
            await kept
        errors = errors_of(decoded)
        if decoded.malformed:
            raise MalformedBody(f"the body is not JSON: {errors[0]['reason']}")
        if not count:
            raise InvalidEvents(_all_rejected_reason(rejected), rejected=rejected, errors=errors)
        offered = self.group_commit.offer(request)
        taken = await offered if durable else _one_way_receipt(request)
        return msgspec.structs.replace(taken, rejected=rejected, errors=errors)


def _one_way_receipt(request: IngressRequest) -> IngressReceipt:
    """Return the ingress receipt for a one-way request."""
    return IngressReceipt(len(request.events), 0, 0, None, shed=request.shed or msgspec.UNSET)


def letters(rejections: Sequence[RejectedEvent]) -> list[Rejected]:
    """Return the dead letters of a request, in the order of its events."""
    return [Rejected(reason=rejection.reason, path=rejection.path, raw=rejection.raw) for rejection in rejections]


def errors_of(decoded: Decoded) -> list[dict[str, Any]]:
    """Return the errors to send to a client for its rejected events."""
    return [
        {"index": rejection.index, "reason": rejection.reason, "path": rejection.path}
        for rejection in decoded.rejections[:ERRORS_MAX]
    ]


def _all_rejected_reason(rejected: int) -> str:
    return "the event was rejected" if rejected == 1 else f"all {rejected} events were rejected"
