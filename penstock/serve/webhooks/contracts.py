"""The interface between webhooks and their storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from penstock.serve.webhooks.model import (
    ChannelProgress,
    DeadMessage,
    DeliveryAttempts,
    Hook,
    WebhookMessage,
    WebhookProgress,
)

T = TypeVar("T")


class StoredWebhooks(Protocol):
    """The store for the registrations, positions, waiting messages and dead letters of all webhooks, opened by a single
    writer.

    Not thread-safe: used only in the gateway's event loop. A method that makes a change is atomic, and returns once the
    change is durable. Changes take effect in the order of the calls. If a write to disk fails, the owner of this object
    is notified, and nothing more can be written. Methods that are not coroutines are called through `read`. Methods
    raise `Damaged` if stored records differ from what was written.
    """

    async def read(self, look: Callable[[], T]) -> T:
        """Call a function that reads webhooks, after all changes requested so far, without blocking the event loop."""

    def hooks(self) -> list[tuple[Hook, WebhookProgress]]:
        """Return all webhook registrations with their progress."""

    def known(self, id: str) -> WebhookProgress:
        """Return the progress of a webhook."""

    def waiting(self, id: str) -> list[tuple[WebhookMessage, DeliveryAttempts | None]]:
        """Return, in order, a webhook's messages that have been neither delivered nor given up."""

    def dead(self, id: str, after: int, limit: int) -> list[tuple[WebhookMessage, DeadMessage, bytes]]:
        """Return up to `limit` of a webhook's dead letters with numbers above `after`, in order, with their bodies."""

    async def body(self, id: str, number: int) -> bytes:
        """Return the body of a webhook's message."""

    async def register(self, hook: Hook, progress: ChannelProgress) -> None:
        """Store a new webhook and its start position."""

    async def save(self, hook: Hook) -> None:
        """Replace a webhook's registration."""

    async def remove(self, id: str) -> None:
        """Delete all data for a webhook."""

    async def move(self, id: str, cursor: str) -> WebhookProgress:
        """Restart a webhook from another cursor. Deletes waiting messages, keeps dead letters, and does not reuse
        numbers."""

    async def append(
        self, id: str, make: Callable[[], tuple[Sequence[tuple[WebhookMessage, bytes]], ChannelProgress]]
    ) -> list[WebhookMessage]:
        """Store a webhook's messages together with the position in the channel after them.

        `make` returns both. It takes time, so it is not called in the event loop.
        """

    async def done(self, id: str, number: int, at: datetime) -> None:
        """Delete a webhook's message that was delivered, and count it as delivered."""

    async def failed(self, id: str, number: int, tries: DeliveryAttempts, at: datetime) -> None:
        """Record a failed webhook delivery that will be retried."""

    async def bury(self, id: str, number: int, dead: DeadMessage, most: int) -> int:
        """Give up on a webhook's message, and delete the oldest dead letters if there are more than `most`. Returns how
        many were deleted."""

    async def revive(self, id: str, number: int | None) -> list[WebhookMessage]:
        """Retry one dead letter of a webhook, or all of them if `number` is None, as if for the first time."""

    async def close(self) -> None:
        """Finish the changes requested so far, and close the store."""
