"""The position of a source in a JetStream stream, and the consumer that starts at that position.

Each consumer lives only as long as its connection. An older consumer would deliver new events first and, after a
timeout, the events that it had delivered before: out of order, which a position cannot express. A consumer created at
our position delivers everything after it, in order and once, and numbers its deliveries without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.core.errors import SourceFailed

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig, StreamInfo

INACTIVE_S = 30.0
"""The time after which the server deletes an unused consumer without a name."""
ACK_WAIT_S = 60.0
"""The time after which the server delivers an unacknowledged event again. The second delivery is recognised and
ignored."""
DESCRIPTION = "made by Penstock, and made anew with each of its connections"
_KEEP = "-keep"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class NatsMark:
    """The position of a NATS source: after event number `sequence`, which the server stored at `time_ns`, in the stream
    that was created at `created`.

    A recreated stream starts again at 1; `created` detects that. A stream that lost its end in a power cut assigns the
    same numbers to different events; `time_ns` detects that. `time_ns` is 0 if there was no event yet. After `sequence`
    and up to `seen`, there were no events for us, or their loss has been reported.
    """

    created: str
    sequence: int
    time_ns: int = 0
    seen: int = 0

    @property
    def text(self) -> str:
        return f"{self.created} {self.sequence} {self.time_ns} {self.seen}"

    @classmethod
    def parse(cls, text: str) -> NatsMark:
        created, *numbers = text.split(" ")
        return cls(created, *map(int, numbers))

    def gap(self, next_sequence: int) -> int:
        """Return how many JetStream sequence numbers are missing between this position and the next event."""
        return max(0, next_sequence - max(self.sequence, self.seen) - 1)


@dataclass(frozen=True, slots=True)
class NatsDelivery:
    """The server's data about a delivered event: its sequence number in the stream, and the consumer's delivery
    count."""

    sequence: int
    count: int
    time_ns: int

    @classmethod
    def parse(cls, reply: str) -> NatsDelivery:
        """Parse `$JS.ACK.STREAM.CONSUMER.tries.sequence.count.time.pending`, or the form of newer servers with domain
        and account."""
        words = reply.split(".")
        first = 5 if len(words) == 9 else 7
        return cls(*map(int, words[first : first + 3]))


def is_delivery(reply: str) -> bool:
    """Return whether a message is an event of the JetStream stream, rather than a status of our request."""
    return reply.startswith("$JS.ACK.")


@dataclass(frozen=True)
class Consumers:
    """Creates the consumers of one source. If `durable` is None, they have no name and acknowledge nothing."""

    stream: str
    filters: tuple[str, ...]
    durable: str | None
    pending_max: int

    async def renew(self, js: JetStreamContext, info: StreamInfo, mark: NatsMark, *, by_time: bool) -> str:
        """Create a JetStream consumer that starts after `mark`, delete the old one, and return the new name.

        `mark` must be durable. With `by_time`, the consumer starts after the time of `mark` instead of its number.

        A stream with `interest` retention would drop new events when the old consumer is deleted, so a second consumer
        holds them until the new one exists. At every moment, some consumer holds the events after `mark`.
        """
        retention = retention_of(info)
        config = self._config(_consumer_start(retention, mark, by_time))
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
                f"the stream {self.stream!r} deletes acknowledged events (its retention is {retention}): "
                "set durable=... to the name of a consumer"
            )
        info = await js.add_consumer(self.stream, config)
        return info.name

    async def _delete(self, js: JetStreamContext, name: str) -> None:
        if await self._is_ours(js, name):
            await js.delete_consumer(self.stream, name)

    async def _is_ours(self, js: JetStreamContext, name: str) -> bool:
        """Return whether a consumer with this name exists. Raises if it is not ours: deleting it would harm its
        owner."""
        from nats.js.errors import NotFoundError

        try:
            info = await js.consumer_info(self.stream, name)
        except NotFoundError:
            return False
        if info.config.description != DESCRIPTION:
            raise SourceFailed(
                f"the stream {self.stream!r} has a consumer {name!r} that was not created by Penstock: "
                "choose a different name for durable=..."
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


async def is_cut_back(js: JetStreamContext, info: StreamInfo, mark: NatsMark) -> bool:
    """Return whether the JetStream stream has lost its end: it ends before `mark`, or a different event now has that
    number.

    Call it before creating a consumer, which allows the server to delete the events before `mark`.
    """
    from nats.js.errors import NotFoundError

    if info.state.last_seq < mark.sequence:
        return True
    if mark.time_ns == 0:
        return False
    try:
        message = await js.get_msg(info.config.name or "", mark.sequence)
    except NotFoundError:
        return False
    return message.time is not None and (message.time - _EPOCH) // timedelta(microseconds=1) != mark.time_ns // 1000


def retention_of(info: StreamInfo) -> str:
    """Return when the JetStream stream deletes events: at its `limits`, when acknowledged (`workqueue`), or when
    acknowledged by all consumers (`interest`)."""
    from nats.js.api import RetentionPolicy

    return str(RetentionPolicy(info.config.retention or "limits").value)


def _consumer_start(retention: str, mark: NatsMark, by_time: bool) -> dict[str, Any]:
    """Return where the JetStream consumer starts. A work queue contains only unfinished work, and can only be read from
    its start."""
    from nats.js.api import DeliverPolicy

    if retention == "workqueue":
        return {"deliver_policy": DeliverPolicy.ALL}
    if by_time:
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": _start_time_text(mark.time_ns + 1)}
    return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": mark.sequence + 1}


def _start_time_text(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
