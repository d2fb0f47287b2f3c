"""What a source makes of its connections: each event of the stream once and in order, and gaps told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.collect.sources.nats.consumer import Consumers, Delivery, Place, is_cut_back, retention_of
from penstock.collect.sources.nats.inbox import Acknowledger, Inbox, Interrupted, Limits
from penstock.collect.sources.nats.subjects import Shaper
from penstock.contracts import Intake, SourceStatus
from penstock.errors import SourceFailed

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamInfo

SHAPE_IN_LOOP_BYTES_MAX = 256 * 1024
"""Payloads up to this size are taken apart in the event loop (about a millisecond), larger ones in a thread."""
_log = logging.getLogger("penstock.collect")


class Reader:
    """Reads one stream for one source, over all its connections. The position is the intake's, so it is durable."""

    def __init__(
        self, consumers: Consumers, shaper: Shaper, limits: Limits, since: str, intake: Intake, status: SourceStatus
    ) -> None:
        self._consumers = consumers
        self._shaper = shaper
        self._limits = limits
        self._since = since
        self._intake = intake
        self._status = status
        self._place = Place("", 0)
        self._settled = self._place
        self._is_cut_back = False
        self._count = 0
        self._gone = 0
        self._acknowledger: Acknowledger | None = None

    async def read(self, client: Client, prefix: str, ended: asyncio.Event) -> None:
        """Read until something is in the way, which it raises. `ended` is set when the connection has ended.

        What was put before is settled first. A consumer that begins at a position allows the server to forget what is
        before it, so that must be durable.
        """
        await self._intake.settle()
        js = client.jetstream(prefix=prefix, timeout=self._limits.silent_s)
        info = await js.stream_info(self._consumers.stream)
        self._place = self._settled = await self._begin(js, info)
        name = await self._consumers.renew(js, info, self._place, by_time=self._is_cut_back)
        inbox = Inbox(client, prefix, self._consumers.stream, name, self._limits)
        await inbox.open()
        self._count = 0
        self._status.state = "connected"
        self._status.error = self._gap_told() if self._gone else None
        may_skip = bool(self._consumers.filters) and retention_of(info) == "limits"
        await self._pull(client, inbox, ended, (lambda: self._skip(js, name)) if may_skip else _nothing)

    async def _begin(self, js: JetStreamContext, info: StreamInfo) -> Place:
        """The position to read on from. Says so if what is after the last one is not what was there before."""
        created = info.created.isoformat() if info.created else ""
        self._is_cut_back = False
        if self._intake.mark is None:
            return await self._first(created, info)
        place = Place.parse(self._intake.mark)
        if place.created != created:
            _log.warning("the stream %s was made anew: it is read from its first event", self._consumers.stream)
            place = Place(created, 0)
        elif await is_cut_back(js, info, place):
            _log.warning("the stream %s has lost its end: what was stored after that is read", self._consumers.stream)
            self._is_cut_back = True
            return place
        return await self._check_front(place, info)

    async def _check_front(self, place: Place, info: StreamInfo) -> Place:
        """Events may be gone from the front of the stream. If it deletes what others have acknowledged, and we read
        only a part of it, that is as it should be."""
        missing = place.gap(info.state.first_seq)
        if missing == 0 or (self._consumers.filters and retention_of(info) != "limits"):
            return place
        self._tell_gap(missing, place)
        place = replace(place, seen=info.state.first_seq - 1)
        await (await self._intake.note(place.text))
        return place

    async def _first(self, created: str, info: StreamInfo) -> Place:
        if self._since == "earliest":
            return Place(created, max(info.state.first_seq - 1, 0))
        if retention_of(info) == "workqueue":
            raise SourceFailed("a work queue is read from its first event: since='latest' would throw work away")
        place = Place(created, info.state.last_seq)
        await (await self._intake.note(place.text))
        return place

    async def _skip(self, js: JetStreamContext, consumer: str) -> None:
        """Note how far the stream has come while nothing in it was for us: so nobody misses that when it is removed.

        For what is told of gaps only, never for where to begin: in a cluster, the two answers may be of two servers.
        """
        stream = await js.stream_info(self._consumers.stream)
        ours = await js.consumer_info(self._consumers.stream, consumer)
        is_even = ours.num_pending == 0 and ours.delivered is not None and ours.delivered.consumer_seq == self._count
        if is_even and not self._is_cut_back and self._place.gap(stream.state.last_seq + 1):
            self._place = replace(self._place, seen=stream.state.last_seq)
            await self._intake.note(self._place.text)

    async def _pull(
        self, client: Client, inbox: Inbox, ended: asyncio.Event, when_idle: Callable[[], Awaitable[None]]
    ) -> None:
        """The reading, beside the acknowledging and the watch on the connection, both of which end with it."""
        beside = [asyncio.create_task(_when(ended, inbox))]
        self._acknowledger = Acknowledger(client) if self._consumers.durable is not None else None
        if self._acknowledger is not None:
            beside.append(asyncio.create_task(self._acknowledger.run()))
        try:
            await self._take_all(inbox, when_idle)
        except asyncio.CancelledError:
            if self._acknowledger is not None:
                with suppress(Exception):
                    async with asyncio.timeout(self._limits.silent_s):
                        await self._acknowledger.finish(self._intake)
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _take_all(self, inbox: Inbox, when_idle: Callable[[], Awaitable[None]]) -> None:
        while True:
            await inbox.request()
            while (message := await inbox.next()) is not None:
                await self._take(message)
            if inbox.was_idle:
                await when_idle()

    async def _take(self, message: Msg) -> None:
        """Put an event if it is a new one. Since no delivery is missing, one past the last is the next in order."""
        delivery = Delivery.parse(message.reply)
        self._count += 1
        if delivery.count != self._count:
            raise Interrupted(f"delivery {self._count} is missing")
        if self._is_taken(delivery):
            self._acknowledge_again(delivery, message.reply)
            return
        self._check_gap(delivery)
        raw = await self._event(message)
        place = Place(self._place.created, delivery.sequence, delivery.time_ns)
        durable = await self._intake.put(raw, place.text)
        self._place, self._is_cut_back = place, False
        self._status.received += 1
        if self._acknowledger is not None:
            self._acknowledger.add(durable, message.reply)

    def _is_taken(self, delivery: Delivery) -> bool:
        """If the stream has lost its end, its numbers mean nothing until the first event that is younger."""
        if self._is_cut_back:
            return delivery.time_ns <= self._place.time_ns
        return delivery.sequence <= self._place.sequence

    def _acknowledge_again(self, delivery: Delivery, reply: str) -> None:
        """For what was taken before this connection. What it has taken itself is acknowledged when it is durable."""
        is_settled = delivery.sequence <= self._settled.sequence or self._is_cut_back
        if self._acknowledger is not None and is_settled:
            self._acknowledger.add(None, reply)

    async def _event(self, message: Msg) -> bytes:
        if self._shaper.is_plain or len(message.data) <= SHAPE_IN_LOOP_BYTES_MAX:
            return self._shaper.event(message.subject, message.data)
        return await asyncio.to_thread(self._shaper.event, message.subject, message.data)

    def _check_gap(self, delivery: Delivery) -> None:
        """Without a filter every number is an event for us, so one that is left out is an event that is gone."""
        missing = self._place.gap(delivery.sequence)
        if missing and not self._consumers.filters and not self._is_cut_back:
            self._tell_gap(missing, self._place)

    def _tell_gap(self, missing: int, place: Place) -> None:
        self._gone += missing
        self._status.error = self._gap_told()
        _log.error("%s (%d after event %d)", self._status.error, missing, max(place.sequence, place.seen))

    def _gap_told(self) -> str:
        most = "up to " if self._consumers.filters else ""
        stream = self._consumers.stream
        return f"{most}{self._gone} events were removed from the stream {stream} before they could be read"


async def _when(ended: asyncio.Event, inbox: Inbox) -> None:
    await ended.wait()
    inbox.end()


async def _nothing() -> None:
    pass
