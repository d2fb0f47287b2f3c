"""The plays of demos, as events."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec

from examples import drawdown, learning, logins, traffic
from examples.playing.message import Message
from examples.playing.plays import FEEDS
from penstock import Event

START = datetime(2024, 5, 1, 12, tzinfo=UTC)
CLASSES: dict[str, type[Event]] = {
    "drawdown": drawdown.Trade,
    "traffic": traffic.Report,
    "logins": logins.Attempt,
    "learning": learning.Delivery,
}


def messages(
    demo: str, count: int, *, seed: int = 1, start: datetime = START, rate: float | None = None
) -> list[Message]:
    feed = FEEDS[demo]
    return list(itertools.islice(feed.play(seed, start, rate or feed.rate), count))


def events(demo: str, count: int, **options: Any) -> list[Any]:
    """Return the events that the gateway would store of `count` messages: one that is sent twice counts once."""
    cls: Any = CLASSES[demo]
    events = [msgspec.convert(message.event, cls) for message in messages(demo, count, **options)]
    return list({getattr(event, cls.__id_field__): event for event in events}.values())
