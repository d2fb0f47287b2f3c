"""Where a source stands in a JetStream stream, and the consumer that begins there.

A consumer of ours lives as long as its connection. An older one would first give what is new and, once its time is up,
give again what it had given before: out of order, which a position cannot express. One that is made anew at our
position gives everything after it, in order and once; what it has given is known by its own count, that has no holes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import SourceFailed

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig, StreamInfo

INACTIVE_S = 30.0
"""After how long the server forgets a consumer without a name that nobody asks."""
ACK_WAIT_S = 60.0
"""After how long the server gives an event again that was not acknowledged. That is known for what it is, and left."""
DESCRIPTION = "made by Penstock, and made anew with each of its connections"
_KEEP = "-keep"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Place:
    """A position: after the event `sequence`, stored at `time_ns`, of the stream that was made at `created`.

    A stream that was made anew begins at 1 again: that tells `created`. One that lost its end in a power cut gives the
    same numbers to other events: that tells `time_ns`, which is 0 if there was no event yet. Up to `seen` nothing was
    left for us, or it has been told that it is gone.
    """

    created: str
    sequence: int
    time_ns: int = 0
    seen: int = 0

    @property
    def text(self) -> str:
        return f"{self.created} {self.sequence} {self.time_ns} {self.seen}"

    @classmethod
    def parse(cls, text: str) -> Place:
        created, *numbers = text.split(" ")
        return cls(created, *map(int, numbers))

    def gap(self, next_sequence: int) -> int:
        """How many numbers there are between what is behind us and the next one."""
        return max(0, next_sequence - max(self.sequence, self.seen) - 1)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the server says of an event it gives: its place in the stream, and how many this consumer was given."""

    sequence: int
    count: int
    time_ns: int

    @classmethod
    def parse(cls, reply: str) -> Delivery:
        """Of `$JS.ACK.STREAM.CONSUMER.tries.sequence.count.time.pending`; newer ones have domain and account first."""
        words = reply.split(".")
        first = 5 if len(words) == 9 else 7
        return cls(*map(int, words[first : first + 3]))


def is_delivery(reply: str) -> bool:
    """Whether a message is an event of the stream, rather than word of the server about our request."""
    return reply.startswith("$JS.ACK.")


@dataclass(frozen=True)
class Consumers:
    """Makes the consumers of one source. `durable` is None for one without a name and without acknowledgements."""

    stream: str
    filters: tuple[str, ...]
    durable: str | None
    pending_max: int

    async def renew(self, js: JetStreamContext, info: StreamInfo, place: Place, *, by_time: bool) -> str:
        """A fresh consumer that begins after `place`; returns its name.

        `place` must be durable. With `by_time`, it begins after the time of `place` in place of its number.

        A stream that keeps what somebody is interested in would drop what came meanwhile when the old consumer goes, so
        another one holds it until the new one is there. At every moment there is one that holds what is after `place`.
        """
        retention = retention_of(info)
        config = self._config(_start(retention, place, by_time))
        if self.durable is None:
            return await self._nameless(js, config, retention)
        keep = self.durable + _KEEP
        if retention == "interest" and not await self._is_ours(js, keep):
            await js.add_consumer(self.stream, config, name=keep, durable_name=keep)
        await self._delete(js, self.durable)
        await js.add_consumer(self.stream, config, name=self.durable, durable_name=self.durable)
        if retention == "interest":
            await self._delete(js, keep)
        return self.durable

    async def _nameless(self, js: JetStreamContext, config: ConsumerConfig, retention: str) -> str:
        if retention != "limits":
            raise SourceFailed(
                f"the stream {self.stream!r} deletes what was acknowledged (its retention is {retention}): "
                "give the source a name to acknowledge by, durable=..."
            )
        made = await js.add_consumer(self.stream, config)
        return made.name

    async def _delete(self, js: JetStreamContext, name: str) -> None:
        if await self._is_ours(js, name):
            await js.delete_consumer(self.stream, name)

    async def _is_ours(self, js: JetStreamContext, name: str) -> bool:
        """Whether there is a consumer of this name. Raises if it is somebody else's: deleting it would harm them."""
        from nats.js.errors import NotFoundError

        try:
            found = await js.consumer_info(self.stream, name)
        except NotFoundError:
            return False
        if found.config.description != DESCRIPTION:
            raise SourceFailed(
                f"the stream {self.stream!r} has a consumer {name!r} that was not made by Penstock: "
                "choose another name for durable=..."
            )
        return True

    def _config(self, start: dict[str, Any]) -> ConsumerConfig:
        from nats.js.api import AckPolicy, ConsumerConfig

        if len(self.filters) == 1:
            start["filter_subject"] = self.filters[0]
        elif self.filters:
            start["filter_subjects"] = list(self.filters)
        if self.durable is None:
            return ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                mem_storage=True,
                inactive_threshold=INACTIVE_S,
                description=DESCRIPTION,
                **start,
            )
        return ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=self.pending_max,
            description=DESCRIPTION,
            **start,
        )


async def is_cut_back(js: JetStreamContext, info: StreamInfo, place: Place) -> bool:
    """Whether the stream has lost its end since: it ends before `place`, or another event has that number now.

    Asked before a consumer is made: that would allow the server to delete what is before `place`.
    """
    from nats.js.errors import NotFoundError

    if info.state.last_seq < place.sequence:
        return True
    if place.time_ns == 0:
        return False
    try:
        found = await js.get_msg(info.config.name or "", place.sequence)
    except NotFoundError:
        return False
    return found.time is not None and (found.time - _EPOCH) // timedelta(microseconds=1) != place.time_ns // 1000


def retention_of(info: StreamInfo) -> str:
    """When the stream deletes: by `limits`, or what was acknowledged (`workqueue`), or by all (`interest`)."""
    from nats.js.api import RetentionPolicy

    return str(RetentionPolicy(info.config.retention or "limits").value)


def _start(retention: str, place: Place, by_time: bool) -> dict[str, Any]:
    """Where to begin. A work queue has nothing but what is still to be done, and can only be read from its start."""
    from nats.js.api import DeliverPolicy

    if retention == "workqueue":
        return {"deliver_policy": DeliverPolicy.ALL}
    if by_time:
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": _rfc3339(place.time_ns + 1)}
    return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": place.sequence + 1}


def _rfc3339(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
