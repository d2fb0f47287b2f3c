"""The couriers: which webhooks are at work, who they work for, and when a new one is asked whether it wants to be.

A webhook works for its owner. Before each message, and once a second, the owner must still be someone and may still
consume what the webhook reads; if not, it stops and says so.
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

from penstock.access import Caller, Grants
from penstock.access.grants import ALL
from penstock.contracts import Channel
from penstock.errors import Busy, Damaged, PenstockError, RateLimited, StorageError
from penstock.serve.webhooks.address import endpoint
from penstock.serve.webhooks.challenge import challenge
from penstock.serve.webhooks.courier import Courier
from penstock.serve.webhooks.entry import Behind, Entry
from penstock.serve.webhooks.messages import Splitter, lane_key
from penstock.serve.webhooks.model import Hook, State
from penstock.serve.webhooks.office import Halt, Office, Orders

WATCH_S = 1.0
RESTART_S_MAX = 60.0
CHALLENGES_MAX = 8
"""Times that a new webhook is asked by itself whether it wants to be called; then its owner must ask for it."""
CHALLENGE_S_MAX = 60.0
APP = Caller("app", ALL)
"""Who webhooks work for that the app declares."""
NOBODY = Caller("nobody", Grants(), until=0.0)
_log = logging.getLogger("penstock.webhooks")


@dataclass(frozen=True)
class Around:
    """What the runtime tells: who someone is now, the key of a stream or view, how many events or versions lie behind
    a cursor, and where a disk that fails is told."""

    standing: Callable[[str], Caller | None]
    key: Callable[[str, str], tuple[str, ...]]
    behind: Behind = lambda kind, of, cursor: None
    fatal: Callable[[PenstockError], None] = lambda error: None


@dataclass
class Crew:
    """Belongs to one event loop."""

    office: Office
    around: Around
    channel: Callable[[str, str, Caller], Channel]
    entries: dict[str, Entry] = field(default_factory=dict)

    def owner(self, entry: Entry) -> Caller:
        """Who a webhook works for. Raises `Halt` if that is nobody any more, or someone who may not read it."""
        hook = entry.hook
        if hook.declared:
            return APP
        found = entry.bearer or self.around.standing(hook.owner) or NOBODY
        if found.until <= time.time() or not hook.belongs_to(found):
            who = hook.owner or "whoever registered it, when nobody was asked who they are,"
            raise Halt(
                State.STOPPED,
                f"{who} may do nothing here any more: the key, token or certificate is revoked or expired",
            )
        if not found.may("consume", hook.of):
            raise Halt(State.STOPPED, f"{hook.owner} may not consume {hook.of!r} any more")
        return found

    def opened(self, hook: Hook, caller: Caller) -> Channel:
        """What a webhook reads, as far as this caller may see it. Raises what is wrong with it."""
        found = self.channel(hook.kind, hook.of, caller)
        return found if hook.where is None and hook.select is None else found.through(hook.where, hook.select)

    # at work

    def set_to_work(self, entry: Entry) -> None:
        """Start the courier of a webhook that is active; let one that is pending be asked soon."""
        if entry.hook.state == State.ACTIVE and entry.task is None:
            entry.task = asyncio.create_task(self._work(entry), name=f"webhook {entry.hook.id}")
        elif entry.hook.state == State.PENDING:
            entry.challenge_at = time.monotonic()
            self._ask(entry)

    async def rest(self, entry: Entry) -> None:
        """Stop the courier, if there is one: nothing of it is on its way afterwards."""
        task, entry.task = entry.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._part(entry)

    async def become(self, entry: Entry, state: State, reason: str | None) -> None:
        entry.hook = replace(entry.hook, state=state, reason=reason)
        await self.office.store.save(entry.hook)

    async def _work(self, entry: Entry) -> None:
        """Let couriers work, one after the other, until the webhook may or can not go on."""
        failures = 0
        while True:
            try:
                await self._courier(entry).run()
            except Halt as halt:
                await self._halt(entry, halt)
                return
            except Damaged:
                _log.exception("webhook %s failed", entry.hook.id)
                await self._halt(entry, Halt(State.STOPPED, "what it reads or keeps is damaged; the log says where"))
                return
            except Exception:
                failures += 1
                entry.error = "it failed, and is tried again; the log says why"
                _log.exception("webhook %s failed", entry.hook.id)
            await self._part(entry)
            await asyncio.sleep(min(RESTART_S_MAX, 2.0**failures))

    async def _halt(self, entry: Entry, halt: Halt) -> None:
        await self._part(entry)
        _log.warning("webhook %s is %s: %s", entry.hook.id, halt.state.value, halt.reason)
        await self.become(entry, halt.state, halt.reason)
        entry.task = None

    def _courier(self, entry: Entry) -> Courier:
        hook = entry.hook
        key = lane_key(hook.kind, self.around.key(hook.kind, hook.of), hook.select)
        orders = Orders(lambda: self.owner(entry), lambda caller: self.opened(hook, caller), entry.secrets)
        split = Splitter(hook.kind, hook.of, key, hook.batch)
        entry.courier = Courier(hook, entry.at_rest, self.office, orders, split)
        return entry.courier

    async def _part(self, entry: Entry) -> None:
        """Let go of a courier. What it knew is asked of the store: it may have been stopped before it was told."""
        if entry.courier is not None:
            entry.at_rest, entry.courier = entry.courier.known, None
            with suppress(StorageError):
                entry.at_rest = await self.office.store.read(lambda: self.office.store.known(entry.hook.id))

    # challenges

    def require_turn(self, entry: Entry) -> None:
        """Count a challenge that the owner asks for. Raises `RateLimited` if it comes too soon: whoever is at the
        address has not agreed to be called. The second may follow at once; each one after waits twice as long."""
        now = time.monotonic()
        if now < entry.request_at:
            wait_s = math.ceil(entry.request_at - now)
            raise RateLimited("the address of this webhook was asked just now", retry_after_s=wait_s)
        entry.requested += 1
        if entry.requested > 1:
            entry.request_at = now + min(CHALLENGE_S_MAX, 2.0**entry.requested)

    async def challenge(self, entry: Entry) -> None:
        """Ask the address of a pending webhook; it is active, or the reason says why it is not."""
        hook = entry.hook
        try:
            self.owner(entry)
            target = endpoint(hook.url, self.office.allowed)
            async with self.office.slots.one(hook.id, target.host):
                wrong = await challenge(self.office.transport, target, hook.id, entry.secrets())
        except Halt as halt:
            await self._changed(entry, halt.state, halt.reason)
            return
        except PenstockError as error:
            wrong = error.message
        if wrong is not None:
            await self._changed(entry, State.PENDING, f"the challenge was not answered: {wrong}")
        else:
            await self._changed(entry, State.ACTIVE, None)

    async def _changed(self, entry: Entry, state: State, reason: str | None) -> None:
        """Take the outcome of a challenge, unless something else was decided meanwhile."""
        async with entry.lock:
            if entry.hook.state != State.PENDING or self.entries.get(entry.hook.id) is not entry:
                return
            entry.hook = replace(entry.hook, verified=state == State.ACTIVE)
            await self.become(entry, state, reason)
            if state == State.ACTIVE:
                self.set_to_work(entry)

    def _ask(self, entry: Entry) -> None:
        """Send a challenge in the background, if one is due. The one after waits twice as long."""
        busy = entry.asking is not None and not entry.asking.done()
        enough = entry.challenges >= CHALLENGES_MAX and not entry.hook.declared
        if busy or enough or not entry.secrets() or time.monotonic() < entry.challenge_at:
            return
        entry.challenge_at = time.monotonic() + min(CHALLENGE_S_MAX, 2.0**entry.challenges)
        entry.challenges += 1
        entry.asking = asyncio.create_task(self._asked(entry), name=f"challenge of webhook {entry.hook.id}")

    async def _asked(self, entry: Entry) -> None:
        try:
            await self.challenge(entry)
        except Exception:
            _log.exception("webhook %s could not be asked", entry.hook.id)

    async def watch(self) -> None:
        """Once a second: ask those that are pending, stop those whose owner is gone though nothing is to be sent."""
        while True:
            await asyncio.sleep(WATCH_S)
            for entry in list(self.entries.values()):
                try:
                    await self._look(entry)
                except Exception:
                    _log.exception("webhook %s could not be looked after", entry.hook.id)

    async def _look(self, entry: Entry) -> None:
        if entry.hook.state == State.PENDING:
            self._ask(entry)
        elif entry.hook.state == State.ACTIVE:
            try:
                self.owner(entry)
            except Busy:  # it is not known just now whether the key is valid; nothing is sent until it is
                return
            except Halt as halt:
                async with entry.lock:
                    if entry.hook.state == State.ACTIVE:
                        await self.rest(entry)
                        await self.become(entry, halt.state, halt.reason)

    async def close(self) -> None:
        """Stop all. What is on its way may arrive, and is sent again under the same id by who comes after."""
        asking = [each.asking for each in self.entries.values() if each.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*(self.rest(entry) for entry in self.entries.values()))
