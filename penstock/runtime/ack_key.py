"""The key that signs acknowledgements: random, made once for a data directory, readable by its owner only."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.errors import NewerFormat, StorageError
from penstock.files import disk_errors, read_own, write_atomic

FORMAT = 1
KEY_BYTES = 32
log = logging.getLogger("penstock.gateway")


class _Content(msgspec.Struct, frozen=True):
    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    format: int = FORMAT


class _Mark(msgspec.Struct, frozen=True):
    format: int


def read_or_create_key(path: Path) -> bytes:
    """Return the key in a file, which is created, durably, if it is not there. Blocks. Called by the owner of the data
    directory only: two who create it at once would have two keys.

    A damaged file is replaced, and that is logged: the acknowledgements given out before are not worth an app that does
    not start. Raises `NewerFormat` or `StorageError`.
    """
    try:
        data = read_own(path)
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=_Mark).format
        if found > FORMAT:
            raise NewerFormat(f"{path} has format {found}, this Penstock reads up to {FORMAT}: use a newer one")
        return msgspec.json.decode(data, type=_Content).key
    except (msgspec.MsgspecError, UnicodeDecodeError):
        log.error("%s is damaged; a new key replaces it, and acknowledgements given out before are not found", path)
        return _create(path)


def _create(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    with disk_errors(path):
        write_atomic(path, msgspec.json.encode(_Content(key)), durable=True)
    return key
