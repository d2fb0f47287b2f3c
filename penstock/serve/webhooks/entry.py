"""A webhook in memory, and its representation in the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from penstock.core.access import Caller
from penstock.serve.webhooks.delivery_worker import DeliveryWorker
from penstock.serve.webhooks.model import Hook, WebhookProgress

Behind = Callable[[str, str, str], int | None]


@dataclass
class WebhookEntry:
    """A webhook in memory. `lock` is held while its state changes.

    `bearer` is the caller who registered the webhook, if that caller is identified only by a token or certificate.
    `given` contains the secrets of a webhook declared by the app. `bearer` and `given` are not stored in the file.
    """

    hook: Hook
    at_rest: WebhookProgress
    bearer: Caller | None = None
    given: Sequence[str] = ()
    delivery_worker: DeliveryWorker | None = None
    task: asyncio.Task[None] | None = None
    asking: asyncio.Task[None] | None = None
    challenges: int = 0
    challenge_at: float = 0.0
    requested: int = 0
    """Number of challenges requested by the owner."""
    request_at: float = 0.0
    """Monotonic time when the owner can next request a challenge."""
    invited: bool = False
    """Whether the registration counts against the owner's limit until the address answers: see `invitations.py`."""
    error: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def known(self) -> WebhookProgress:
        return self.delivery_worker.known if self.delivery_worker is not None else self.at_rest

    def secrets(self) -> list[str]:
        """Return the webhook's current signing secrets."""
        return list(self.given) if self.hook.declared else self.hook.signing(datetime.now(UTC))

    def figures(self, behind: Behind) -> dict[str, Any]:
        """Return the webhook's figures for callers who can see the app's figures. The figures include the address, but
        not its path and query."""
        hook, known, delivery_worker = self.hook, self.known, self.delivery_worker
        parts = urlsplit(hook.url)
        return {
            "name": hook.id,
            "label": hook.name,
            "of": hook.of,
            "kind": hook.kind,
            "address": f"{parts.scheme}://{parts.netloc}",
            "state": hook.state.value,
            "reason": hook.reason,
            "pending": known.pending,
            "retrying": len(delivery_worker.retrying) if delivery_worker is not None else 0,
            "lag": behind(hook.kind, hook.of, known.progress.cursor),
            "delivered": known.tally.delivered,
            "failures": known.tally.failures,
            "dead": known.dead,
            "forgotten": known.tally.forgotten,
            "last_success": known.tally.last_success,
            "last_error": self.error or known.tally.last_error,
            "last_error_at": known.tally.last_error_at,
        }

    def description(self, behind: Behind) -> dict[str, Any]:
        """Return the description of the webhook for its owner, without the secret."""
        hook = self.hook
        description = {
            "id": hook.id,
            "name": hook.name,
            "url": hook.url,
            hook.kind: hook.of,
            "where": hook.where,
            "select": hook.select,
            "batch": hook.batch,
            "owner": hook.owner,
            "declared": hook.declared,
            "created": hook.created,
            "cursor": self.known.progress.cursor,
            "secrets": len(self.secrets()),
        }
        left_out = ("name", "label", "of", "kind", "address")
        return description | {name: value for name, value in self.figures(behind).items() if name not in left_out}
