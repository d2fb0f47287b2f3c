"""Durable files: SQLite databases with a format mark, checksummed records, atomic small files.

The queue and the store keep everything in SQLite files made here, so that the rules hold in one place: WAL with
`synchronous=FULL`, every record with a checksum of ours (SQLite does not checksum its pages), a failed fsync is final,
a full disk is a `DiskFull` that leaves nothing behind, and a newer format is refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import Damaged, DiskFull, NewerFormat, StorageError, SyncFailed

FORMAT = 1
BUSY_TIMEOUT_S = 10.0
_FULL = {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}  # the second is how it says so of its shared-memory file
_IO = {"SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_CLOSE"}
_BAD = {"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CORRUPT_SEQUENCE", "SQLITE_CORRUPT_INDEX", "SQLITE_CORRUPT_VTAB"}

HEAD = "CREATE TABLE IF NOT EXISTS head (name TEXT PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a database with our settings. Transactions are begun and ended by `transaction`, never by the driver."""
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
            if journal != "wal":  # no error for SQLite, but readers and the tail file count on it
                connection.close()
                raise StorageError(f"{path} cannot have a write-ahead log on this file system; use a local disk")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = OFF")  # some builds zero what is deleted: 100 times the work
        return connection


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Failed writes to a file of our own, as errors of ours."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"no space left on the disk of {path}; nothing was written", retry_after_s=5) from error
        raise SyncFailed(f"the disk did not take a write to {path} ({error.strerror})") from error


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """One write transaction: durable when the block is left, undone if it raises."""
    with storage_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def reading(connection: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """One read transaction: everything in the block sees the same instant."""
    with storage_errors(path):
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite raises into an error of ours that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:  # what the driver makes of a message that quotes a damaged name
        raise Damaged(f"{path} is damaged: {error}", file=str(path)) from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name in _FULL:
            raise DiskFull(f"no space left on the disk of {path}; nothing was written", retry_after_s=5) from error
        if name in _IO:
            raise SyncFailed(f"the disk did not take a write to {path} ({name}); nothing was acknowledged") from error
        if name in _BAD or not isinstance(error, sqlite3.OperationalError):
            raise Damaged(f"{path} is damaged: {error}", file=str(path)) from error
        raise StorageError(f"{path}: {error}", file=str(path)) from error


def make_head(connection: sqlite3.Connection, path: Path, kind: str) -> int:
    """Mark a new database as ours, or check the mark of an old one. Returns its generation."""
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
        raise NewerFormat(f"{path} has format {mark['format']}, this Penstock reads up to {FORMAT}: use a newer one")
    return int(mark["generation"])


def checksum(*parts: bytes) -> int:
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
    """A small named value, None if there is none; `Damaged` if it is not what was stored."""
    with storage_errors(path):
        row = connection.execute("SELECT crc, data FROM head WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    crc, data = row
    if not isinstance(data, bytes) or checksum(name.encode(), data) != crc:
        raise Damaged(f"{path}: the record {name!r} is damaged", file=str(path))
    return msgspec.msgpack.decode(data)


def data_version(connection: sqlite3.Connection, path: Path) -> int:
    """A number that changes when another connection, of any process, has committed. About five microseconds."""
    with storage_errors(path):
        return int(connection.execute("PRAGMA data_version").fetchone()[0])


def write_atomic(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace a small file whole: a reader sees the old content or the new, never a part. It is for its owner only."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=_for_its_owner) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_status(path: Path, data: bytes) -> bool:
    """Replace what a process says of itself. On a full disk that must wait: False, and nothing is changed."""
    try:
        write_atomic(path, data, durable=False)
    except OSError:
        return False
    return True


def read_status(path: Path) -> dict[str, Any]:
    """What a process says of itself; nothing if it has said nothing."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}
    return found if isinstance(found, dict) else {}


def another_owner(path: Path) -> str | None:
    """Say that a directory belongs to another user, and the command that fixes it; None if to this one or to root."""
    owner = path.stat().st_uid
    if owner in (os.geteuid(), 0):
        return None
    return f"{path} belongs to user {owner}, who could replace what is in it; run: chown -R {os.geteuid()} {path}"


def other_writers(path: Path) -> str | None:
    """Say that others may write to a directory, and the command that fixes it; None if only this user may. The primary
    group of the process may: with a umask of 002 it is a group of one."""
    found = path.stat()
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid()):
        return f"other users may write to {path}, and could replace what is in it; run: chmod go-w {path}"
    return None


def movable_above(path: Path) -> str | None:
    """Say that others may rename a directory on the way to `path`, and the command that fixes it; None if only its
    owner and its group may. In a directory with the sticky bit, as /tmp, only owners may."""
    for above in path.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"other users may rename what is in {above}, and so put another {path}; run: chmod +t {above}"
    return None


def read_own(path: Path) -> bytes:
    """Read a file that no other user may write to. Raises `StorageError`, with the command that fixes it, if one may;
    `OSError` if it cannot be read."""
    with open(path, "rb") as file:
        problem = _others_write(path, os.fstat(file.fileno()))
        if problem is not None:
            raise StorageError(problem)
        return file.read()


def require_own(path: Path) -> None:
    """Raise as `read_own`, of a file that someone else will open."""
    problem = _others_write(path, path.stat())
    if problem is not None:
        raise StorageError(problem)


def other_readers(path: Path) -> str | None:
    """Say that others may read a file with a secret, and the command that fixes it; None if only this user may."""
    found = path.stat()
    if found.st_mode & stat.S_IROTH or (found.st_mode & stat.S_IRGRP and found.st_gid != os.getegid()):
        return f"other users may read {path}, which is secret; run: chmod go-r {path}"
    return None


def _others_write(path: Path, found: os.stat_result) -> str | None:
    """As `another_owner` and `other_writers`. What is mounted may be anyone's for root, as in a container."""
    mounted = os.geteuid() == 0 and (os.path.ismount(path) or os.path.ismount(path.parent))
    if found.st_uid not in (os.geteuid(), 0) and not mounted:
        return f"{path} belongs to user {found.st_uid}, who could change it; run: chown {os.geteuid()} {path}"
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid()):
        return f"other users may write to {path}; run: chmod go-w {path}"
    return None


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)


def sync_filesystem(path: Path) -> None:
    """Make everything written so far to the file system that holds `path` durable (Linux syncfs)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _libc.syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise SyncFailed(f"the disk of {path} did not sync: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize
