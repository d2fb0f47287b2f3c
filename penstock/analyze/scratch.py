"""The scratch folder of this process: where Spark and Java put working files, which hold rows of views and streams.

By default they use the system's temporary folder, where every user can read them. This folder is readable by its
owner only, and locked while the process lives. A folder without a lock was left by a process that was killed; the next
process removes it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from penstock.errors import StorageError

PREFIX = "penspark-"
"""Of no other folder of ours: whatever has it and is not locked is removed."""
TRIES = 10


@cache
def scratch_folder() -> Path:
    """Create the scratch folder of this process; the same one on each call. Removes those of processes that are gone.
    It is removed when the process ends, unless it is killed."""
    remove_orphans()
    folder = _create()
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def remove_orphans() -> None:
    """Remove the scratch folders of this user whose processes are gone. Those that cannot be removed stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _create() -> Path:
    """Create a folder and lock it. Its descriptor is never closed: it ends with the process. Another process that
    starts may take the folder for an orphan before it is locked: then there is another try."""
    for _ in range(TRIES):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        if _lock(folder) is not None and folder.exists():
            return folder
    raise StorageError(f"no folder could be made in {tempfile.gettempdir()} for the working files of Spark")


def _lock(folder: Path) -> int | None:
    """Open a folder of this user and lock it; None if it is locked, gone, a link, or another user's."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return None


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a process that was forked
        shutil.rmtree(folder, ignore_errors=True)
