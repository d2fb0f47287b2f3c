"""The gate authenticates a request's credentials and returns its caller.

    Authorization: Bearer ...  --> an API key, or a token from another issuer
    Sec-WebSocket-Protocol     --> the same, for browser pages, which cannot set headers for a WebSocket
    the client's certificate   --> used if the request has no key or token

If no keys, tokens or certificates are configured, no authentication is required. A verified key is cached, so later
requests with the same key cost only one dictionary lookup.
"""

from __future__ import annotations

import asyncio
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

from penstock.core.access.api_keys import Key, KeyStore, Stamp, digest, file_stamp
from penstock.core.access.caller import Bucket, Caller, Sight
from penstock.core.access.certificates import NOT_CERTIFIED, Certified, Secured, secured
from penstock.core.access.grants import ALL, Grants, known_grants
from penstock.core.access.policy import Policy
from penstock.core.access.tokens import TokenVerifier, looks_like
from penstock.core.errors import Busy, PenstockError, StorageError, Unauthorized
from penstock.core.files import other_readers

SUBPROTOCOL = "penstock.v1"
"""The WebSocket subprotocol that is selected for clients that offer it."""
SUBPROTOCOL_KEY = "penstock.key."
"""Prefix of a second subprotocol that a client can offer. The rest of its name is the client's key or token."""
REMEMBERED_MAX = 10_000
NO_POLICY = Policy()
T = TypeVar("T")
Watched = Path | KeyStore
"""A file or key store that is read again when it changes."""
_KEY = "key:"
NOT_TRUSTED = "the gateway no longer trusts a certificate authority that it trusted when you connected; connect again"
_log = logging.getLogger("penstock.access")


@dataclass
class Read(Generic[T]):
    """The result of reading changed access files: their stamps before the read, and the value or the error."""

    stamps: Mapping[Watched, Stamp]
    outcome: T | PenstockError


@dataclass
class AccessChanges:
    """The changes found on disk. Each field contains a complete new value, or None if the value is unchanged. `asked`
    is true if a key file exists, which means that authentication is required."""

    asked: bool = False
    keys: Read[Sequence[Key]] | None = None
    tokens: Read[TokenVerifier] | None = None
    tls: Read[Secured] | None = None


@dataclass
class _Known:
    """The contents of the key file, indexed by key hash."""

    callers: dict[str, Caller] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)


