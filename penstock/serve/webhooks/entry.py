"""A webhook as this process has it, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from penstock.access import Caller
from penstock.serve.webhooks.courier import Courier
from penstock.serve.webhooks.model import Hook, Known

Behind = Callable[[str, str, str], int | None]


@dataclass
class Entry:
    """`bearer` is the caller who registered it, if only a token or certificate says who that is; `given` are secrets of
    one that the app declares. Neither is kept in the file. `lock` is held by whoever changes its state."""

    hook: Hook
    at_rest: Known
    bearer: Caller | None = None
    given: Sequence[str] = ()
    courier: Courier | None = None
    task: asyncio.Task[None] | None = None
    asking: asyncio.Task[None] | None = None
    challenges: int = 0
    challenge_at: float = 0.0
    requested: int = 0
    """Challenges that its owner asked for."""
    request_at: float = 0.0
    """When the owner may ask for the next one."""
    error: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def known(self) -> Known:
        return self.courier.known if self.courier is not None else self.at_rest

    def secrets(self) -> list[str]:
        """Those that sign now."""
        return list(self.given) if self.hook.declared else self.hook.signing(datetime.now(UTC))

    def figures(self, behind: Behind) -> dict[str, Any]:
        """For everyone who sees the figures of the app: the address without path and query."""
        hook, known, courier = self.hook, self.known, self.courier
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
            "retrying": len(courier.retrying) if courier is not None else 0,
            "lag": behind(hook.kind, hook.of, known.place.cursor),
            "delivered": known.tally.delivered,
            "failures": known.tally.failures,
            "dead": known.dead,
            "forgotten": known.tally.forgotten,
            "last_success": known.tally.last_success,
            "last_error": self.error or known.tally.last_error,
            "last_error_at": known.tally.last_error_at,
        }

    def told(self, behind: Behind) -> dict[str, Any]:
        """For its owner. The secret is not in it."""
        hook = self.hook
        told = {
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
            "cursor": self.known.place.cursor,
            "secrets": len(self.secrets()),
        }
        left_out = ("name", "label", "of", "kind", "address")
        return told | {name: value for name, value in self.figures(behind).items() if name not in left_out}
