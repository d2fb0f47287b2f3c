"""Everything that can be asked of webhooks, with the rights looked at on every use.

A caller sees its own webhooks, an admin all of them; of others it is not told that there are any.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.access import Caller
from penstock.contracts import Channel
from penstock.errors import Busy, Conflict, NotFound, PenstockError
from penstock.serve.channels.pieces import EARLIEST, LATEST
from penstock.serve.connections import following
from penstock.serve.webhooks.address import Allowed, endpoint
from penstock.serve.webhooks.crew import Around, Crew
from penstock.serve.webhooks.declared import Declared, bring_into_line
from penstock.serve.webhooks.entry import Entry
from penstock.serve.webhooks.model import Hook, Known, Place, Signing, State
from penstock.serve.webhooks.office import Halt, Office
from penstock.serve.webhooks.slots import Slots
from penstock.serve.webhooks.store import WebhookStore
from penstock.serve.webhooks.transport import Transport
from penstock.settings import Settings
from penstock.signing import new_secret

SECRETS_MAX = 3
Told = dict[str, Any]
_log = logging.getLogger("penstock.webhooks")


class Registry:
    """Belongs to one event loop. Between `start` and `close` it can be asked things; before, it is `Busy`."""

    def __init__(
        self,
        path: Path,
        settings: Settings,
        around: Around,
        transport: Transport | None = None,
        declared: Sequence[Declared] = (),
    ) -> None:
        self._path = path
        self._settings = settings
        self._around = around
        self._declared = declared
        self._allowed = Allowed.of(settings.webhook_private)
        self._transport = transport or Transport(self._allowed, timeout_s=settings.webhook_timeout_s)
        self._crew: Crew | None = None
        self._watching: asyncio.Task[None] | None = None
        self.broken: PenstockError | None = None
        """Why there are no webhooks: their file cannot be used."""

    async def start(self, channel: Callable[[str, str, Caller], Channel]) -> None:
        """Open the file and let those that are active go to work. A file that is damaged stops webhooks only."""
        try:
            store = await asyncio.to_thread(WebhookStore, self._path, self._around.fatal)
            found = await store.read(store.hooks)
        except PenstockError as error:
            self.broken = error
            _log.error("there are no webhooks: %s", error)
            return
        slots = Slots(self._settings.webhook_requests_max, self._settings.webhook_host_requests_max)
        office = Office(store, self._transport, slots, self._settings, self._allowed)
        self._crew = Crew(office, self._around, channel)
        for hook, known in found:
            self._crew.entries[hook.id] = Entry(hook, known)
        await bring_into_line(self._crew, self._declared)
        for entry in self._crew.entries.values():
            self._crew.set_to_work(entry)
        self._watching = asyncio.create_task(self._crew.watch(), name="webhooks")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._crew is not None:
            await self._crew.close()
            await self._crew.office.store.close()

    def describe(self) -> list[Told]:
        """For `/v1/app` and the metrics."""
        return [] if self._crew is None else [each.figures(self._around.behind) for each in self._crew.entries.values()]

    async def register(self, caller: Caller, wanted: Hook, since: str) -> tuple[Told, str]:
        """A new webhook, which waits for its address to answer a challenge; and its secret, shown this once."""
        crew = self._ready()
        endpoint(wanted.url, self._allowed)
        cursor = await self._cursor(caller, wanted, since)
        if len(crew.entries) >= self._settings.webhooks_max:
            raise Busy(f"there are {self._settings.webhooks_max} webhooks, and no more are allowed", retry_after_s=60)
        owned = [each.hook.name for each in crew.entries.values() if each.hook.belongs_to(caller)]
        share = max(1, self._settings.webhooks_max // 2)
        if caller.name and not caller.is_admin and len(owned) >= share:
            raise Busy(f"you have {share} webhooks, and no one may have more", retry_after_s=60)
        if wanted.name and wanted.name in owned:
            raise Conflict(f"there is a webhook {wanted.name!r}; remove it, or choose another name")
        secret = new_secret()
        hook = replace(
            wanted,
            id=f"wh_{secrets.token_hex(12)}",
            owner=caller.name,
            owner_key=caller.key_added,
            secrets=(Signing(secret),),
        )
        entry = Entry(hook, Known(Place(cursor)), bearer=self._bearer(caller))
        crew.entries[hook.id] = entry
        try:
            await crew.office.store.register(hook, entry.at_rest.place)
        except BaseException:
            del crew.entries[hook.id]
            raise
        crew.set_to_work(entry)
        _log.info("webhook %s of %s %s is registered by %s", hook.id, hook.kind, hook.of, caller.name or "anyone")
        return self._told(entry), secret

    def listed(self, caller: Caller) -> list[Told]:
        return [self._told(each) for each in self._ready().entries.values() if _sees(caller, each.hook)]

    def get(self, caller: Caller, id: str) -> Told:
        return self._told(self._entry(caller, id))

    async def remove(self, caller: Caller, id: str) -> None:
        crew, entry = self._ready(), self._entry(caller, id)
        if entry.hook.declared and entry.hook.state != State.STOPPED:
            raise Conflict("the app declares this webhook: remove it there, or pause it")
        async with entry.lock:
            await crew.rest(entry)
            await crew.office.store.remove(id)
            crew.entries.pop(id, None)
        _log.info("webhook %s is removed by %s", id, caller.name or "anyone")

    async def pause(self, caller: Caller, id: str) -> Told:
        crew, entry = self._ready(), self._entry(caller, id)
        async with entry.lock:
            await crew.rest(entry)
            await crew.become(entry, State.PAUSED, None)
        return self._told(entry)

    async def resume(self, caller: Caller, id: str) -> Told:
        """Go on, after a pause or whatever stopped it. If its owner is nobody any more, whoever resumes it is its owner
        from now on. After a 410 the address must answer a challenge again."""
        crew, entry = self._ready(), self._entry(caller, id)
        caller.require("consume", entry.hook.of)
        async with entry.lock:
            if not entry.hook.verified or entry.hook.state == State.DISABLED:
                crew.require_turn(entry)
            await crew.rest(entry)
            verified = entry.hook.verified and entry.hook.state != State.DISABLED
            entry.hook = replace(entry.hook, verified=verified)
            entry.challenges = 0
            if not self._has_owner(crew, entry, caller):
                entry.hook = replace(entry.hook, owner=caller.name, owner_key=caller.key_added)
                entry.bearer = self._bearer(caller)
            await crew.become(entry, State.ACTIVE if verified else State.PENDING, None)
            crew.set_to_work(entry)
        return self._told(entry)

    async def verify(self, caller: Caller, id: str) -> Told:
        """Send a challenge now; answered when it was, or was not."""
        crew, entry = self._ready(), self._entry(caller, id)
        if entry.hook.state != State.PENDING:
            raise Conflict(f"the webhook is {entry.hook.state.value}: only a pending one can be verified")
        crew.require_turn(entry)
        await crew.challenge(entry)
        return self._told(entry)

    async def rotate(self, caller: Caller, id: str) -> tuple[Told, str]:
        """A new secret. The one before goes on to sign beside it for a while."""
        crew, entry = self._ready(), self._entry(caller, id)
        if entry.hook.declared:
            raise Conflict("the app gives this webhook its secret: change it there")
        async with entry.lock:
            now, secret = datetime.now(UTC), new_secret()
            until = now + timedelta(hours=self._settings.webhook_grace_hours)
            old = [Signing(each.secret, min(each.until or until, until)) for each in entry.hook.secrets]
            kept = [each for each in old if each.until is not None and each.until > now]
            entry.hook = replace(entry.hook, secrets=(Signing(secret), *kept[: SECRETS_MAX - 1]))
            await crew.office.store.save(entry.hook)
        return self._told(entry), secret

    async def redrive(self, caller: Caller, id: str, since: str) -> Told:
        """Go on from another cursor: what waits is dropped, and everything after the cursor is sent as new messages."""
        crew, entry = self._ready(), self._entry(caller, id)
        cursor = await self._cursor(caller, entry.hook, since)
        async with entry.lock:
            await crew.rest(entry)
            entry.at_rest = await crew.office.store.move(id, cursor)
            crew.set_to_work(entry)
        return self._told(entry)

    async def dead(self, caller: Caller, id: str, after: int, limit: int) -> list[Told]:
        """Dead letters, oldest first: whoever reads them reads the stream or view."""
        crew, entry = self._ready(), self._entry(caller, id)
        caller.require("consume", entry.hook.of)
        store = crew.office.store
        return [
            {"id": message.id(id), "number": message.number, "at": dead.at, "tries": dead.tries, "error": dead.error}
            | {"message": msgspec.Raw(body)}
            for message, dead, body in await store.read(lambda: store.dead(id, after, limit))
        ]

    async def revive(self, caller: Caller, id: str, number: int | None) -> int:
        """Let one dead letter, or all, be tried again under their ids; how many."""
        crew, entry = self._ready(), self._entry(caller, id)
        async with entry.lock:
            messages = await crew.office.store.revive(id, number)
            if entry.courier is not None:
                entry.courier.revive(messages)
            else:
                known = entry.at_rest
                count = len(messages)
                entry.at_rest = Known(known.place, known.tally, known.dead - count, known.pending + count)
        return len(messages)

    def _ready(self) -> Crew:
        if self.broken is not None:
            raise self.broken
        if self._crew is None:
            raise Busy("webhooks are not there yet")
        return self._crew

    def _entry(self, caller: Caller, id: str) -> Entry:
        entry = self._ready().entries.get(id)
        if entry is None or not _sees(caller, entry.hook):
            raise NotFound(f"there is no webhook {id[:80]!r}")
        return entry

    def _told(self, entry: Entry) -> Told:
        return entry.told(self._around.behind)

    def _has_owner(self, crew: Crew, entry: Entry, caller: Caller) -> bool:
        try:
            crew.owner(entry)
        except Halt:
            return False
        return entry.bearer is None or entry.hook.owner != caller.name

    def _bearer(self, caller: Caller) -> Caller | None:
        """Someone whom only a token or certificate makes known is kept for as long as this process runs, not longer."""
        return caller if self._around.standing(caller.name) is None else None

    async def _cursor(self, caller: Caller, hook: Hook, since: str) -> str:
        """Where a webhook begins: a cursor that is one of its channel. `latest` is now, not when it is verified."""
        async with following(self._ready().opened(hook, caller), since) as deliveries:
            first = await anext(deliveries)
        if since == LATEST:
            return first.cursor
        return since if since else EARLIEST


def _sees(caller: Caller, hook: Hook) -> bool:
    return caller.is_admin or hook.belongs_to(caller)
