"""The lock of a rebuild: one rebuild works on a data directory at a time, and retention keeps what it has to read."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from penstock.cursor import Positions
from penstock.errors import AlreadyRunning
from penstock.files import write_atomic
from penstock.runtime.directory import DataDirectory

LOCK_S = 1.0
"""How long to try for the lock: whoever looks whether it is held has it for a moment."""
POLL_S = 0.02


@contextmanager
def rebuild_lock(directory: DataDirectory) -> Iterator[None]:
    """Hold the lock for the length of a block. Raises `AlreadyRunning` if another process has it. It ends with the
    process, however that ends."""
    descriptor = os.open(directory.rebuild_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, directory)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        directory.rebuild_needs.unlink(missing_ok=True)
        yield
        directory.rebuild_needs.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: DataDirectory) -> None:
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                who = os.pread(descriptor, 20, 0).decode(errors="replace")
                raise AlreadyRunning(
                    f"another rebuild is at work on {directory.root} (process {who}); wait for its end, or end it"
                ) from None
        time.sleep(POLL_S)


def hold(directory: DataDirectory, positions: Mapping[str, Mapping[int, int]]) -> None:
    """Have retention keep everything from these positions on, for as long as the lock is held by this process."""
    write_atomic(directory.rebuild_needs, msgspec.json.encode(positions), durable=False)


def held(directory: DataDirectory, stream: str) -> Mapping[int, int]:
    """The lowest offset of each partition of a stream that a rebuild under way has to read; empty if there is none."""
    try:
        needs = msgspec.json.decode(directory.rebuild_needs.read_bytes(), type=Positions)
        descriptor = os.open(directory.rebuild_lock, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return {}
    finally:
        os.close(descriptor)
    return needs.get(stream, {})
