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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from penstock.access.caller import Bucket, Caller, Sight
from penstock.access.certificates import NOT_CERTIFIED, Certified, Secured, secured
from penstock.access.grants import ALL, Grants, known_grants
from penstock.access.keys import Key, KeyFile, digest
from penstock.access.policy import Policy
from penstock.access.tokens import Tokens, looks_like
from penstock.errors import Busy, PenstockError, StorageError, Unauthorized
from penstock.files import other_readers

SUBPROTOCOL = "penstock.v1"
"""What a WebSocket is opened for, by clients that name a protocol."""
SUBPROTOCOL_KEY = "penstock.key."
"""The beginning of a second protocol that such a client names: the rest is its key or token."""
REMEMBERED_MAX = 10_000
NO_POLICY = Policy()
T = TypeVar("T")
Stamp = tuple[int, ...] | None
"""What tells one version of a file from the next; None if there is no such file."""
_KEY = "key:"
_NOT_TRUSTED = "an authority that was trusted when this connection was opened is not any more; connect again"
_log = logging.getLogger("penstock.access")


@dataclass
class Read(Generic[T]):
    """Result of reading changed files: their stamps from before the read, and the value or the error."""

    stamps: Mapping[Path, Stamp]
    found: T | PenstockError


@dataclass
class Changes:
    """What was found changed on disk, each whole, and None where nothing changed; and whether keys are asked for."""

    asked: bool = False
    keys: Read[Sequence[Key]] | None = None
    tokens: Read[Tokens] | None = None
    tls: Read[Secured] | None = None


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
        """The files as they were when what they say was last brought into effect."""
        self.keys_error: str | None = None
        """Why no key is accepted: the file of keys cannot be used."""
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
        for path in policy.secrets:
            if (shown := other_readers(path)) is not None:
                _log.warning("%s", shown)

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
        certificate can say so. The same as long as nothing about them changes. Raises `Busy` while the file of keys
        cannot be used."""
        if not name:
            return self.anyone if self.is_open else None
        if self.keys_error is not None and name.startswith(_KEY):
            raise Busy(f"it is not known which keys are valid: {self.keys_error}")
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
        """Read again what has changed on disk since it was last taken. Blocks; `take` brings it into effect."""
        stamps, policy, file = self._stamps(), self._policy, self._file
        found, jwt, tls = Changes(), policy.jwt, policy.tls
        if file is not None:
            found.asked = stamps[file.path] is not None
            found.keys = self._read(stamps, [file.path], file.keys)
        if jwt is not None:
            found.tokens = self._read(stamps, [jwt.keys], lambda: Tokens(jwt))
        if tls is not None:
            found.tls = self._read(stamps, tls.files, lambda: secured(tls))
        return found

    def _read(self, stamps: Mapping[Path, Stamp], files: Sequence[Path], read: Callable[[], T]) -> Read[T] | None:
        changed = {path: stamps[path] for path in files if stamps[path] != self._seen.get(path)}
        if not changed:
            return None
        try:
            return Read(changed, read())
        except PenstockError as error:
            return Read(changed, error)
        except Exception as error:  # nothing in one file may hide what has changed in another
            return Read(changed, StorageError(f"{files[0]} cannot be read: {type(error).__name__}: {error}"))

    def take(self, changes: Changes) -> None:
        """Bring changes into effect: who has lost a key is let go at once. Of tokens and TLS that cannot be used, what
        was known before goes on; of keys, none is accepted. What went wrong is logged, once, and tried again."""
        if changes.asked:
            self.close()
        wrong = self._take(changes.keys, self._take_keys)
        if wrong is not None and not isinstance(wrong, Busy):
            self._tell("no key is accepted until this is fixed: %s", wrong)
            self._take_keys(())
            self.keys_error = wrong.message
        elif wrong is not None:
            self._tell("access goes on as it was: %s", wrong)
        for wrong in (self._take(changes.tokens, self._take_tokens), self._take(changes.tls, self._take_tls)):
            if wrong is not None:
                self._tell("access goes on as it was: %s", wrong)

    def _take(self, read: Read[T] | None, take: Callable[[T], None]) -> PenstockError | None:
        """Take one part. Only then do its files count as seen: what fails is read again at the next look."""
        if read is None:
            return None
        if isinstance(read.found, PenstockError):
            return read.found
        try:
            take(read.found)
        except Exception as error:
            _log.exception("a change of access was not taken")
            return StorageError(f"{next(iter(read.stamps))} cannot be used: {type(error).__name__}: {error}")
        self._seen = {**self._seen, **read.stamps}
        self._told.clear()
        return None

    def _tell(self, text: str, error: PenstockError) -> None:
        if error.message not in self._told:
            self._told.add(error.message)
            _log.error(text, error)

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
                        f"{_KEY}{key.name}", known_grants(key.grants), key.rate, until, key_added=key.created
                    )
                found.keys[secret.sha256] = key
        self._known = found
        kept = set(map(id, found.callers.values()))
        for caller in before.callers.values():
            if id(caller) not in kept:
                caller.limit(0.0)
        self._remembered.clear()
        self.keys_error = None

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

    def _take_tokens(self, tokens: Tokens) -> None:
        """Check tokens with new keys. Those of before were checked with keys that may be no longer good."""
        self._tokens = tokens
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
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid
