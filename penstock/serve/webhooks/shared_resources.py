"""Resources of webhook workers, shared or per worker, and the exception that ends a webhook."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.access import Caller
from penstock.core.contracts import Channel
from penstock.core.settings import Settings
from penstock.serve.webhooks.address import Allowed
from penstock.serve.webhooks.contracts import StoredWebhooks
from penstock.serve.webhooks.model import WebhookState
from penstock.serve.webhooks.retry import Patience
from penstock.serve.webhooks.slots import Slots
from penstock.serve.webhooks.transport import WebhookTransport


class Halt(Exception):
    """The webhook cannot continue on its own. Contains the webhook's new state and the reason."""

    def __init__(self, state: WebhookState, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


@dataclass(frozen=True)
class SharedResources:
    """Resources shared by all webhook workers."""

    store: StoredWebhooks
    transport: WebhookTransport
    slots: Slots
    settings: Settings
    allowed: Allowed
    chance: random.Random = field(default_factory=random.Random)

    @property
    def patience(self) -> Patience:
        return Patience.of(self.settings)


@dataclass(frozen=True)
class Grant:
    """Functions that return the owner of a worker's webhook (raising `Halt` if there is none), its channel and its
    secrets."""

    caller: Callable[[], Caller]
    channel: Callable[[Caller], Channel]
    secrets: Callable[[], list[str]]
