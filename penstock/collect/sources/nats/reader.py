"""The reader of a source, across its connections. Puts each event of the stream once and in order, and reports gaps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.collect.sources.nats.consumer import Consumers, NatsDelivery, NatsMark, is_cut_back, retention_of
from penstock.collect.sources.nats.inbox import Acknowledger, ConsumerInterrupted, NatsInbox, NatsLimits
from penstock.collect.sources.nats.subjects import Shaper
from penstock.core.contracts import SourceStatus, SourceWriter
from penstock.core.errors import SourceFailed
from penstock.core.tasks import cancel_all

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamInfo

SHAPE_IN_LOOP_BYTES_MAX = 256 * 1024
"""Payloads up to this size are decoded in the event loop (about a millisecond), larger ones in a thread."""
_log = logging.getLogger("penstock.collect")


class NatsReader:
    """Reads one JetStream stream for one source, across all its connections. The position comes from the source writer,
    so it is durable."""

    def __init__(
        self,
        consumers: Consumers,
        shaper: Shaper,
        limits: NatsLimits,
        since: str,
        source_writer: SourceWriter,
        status: SourceStatus,
    ) -> None:
        self._consumers = consumers
        self._shaper = shaper
        self._limits = limits
        self._since = since
        self._source_writer = source_writer
        self._status = status
        self._mark = NatsMark("", 0)
        self._settled = self._mark
        self._is_cut_back = False
        self._count = 0
        self._gone = 0
        self._acknowledger: Acknowledger | None = None

    async def read(self, client: Client, prefix: str, ended: asyncio.Event) -> None:
        """Read the JetStream stream until an error ends it, and raise that error. `ended` is set when the connection
        has ended.

        Events put earlier are settled first. A consumer that starts at a position allows the server to delete the
        events before it, so those events must be durable first.
        """
        await self._source_writer.settle()
        js = client.jetstream(prefix=prefix, timeout=self._limits.silent_s)
        info = await js.stream_info(self._consumers.stream)
        self._mark = self._settled = await self._begin(js, info)
        name = await self._consumers.renew(js, info, self._mark, by_time=self._is_cut_back)
        inbox = NatsInbox(client, prefix, self._consumers.stream, name, self._limits)
        await inbox.open()
        self._count = 0
        self._status.state = "connected"
        self._status.error = self._gap_error() if self._gone else None
        may_skip = bool(self._consumers.filters) and retention_of(info) == "limits"
        await self._pull(client, inbox, ended, (lambda: self._skip(js, name)) if may_skip else _skip_nothing)

    async def _begin(self, js: JetStreamContext, info: StreamInfo) -> NatsMark:
        """Return the position to continue from. Logs a warning if the stream was recreated or has lost its end."""
        created = info.created.isoformat() if info.created else ""
        self._is_cut_back = False
        if self._source_writer.mark is None:
            return await self._first(created, info)
        mark = NatsMark.parse(self._source_writer.mark)
        if mark.created != created:
            _log.warning("the stream %s was recreated: reading from its first event", self._consumers.stream)
            mark = NatsMark(created, 0)
        elif await is_cut_back(js, info, mark):
            _log.warning(
                "the stream %s has lost its newest events: reading the events stored since then", self._consumers.stream
            )
            self._is_cut_back = True
            return mark
        return await self._check_start(mark, info)

    async def _check_start(self, mark: NatsMark, info: StreamInfo) -> NatsMark:
        """Report events that were removed from the start of the JetStream stream.

        Missing events are expected if the stream deletes acknowledged events and we read only a part of the stream.
        """
        missing = mark.gap(info.state.first_seq)
        if missing == 0 or (self._consumers.filters and retention_of(info) != "limits"):
            return mark
        self._tell_gap(missing, mark)
        mark = replace(mark, seen=info.state.first_seq - 1)
        await (await self._source_writer.note(mark.text))
        return mark

    async def _first(self, created: str, info: StreamInfo) -> NatsMark:
        if self._since == "earliest":
            return NatsMark(created, max(info.state.first_seq - 1, 0))
        if retention_of(info) == "workqueue":
            raise SourceFailed("a work queue is read from its first event: since='latest' would discard work")
        mark = NatsMark(created, info.state.last_seq)
        await (await self._source_writer.note(mark.text))
        return mark

    async def _skip(self, js: JetStreamContext, consumer: str) -> None:
        """Record how far the stream has advanced with events that are not for us, so that removing them is not reported
        as a gap.

        This is used only to report gaps, never to decide where to start, because in a cluster the data about the stream
        and the data about the consumer may come from different servers.
        """
        stream = await js.stream_info(self._consumers.stream)
        ours = await js.consumer_info(self._consumers.stream, consumer)
        is_even = ours.num_pending == 0 and ours.delivered is not None and ours.delivered.consumer_seq == self._count
        if is_even and not self._is_cut_back and self._mark.gap(stream.state.last_seq + 1):
            self._mark = replace(self._mark, seen=stream.state.last_seq)
            await self._source_writer.note(self._mark.text)

    async def _pull(
        self, client: Client, inbox: NatsInbox, ended: asyncio.Event, when_idle: Callable[[], Awaitable[None]]
    ) -> None:
        """Read NATS events. Two other tasks acknowledge events and watch the connection, and both end with this
        call."""
        beside = [asyncio.create_task(_end_inbox_after(ended, inbox))]
        self._acknowledger = Acknowledger(client) if self._consumers.durable is not None else None
        if self._acknowledger is not None:
            beside.append(asyncio.create_task(self._acknowledger.run()))
        try:
            await self._take_all(inbox, when_idle)
        except asyncio.CancelledError:
            if self._acknowledger is not None:
                with suppress(Exception):
                    async with asyncio.timeout(self._limits.silent_s):
                        await self._acknowledger.finish(self._source_writer)
            raise
        finally:
            await cancel_all(beside)

    async def _take_all(self, inbox: NatsInbox, when_idle: Callable[[], Awaitable[None]]) -> None:
        while True:
            await inbox.request()
            while (message := await inbox.next()) is not None:
                await self._take(message)
            if inbox.was_idle:
                await when_idle()

    async def _take(self, message: Msg) -> None:
        """Put a NATS event if it is new. No delivery is missing, so an event after the last one put is the next in
        order."""
        delivery = NatsDelivery.parse(message.reply)
        self._count += 1
        if delivery.count != self._count:
            raise ConsumerInterrupted(f"delivery {self._count} is missing")
        if self._is_taken(delivery):
            self._acknowledge_again(delivery, message.reply)
            return
        self._check_gap(delivery)
        raw = await self._event(message)
        mark = NatsMark(self._mark.created, delivery.sequence, delivery.time_ns)
        durable = await self._source_writer.put(raw, mark.text)
        self._mark, self._is_cut_back = mark, False
        self._status.received += 1
        if self._acknowledger is not None:
            self._acknowledger.add(durable, message.reply)

    def _is_taken(self, delivery: NatsDelivery) -> bool:
        """Return whether a NATS event has already been put.

        If the stream has lost its end, its numbers mean nothing until the first event with a later time.
        """
        if self._is_cut_back:
            return delivery.time_ns <= self._mark.time_ns
        return delivery.sequence <= self._mark.sequence

    def _acknowledge_again(self, delivery: NatsDelivery, reply: str) -> None:
        """Acknowledge a NATS event again if it was put before this connection.

        Events put during this connection are acknowledged when they are durable.
        """
        is_settled = delivery.sequence <= self._settled.sequence or self._is_cut_back
        if self._acknowledger is not None and is_settled:
            self._acknowledger.add(None, reply)

    async def _event(self, message: Msg) -> bytes:
        if self._shaper.is_plain or len(message.data) <= SHAPE_IN_LOOP_BYTES_MAX:
            return self._shaper.event(message.subject, message.data)
        return await asyncio.to_thread(self._shaper.event, message.subject, message.data)

    def _check_gap(self, delivery: NatsDelivery) -> None:
        """Report missing NATS events.

        Without a filter, every number is an event for us, so a skipped number is an event that was removed.
        """
        missing = self._mark.gap(delivery.sequence)
        if missing and not self._consumers.filters and not self._is_cut_back:
            self._tell_gap(missing, self._mark)

    def _tell_gap(self, missing: int, mark: NatsMark) -> None:
        self._gone += missing
        self._status.error = self._gap_error()
        _log.error("%s (%d of them after event %d)", self._status.error, missing, max(mark.sequence, mark.seen))

    def _gap_error(self) -> str:
        most = "up to " if self._consumers.filters else ""
        stream = self._consumers.stream
        return f"{most}{self._gone} events were removed from the stream {stream} before they could be read"


async def _end_inbox_after(ended: asyncio.Event, inbox: NatsInbox) -> None:
    await ended.wait()
    inbox.end()


async def _skip_nothing() -> None:
    pass
