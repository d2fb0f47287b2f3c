"""The dispatcher: decides which webhooks run, with whose permissions, and when pending webhooks are challenged.

A webhook has the permissions of its owner. Before each message and once a second, the dispatcher checks that the owner
still exists and is still allowed to read the channel. If not, the webhook stops and reports the reason.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.core.access import Caller, Grants
from penstock.core.access.grants import ALL
from penstock.core.backoff import doubled_s
from penstock.core.contracts import Channel
from penstock.core.errors import Busy, Damaged, PenstockError, RateLimited, Stopping, StorageError
from penstock.core.tasks import cancel_all
from penstock.serve.webhooks.address import endpoint
from penstock.serve.webhooks.challenge import challenge
from penstock.serve.webhooks.delivery_worker import DeliveryWorker
from penstock.serve.webhooks.entry import Behind, WebhookEntry
from penstock.serve.webhooks.invitations import Invitations
from penstock.serve.webhooks.messages import Splitter, lane_key
from penstock.serve.webhooks.model import Hook, WebhookState
from penstock.serve.webhooks.shared_resources import Grant, Halt, SharedResources

WATCH_S = 1.0
RESTART_S_MAX = 60.0
CHALLENGES_MAX = 8
"""Maximum number of automatic challenges for a new webhook. After that, its owner must request one."""
CHALLENGE_S_MAX = 60.0
APP = Caller("app", ALL)
"""The owner of webhooks declared by the app."""
NOBODY = Caller("nobody", Grants(), until=0.0)
_log = logging.getLogger("penstock.webhooks")


@dataclass(frozen=True)
class RuntimeCallbacks:
    """Functions that the runtime provides to webhooks.

    They return a caller's current state, the key of a stream or view, and the number of events or versions after a
    cursor. `fatal` reports a disk error.
    """

    current_caller: Callable[[str], Caller | None]
    key: Callable[[str, str], tuple[str, ...]]
    behind: Behind = lambda kind, of, cursor: None
    fatal: Callable[[PenstockError], None] = lambda error: None


@dataclass
class Dispatcher:
    """Runs the workers of all webhooks. Not thread-safe."""

    resources: SharedResources
    around: RuntimeCallbacks
    channel: Callable[[str, str, Caller], Channel]
    entries: dict[str, WebhookEntry] = field(default_factory=dict)
    invitations: Invitations = field(default_factory=Invitations)
    challenges: set[asyncio.Task[None]] = field(default_factory=set)
    """The challenges in progress that callers have requested."""

    def owner(self, entry: WebhookEntry) -> Caller:
        """Return a webhook's owner. Raises `Halt` if the owner no longer exists or is no longer allowed to read its
        channel."""
        hook = entry.hook
        if hook.declared:
            return APP
        owner = entry.bearer or self.around.current_caller(hook.owner) or NOBODY
        if owner.until <= time.time() or not hook.belongs_to(owner):
            who = hook.owner or "the anonymous caller that registered it"
            raise Halt(
                WebhookState.STOPPED,
                f"{who} no longer has access: the key, token or certificate has been revoked or has expired",
            )
        if not owner.may("consume", hook.of):
            raise Halt(WebhookState.STOPPED, f"{hook.owner} is no longer allowed to consume {hook.of!r}")
        return owner

    def opened(self, hook: Hook, caller: Caller) -> Channel:
        """Open a webhook's channel, limited to the rows that the caller is allowed to see.

        Raises the channel's error if it cannot be read.
        """
        channel = self.channel(hook.kind, hook.of, caller)
        return channel if hook.where is None and hook.select is None else channel.through(hook.where, hook.select)

    # workers

    def start_worker(self, entry: WebhookEntry) -> None:
        """Start the worker of an active webhook; schedule a challenge for a pending one."""
        if entry.hook.state == WebhookState.ACTIVE and entry.task is None:
            entry.task = asyncio.create_task(self._work(entry), name=f"webhook {entry.hook.id}")
        elif entry.hook.state == WebhookState.PENDING:
            entry.challenge_at = time.monotonic()
            self._ask(entry)

    async def rest(self, entry: WebhookEntry) -> None:
        """Stop the webhook's worker, if there is one. On return, none of the webhook's messages is being sent."""
        task, entry.task = entry.task, None
        if task is not None:
            await cancel_all([task])
        await self._part(entry)

    async def become(self, entry: WebhookEntry, state: WebhookState, reason: str | None) -> None:
        entry.hook = replace(entry.hook, state=state, reason=reason)
        await self.resources.store.save(entry.hook)

    async def _work(self, entry: WebhookEntry) -> None:
        """Run a webhook's worker, and replace it after an unexpected error, until the webhook must stop."""
        failures = 0
        while True:
            try:
                await self._delivery_worker(entry).run()
            except Halt as halt:
                await self._halt(entry, halt)
                return
            except Damaged:
                _log.exception("webhook %s failed", entry.hook.id)
                await self._halt(
                    entry,
                    Halt(WebhookState.STOPPED, "the webhook's input or its store is damaged; see the gateway's log"),
                )
                return
            except Exception:
                failures += 1
                entry.error = "the webhook failed and is being restarted; see the gateway's log"
                _log.exception("webhook %s failed", entry.hook.id)
            await self._part(entry)
            await asyncio.sleep(doubled_s(1.0, RESTART_S_MAX, failures))

    async def _halt(self, entry: WebhookEntry, halt: Halt) -> None:
        await self._part(entry)
        _log.warning("webhook %s is %s: %s", entry.hook.id, halt.state.value, halt.reason)
        await self.become(entry, halt.state, halt.reason)
        entry.task = None

    def _delivery_worker(self, entry: WebhookEntry) -> DeliveryWorker:
        hook = entry.hook
        key = lane_key(hook.kind, self.around.key(hook.kind, hook.of), hook.select)
        grant = Grant(lambda: self.owner(entry), lambda caller: self.opened(hook, caller), entry.secrets)
        split = Splitter(hook.kind, hook.of, key, hook.batch)
        entry.delivery_worker = DeliveryWorker(hook, entry.at_rest, self.resources, grant, split)
        return entry.delivery_worker

    async def _part(self, entry: WebhookEntry) -> None:
        """Drop the webhook's worker and reload the webhook's progress from the store, because the worker might have
        been stopped before it received its last result."""
        if entry.delivery_worker is not None:
            entry.at_rest, entry.delivery_worker = entry.delivery_worker.known, None
            with suppress(StorageError):
                entry.at_rest = await self.resources.store.read(lambda: self.resources.store.known(entry.hook.id))

    # challenges

    def require_turn(self, entry: WebhookEntry) -> None:
        """Count a challenge that the owner requests. Raises `RateLimited` if the request comes too soon after the
        previous one.

        This protects the receiver, which has not agreed to be called. The second challenge is allowed immediately;
        after that, the delay doubles each time.
        """
        now = time.monotonic()
        if now < entry.request_at:
            wait_s = math.ceil(entry.request_at - now)
            message = "this webhook's address was challenged a moment ago; try again later"
            raise RateLimited(message, retry_after_s=wait_s)
        entry.requested += 1
        if entry.requested > 1:
            entry.request_at = now + doubled_s(1.0, CHALLENGE_S_MAX, entry.requested)

    async def challenge(self, entry: WebhookEntry) -> None:
        """Challenge a pending webhook's address. The webhook becomes active, or `reason` contains the cause of the
        failure."""
        hook = entry.hook
        try:
            self.owner(entry)
            target = endpoint(hook.url, self.resources.allowed)
            async with self.resources.slots.one(hook.id, target.host):
                wrong = await challenge(self.resources.transport, target, hook.id, entry.secrets())
        except Halt as halt:
            await self._changed(entry, halt.state, halt.reason)
            return
        except PenstockError as error:
            wrong = error.message
        if wrong is not None:
            await self._changed(entry, WebhookState.PENDING, f"the challenge failed: {wrong}")
        else:
            await self._changed(entry, WebhookState.ACTIVE, None)

    async def challenge_now(self, entry: WebhookEntry) -> None:
        """Challenge a pending webhook's address for a caller. If the caller stops waiting, the challenge continues,
        because its outcome must be applied completely."""
        task = asyncio.create_task(self.challenge(entry), name=f"requested challenge of webhook {entry.hook.id}")
        self.challenges.add(task)
        task.add_done_callback(self.challenges.discard)
        await asyncio.wait([task])
        if task.cancelled():
            raise Stopping("the app is stopping; try again")
        task.result()

    async def _changed(self, entry: WebhookEntry, state: WebhookState, reason: str | None) -> None:
        """Apply the outcome of a webhook's challenge, unless the state has changed in the meantime."""
        async with entry.lock:
            if entry.hook.state != WebhookState.PENDING or self.entries.get(entry.hook.id) is not entry:
                return
            entry.hook = replace(entry.hook, verified=state == WebhookState.ACTIVE)
            await self.become(entry, state, reason)
            if state == WebhookState.ACTIVE:
                if entry.invited:
                    entry.invited = False
                    self.invitations.give_back(entry.hook.owner)
                self.start_worker(entry)

    def _ask(self, entry: WebhookEntry) -> None:
        """Send a webhook's challenge in the background, if one is due. The delay before the next one doubles each
        time."""
        busy = entry.asking is not None and not entry.asking.done()
        enough = entry.challenges >= CHALLENGES_MAX and not entry.hook.declared
        if busy or enough or not entry.secrets() or time.monotonic() < entry.challenge_at:
            return
        entry.challenge_at = time.monotonic() + doubled_s(1.0, CHALLENGE_S_MAX, entry.challenges)
        entry.challenges += 1
        entry.asking = asyncio.create_task(self._asked(entry), name=f"challenge of webhook {entry.hook.id}")

    async def _asked(self, entry: WebhookEntry) -> None:
        try:
            await self.challenge(entry)
        except Exception:
            _log.exception("webhook %s could not be challenged", entry.hook.id)

    async def watch(self) -> None:
        """Once a second, challenge pending webhooks and stop webhooks whose owner has lost access."""
        while True:
            await asyncio.sleep(WATCH_S)
            for entry in list(self.entries.values()):
                try:
                    await self._look(entry)
                except Exception:
                    _log.exception("webhook %s could not be checked", entry.hook.id)

    async def _look(self, entry: WebhookEntry) -> None:
        if entry.hook.state == WebhookState.PENDING:
            self._ask(entry)
        elif entry.hook.state == WebhookState.ACTIVE:
            try:
                self.owner(entry)
            except Busy:  # it is currently unknown whether the key is valid; nothing is sent until it is known
                return
            except Halt as halt:
                async with entry.lock:
                    if entry.hook.state == WebhookState.ACTIVE:
                        await self.rest(entry)
                        await self.become(entry, halt.state, halt.reason)

    async def close(self) -> None:
        """Stop all webhooks.

        Messages that are being sent might still arrive. They are sent again with the same id after the next start.
        """
        await cancel_all(self.challenges)
        await cancel_all(entry.asking for entry in self.entries.values() if entry.asking is not None)
        await asyncio.gather(*(self.rest(entry) for entry in self.entries.values()))
