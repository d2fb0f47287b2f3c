"""What couriers are given: what all of them share, what each must ask for, and how one says that it is over."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.access import Caller
from penstock.contracts import Channel
from penstock.serve.webhooks.address import Allowed
from penstock.serve.webhooks.model import State
from penstock.serve.webhooks.retry import Patience
from penstock.serve.webhooks.slots import Slots
from penstock.serve.webhooks.store import WebhookStore
from penstock.serve.webhooks.transport import Transport
from penstock.settings import Settings


class Halt(Exception):
    """The webhook cannot go on by itself. Carries the state that it is in from now on, and why."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


@dataclass(frozen=True)
class Office:
    """What all couriers share."""

    store: WebhookStore
    transport: Transport
    slots: Slots
    settings: Settings
    allowed: Allowed
    chance: random.Random = field(default_factory=random.Random)

    @property
    def patience(self) -> Patience:
        return Patience.of(self.settings)


@dataclass(frozen=True)
class Orders:
    """What a courier must know from others each time: who it works for (raises `Halt` if nobody may), the channel that
    this caller may read, and the secrets that sign."""

    caller: Callable[[], Caller]
    channel: Callable[[Caller], Channel]
    secrets: Callable[[], list[str]]
