"""The caller of a request: its name, grants, rate, row rules and expiry."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.core.access.grants import ALL, Grants, Right, covers
from penstock.core.errors import Forbidden, RateLimited, Unauthorized
from penstock.core.tasks import first_of

T = TypeVar("T")
CALLER = "penstock.caller"
"""Key of the caller in a request's ASGI scope."""
BURST_S = 2.0
"""Number of seconds of unused rate that a caller can save up and use at once."""
SCOPED_BYTES_MAX = 64
"""Maximum length of a request's key, including the caller's name, that is stored as it is. It is stored with each event
of the request, so that a longer key would let a small request fill the disk."""


class Bucket:
    """A token bucket for a caller's rate. A request can take its balance below zero, because otherwise a request larger
    than the bucket would never be allowed. Later requests wait until the balance is positive again."""

    __slots__ = ("_clock", "_left", "_most", "_then", "rate")

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate` is in events per second. A request without events counts as one event."""
        self.rate = rate
        self._clock = clock
        self._most = max(1.0, rate * BURST_S)
        self._left = self._most
        self._then = clock()

    def wait_s(self) -> float:
        """Return the number of seconds to wait before the next `take`, or 0 if it can be called now."""
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
    """A SQL condition that selects the rows visible to a caller, and the claims that `claim('name')` refers to.

    If no row can be shown, the condition is `FALSE`, and `refusal` can contain the reason.
    """

    condition: str
    claims: Mapping[str, Any]
    refusal: str = ""

    def require_shown(self) -> None:
        """Raise `Forbidden` if there is a reason to refuse the caller instead of showing it no rows."""
        if self.refusal:
            raise Forbidden(self.refusal)


@dataclass(frozen=True)
class Sight:
    """The rows visible to a caller, as determined by the access file's row rules and the caller's claims.

    Some streams contain complete events from other streams as text. `carried` maps the name of each such stream to the
    names of the other streams. `change_keys` maps the name of each stream of a view's changes to the view's key
    columns, which are the only columns that have values in a delete.
    """

    rules: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, Any] = field(default_factory=dict)
    carried: Mapping[str, Sequence[str]] = field(default_factory=dict)
    change_keys: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def rule(self, name: str) -> RowRule | None:
        """Return the rule for `name`: its own rule or, if it has none, the rule of the first pattern that covers it. If
        no pattern covers it, the rule for the name before its last dot applies. A stream that carries events from a
        stream with a rule shows no rows unless it has its own rule: the other stream's rule, and a pattern that covers
        both streams, cannot be applied to text."""
        if name in self.change_keys:
            return self._change_rule(name, name.rpartition(".")[0])
        own = self._row_rule(name)
        if name not in self.rules and any(self.rule(stream) is not None for stream in self.carried.get(name, ())):
            return RowRule("FALSE", {})
        while own is None and "." in name:
            name = name.rpartition(".")[0]
            own = self._row_rule(name)
        return own

    def _change_rule(self, name: str, view: str) -> RowRule | None:
        """Return the rule for the changes of a view: their own, or that of the view. It can be applied only if it reads
        no columns except the key: any other column is NULL in a delete, so the rule would show deletes of rows that it
        hides, or hide deletes of rows that it shows. A pattern must agree with the rule of the view."""
        from penstock.core.filters import reads_only  # imports pyarrow

        own, of_view = self._row_rule(name), self.rule(view)
        rule = of_view if own is None else own
        if rule is None:
            return None
        is_settled = name in self.rules or of_view is None or of_view == rule
        if is_settled and reads_only(rule.condition, self.change_keys[name]):
            return rule
        refusal = f"the row rule cannot be applied to {name}, where a delete has only the key; read the view {view}"
        return RowRule("FALSE", {}, refusal)

    def _row_rule(self, name: str) -> RowRule | None:
        rule = self.rules.get(name) or next(
            (self.rules[pattern] for pattern in self.rules if covers(pattern, name)), None
        )
        return None if rule is None else RowRule(rule, self.claims)


ALL_ROWS = Sight()


class Caller:
    """An authenticated client, valid until a certain time. Not thread-safe: used only in the gateway's event loop."""

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
        """`name` is empty if no authentication is required. `until` is a wall-clock time in seconds since 1970.
        `key_added` is the time at which the caller's API key was added, if it has one. This time distinguishes the key
        from a later key with the same name, and stays the same when the key is rotated."""
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
        """Whether the caller is allowed to do everything, even with other callers' resources."""
        return self._grants.admin

    def sees(self, name: str) -> RowRule | None:
        """Return the row rule for a stream or view that the caller is allowed to read, or None if the caller sees all
        rows."""
        return None if self._grants.admin else self._sight.rule(name)

    @property
    def sees_all_rows(self) -> bool:
        """Whether the caller sees all rows of every stream and view that it is allowed to read."""
        return self._grants.admin or not self._sight.rules

    def may_read_all(self, name: str) -> bool:
        """Return whether the caller is allowed to read `name` and sees all of its rows."""
        return self.may("consume", name) and self.sees(name) is None

    def require_all(self, name: str) -> None:
        """Raise `Forbidden` unless the caller is allowed to read `name` and sees all of its rows. Used for results that
        cannot be filtered."""
        self.require("consume", name)
        if self.sees(name) is not None:
            raise Forbidden(
                f"{self.name} can see only some rows of {name[:80]!r}, but this request would show all of them"
            )

    def require(self, right: Right, name: str) -> None:
        """Raise `Forbidden` if the right is not granted. Call this before checking whether `name` exists: a caller
        without the right must not find out whether it exists."""
        if not self._grants.may(right, name):
            what = "everything" if name == "*" else repr(name[:80])
            raise Forbidden(f"{self.name} is not allowed to {right} {what}; it needs the grant {right}:{name[:80]}")

    def require_room(self) -> None:
        """Raise `RateLimited` if the caller has used up its rate."""
        wait_s = self.wait_s()
        if wait_s:
            assert self._bucket is not None
            raise RateLimited(
                f"{self.name} has exceeded its rate of {self._bucket.rate:g} events or requests a second",
                retry_after_s=max(1, math.ceil(wait_s)),
            )

    def wait_s(self) -> float:
        """Return the number of seconds until the caller is allowed to send something, or 0 if it can send now."""
        return 0.0 if self._bucket is None else self._bucket.wait_s()

    def spend(self, count: int) -> None:
        """Count a caller's request with this many events against the rate."""
        if self._bucket is not None:
            self._bucket.take(count)

    def reserve(self, count: int) -> int:
        """Count a request against the rate before it is accepted, so that concurrent requests take it into account.
        Returns the number that was counted, which must be passed to `settle`. Raises `RateLimited` in the same way as
        `require_room`."""
        self.require_room()
        self.spend(count)
        return max(1, count)

    def settle(self, reserved: int, count: int) -> None:
        """Replace a request's reserved count with its actual count."""
        if self._bucket is not None:
            self._bucket.give_back(reserved)
            self._bucket.take(count)

    def scoped(self, key: str) -> str:
        """Return a request's key in the caller's namespace, so that different callers can use the same key.

        The caller's name is quoted, because a `/` in it would make the boundary between name and key ambiguous. The
        result is a hash if it would be longer than `SCOPED_BYTES_MAX`. No scoped name of another caller looks like a
        hash, because each caller's name begins with its kind, as in `key:ann`.
        """
        scoped = f"{quote(self.name, safe=':@')}/{key}" if self.name else key
        encoded = scoped.encode()
        if len(encoded) <= SCOPED_BYTES_MAX:
            return scoped
        return f"hash:{blake2b(encoded, digest_size=16).hexdigest()}"

    def limit(self, until: float) -> None:
        """Set the time at which the caller loses all permissions and its connections are closed."""
        self.until = until
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def ended(self) -> None:
        """Return once the caller is no longer valid."""
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
        """Return the result of `work`. If the caller becomes invalid first, cancel `work` and raise `Unauthorized` with
        the message `over`."""
        working, ended = asyncio.ensure_future(work), asyncio.ensure_future(self.ended())
        await first_of(working, ended)
        if working.cancelled():
            raise Unauthorized(over)
        return working.result()


ANYONE = Caller("", ALL)
"""The caller of all requests when no authentication is required."""


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """Return the caller stored in a request's ASGI scope. Raises KeyError if no caller is stored, which is a bug."""
    caller: Caller = scope[CALLER]
    return caller
