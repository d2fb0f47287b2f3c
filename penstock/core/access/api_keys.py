"""API keys. A key is shown once, when it is created, and stored as a hash in a file that is read again when it changes.

A key consists of `penstock_`, 48 random hexadecimal digits (192 bits) and an 8-digit checksum. With the checksum, a
mistyped key is detected without reading the file. Because the key has 192 random bits, a slow hash is not needed:
SHA-256 is sufficient.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from penstock.core.access.grants import grants
from penstock.core.errors import Busy, Damaged, DeclarationError, NewerFormat, StorageError
from penstock.core.files import disk_errors, read_own, write_atomic

FORMAT = 1
PREFIX = "penstock_"
SECRET_DIGITS, CHECK_DIGITS = 48, 8
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a UTC offset. A time without an offset is rejected, because its meaning would depend on the machine."""
Stamp = tuple[int, ...] | None
"""Identifies one version of a file or key store. None if it does not exist."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@\-]{0,63}").fullmatch


class Secret(msgspec.Struct, frozen=True):
    """The stored form of one API key. `ending` contains its last digits before the checksum, so that users can tell
    keys apart."""

    sha256: str
    ending: str
    until: Moment | None = None


class Key(msgspec.Struct, frozen=True):
    """A named API key with its grants. For a while after a rotation, it has more than one secret."""

    name: str
    grants: Sequence[str]
    secrets: Sequence[Secret]
    created: Moment
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    expires: Moment | None = None
    revoked: Moment | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


class _Content(msgspec.Struct, frozen=True):
    keys: Sequence[Key] = ()
    format: int = FORMAT


class KeyStore(Protocol):
    """An app's API keys. A reader in any process sees the keys as they were either before or after a change, never in
    between. Changes by several processes are serialized, and each change is durable on return. `str()` returns a name
    for use in messages."""

    def exists(self) -> bool:
        """Return whether authentication by key is required. It is still required if all keys are revoked."""

    def stamp(self) -> Stamp:
        """Return the identity of the current version of the API keys, or None if there are no keys. Must be cheap,
        because the gateway calls it often."""

    def keys(self) -> Sequence[Key]:
        """Return all API keys, including revoked keys. Raises `StorageError`, `Damaged` or `NewerFormat`. Raises `Busy`
        if the machine is short of memory or file descriptors; this error does not mean that the keys are invalid."""

    def add(
        self, name: str, words: Sequence[str], *, rate: float = 0.0, lifetime: timedelta | None = None
    ) -> tuple[Key, str]:
        """Create an API key. Returns the key and the key string, which is not stored and cannot be shown again."""

    def rotate(self, name: str, keep: timedelta) -> tuple[Key, str]:
        """Create a new key string for an API key, with the same grants. The previous string remains valid for
        `keep`."""

    def revoke(self, name: str) -> Key:
        """Revoke an API key."""


class KeyFile:
    """A `KeyStore` in one file. A writer holds a lock; a reader sees the file as it was either before or after a
    change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def stamp(self) -> Stamp:
        return file_stamp(self.path)

    def exists(self) -> bool:
        """Return whether authentication by key is required. A file in which all keys are revoked still requires it."""
        return self.path.exists()

    def keys(self) -> Sequence[Key]:
        """Return all API keys, including revoked keys. Raises `StorageError`, `Damaged` or `NewerFormat`. Raises `Busy`
        if the machine is short of memory or file descriptors; this error does not mean that the file is invalid."""
        try:
            content = msgspec.json.decode(read_own(self.path), type=_Content)
        except FileNotFoundError:
            return ()
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise Busy(f"{self.path} cannot be read at the moment: {error.strerror}") from None
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Damaged(f"{self.path} cannot be read: {error}") from None
        if content.format > FORMAT:
            raise NewerFormat(f"{self.path} was written by a newer version of Penstock")
        return content.keys

    def add(
        self, name: str, words: Sequence[str], *, rate: float = 0.0, lifetime: timedelta | None = None
    ) -> tuple[Key, str]:
        """Create an API key. Returns the key and the key string, which is not stored and cannot be shown again."""
        if not _name(name):
            raise DeclarationError(
                f"{name[:80]!r} is not a valid key name: use letters, digits and, after the first character, _ . @ -"
            )
        if not words:
            raise DeclarationError("a key needs at least one grant: produce:STREAM, consume:NAME or admin")
        grants(words)
        now = datetime.now(UTC)
        with self._changing() as keys:
            if name in keys and keys[name].revoked is None:
                raise DeclarationError(
                    f"a key {name!r} already exists; rotate it, revoke it, or choose a different name"
                )
            text, secret = _new_key_secret()
            expires = None if lifetime is None else now + lifetime
            keys[name] = Key(name, tuple(words), (secret,), now, rate, expires)
        return keys[name], text

    def rotate(self, name: str, keep: timedelta) -> tuple[Key, str]:
        """Create a new key string for an API key, with the same grants. The previous string remains valid for
        `keep`."""
        now = datetime.now(UTC)
        with self._changing() as keys:
            key = _valid_key(keys, name)
            text, secret = _new_key_secret()
            old = [
                msgspec.structs.replace(previous, until=min(previous.until or now + keep, now + keep))
                for previous in key.secrets
            ]
            kept = [previous for previous in old if previous.until is not None and previous.until > now]
            keys[name] = msgspec.structs.replace(key, secrets=(secret, *kept))
        return keys[name], text

    def revoke(self, name: str) -> Key:
        """Revoke an API key. A running gateway applies the change within two seconds, and closes the key's
        connections."""
        with self._changing() as keys:
            keys[name] = msgspec.structs.replace(_valid_key(keys, name), secrets=(), revoked=datetime.now(UTC))
        return keys[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """Yield the API keys by name, for the `with` block to change. If the block ends without an error, write the
        keys to the file, which only its owner can read. Blocks on the file lock."""
        with disk_errors(self.path):
            lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = {key.name: key for key in self.keys()}
            yield keys
            with disk_errors(self.path):
                write_atomic(self.path, msgspec.json.encode(_Content(tuple(keys.values()))), durable=True)
        finally:
            os.close(lock)


def file_stamp(path: Path) -> Stamp:
    """Return the identity of one version of a file, or None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode, status.st_uid


def digest(text: str) -> str | None:
    """Return the hash that an API key is stored as, or None if the string is not a key."""
    digits = text.removeprefix(PREFIX)
    secret, check = digits[:SECRET_DIGITS], digits[SECRET_DIGITS:]
    if not text.startswith(PREFIX) or len(check) != CHECK_DIGITS or check != _secret_checksum(secret):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _new_key_secret() -> tuple[str, Secret]:
    digits = secrets.token_hex(SECRET_DIGITS // 2)
    text = f"{PREFIX}{digits}{_secret_checksum(digits)}"
    return text, Secret(hashlib.sha256(text.encode()).hexdigest(), digits[-4:])


def _secret_checksum(digits: str) -> str:
    return f"{zlib.crc32(digits.encode(errors='replace')):08x}"


def _valid_key(keys: dict[str, Key], name: str) -> Key:
    key = keys.get(name)
    if key is None or key.revoked is not None:
        raise DeclarationError(f"the key {name[:80]!r} does not exist or has been revoked")
    return key
