"""This process's scratch folder, where Spark and Java put working files that contain rows of views and streams.

By default, they use the system's temporary folder, where every user can read the files. Only its owner can read the
scratch folder, and it is locked while the process lives. A folder without a lock was left by a process that was killed;
the next process removes it.
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

from penstock.core.errors import StorageError

PREFIX = "penspark-"
"""Prefix that Penstock uses only for scratch folders: a folder with this prefix that is not locked is removed."""
TRIES = 10


@cache
def scratch_folder() -> Path:
    """Return the path of this process's scratch folder. The first call creates the folder, and removes the folders of
    processes that no longer exist. The folder is removed when the process exits, unless it is killed."""
    remove_orphans()
    folder = _create()
    atexit.register(_remove_own_scratch, folder, os.getpid())
    return folder


def remove_orphans() -> None:
    """Remove this user's scratch folders whose processes no longer exist. Folders that cannot be removed are kept."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _create() -> Path:
    """Create a scratch folder and lock it. The lock's descriptor stays open until the process exits. If another process
    that is starting mistakes the folder for an orphan before it is locked, this function tries again."""
    for _ in range(TRIES):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        if _lock(folder) is not None and folder.exists():
            return folder
    raise StorageError(f"cannot create a folder in {tempfile.gettempdir()} for Spark's working files")


def _lock(folder: Path) -> int | None:
    """Open a scratch folder of this user and lock it. Returns None if it is locked, missing, a link, or another
    user's."""
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


def _remove_own_scratch(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked process
        shutil.rmtree(folder, ignore_errors=True)
