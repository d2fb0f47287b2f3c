"""The operations on webhooks. Permissions are checked on every use.

A caller sees its own webhooks, and an admin sees all webhooks. The existence of other callers' webhooks is not
revealed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.access import Caller
from penstock.core.contracts import Channel
from penstock.core.errors import Busy, Conflict, NotFound, PenstockError
from penstock.core.settings import Settings
from penstock.core.signing import new_secret
from penstock.core.tasks import cancel_all
from penstock.serve.channels.stream_reader import EARLIEST, LATEST
from penstock.serve.connections import following
from penstock.serve.webhooks.address import Allowed, endpoint
from penstock.serve.webhooks.contracts import StoredWebhooks
from penstock.serve.webhooks.declared import DeclaredWebhook, reconcile
from penstock.serve.webhooks.dispatcher import Dispatcher, RuntimeCallbacks
from penstock.serve.webhooks.entry import WebhookEntry
from penstock.serve.webhooks.model import ChannelProgress, Hook, Signing, WebhookProgress, WebhookState
from penstock.serve.webhooks.shared_resources import Halt, SharedResources
from penstock.serve.webhooks.slots import Slots
from penstock.serve.webhooks.transport import WebhookTransport

SECRETS_MAX = 3
Description = dict[str, Any]
_log = logging.getLogger("penstock.webhooks")


class Registry:
    """The webhooks of this gateway. Methods raise `Busy` until `start` is done. Not thread-safe."""

    def __init__(
        self,
        open_store: Callable[[Callable[[PenstockError], None]], StoredWebhooks],
        settings: Settings,
        around: RuntimeCallbacks,
        transport: WebhookTransport | None = None,
        declared: Sequence[DeclaredWebhook] = (),
    ) -> None:
        self._open_store = open_store
        self._settings = settings
        self._around = around
        self._declared = declared
        self._allowed = Allowed.of(settings.webhook_private)
        self._transport = transport or WebhookTransport(self._allowed, timeout_s=settings.webhook_timeout_s)
        self._dispatcher: Dispatcher | None = None
        self._watching: asyncio.Task[None] | None = None
        self.broken: PenstockError | None = None
        """The error that disabled webhooks, if their file cannot be used."""

    async def start(self, channel: Callable[[str, str, Caller], Channel]) -> None:
        """Open the webhooks' file and start the active webhooks. If the file is damaged, webhooks are disabled, and the
        rest of the gateway works."""
        try:
            store = await asyncio.to_thread(self._open_store, self._around.fatal)
            hooks = await store.read(store.hooks)
        except PenstockError as error:
            self.broken = error
            _log.error("webhooks are disabled: %s", error)
            return
        slots = Slots(self._settings.webhook_requests_max, self._settings.webhook_host_requests_max)
        resources = SharedResources(store, self._transport, slots, self._settings, self._allowed)
        self._dispatcher = Dispatcher(resources, self._around, channel)
        for hook, known in hooks:
            self._dispatcher.entries[hook.id] = WebhookEntry(hook, known)
        await reconcile(self._dispatcher, self._declared)
        for entry in self._dispatcher.entries.values():
            self._dispatcher.start_worker(entry)
        self._watching = asyncio.create_task(self._dispatcher.watch(), name="webhooks")

    async def close(self) -> None:
        if self._watching is not None:
            await cancel_all([self._watching])
        if self._dispatcher is not None:
            await self._dispatcher.close()
            await self._dispatcher.resources.store.close()

    def describe(self) -> list[Description]:
        """Return the figures of webhooks for `/v1/app` and the metrics."""
        return (
            []
            if self._dispatcher is None
            else [entry.figures(self._around.behind) for entry in self._dispatcher.entries.values()]
        )

    async def register(self, caller: Caller, wanted: Hook, since: str) -> tuple[Description, str]:
        """Register a webhook, which is pending until its address answers a challenge.

        Returns its description and its secret, which is shown only once.
        """
        dispatcher = self._ready()
        endpoint(wanted.url, self._allowed)
        cursor = await self._cursor(caller, wanted, since)
        if len(dispatcher.entries) >= self._settings.webhooks_max:
            raise Busy(f"there are already {self._settings.webhooks_max} webhooks, the maximum", retry_after_s=60)
        owned = [entry.hook.name for entry in dispatcher.entries.values() if entry.hook.belongs_to(caller)]
        share = max(1, self._settings.webhooks_max // 2)
        if caller.name and not caller.is_admin and len(owned) >= share:
            raise Busy(f"you already have {share} webhooks, the maximum for one caller", retry_after_s=60)
        if wanted.name and wanted.name in owned:
            raise Conflict(f"a webhook named {wanted.name!r} already exists; remove it or choose another name")
        secret = new_secret()
        hook = replace(
            wanted,
            id=f"wh_{secrets.token_hex(12)}",
            owner=caller.name,
            owner_key=caller.key_added,
            secrets=(Signing(secret),),
        )
        entry = WebhookEntry(
            hook, WebhookProgress(ChannelProgress(cursor)), bearer=self._bearer(caller), invited=not caller.is_admin
        )
        if entry.invited:
            dispatcher.invitations.take(caller.name)
        dispatcher.entries[hook.id] = entry
        try:
            await dispatcher.resources.store.register(hook, entry.at_rest.progress)
        except BaseException:
            del dispatcher.entries[hook.id]
            if entry.invited:
                dispatcher.invitations.give_back(caller.name)
            raise
        dispatcher.start_worker(entry)
        _log.info("webhook %s for %s %s was registered by %s", hook.id, hook.kind, hook.of, caller.name or "anyone")
        return self._description(entry), secret

    def listed(self, caller: Caller) -> list[Description]:
        return [
            self._description(entry) for entry in self._ready().entries.values() if _sees_webhook(caller, entry.hook)
        ]

    def get(self, caller: Caller, id: str) -> Description:
        return self._description(self._entry(caller, id))

    async def remove(self, caller: Caller, id: str) -> None:
        dispatcher, entry = self._ready(), self._entry(caller, id)
        if entry.hook.declared and entry.hook.state != WebhookState.STOPPED:
            raise Conflict("the app declares this webhook: remove it from the app, or pause it")
        async with entry.lock:
            await dispatcher.rest(entry)
            await dispatcher.resources.store.remove(id)
            dispatcher.entries.pop(id, None)
        _log.info("webhook %s was removed by %s", id, caller.name or "anyone")

    async def pause(self, caller: Caller, id: str) -> Description:
        dispatcher, entry = self._ready(), self._entry(caller, id)
        async with entry.lock:
            await dispatcher.rest(entry)
            await dispatcher.become(entry, WebhookState.PAUSED, None)
        return self._description(entry)

    async def resume(self, caller: Caller, id: str) -> Description:
        """Resume a webhook after a pause or a stop. If its owner no longer exists, the caller becomes its owner.

        After a 410 the address must answer a challenge again.
        """
        dispatcher, entry = self._ready(), self._entry(caller, id)
        caller.require("consume", entry.hook.of)
        async with entry.lock:
            if not entry.hook.verified or entry.hook.state == WebhookState.DISABLED:
                dispatcher.require_turn(entry)
            await dispatcher.rest(entry)
            verified = entry.hook.verified and entry.hook.state != WebhookState.DISABLED
            entry.hook = replace(entry.hook, verified=verified)
            entry.challenges = 0
            if not self._has_owner(dispatcher, entry, caller):
                entry.hook = replace(entry.hook, owner=caller.name, owner_key=caller.key_added)
                entry.bearer = self._bearer(caller)
            await dispatcher.become(entry, WebhookState.ACTIVE if verified else WebhookState.PENDING, None)
            dispatcher.start_worker(entry)
        return self._description(entry)

    async def verify(self, caller: Caller, id: str) -> Description:
        """Send a webhook's challenge now. Returns once the challenge has been answered or has failed."""
        dispatcher, entry = self._ready(), self._entry(caller, id)
        if entry.hook.state != WebhookState.PENDING:
            raise Conflict(f"the webhook is {entry.hook.state.value}: only a pending webhook can be verified")
        dispatcher.require_turn(entry)
        await dispatcher.challenge_now(entry)
        return self._description(entry)

    async def rotate(self, caller: Caller, id: str) -> tuple[Description, str]:
        """Create a new secret for a webhook. Messages are also signed with the previous secret for some time."""
        dispatcher, entry = self._ready(), self._entry(caller, id)
        if entry.hook.declared:
            raise Conflict("this webhook's secret comes from the app: change it there")
        async with entry.lock:
            now, secret = datetime.now(UTC), new_secret()
            until = now + timedelta(hours=self._settings.webhook_grace_hours)
            old = [Signing(signing.secret, min(signing.until or until, until)) for signing in entry.hook.secrets]
            kept = [signing for signing in old if signing.until is not None and signing.until > now]
            entry.hook = replace(entry.hook, secrets=(Signing(secret), *kept[: SECRETS_MAX - 1]))
            await dispatcher.resources.store.save(entry.hook)
        return self._description(entry), secret

    async def redrive(self, caller: Caller, id: str, since: str) -> Description:
        """Restart a webhook from another cursor: drops waiting messages, and sends everything after the cursor as new
        messages."""
        dispatcher, entry = self._ready(), self._entry(caller, id)
        cursor = await self._cursor(caller, entry.hook, since)
        async with entry.lock:
            await dispatcher.rest(entry)
            entry.at_rest = await dispatcher.resources.store.move(id, cursor)
            dispatcher.start_worker(entry)
        return self._description(entry)

    async def dead(self, caller: Caller, id: str, after: int, limit: int) -> list[Description]:
        """Return a webhook's dead letters, oldest first.

        Requires permission to read the stream or view, because dead letters contain its data.
        """
        dispatcher, entry = self._ready(), self._entry(caller, id)
        caller.require("consume", entry.hook.of)
        store = dispatcher.resources.store
        return [
            {"id": message.id(id), "number": message.number, "at": dead.at, "tries": dead.tries, "error": dead.error}
            | {"message": msgspec.Raw(body)}
            for message, dead, body in await store.read(lambda: store.dead(id, after, limit))
        ]

    async def revive(self, caller: Caller, id: str, number: int | None) -> int:
        """Retry one dead letter of a webhook, or all of them, with the same ids. Returns how many are retried."""
        dispatcher, entry = self._ready(), self._entry(caller, id)
        async with entry.lock:
            messages = await dispatcher.resources.store.revive(id, number)
            if entry.delivery_worker is not None:
                entry.delivery_worker.revive(messages)
            else:
                known = entry.at_rest
                count = len(messages)
                entry.at_rest = WebhookProgress(known.progress, known.tally, known.dead - count, known.pending + count)
        return len(messages)

    def _ready(self) -> Dispatcher:
        if self.broken is not None:
            raise self.broken
        if self._dispatcher is None:
            raise Busy("webhooks are not ready yet")
        return self._dispatcher

    def _entry(self, caller: Caller, id: str) -> WebhookEntry:
        entry = self._ready().entries.get(id)
        if entry is None or not _sees_webhook(caller, entry.hook):
            raise NotFound(f"there is no webhook {id[:80]!r}")
        return entry

    def _description(self, entry: WebhookEntry) -> Description:
        return entry.description(self._around.behind)

    def _has_owner(self, dispatcher: Dispatcher, entry: WebhookEntry, caller: Caller) -> bool:
        try:
            dispatcher.owner(entry)
        except Halt:
            return False
        return entry.bearer is None or entry.hook.owner != caller.name

    def _bearer(self, caller: Caller) -> Caller | None:
        """Return the webhook's caller if that caller is identified only by a token or certificate.

        The caller is kept for as long as this process runs.
        """
        return caller if self._around.current_caller(caller.name) is None else None

    async def _cursor(self, caller: Caller, hook: Hook, since: str) -> str:
        """Return the start cursor of a webhook, checked against its channel.

        `latest` is resolved now, not when the webhook is verified.
        """
        async with following(self._ready().opened(hook, caller), since) as deliveries:
            first = await anext(deliveries)
        if since == LATEST:
            return first.cursor
        return since if since else EARLIEST


def _sees_webhook(caller: Caller, hook: Hook) -> bool:
    return caller.is_admin or hook.belongs_to(caller)
