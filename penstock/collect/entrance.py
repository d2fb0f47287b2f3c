"""The way into one stream: decode a body, offer its events, and keep what was rejected as dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import msgspec

from penstock.collect.audit import ONE_WAY, POST
from penstock.collect.decode import BodyDecoder, Decoded, Rejection
from penstock.collect.intake import Receipt, Request, StreamIntake
from penstock.errors import InvalidEvents, MalformedBody, Overloaded
from penstock.schema import Rejected

ERRORS_MAX = 100
"""Most rejections that an answer lists; the dead letters have them all."""
LARGE_BODY_BYTES = 64 * 1024
"""Bodies above this are decoded in a thread, so that taking one apart does not hold up small requests."""


class Entrance:
    """One stream's decoder, its intake and that of its dead letters. Belongs to the event loop."""

    def __init__(
        self,
        stream: str,
        decoder: BodyDecoder,
        intake: StreamIntake,
        dead_letters: StreamIntake,
        threads: Executor,
        large_bytes_max: int,
    ) -> None:
        """Bodies that wait to be decoded in `threads` hold `large_bytes_max` at most; past that they are refused."""
        self.stream = stream
        self.decoder = decoder
        self.intake = intake
        self.dead_letters = dead_letters
        self._threads = threads
        self._large_bytes_max = large_bytes_max
        self._large_bytes = 0

    async def post(
        self,
        body: bytes,
        *,
        lines: bool,
        durable: bool,
        key: str | None = None,
        admit: Callable[[int], None] = lambda count: None,
    ) -> Receipt:
        """Take one request body. With `durable`, returns once its events and dead letters are; else at once. `key` is
        as for `StreamIntake.offer`. `admit` is called with the number of events before any is taken, and may raise.

        Raises `InvalidEvents` if every event was rejected and `MalformedBody` if the body is no JSON, both after the
        dead letters are kept; `TooLarge` for too many events; `Busy` or `StorageError` if nothing could be written.
        """
        decoded = await self.decode(body, lines=lines)
        admit(len(decoded.events) + len(decoded.rejections))
        if decoded.rejections:
            return await self._post_partly(decoded, len(body), durable, key)
        request = Request(decoded.events, len(body), POST if durable else ONE_WAY, key=key)
        receipt = self.intake.offer(request)
        return await receipt if durable else _on_its_way(request)

    async def decode(self, body: bytes, *, lines: bool = False) -> Decoded:
        """The events of a body; of a large one, in a thread. Raises `TooLarge`, or `Overloaded` if many wait."""
        if len(body) <= LARGE_BODY_BYTES:
            return self.decoder.decode(body, lines=lines)
        return await self._decode_large(body, lines)

    def count_rejected(self, count: int, source: str) -> None:
        """Events that are dead letters now."""
        tally = self.intake.audit.of(source)
        tally.received += count
        tally.rejected += count

    async def _decode_large(self, body: bytes, lines: bool) -> Decoded:
        if self._large_bytes and self._large_bytes + len(body) > self._large_bytes_max:
            raise Overloaded(f"{self._large_bytes} bytes of large requests wait to be decoded", retry_after_s=1)
        self._large_bytes += len(body)
        try:
            decode = partial(self.decoder.decode, body, lines=lines)
            return await asyncio.get_running_loop().run_in_executor(self._threads, decode)
        finally:
            self._large_bytes -= len(body)

    async def _post_partly(self, decoded: Decoded, size: int, durable: bool, key: str | None) -> Receipt:
        """Dead letters first: if they cannot be kept the client retries, and no event is in twice."""
        count, rejected = len(decoded.events), len(decoded.rejections)
        source = POST if durable else ONE_WAY
        request = Request(decoded.events, size, source, key=key, places=decoded.places)
        self.intake.require_room(request)
        kept = self.dead_letters.offer(Request(letters(decoded.rejections), size, source))
        self.count_rejected(rejected, source)
        if durable:
            await kept
        errors = errors_of(decoded)
        if decoded.malformed:
            raise MalformedBody(f"the body is not JSON: {errors[0]['reason']}")
        if not count:
            raise InvalidEvents(_none_taken(rejected), rejected=rejected, errors=errors)
        offered = self.intake.offer(request)
        taken = await offered if durable else _on_its_way(request)
        return msgspec.structs.replace(taken, rejected=rejected, errors=errors)


def _on_its_way(request: Request) -> Receipt:
    """The answer to a request that was offered one-way."""
    return Receipt(len(request.events), 0, 0, None, shed=request.shed or msgspec.UNSET)


def letters(rejections: Sequence[Rejection]) -> list[Rejected]:
    """The dead letters of a request, in the order of its events."""
    return [Rejected(reason=each.reason, path=each.path, raw=each.raw) for each in rejections]


def errors_of(decoded: Decoded) -> list[dict[str, Any]]:
    """What a client is told of the events that were rejected."""
    return [{"index": each.index, "reason": each.reason, "path": each.path} for each in decoded.rejections[:ERRORS_MAX]]


def _none_taken(rejected: int) -> str:
    return "the event was rejected" if rejected == 1 else f"all {rejected} events were rejected"