class Gate:
    """Authenticates requests. Used only in the gateway's event loop, except for `look`, which reads files and can run
    in a thread."""

    def __init__(
        self,
        policy: Policy = NO_POLICY,
        keys: KeyStore | None = None,
        *,
        rate: float = 0.0,
        carried: Mapping[str, Sequence[str]] | None = None,
        change_keys: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Read all files. `rate` applies to callers without a rate of their own; 0 means no limit. `carried` and
        `change_keys` are described in `Sight`."""
        self._carried, self._change_keys = carried or {}, change_keys or {}
        self._policy = policy
        self._store = keys
        self._rate = rate
        self._buckets: dict[str, Bucket] = {}
        self._remembered: dict[bytes, Caller] = {}
        self._known = _Known()
        self._seen = self._stamps()
        """The stamps of the files when their contents last took effect."""
        self.keys_error: str | None = None
        """The reason why the key file cannot be used and no key is accepted, or None if it can be used."""
        self._logged: set[str] = set()
        self._tokens = None if policy.jwt is None else TokenVerifier(policy.jwt)
        self._bearers: WeakSet[Caller] = WeakSet()
        self._certified_callers: WeakSet[Caller] = WeakSet()
        tls = None if policy.tls is None else secured(policy.tls)
        self._authorities: frozenset[bytes] = frozenset() if tls is None else tls.authorities
        self._trusted: WeakSet[ssl.SSLContext] = WeakSet(() if tls is None else (tls.context,))
        """The TLS contexts whose authorities are all still trusted."""
        self._authority_removed = asyncio.Event()
        """An event that is set, and replaced by a new one, each time a certificate authority is removed."""
        self.tls: ssl.SSLContext | None = None if tls is None else tls.context
        """The context for new connections. A session can be resumed only with the context that it began with, so
        replacing the context ends the sessions of clients that are no longer trusted."""
        self.is_open = not policy.authenticates and not (keys is not None and keys.exists())
        """Whether requests are accepted without authentication."""
        self.anyone = Caller("", ALL)
        """The caller of all requests while no authentication is required."""
        if keys is not None:
            self._take_keys(keys.keys())
        for path in policy.secrets:
            if (shown := other_readers(path)) is not None:
                _log.warning("%s", shown)

    def caller(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        certified: Certified = NOT_CERTIFIED,
        *,
        by_certificate: bool = True,
    ) -> Caller:
        """Return the caller of a request with these headers. If `by_certificate` is false, the certificate does not
        identify the caller, but its connection is refused in the same cases. Raises `Unauthorized`."""
        if not self.admits(certified):
            raise Unauthorized(NOT_TRUSTED)
        if self.is_open:
            return self.anyone
        credential = _credential(headers)
        if credential is None and certified.names and not by_certificate:
            raise Unauthorized("for a page of another origin, a client certificate is not enough; send a key as well")
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
        """Return whether a connection can still be used. If certificates are required, a connection is unusable once
        any of the authorities that were trusted when it was opened has been removed."""
        tls = self._policy.tls
        return tls is None or not tls.require or self.trusts(certified)

    async def distrusted(self, certified: Certified) -> None:
        """Wait until `admits` returns False for a connection, which might never happen."""
        while self.admits(certified):
            await self._authority_removed.wait()

    def trusts(self, certified: Certified) -> bool:
        """Return whether all authorities that were trusted when the client presented its certificate are still
        trusted."""
        return certified.context is None or certified.context in self._trusted

    def current_caller(self, name: str) -> Caller | None:
        """Return the caller that currently has this name, for work that is not part of a request. Returns None if no
        caller has the name, or if only a token or a certificate could prove the name. The same object is returned until
        the caller's key changes. Raises `Busy` while the key file cannot be used."""
        if not name:
            return self.anyone if self.is_open else None
        if self.keys_error is not None and name.startswith(_KEY):
            raise Busy(f"keys cannot be checked at the moment: {self.keys_error}")
        callers = (
            caller for caller in self._known.callers.values() if caller.name == name and caller.until > time.time()
        )
        return next(callers, None)

    def remembered(self, credential: bytes) -> Caller | None:
        """Return the cached caller of a credential, if it is still valid."""
        caller = self._remembered.get(credential)
        if caller is not None and caller.until < time.time():
            del self._remembered[credential]
            return None
        return caller

    def look(self) -> AccessChanges:
        """Read the key and access files that have changed since they last took effect. Blocks. `take` applies the
        result."""
        stamps, policy, store = self._stamps(), self._policy, self._store
        changes, jwt, tls = AccessChanges(), policy.jwt, policy.tls
        if store is not None:
            changes.asked = stamps[store] is not None
            changes.keys = self._read(stamps, [store], store.keys)
        if jwt is not None:
            changes.tokens = self._read(stamps, [jwt.keys], lambda: TokenVerifier(jwt))
        if tls is not None:
            changes.tls = self._read(stamps, tls.files, lambda: secured(tls))
        return changes

    def _read(self, stamps: Mapping[Watched, Stamp], files: Sequence[Watched], read: Callable[[], T]) -> Read[T] | None:
        changed = {path: stamps[path] for path in files if stamps[path] != self._seen.get(path)}
        if not changed:
            return None
        try:
            return Read(changed, read())
        except PenstockError as error:
            return Read(changed, error)
        except Exception as error:  # an error in one file must not hide changes in another
            return Read(changed, StorageError(f"{files[0]} cannot be read: {type(error).__name__}: {error}"))

    def take(self, changes: AccessChanges) -> None:
        """Apply changes to the access files. The connections of callers whose key was removed are closed at once. If
        the token keys or the TLS files cannot be used, the previous keys or files stay in effect. If the key file
        cannot be used, no key is accepted, except that the previous keys stay in effect after a `Busy` error. Each
        error is logged once, and the files are read again at the next `look`."""
        if changes.asked:
            self.close()
        wrong = self._take(changes.keys, self._take_keys)
        if wrong is not None and not isinstance(wrong, Busy):
            self._tell("no key will be accepted until this error is fixed: %s", wrong)
            self._take_keys(())
            self.keys_error = wrong.message
        elif wrong is not None:
            self._tell("the previous access settings stay in effect: %s", wrong)
        for wrong in (self._take(changes.tokens, self._take_tokens), self._take(changes.tls, self._take_tls)):
            if wrong is not None:
                self._tell("the previous access settings stay in effect: %s", wrong)

    def _take(self, read: Read[T] | None, take: Callable[[T], None]) -> PenstockError | None:
        """Apply one changed access file and mark its files as seen. If this fails, the files are not marked, so they
        are read again at the next `look`."""
        if read is None:
            return None
        if isinstance(read.outcome, PenstockError):
            return read.outcome
        try:
            take(read.outcome)
        except Exception as error:
            _log.exception("a change to the access settings could not be applied")
            return StorageError(f"{next(iter(read.stamps))} cannot be used: {type(error).__name__}: {error}")
        self._seen = {**self._seen, **read.stamps}
        self._logged.clear()
        return None

    def _tell(self, text: str, error: PenstockError) -> None:
        if error.message not in self._logged:
            self._logged.add(error.message)
            _log.error(text, error)

    def close(self) -> None:
        """Require authentication from now on."""
        if self.is_open:
            self.is_open = False
            self.anyone.limit(0.0)

    def _take_keys(self, keys: Sequence[Key]) -> None:
        """Replace the API keys. Callers whose key did not change are kept, along with the rate they have already
        used."""
        now, before, known = datetime.now(UTC), self._known, _Known()
        for key in keys:
            for secret in key.secrets if key.is_valid(now) else ():
                until = min((end for end in (key.expires, secret.until) if end is not None), default=None)
                old = before.callers.get(secret.sha256)
                if old is not None and _is_unchanged_key(before.keys[secret.sha256], key):
                    old.limit(math.inf if until is None else until.timestamp())
                    known.callers[secret.sha256] = old
                else:
                    known.callers[secret.sha256] = self._make(
                        f"{_KEY}{key.name}", known_grants(key.grants), key.rate, until, key_added=key.created
                    )
                known.keys[secret.sha256] = key
        self._known = known
        kept = set(map(id, known.callers.values()))
        for caller in before.callers.values():
            if id(caller) not in kept:
                caller.limit(0.0)
        self._remembered.clear()
        self.keys_error = None

    def _take_tls(self, tls: Secured) -> None:
        """Use this TLS context for new connections. If an authority was removed, end all callers authenticated only by
        a certificate, because the gateway does not store which authority issued each certificate. Clients that are
        still trusted can connect again."""
        if not self._authorities <= tls.authorities:
            self._trusted.clear()
            for caller in list(self._certified_callers):
                caller.limit(0.0)
            self._certified_callers.clear()
            self._authority_removed.set()
            self._authority_removed = asyncio.Event()
        self._trusted.add(tls.context)
        self._authorities, self.tls = tls.authorities, tls.context
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
        """Create a caller. `claims` are a token's claims; for other credentials, the only claim is `sub`, the name."""
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
        sight = Sight(self._policy.rows, known, self._carried, self._change_keys)
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
            raise Unauthorized("this is not a Penstock key; is part of it missing?")
        known = self._known.callers.get(hashed)
        if known is None or known.until < time.time():
            raise Unauthorized("this key is unknown, revoked or expired")
        return known

    def _certified(self, certified: Certified) -> Caller:
        names, until, _ = certified
        if not self.trusts(certified):
            raise Unauthorized(NOT_TRUSTED)
        if until < time.time():
            raise Unauthorized("the certificate of this connection has expired; connect again with a new one")
        for name in names:
            client = self._policy.clients.get(name)
            if client is not None:
                caller = self._make(f"certificate:{name}", client.grants, client.rate, until)
                self._certified_callers.add(caller)
                return caller
        if names:
            raise Unauthorized(f"a certificate for {names[0][:80]!r} is not enough here; send a key as well")
        raise Unauthorized("a key is required: send `Authorization: Bearer KEY`; `penstock keys add` creates one")

    def _take_tokens(self, tokens: TokenVerifier) -> None:
        """Replace the token keys, and end the callers that were authenticated with the previous keys."""
        self._tokens = tokens
        for caller in list(self._bearers):
            caller.limit(0.0)
        self._bearers.clear()
        self._remembered.clear()

    def _stamps(self) -> dict[Watched, Stamp]:
        policy, paths = self._policy, list[Path]()
        if policy.jwt is not None:
            paths.append(policy.jwt.keys)
        if policy.tls is not None:
            paths += policy.tls.files
        stamps: dict[Watched, Stamp] = {path: file_stamp(path) for path in paths}
        return stamps if self._store is None else stamps | {self._store: self._store.stamp()}


def _credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return a request's key or token. Raises `Unauthorized` if the request contains two, which would be ambiguous."""
    credentials: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() != b"bearer" or not rest.strip():
                raise Unauthorized("send `Authorization: Bearer KEY`")
            credentials.append(rest.strip())
        elif name == b"sec-websocket-protocol":
            words = (word.strip() for word in value.split(b","))
            start = SUBPROTOCOL_KEY.encode()
            credentials += [word.removeprefix(start) for word in words if word.startswith(start)]
    if len(credentials) > 1:
        raise Unauthorized("send one key, not two")
    return credentials[0] if credentials else None


def subprotocol(scope: Mapping[str, Any]) -> str | None:
    """Return the subprotocol to select for a WebSocket client, or None if the client does not offer it."""
    return SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None


def _is_unchanged_key(one: Key, other: Key) -> bool:
    return (one.name, tuple(one.grants), one.rate) == (other.name, tuple(other.grants), other.rate)
