"""A SQLite file that one process has for itself, and in which every commit is synced to the disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import AlreadyRunning, Damaged
from penstock.files import checksum, connect, make_head, storage_errors, sync_directory, transaction


class DurableFile:
    """Holds the lock from the beginning to `close`; a second one, of whatever process, gets `AlreadyRunning`.

    `generation` is a random number that the file got when it was made: with a number of its own, it makes a name that
    no one else has.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, *tables: str) -> None:
        self.path = Path(path)
        self._lock = _locked(self.path)
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite would let all read it
            self.connection = connect(self.path)
            with self.transaction():
                self.generation = make_head(self.connection, self.path, kind)
                for each in tables:
                    self.connection.execute(each)
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
        """`Damaged` if these bytes are not those that were written."""
        if checksum(*parts) != crc:
            raise Damaged(f"{self.path} is damaged: a record is not what was written", file=str(self.path))

    def close(self) -> None:
        self.connection.close()
        os.close(self._lock)


def _locked(path: Path) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise AlreadyRunning(f"{path} is in use by another process, or a second time in this one") from None
    return descriptor
