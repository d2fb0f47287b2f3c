"""The rebuild lock: only one rebuild at a time works on a data directory, and retention keeps the events that the
rebuild still has to read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from penstock.control import RebuildFloor
from penstock.core.errors import AlreadyRunning, DiskFull
from penstock.runtime.embedded.channel import FileChannel
from penstock.runtime.embedded.directory import DataDirectory, lock_exclusively


@contextmanager
def rebuild_lock(directory: DataDirectory) -> Iterator[None]:
    """Hold the rebuild lock for the duration of a block. Raises `AlreadyRunning` if another process holds it. The lock
    is released when the process ends, for whatever reason."""
    descriptor = os.open(directory.rebuild_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not lock_exclusively(descriptor):
            who = os.pread(descriptor, 20, 0).decode(errors="replace")
            raise AlreadyRunning(
                f"another rebuild is running in {directory.root} (process {who}); wait until it ends, or stop it"
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        channel = FileChannel(directory)
        channel.withdraw(RebuildFloor)
        yield
        channel.withdraw(RebuildFloor)
    finally:
        os.close(descriptor)


def hold_back(directory: DataDirectory, positions: Mapping[str, Mapping[int, int]]) -> None:
    """Make retention keep all events in the log from these positions on, while this process holds the lock. Raises
    `DiskFull` if that cannot be recorded."""
    floor = RebuildFloor(positions={stream: dict(offsets) for stream, offsets in positions.items()})
    if not FileChannel(directory).publish(floor):
        raise DiskFull(
            f"cannot write to {directory.run}, so retention could delete events that the rebuild has to read"
        )


def held_back(directory: DataDirectory, stream: str) -> Mapping[int, int]:
    """Return the lowest offset of each partition of a stream that a running rebuild has to read. The result is empty if
    no rebuild is running."""
    floor = FileChannel(directory).latest(RebuildFloor)
    if floor is None:
        return {}
    try:
        descriptor = os.open(directory.rebuild_lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return {}
    finally:
        os.close(descriptor)
    return floor.positions.get(stream, {})
