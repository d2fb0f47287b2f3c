"""The key that signs acknowledgements. It is random, is created once for each data directory, and is readable only by
the owner."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.core.errors import NewerFormat, StorageError
from penstock.core.files import disk_errors, read_own, write_atomic

FORMAT = 1
KEY_BYTES = 32
log = logging.getLogger("penstock.gateway")


class _Content(msgspec.Struct, frozen=True):
    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    format: int = FORMAT


class _Mark(msgspec.Struct, frozen=True):
    format: int


def read_or_create_key(path: Path) -> bytes:
    """Return the acknowledgement key in a file; creates the file, durably, if it does not exist. Blocks. Called only by
    the owner of the data directory, because two processes that create the file at the same time would have different
    keys.

    A damaged file is replaced, and the replacement is logged: losing the acknowledgements issued so far is better than
    an app that does not start. Raises `NewerFormat` or `StorageError`.
    """
    try:
        data = read_own(path)
    except FileNotFoundError:
        return _create_ack_key(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        file_format = msgspec.json.decode(data, type=_Mark).format
        if file_format > FORMAT:
            raise NewerFormat(
                f"{path} has format {file_format}, but this version of Penstock reads up to {FORMAT}; upgrade Penstock"
            )
        return msgspec.json.decode(data, type=_Content).key
    except (msgspec.MsgspecError, UnicodeDecodeError):
        log.error("%s is damaged; creating a new key, so earlier acknowledgements are no longer accepted", path)
        return _create_ack_key(path)


def _create_ack_key(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    with disk_errors(path):
        write_atomic(path, msgspec.json.encode(_Content(key)), durable=True)
    return key
