"""The gate: from the credentials of a request to its caller.

    Authorization: Bearer ...  --> an API key, or a token of another issuer
    Sec-WebSocket-Protocol     --> the same, for pages in browsers, which can send no header with a WebSocket
    the client's certificate   --> if it shows none of these

Nobody is asked who they are as long as there are neither keys, nor tokens, nor certificates. A key that was checked is
remembered under its header, so that the next request costs one look into a dict.
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

from penstock.access.caller import Bucket, Caller, Sight
from penstock.access.certificates import NOT_CERTIFIED, Certified, Secured, secured
from penstock.access.grants import ALL, Grants, known_grants
from penstock.access.keys import Key, KeyFile, digest
from penstock.access.policy import Policy
from penstock.access.tokens import Tokens, looks_like
from penstock.errors import PenstockError, Unauthorized

SUBPROTOCOL = "penstock.v1"
"""What a WebSocket is opened for, by clients that name a protocol."""
SUBPROTOCOL_KEY = "penstock.key."
"""The beginning of a second protocol that such a client names: the rest is its key or token."""
REMEMBERED_MAX = 10_000
NO_POLICY = Policy()
Stamp = tuple[int, ...] | None
"""What tells one version of a file from the next; None if there is no such file."""
_NOT_TRUSTED = "an authority that was trusted when this connection was opened is not any more; connect again"
_log = logging.getLogger("penstock.access")


@dataclass
class Changes:
    """What was found changed on disk, each whole, and None where nothing changed; and whether keys are asked for."""

    asked: bool = False
    keys: Sequence[Key] | None = None
    tokens: Tokens | None = None
    tls: Secured | None = None


@dataclass
class _Known:
    """What is in the key file, by the hash of each key."""

    callers: dict[str, Caller] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)


class Gate:
    """Belongs to the gateway's event loop, but for `look`, which reads files and may run in a thread."""

    def __init__(
        self,
        policy: Policy = NO_POLICY,
        keys: KeyFile | None = None,
        *,
        rate: float = 0.0,
        carried: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Reads all files. `rate` is that of callers who have none of their own; 0 is no limit. `carried` is as in
        `Sight`."""
        self._carried = carried or {}
        self._policy = policy
        self._file = keys
        self._rate = rate
        self._buckets: dict[str, Bucket] = {}
        self._remembered: dict[bytes, Caller] = {}
        self._known = _Known()
        self._seen = self._stamps()
        """The files as they were when they were last read: noted before, and only if they could be read."""
        self._told: set[str] = set()
        self._tokens = None if policy.jwt is None else Tokens(policy.jwt)
        self._bearers: WeakSet[Caller] = WeakSet()
        self._certified_callers: WeakSet[Caller] = WeakSet()
        found = None if policy.tls is None else secured(policy.tls)
        self._authorities: frozenset[bytes] = frozenset() if found is None else found.authorities
        self._trusted: WeakSet[ssl.SSLContext] = WeakSet(() if found is None else (found.context,))
        """The contexts whose authorities are all trusted still."""
        self.tls: ssl.SSLContext | None = None if found is None else found.context
        """What the next connection is secured with. A session can be resumed with the context that it began with only,
        so that one which is replaced takes with it all who are no longer trusted."""
        self.is_open = not policy.authenticates and not (keys is not None and keys.exists())
        """Whether nobody is asked who they are."""
        self.anyone = Caller("", ALL)
        """The caller of all requests, in that case."""
        if keys is not None:
            self._take_keys(keys.keys())

    def caller(self, headers: Iterable[tuple[bytes, bytes]], certified: Certified = NOT_CERTIFIED) -> Caller:
        """Who sends a request with these headers. Raises `Unauthorized`."""
        if not self.admits(certified):
            raise Unauthorized(_NOT_TRUSTED)
        if self.is_open:
            return self.anyone
        credential = _credential(headers)
        if credential is None:
            return self._certified(certified)
        caller = self.remembered(credential)
        if caller is None:
            caller = self._checked(credential)
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[credential] = caller
        return caller

    def admits(self, certified: Certified) -> bool:
        """Whether a connection may still be used: one that must have a certificate may not, once an authority is gone
        that was trusted when it was opened."""
        tls = self._policy.tls
        return tls is None or not tls.require or self.trusts(certified)

    def trusts(self, certified: Certified) -> bool:
        """Whether all authorities are trusted still that were when the client showed its certificate, if it did."""
        return certified.context is None or certified.context in self._trusted

    def standing(self, name: str) -> Caller | None:
        """Who has that name now, for work that goes on without a request; None if nobody has, or only a token or a
        certificate can say so. The same as long as nothing about them changes."""
        if not name:
            return self.anyone if self.is_open else None
        found = (each for each in self._known.callers.values() if each.name == name and each.until > time.time())
        return next(found, None)

    def remembered(self, credential: bytes) -> Caller | None:
        """The caller of an `Authorization` that was seen before and is still good."""
        caller = self._remembered.get(credential)
        if caller is not None and caller.until < time.time():
            del self._remembered[credential]
            return None
        return caller

    def look(self) -> Changes:
        """Read again what has changed on disk since the last time. Blocks; `take` brings it into effect. What cannot be
        read is logged, and the gate goes on with what it knows."""
        stamps = self._stamps()
        changed = {path for path in stamps if stamps[path] != self._seen.get(path)}
        found, policy, file = Changes(), self._policy, self._file
        if file is not None:
            found.asked = stamps[file.path] is not None
            with self._reading(stamps, changed & {file.path}) as is_new:
                found.keys = file.keys() if is_new else None
        if policy.jwt is not None:
            with self._reading(stamps, changed & {policy.jwt.keys}) as is_new:
                found.tokens = Tokens(policy.jwt) if is_new else None
        if policy.tls is not None:
            with self._reading(stamps, changed & set(policy.tls.files)) as is_new:
                found.tls = secured(policy.tls) if is_new else None
        return found

    @contextmanager
    def _reading(self, stamps: Mapping[Path, Stamp], files: Set[Path]) -> Iterator[bool]:
        """Read files in the block, if there are any. What goes wrong is logged, once, and changes nothing; then they
        count as changed until they can be read."""
        try:
            yield bool(files)
        except PenstockError as error:
            if error.message not in self._told:
                self._told.add(error.message)
                _log.error("access goes on as it was: %s", error)
            return
        self._seen = {**self._seen, **{path: stamps[path] for path in files}}
        if files:
            self._told.clear()

    def take(self, changes: Changes) -> None:
        """Bring changes into effect: who has lost a key is let go at once."""
        if changes.asked:
            self.close()
        if changes.keys is not None:
            self._take_keys(changes.keys)
        if changes.tokens is not None:
            self._tokens = changes.tokens
            self._forget_tokens()
        if changes.tls is not None:
            self._take_tls(changes.tls)

    def close(self) -> None:
        """From now on everybody is asked who they are."""
        if self.is_open:
            self.is_open = False
            self.anyone.limit(0.0)

    def _take_keys(self, keys: Sequence[Key]) -> None:
        """Callers whose key did not change stay the same, with what they have used of their rate."""
        now, before, found = datetime.now(UTC), self._known, _Known()
        for key in keys:
            for secret in key.secrets if key.is_valid(now) else ():
                until = min((each for each in (key.expires, secret.until) if each is not None), default=None)
                old = before.callers.get(secret.sha256)
                if old is not None and _same(before.keys[secret.sha256], key):
                    old.limit(math.inf if until is None else until.timestamp())
                    found.callers[secret.sha256] = old
                else:
                    found.callers[secret.sha256] = self._make(
                        f"key:{key.name}", known_grants(key.grants), key.rate, until, key_added=key.created
                    )
                found.keys[secret.sha256] = key
        self._known = found
        kept = set(map(id, found.callers.values()))
        for caller in before.callers.values():
            if id(caller) not in kept:
                caller.limit(0.0)
        self._remembered.clear()

    def _take_tls(self, found: Secured) -> None:
        """Secure the next connections with these. If an authority is gone, callers end whom only a certificate makes
        known: which authority vouched for which of them is not kept. They connect again if they are trusted still."""
        if not self._authorities <= found.authorities:
            self._trusted.clear()
            for caller in list(self._certified_callers):
                caller.limit(0.0)
            self._certified_callers.clear()
        self._trusted.add(found.context)
        self._authorities, self.tls = found.authorities, found.context
        _log.info("the certificates were renewed")

    def _make(
        self,
        name: str,
        granted: Grants,
        rate: float,
        until: datetime | float | None = None,
        claims: Mapping[str, Any] | None = None,
        key_added: datetime | None = None,
    ) -> Caller:
        """`claims` are what a token says; of others no more is known than their name."""
        chosen = rate or self._rate
        bucket = None
        if chosen:
            bucket = self._buckets.get(name)
            if bucket is None or bucket.rate != chosen:
                if len(self._buckets) >= REMEMBERED_MAX:
                    self._buckets.clear()
                bucket = self._buckets[name] = Bucket(chosen)
        ends = until.timestamp() if isinstance(until, datetime) else until
        known = {"sub": name.partition(":")[2]} if claims is None else claims
        sight = Sight(self._policy.rows, known, self._carried)
        return Caller(name, granted, bucket, math.inf if ends is None else ends, sight, key_added)

    def _checked(self, credential: bytes) -> Caller:
        text = credential.decode("latin-1")
        if self._tokens is not None and looks_like(text):
            assert self._policy.jwt is not None
            token = self._tokens.check(text)
            caller = self._make(
                f"token:{token.subject}", token.grants, self._policy.jwt.rate, token.until, token.claims
            )
            self._bearers.add(caller)
            return caller
        hashed = digest(text)
        if hashed is None:
            raise Unauthorized("this is no key of Penstock; is a part of it missing?")
        known = self._known.callers.get(hashed)
        if known is None or known.until < time.time():
            raise Unauthorized("this key is not known here, or is revoked or expired")
        return known

    def _certified(self, certified: Certified) -> Caller:
        names, until, _ = certified
        if not self.trusts(certified):
            raise Unauthorized(_NOT_TRUSTED)
        if until < time.time():
            raise Unauthorized("the certificate of this connection has expired; connect again with a new one")
        for name in names:
            client = self._policy.clients.get(name)
            if client is not None:
                caller = self._make(f"certificate:{name}", client.grants, client.rate, until)
                self._certified_callers.add(caller)
                return caller
        if names:
            raise Unauthorized(f"a certificate of {names[0][:80]!r} is not enough here; send a key as well")
        raise Unauthorized("a key is needed: send `Authorization: Bearer KEY`; `penstock keys add` makes one")

    def _forget_tokens(self) -> None:
        """They were checked with keys that may be no longer good."""
        for caller in list(self._bearers):
            caller.limit(0.0)
        self._bearers.clear()
        self._remembered.clear()

    def _stamps(self) -> dict[Path, Stamp]:
        policy, paths = self._policy, [] if self._file is None else [self._file.path]
        if policy.jwt is not None:
            paths.append(policy.jwt.keys)
        if policy.tls is not None:
            paths += policy.tls.files
        return {path: _stamp(path) for path in paths}


def _credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key or token of a request. Two of them are refused: which one counts would be for others to guess."""
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() != b"bearer" or not rest.strip():
                raise Unauthorized("send `Authorization: Bearer KEY`")
            found.append(rest.strip())
        elif name == b"sec-websocket-protocol":
            words = (word.strip() for word in value.split(b","))
            start = SUBPROTOCOL_KEY.encode()
            found += [word.removeprefix(start) for word in words if word.startswith(start)]
    if len(found) > 1:
        raise Unauthorized("send one key, not two")
    return found[0] if found else None


def subprotocol(scope: Mapping[str, Any]) -> str | None:
    """What to answer to a client that opens a WebSocket and names protocols."""
    return SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None


def _same(one: Key, other: Key) -> bool:
    return (one.name, tuple(one.grants), one.rate) == (other.name, tuple(other.grants), other.rate)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
