"""Connect webhooks to the rest of the gateway: provide the declared webhooks, and the channel data that they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.app.app import App
from penstock.core.access import Gate
from penstock.core.contracts import LogReader
from penstock.core.cursor import StreamCursor, ViewCursor, decode
from penstock.core.errors import PenstockError
from penstock.core.signing import secret_bytes
from penstock.serve.webhooks.declared import DeclaredWebhook
from penstock.serve.webhooks.dispatcher import RuntimeCallbacks
from penstock.serve.webhooks.messages import lane_key
from penstock.serve.webhooks.registry import SECRETS_MAX
from penstock.store import StoredLiveView


def around(
    app: App,
    gate: Gate,
    log: LogReader,
    tables: Mapping[str, StoredLiveView],
    fatal: Callable[[PenstockError], None],
) -> RuntimeCallbacks:
    sources = _Sources(app, log, tables)
    return RuntimeCallbacks(gate.current_caller, sources.key, sources.behind, fatal)


def declared(app: App, environ: Mapping[str, str] = os.environ) -> list[DeclaredWebhook]:
    """Return the app's webhooks, each with its secrets. A webhook with an unreadable secret reports the error and sends
    nothing."""
    views = {view.name for view in app.views}
    views |= {feed.name for feed in app.feeds if feed.of in views}
    webhooks = []
    for webhook in app.webhooks:
        kind = "view" if webhook.of in views else "stream"
        declaration = DeclaredWebhook(
            webhook.name, webhook.url, kind, webhook.of, webhook.condition, webhook.select, webhook.batch
        )
        try:
            webhooks.append(replace(declaration, secrets=_webhook_secrets(webhook.secret, environ)))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            webhooks.append(replace(declaration, wrong=f"its secret, from {webhook.secret}, cannot be used: {reason}"))
    return webhooks


def _webhook_secrets(where: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    if "/" not in where and where not in environ:
        raise ValueError("there is no such environment variable")
    text = Path(where).read_text() if "/" in where else environ[where]
    secrets = tuple(text.split()[:SECRETS_MAX])
    for secret in secrets or ("",):
        secret_bytes(secret)
    return secrets


@dataclass(frozen=True)
class _Sources:
    app: App
    log: LogReader
    tables: Mapping[str, StoredLiveView]

    def key(self, kind: str, of: str) -> tuple[str, ...]:
        """Return the columns that identify an item of a stream or view. The result is empty for a stream without a key.
        For a feed, only the columns that it shows are returned."""
        for feed in self.app.feeds:
            if feed.name == of:
                return lane_key(kind, self.key(kind, feed.of), feed.select)
        if kind == "view":
            return next((view.key for view in self.app.views if view.name == of), ())
        keys = [stream.key for stream in self.app.streams if stream.name == of]
        return tuple(key for key in keys if key is not None)

    def behind(self, kind: str, of: str, cursor: str) -> int | None:
        """Return the number of events or versions after a cursor, before any filter is applied, or None if the number
        is unknown."""
        name = next((feed.of for feed in self.app.feeds if feed.name == of), of)
        try:
            position = decode(cursor)
            if isinstance(position, StreamCursor) and kind == "stream":
                return self.log.rows_between(
                    name,
                    position.offsets,
                    {partition: self.log.ends(name)[partition] for partition in position.offsets},
                )
            if isinstance(position, ViewCursor) and kind == "view":
                return max(0, self.tables[name].version - position.version)
        except (PenstockError, KeyError):
            return None
        return None
