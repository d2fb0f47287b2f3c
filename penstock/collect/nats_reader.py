"""One connection's work: pull events from a fresh consumer, put each once and in order, acknowledge what is durable."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.collect.nats_consumer import Consumers, Delivery, Place, is_delivery, retention_of
from penstock.collect.nats_subjects import Shaper
from penstock.contracts import Intake, SourceStatus
from penstock.errors import SourceFailed

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import StreamInfo

EXPIRES_S = 30.0
"""How long one request for events stands. The server keeps nothing of a connection longer than that."""
SHAPE_IN_LOOP_BYTES_MAX = 256 * 1024
"""Payloads up to this size are taken apart in the event loop (about a millisecond), larger ones in a thread."""
_OVER = frozenset({"404", "408"})
"""A request ends: there was nothing, or its time is up."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_FULL = frozenset({_TOO_LARGE, "Batch Completed"})
"""A request ends, under status 409: it got as many bytes, or as many events, as it asked for."""
_log = logging.getLogger("penstock.collect")


class Interrupted(Exception):
    """A consumer can give no more; another one can. The message is for people."""


@dataclass(frozen=True)
class Limits:
    """What may wait in memory, and how long the server may be silent."""

    pending_max: int
    pending_bytes_max: int
    silent_s: float


class Inbox:
    """Where the server's messages arrive. It sends what was asked for and no more: that bounds what waits here."""

    def __init__(self, client: Client, prefix: str, stream: str, consumer: str, limits: Limits) -> None:
        self._client = client
        self._subject = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._limits = limits
        self._bytes_max = max(limits.pending_bytes_max, 2 * client.max_payload)
        self._inbox = client.new_inbox()
        self._requests = 0
        self._batch = self._wanted = 0
        self._too_large = False
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

    async def open(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._put, pending_msgs_limit=0, pending_bytes_limit=0)

    async def _put(self, message: Msg) -> None:
        self._arrived.put_nowait(message)

    def end(self) -> None:
        """Tell who waits that the connection has ended."""
        self._arrived.put_nowait(None)

    async def request(self) -> None:
        """Ask for events: as many as may wait, or for a single one if the next is larger than all that may."""
        heartbeat_s = min(self._limits.silent_s / 2.5, EXPIRES_S / 2)
        wanted = {"expires": _ns(EXPIRES_S), "idle_heartbeat": _ns(heartbeat_s)}
        if self._too_large:
            self._wanted = 1
        else:
            self._wanted = max(1, self._limits.pending_max // 2)
            wanted["max_bytes"] = self._bytes_max
        wanted["batch"] = self._batch = self._wanted
        self._requests += 1
        await self._client.publish(self._subject, msgspec.json.encode(wanted), f"{self._inbox}.{self._requests}")

    async def next(self) -> Msg | None:
        """The next event, or None if the request has ended. Raises `Interrupted` if nothing more can come."""
        while self._wanted > 0:
            message = await self._next()
            if is_delivery(message.reply):
                self._wanted -= 1
                self._too_large = False
                return message
            headers = message.headers or {}
            status, words = headers.get("Status", ""), headers.get("Description", "")
            if status == "100" or message.subject != f"{self._inbox}.{self._requests}":
                continue
            if status not in _OVER and words not in _FULL:
                raise Interrupted(f"the consumer ended: {words or 'nobody answers for it'}")
            self._too_large = words == _TOO_LARGE and self._wanted == self._batch
            break
        return None

    async def _next(self) -> Msg:
        if self._arrived.empty():
            try:
                message = await asyncio.wait_for(self._arrived.get(), self._limits.silent_s)
            except TimeoutError:
                raise Interrupted(f"the server was silent for {self._limits.silent_s:g} s") from None
        else:
            message = self._arrived.get_nowait()
        if message is None:
            raise Interrupted("the connection ended")
        return message


class Acknowledger:
    """Acknowledges events in the order in which they become durable. A task of its own, for one connection.

    At most `pending_max` wait here: the server gives no more than that without acknowledgement.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: asyncio.Queue[tuple[asyncio.Future[None] | None, str]] = asyncio.Queue()

    def add(self, durable: asyncio.Future[None] | None, reply: str) -> None:
        """None: it is durable already."""
        self._waiting.put_nowait((durable, reply))

    async def run(self) -> None:
        from nats.errors import Error

        while True:
            durable, reply = await self._waiting.get()
            if durable is not None and not durable.done():
                await asyncio.wait([durable])  # not `await durable`: who is cancelled there cancels it for everybody
            if durable is not None and durable.exception() is not None:
                return  # the next `put` raises the same
            with suppress(Error, OSError):  # the reading notices, and what was not acknowledged comes again
                await self._client.publish(reply, b"+ACK")
            self._waiting.task_done()

    async def finish(self, intake: Intake) -> None:
        await intake.settle()
        await self._waiting.join()
        await self._client.flush()


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
        self._rolled_back_at: Place | None = None
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
        self._place = self._settled = await self._begin(info)
        by_time = self._is_rolled_back()
        name = await self._consumers.renew(js, info, self._place, by_time=by_time)
        inbox = Inbox(client, prefix, self._consumers.stream, name, self._limits)
        await inbox.open()
        self._count = 0
        self._status.state = "connected"
        self._status.error = self._gap_told() if self._gone else None
        await self._pull(client, inbox, ended)

    async def _begin(self, info: StreamInfo) -> Place:
        """The position to read on from. Says so if what is after the last one is not what was there before."""
        stream, state = self._consumers.stream, info.state
        created = info.created.isoformat() if info.created else ""
        if self._intake.mark is None:
            return await self._first(created, info)
        place = Place.parse(self._intake.mark)
        if place.created != created:
            _log.warning("the stream %s was made anew: it is read from its first event", stream)
            place = Place(created, 0)
        elif state.last_seq < place.sequence:
            self._rolled_back_at = place
        if self._consumers.filters and state.first_seq > place.sequence + 1:
            self._tell_gap(state.first_seq - place.sequence - 1)
        if self._rolled_back_at == place:
            _log.warning("the stream %s has lost its end: what was stored after that is read", stream)
        return place

    async def _first(self, created: str, info: StreamInfo) -> Place:
        if self._since == "earliest":
            return Place(created, max(info.state.first_seq - 1, 0))
        if retention_of(info) == "workqueue":
            raise SourceFailed("a work queue is read from its first event: since='latest' would throw work away")
        place = Place(created, info.state.last_seq)
        await (await self._intake.note(place.text))
        return place

    def _is_rolled_back(self) -> bool:
        return self._rolled_back_at is not None and self._rolled_back_at == self._place

    async def _pull(self, client: Client, inbox: Inbox, ended: asyncio.Event) -> None:
        """The reading, beside the acknowledging and the watch on the connection, both of which end with it."""
        beside = [asyncio.create_task(_when(ended, inbox))]
        self._acknowledger = Acknowledger(client) if self._consumers.durable is not None else None
        if self._acknowledger is not None:
            beside.append(asyncio.create_task(self._acknowledger.run()))
        try:
            await self._take_all(inbox)
        except asyncio.CancelledError:
            if self._acknowledger is not None:
                with suppress(Exception):
                    await asyncio.wait_for(self._acknowledger.finish(self._intake), self._limits.silent_s)
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _take_all(self, inbox: Inbox) -> None:
        while True:
            await inbox.request()
            while (message := await inbox.next()) is not None:
                await self._take(message)

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
        self._place, self._rolled_back_at = place, None
        self._status.received += 1
        if self._acknowledger is not None:
            self._acknowledger.add(durable, message.reply)

    def _is_taken(self, delivery: Delivery) -> bool:
        """Also finds out whether the last event taken is still the one that has its number."""
        place = self._place
        if self._is_rolled_back():
            return delivery.time_ns <= place.time_ns
        if delivery.sequence == place.sequence and place.time_ns not in (0, delivery.time_ns):
            self._rolled_back_at = place
            raise Interrupted(f"event {place.sequence} is another one than before")
        return delivery.sequence <= place.sequence

    def _acknowledge_again(self, delivery: Delivery, reply: str) -> None:
        """For what was taken before this connection. What it has taken itself is acknowledged when it is durable."""
        is_settled = delivery.sequence <= self._settled.sequence or self._is_rolled_back()
        if self._acknowledger is not None and is_settled:
            self._acknowledger.add(None, reply)

    async def _event(self, message: Msg) -> bytes:
        if self._shaper.is_plain or len(message.data) <= SHAPE_IN_LOOP_BYTES_MAX:
            return self._shaper.event(message.subject, message.data)
        return await asyncio.to_thread(self._shaper.event, message.subject, message.data)

    def _check_gap(self, delivery: Delivery) -> None:
        """Without a filter every number is an event for us, so one that is left out is an event that is gone."""
        missing = delivery.sequence - self._place.sequence - 1
        if missing > 0 and not self._consumers.filters and not self._is_rolled_back():
            self._tell_gap(missing)

    def _tell_gap(self, missing: int) -> None:
        self._gone += missing
        self._status.error = self._gap_told()
        _log.error("%s (%d after event %d)", self._status.error, missing, self._place.sequence)

    def _gap_told(self) -> str:
        most = "up to " if self._consumers.filters else ""
        stream = self._consumers.stream
        return f"{most}{self._gone} events were removed from the stream {stream} before they could be read"


async def _when(ended: asyncio.Event, inbox: Inbox) -> None:
    await ended.wait()
    inbox.end()


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)
