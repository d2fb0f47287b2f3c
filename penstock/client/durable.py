"""A SQLite file owned by one process. Every commit is synced to disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.core.errors import AlreadyRunning, Damaged
from penstock.core.files import checksum, connect, make_head, storage_errors, sync_directory, transaction


class DurableFile:
    """A consumer's or producer's locked SQLite file. Until `close`, opening it a second time, in any process, raises
    `AlreadyRunning`.

    `generation` is a random number created with the file; combined with a record's number, it is globally unique.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, *tables: str) -> None:
        self.path = Path(path)
        self._lock = _lock_durable_file(self.path)
        try:
            # by default SQLite would make it readable by all users
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.connection = connect(self.path)
            with self.transaction():
                self.generation = make_head(self.connection, self.path, kind)
                for table in tables:
                    self.connection.execute(table)
            sync_directory(self.path.absolute().parent)
        except BaseException:
            os.close(self._lock)
            raise

    def transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return transaction(self.connection, self.path)

    @contextmanager
    def errors(self) -> Iterator[None]:
        with storage_errors(self.path):
            yield

    def checked(self, crc: int, *parts: bytes) -> None:
        """Raise `Damaged` if these bytes of the file differ from what was written."""
        if checksum(*parts) != crc:
            raise Damaged(f"{self.path} is damaged: the checksum of a record is wrong", file=str(self.path))

    def close(self) -> None:
        self.connection.close()
        os.close(self._lock)


def _lock_durable_file(path: Path) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise AlreadyRunning(f"{path} is already in use by this or another process") from None
    return descriptor
