"""API keys: made here, shown once, kept as hashes in one file, and read again when that changes.

A key is `penstock_`, 48 random hexadecimal digits (192 bits) and 8 digits of checksum, by which a mistyped one is told
from an unknown one without a look into the file. So much randomness needs no slow hash: SHA-256 gives nothing away.
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
from typing import Annotated

import msgspec

from penstock.access.grants import grants
from penstock.errors import Busy, Damaged, DeclarationError, NewerFormat, StorageError
from penstock.files import disk_errors, read_own, write_atomic

FORMAT = 1
PREFIX = "penstock_"
SECRET_DIGITS, CHECK_DIGITS = 48, 8
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its offset. One without is refused: it would be another moment on another machine."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@\-]{0,63}").fullmatch


class Secret(msgspec.Struct, frozen=True):
    """One key as it is kept. `ending` are its last digits before the checksum, for people to tell keys apart."""

    sha256: str
    ending: str
    until: Moment | None = None


class Key(msgspec.Struct, frozen=True):
    """A name with its grants. It has two secrets for a while after it was rotated."""

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


class KeyFile:
    """The keys of one data directory. Whoever changes them holds a lock; readers see the file before or after."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether keys are asked for at all. A file from which all are revoked still says so."""
        return self.path.exists()

    def keys(self) -> Sequence[Key]:
        """All of them, also those that are revoked. Raises `StorageError`, `Damaged` or `NewerFormat`; `Busy` if the
        machine is short of memory or descriptors, which says nothing of the file."""
        try:
            content = msgspec.json.decode(read_own(self.path), type=_Content)
        except FileNotFoundError:
            return ()
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise Busy(f"{self.path} cannot be read just now: {error.strerror}") from None
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Damaged(f"{self.path} cannot be read: {error}") from None
        if content.format > FORMAT:
            raise NewerFormat(f"{self.path} was written by a newer Penstock")
        return content.keys

    def add(
        self, name: str, words: Sequence[str], *, rate: float = 0.0, lifetime: timedelta | None = None
    ) -> tuple[Key, str]:
        """A new key, and its text: the only time that it is there to be seen."""
        if not _name(name):
            raise DeclarationError(f"{name[:80]!r} is no name for a key: use letters, digits, and _ . @ - inside")
        if not words:
            raise DeclarationError("a key without grants may do nothing: give produce:STREAM, consume:NAME or admin")
        grants(words)
        now = datetime.now(UTC)
        with self._changing() as keys:
            if name in keys and keys[name].revoked is None:
                raise DeclarationError(f"there is a key {name!r}; rotate it, revoke it, or choose another name")
            text, secret = _new_secret()
            expires = None if lifetime is None else now + lifetime
            keys[name] = Key(name, tuple(words), (secret,), now, rate, expires)
        return keys[name], text

    def rotate(self, name: str, keep: timedelta) -> tuple[Key, str]:
        """Another text for a key, with the same grants. The text before goes on to be valid for a while."""
        now = datetime.now(UTC)
        with self._changing() as keys:
            key = _valid(keys, name)
            text, secret = _new_secret()
            old = [
                msgspec.structs.replace(each, until=min(each.until or now + keep, now + keep)) for each in key.secrets
            ]
            kept = [each for each in old if each.until is not None and each.until > now]
            keys[name] = msgspec.structs.replace(key, secrets=(secret, *kept))
        return keys[name], text

    def revoke(self, name: str) -> Key:
        """End a key. A running gateway sees it within two seconds, and closes the connections that it opened."""
        with self._changing() as keys:
            keys[name] = msgspec.structs.replace(_valid(keys, name), secrets=(), revoked=datetime.now(UTC))
        return keys[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """The keys by name, to be changed in the block; written, for the owner's eyes only, if it ends well."""
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


def digest(text: str) -> str | None:
    """Under what a key is kept; None if this is no key."""
    digits = text.removeprefix(PREFIX)
    secret, check = digits[:SECRET_DIGITS], digits[SECRET_DIGITS:]
    if not text.startswith(PREFIX) or len(check) != CHECK_DIGITS or check != _checksum(secret):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _new_secret() -> tuple[str, Secret]:
    digits = secrets.token_hex(SECRET_DIGITS // 2)
    text = f"{PREFIX}{digits}{_checksum(digits)}"
    return text, Secret(hashlib.sha256(text.encode()).hexdigest(), digits[-4:])


def _checksum(digits: str) -> str:
    return f"{zlib.crc32(digits.encode(errors='replace')):08x}"


def _valid(keys: dict[str, Key], name: str) -> Key:
    key = keys.get(name)
    if key is None or key.revoked is not None:
        raise DeclarationError(f"there is no key {name[:80]!r}, or it is revoked")
    return key
