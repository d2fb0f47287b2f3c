"""Webhooks declared by the app: synchronised with the stored webhooks each time the gateway starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from penstock.core.errors import NotFound, PenstockError
from penstock.serve.channels.stream_reader import EARLIEST, LATEST
from penstock.serve.connections import following
from penstock.serve.webhooks.dispatcher import APP, Dispatcher
from penstock.serve.webhooks.entry import WebhookEntry
from penstock.serve.webhooks.model import ChannelProgress, Hook, WebhookProgress, WebhookState

OWNER = "app"
_log = logging.getLogger("penstock.webhooks")


@dataclass(frozen=True)
class DeclaredWebhook:
    """A webhook declared by the app.

    `secrets` are its signing secrets, newest first. If there are none, `wrong` is the reason.
    """

    name: str
    url: str
    kind: str
    of: str
    where: str | None = None
    select: str | None = None
    batch: int = 1
    secrets: tuple[str, ...] = ()
    wrong: str | None = None


async def reconcile(dispatcher: Dispatcher, declared: Sequence[DeclaredWebhook]) -> None:
    """Add the app's new webhooks, update changed ones, and stop webhooks that the app no longer declares."""
    for webhook in declared:
        try:
            await _synchronise_webhook(dispatcher, webhook)
        except PenstockError as error:  # a damaged stream must not keep the gateway from starting
            _log.error("skipped the declared webhook %s: %s", webhook.name, error)
    names = {webhook.name for webhook in declared}
    for entry in dispatcher.entries.values():
        if entry.hook.declared and entry.hook.id not in names:
            await dispatcher.become(entry, WebhookState.STOPPED, "the app no longer declares it")


async def _synchronise_webhook(dispatcher: Dispatcher, webhook: DeclaredWebhook) -> None:
    known = dispatcher.entries.get(webhook.name)
    entry = await _added(dispatcher, webhook) if known is None else await _changed(dispatcher, known, webhook)
    entry.given = webhook.secrets
    if webhook.wrong is not None:
        await dispatcher.become(entry, WebhookState.STOPPED, webhook.wrong)
    elif entry.hook.state == WebhookState.STOPPED:
        await dispatcher.become(entry, WebhookState.ACTIVE if entry.hook.verified else WebhookState.PENDING, None)


async def _added(dispatcher: Dispatcher, webhook: DeclaredWebhook) -> WebhookEntry:
    hook = Hook(
        webhook.name, webhook.url, webhook.kind, webhook.of, OWNER, datetime.now(UTC), webhook.name,
        webhook.where, webhook.select, webhook.batch, declared=True,
    )  # fmt: skip
    entry = WebhookEntry(hook, WebhookProgress(ChannelProgress(await _latest_cursor(dispatcher, webhook))))
    await dispatcher.resources.store.register(hook, entry.at_rest.progress)
    dispatcher.entries[hook.id] = entry
    return entry


async def _changed(dispatcher: Dispatcher, entry: WebhookEntry, webhook: DeclaredWebhook) -> WebhookEntry:
    """Update a declared webhook. A new address must answer a challenge.

    If the filter changes, a stream continues from its position, and a view is sent again. If the webhook is declared
    for another stream or view, delivery starts at the current end of that one.
    """
    before = entry.hook
    entry.hook = replace(
        before,
        url=webhook.url,
        kind=webhook.kind,
        of=webhook.of,
        where=webhook.where,
        select=webhook.select,
        batch=webhook.batch,
    )
    if before.url != webhook.url:
        state = WebhookState.PENDING if before.state in (WebhookState.ACTIVE, WebhookState.DISABLED) else before.state
        entry.hook = replace(entry.hook, verified=False, state=state, reason=None)
    cursor = None
    if (before.kind, before.of) != (webhook.kind, webhook.of):
        cursor = await _latest_cursor(dispatcher, webhook)
    elif webhook.kind == "view" and (before.where, before.select) != (webhook.where, webhook.select):
        cursor = EARLIEST
    if cursor is not None:
        entry.at_rest = await dispatcher.resources.store.move(entry.hook.id, cursor)
    await dispatcher.resources.store.save(entry.hook)
    return entry


async def _latest_cursor(dispatcher: Dispatcher, webhook: DeclaredWebhook) -> str:
    """Return the current end of a webhook's channel.

    The webhook's filter is not applied, because it does not affect the end. A stream that a handler has not created yet
    counts as empty.
    """
    try:
        async with following(dispatcher.channel(webhook.kind, webhook.of, APP), LATEST) as deliveries:
            return (await anext(deliveries)).cursor
    except NotFound:
        return EARLIEST
