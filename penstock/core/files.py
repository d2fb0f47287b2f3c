"""Durable files: SQLite databases with a format mark, records with checksums, and small files that are replaced
atomically.

The queue and the store keep all their data in SQLite files created by this module, so these rules are implemented in
one place. Databases use WAL mode with `synchronous=FULL`. Every record has its own checksum, because SQLite does not
checksum its pages. A failed fsync is final. If the disk is full, `DiskFull` is raised and no partial data is left.
Files in a newer format are rejected.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import sqlite3
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import Damaged, DiskFull, NewerFormat, StorageError, SyncFailed
from penstock.core.wakeups import ring

FORMAT = 1
BUSY_TIMEOUT_S = 10.0
_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}  # the second: SQLite's shared-memory file does not fit on the disk
_IO = {"SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_CLOSE"}
_BAD = {"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CORRUPT_SEQUENCE", "SQLITE_CORRUPT_INDEX", "SQLITE_CORRUPT_VTAB"}

HEAD = "CREATE TABLE IF NOT EXISTS head (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open an SQLite database with Penstock's settings. Only `transaction` begins and ends transactions; the driver
    never does."""
    with storage_errors(path):
        mode = "ro" if read_only else "rwc"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_TIMEOUT_S,
        )
        if not read_only:
            (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if journal != "wal":  # SQLite reports no error, but readers and the tail file rely on WAL
                connection.close()
                raise StorageError(f"{path} cannot use a write-ahead log on this file system; use a local disk")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = OFF")  # some builds overwrite deleted data: 100 times as slow
        return connection


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert errors from writes to `path` to `DiskFull` or `SyncFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(
                f"no space is left on the disk that holds {path}; nothing was written", retry_after_s=5
            ) from error
        raise SyncFailed(f"a write to {path} failed ({error.strerror})") from error


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """Run the block as one write transaction of an SQLite database: durable when the block ends, rolled back if it
    raises."""
    with storage_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
            ring(path)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def reading(connection: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """Run the block as one read transaction of an SQLite database: all reads in it see the same snapshot."""
    with storage_errors(path):
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert SQLite errors to Penstock errors that name the file."""
    try:
        yield
    except UnicodeDecodeError as error:  # raised by the driver for a message that quotes a damaged name
        raise Damaged(f"{path} is damaged: {error}", file=str(path)) from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name in _FULL:
            raise DiskFull(
                f"no space is left on the disk that holds {path}; nothing was written", retry_after_s=5
            ) from error
        if name in _IO:
            raise SyncFailed(f"a write to {path} failed ({name}); nothing was acknowledged") from error
        if name in _BAD or not isinstance(error, sqlite3.OperationalError):
            raise Damaged(f"{path} is damaged: {error}", file=str(path)) from error
        raise StorageError(f"{path}: {error}", file=str(path)) from error


def make_head(connection: sqlite3.Connection, path: Path, kind: str) -> int:
    """Write Penstock's format mark to a new database, or check the mark of an existing database. Returns the
    generation."""
    with storage_errors(path):
        connection.execute(HEAD)
    mark = get_record(connection, path, "format")
    if mark is None:
        mark = {"kind": kind, "format": FORMAT, "generation": secrets.randbits(48)}
        put_record(connection, "format", mark)
    return check_mark(mark, path, kind)


def check_mark(mark: Any, path: Path, kind: str) -> int:
    if mark is None or mark.get("kind") != kind:
        raise Damaged(f"{path} is not a Penstock {kind} file", file=str(path))
    if mark["format"] > FORMAT:
        raise NewerFormat(
            f"{path} has format {mark['format']}, but this version of Penstock reads up to {FORMAT}; upgrade Penstock"
        )
    return int(mark["generation"])


def checksum(*parts: bytes | memoryview) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def put_record(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Store a small named value with its checksum. Call inside a transaction."""
    data = msgspec.msgpack.encode(value)
    crc = checksum(name.encode(), data)
    connection.execute("INSERT OR REPLACE INTO head VALUES (?, ?, ?)", (name, crc, data))


def get_record(connection: sqlite3.Connection, path: Path, name: str) -> Any:
    """Return a small named value, or None if it does not exist. Raises `Damaged` if it differs from what was stored."""
    with storage_errors(path):
        row = connection.execute("SELECT crc, data FROM head WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    crc, data = row
    if not isinstance(data, bytes) or checksum(name.encode(), data) != crc:
        raise Damaged(f"{path}: the record {name!r} is damaged", file=str(path))
    return msgspec.msgpack.decode(data)


def data_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return a number that changes when another connection, in this or any other process, commits. Takes about five
    microseconds."""
    with storage_errors(path):
        return int(connection.execute("PRAGMA data_version").fetchone()[0])


def write_atomic(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace a small file atomically: a reader sees either the old or the new contents, never a mix of them. Only the
    file's owner can read it.

    The modification time is set explicitly, with nanosecond precision. Many kernels record the time only to the
    millisecond, and soon reuse the inode number of a replaced file. If the time and the inode number were both
    unchanged, a reader could mistake the new file for the old one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=_open_for_owner) as file:
            file.write(data)
            file.flush()
            now = time.time_ns()
            os.utime(file.fileno(), ns=(now, now))
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def another_owner(path: Path) -> str | None:
    """Return an error message, with the command that fixes it, if a directory belongs to another user, or None if it
    belongs to this user or to root."""
    owner = path.stat().st_uid
    if owner in (os.geteuid(), 0):
        return None
    return f"{path} belongs to user {owner}, who could replace its contents; run: chown -R {os.geteuid()} {path}"


def other_writers(path: Path) -> str | None:
    """Return an error message, with the command that fixes it, if other users can write to a directory, or None if only
    this user can. The process's primary group may also have write access: where the umask is 002, this user is its only
    member."""
    status = path.stat()
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid()):
        return f"other users can write to {path} and could replace its contents; run: chmod go-w {path}"
    return None


def movable_above(path: Path) -> str | None:
    """Return an error message, with the command that fixes it, if other users can rename a directory above `path`, or
    None if only its owner and group can. In a directory with the sticky bit, such as /tmp, only the owner of an entry
    can rename it."""
    for above in path.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"other users can rename entries in {above} and could replace {path}; run: chmod +t {above}"
    return None


def read_own(path: Path) -> bytes:
    """Read a file that no other user can write to. If another user can, raises `StorageError`, with the command that
    fixes it. Raises `OSError` if the file cannot be read."""
    with open(path, "rb") as file:
        problem = _others_write(path, os.fstat(file.fileno()))
        if problem is not None:
            raise StorageError(problem)
        return file.read()


def require_own(path: Path) -> None:
    """Check a file that other code will open. Raises the same errors as `read_own`."""
    problem = _others_write(path, path.stat())
    if problem is not None:
        raise StorageError(problem)


def other_readers(path: Path) -> str | None:
    """Return an error message, with the command that fixes it, if other users can read a secret file, or None if only
    this user can."""
    status = path.stat()
    if status.st_mode & stat.S_IROTH or (status.st_mode & stat.S_IRGRP and status.st_gid != os.getegid()):
        return f"other users can read {path}, which is secret; run: chmod go-r {path}"
    return None


def _others_write(path: Path, status: os.stat_result) -> str | None:
    """Check a file in the same way as `another_owner` and `other_writers` check a directory. If this user is root, a
    mounted file can belong to anyone, as in a container."""
    mounted = os.geteuid() == 0 and (os.path.ismount(path) or os.path.ismount(path.parent))
    if status.st_uid not in (os.geteuid(), 0) and not mounted:
        return f"{path} belongs to user {status.st_uid}, who could change it; run: chown {os.geteuid()} {path}"
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid()):
        return f"other users can write to {path}; run: chmod go-w {path}"
    return None


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)


def sync_filesystem(path: Path) -> None:
    """Flush to disk everything that has been written to the file system that contains `path` (Linux syncfs)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _libc.syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise SyncFailed(f"the disk that holds {path} could not be synced: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize
