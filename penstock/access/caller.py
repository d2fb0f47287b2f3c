"""Who sends a request: a name, what it may do, how much, and for how long."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.access.grants import ALL, Grants, Right, covers
from penstock.errors import Forbidden, RateLimited, Unauthorized

T = TypeVar("T")
CALLER = "penstock.caller"
"""Where the caller of a request stands in its ASGI scope."""
BURST_S = 2.0
"""What a caller has not used in so many seconds it may use at once."""


class Bucket:
    """How much of a rate is left. Going below zero is allowed once, so that a request larger than the rate is not
    refused for ever: what comes after it waits until the debt is paid."""

    __slots__ = ("_clock", "_left", "_most", "_then", "rate")

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate` is in events a second; a request that has none counts as one."""
        self.rate = rate
        self._clock = clock
        self._most = max(1.0, rate * BURST_S)
        self._left = self._most
        self._then = clock()

    def wait_s(self) -> float:
        """How long until something may be taken; 0 if it may be now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._then) * self.rate)
        self._then = now
        return 0.0 if self._left > 0 else (1.0 - self._left) / self.rate

    def take(self, count: int) -> None:
        self._left -= max(1, count)

    def give_back(self, count: int) -> None:
        self._left = min(self._most, self._left + count)


@dataclass(frozen=True)
class RowRule:
    """A condition in SQL for the rows that a caller sees, and what `claim('name')` in it stands for."""

    condition: str
    claims: Mapping[str, Any]


@dataclass(frozen=True)
class Sight:
    """Which rows a caller sees: the rules of the access file, and what is known of the caller.

    `carried` names, for a stream that has whole events of others as text, those others.
    """

    rules: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, Any] = field(default_factory=dict)
    carried: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def rule(self, name: str) -> RowRule | None:
        """The rule of that name, else of the first pattern that covers it, else of what it belongs to: that of a view
        holds for the stream of its changes. Of events of a stream with a rule that stand in another one, nothing is
        seen, unless that has a rule of its own: theirs cannot be applied to a text."""
        own = self._of(name)
        if own is None and any(self.rule(each) is not None for each in self.carried.get(name, ())):
            return RowRule("FALSE", {})
        while own is None and "." in name:
            name = name.rpartition(".")[0]
            own = self._of(name)
        return own

    def _of(self, name: str) -> RowRule | None:
        found = self.rules.get(name) or next((self.rules[each] for each in self.rules if covers(each, name)), None)
        return None if found is None else RowRule(found, self.claims)


ALL_ROWS = Sight()


class Caller:
    """One who may send requests until some time. Belongs to the gateway's event loop."""

    __slots__ = ("__weakref__", "_bucket", "_grants", "_sight", "_waiting", "key_added", "name", "until")

    def __init__(
        self,
        name: str,
        grants: Grants,
        bucket: Bucket | None = None,
        until: float = math.inf,
        sight: Sight = ALL_ROWS,
        key_added: datetime | None = None,
    ) -> None:
        """`name` is empty if nobody was asked who they are. `until` is a time of the wall clock. `key_added` is when
        the caller's API key was added, if it has one: it tells the key from a later one of the same name, and stays the
        same when the key is rotated."""
        self.name = name
        self.key_added = key_added
        self._sight = sight
        self.until = until
        self._grants = grants
        self._bucket = bucket
        self._waiting: set[asyncio.Future[None]] = set()

    def may(self, right: Right, name: str) -> bool:
        return self._grants.may(right, name)

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything, also to what belongs to others."""
        return self._grants.admin

    def sees(self, name: str) -> RowRule | None:
        """What the caller sees of the rows of a stream or view that it may read; None if it sees all of them."""
        return None if self._grants.admin else self._sight.rule(name)

    @property
    def sees_all_rows(self) -> bool:
        """Whether no row rule applies to the caller, of whatever stream or view."""
        return self._grants.admin or not self._sight.rules

    def may_read_all(self, name: str) -> bool:
        """Whether the caller may read it, and sees all of its rows."""
        return self.may("consume", name) and self.sees(name) is None

    def require_all(self, name: str) -> None:
        """Raise `Forbidden` unless the caller may read it and sees all rows: for what cannot be shown in part."""
        self.require("consume", name)
        if self.sees(name) is not None:
            raise Forbidden(f"{self.name} sees some rows of {name[:80]!r} only, and this shows all of them")

    def require(self, right: Right, name: str) -> None:
        """Raise `Forbidden` if this is not granted. Called before it is known whether there is such a thing: who may
        not use it is not told."""
        if not self._grants.may(right, name):
            what = "everything" if name == "*" else repr(name[:80])
            raise Forbidden(f"{self.name} may not {right} {what}; that takes the grant {right}:{name[:80]}")

    def require_room(self) -> None:
        """Raise `RateLimited` if the caller has used up its rate."""
        wait_s = self.wait_s()
        if wait_s:
            assert self._bucket is not None
            raise RateLimited(
                f"{self.name} has sent more than its {self._bucket.rate:g} events or requests a second",
                retry_after_s=max(1, math.ceil(wait_s)),
            )

    def wait_s(self) -> float:
        """How long until the caller may send something; 0 if it may now."""
        return 0.0 if self._bucket is None else self._bucket.wait_s()

    def spend(self, count: int) -> None:
        """Count a request with so many events against the rate."""
        if self._bucket is not None:
            self._bucket.take(count)

    def reserve(self, count: int) -> int:
        """Count a request before it is taken, so that others that come meanwhile see it. Raises as `require_room`.
        Returns what was counted, for `settle`."""
        self.require_room()
        self.spend(count)
        return max(1, count)

    def settle(self, reserved: int, count: int) -> None:
        """Count a request with so many events, of which some were reserved."""
        if self._bucket is not None:
            self._bucket.give_back(reserved)
            self._bucket.take(count)

    def scoped(self, key: str) -> str:
        """A word of the caller's own choice, told from the same word of others. The name is quoted: one that has a `/`
        would be taken for another name, and the rest of it for a part of the word."""
        return f"{quote(self.name, safe=':@')}/{key}" if self.name else key

    def limit(self, until: float) -> None:
        """From then on the caller may do nothing, and connections that it holds are closed."""
        self.until = until
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    async def ended(self) -> None:
        """Return once the caller may do nothing any more."""
        while (left := self.until - time.time()) > 0:
            moved = asyncio.get_running_loop().create_future()
            self._waiting.add(moved)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if left == math.inf else left):
                        await moved
            finally:
                self._waiting.discard(moved)

    async def while_valid(self, work: Coroutine[Any, Any, T], over: str) -> T:
        """Return what `work` does, unless the caller ends first: then the work is cancelled, and `Unauthorized` raised
        with the words `over`."""
        working, ended = asyncio.ensure_future(work), asyncio.ensure_future(self.ended())
        try:
            await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (working, ended):
                each.cancel()
            await asyncio.gather(working, ended, return_exceptions=True)
        if working.cancelled():
            raise Unauthorized(over)
        return working.result()


ANYONE = Caller("", ALL)
"""Who sends requests of which nobody is asked who sent them."""


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """Who sent the request of an ASGI scope. A scope without a caller is a mistake of ours, and raises."""
    caller: Caller = scope[CALLER]
    return caller
