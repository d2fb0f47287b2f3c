"""The data directory: its paths and its owner.

One running app owns a data directory. The supervisor takes a `flock` and passes the open file to its children, so the
lock is held until the last of these processes has ended, for whatever reason. Each owner has an epoch, one higher than
the previous owner's. Ledgers reject writes with an older epoch, so a process that was paused and then resumed cannot
write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.core.errors import AlreadyRunning, Damaged, NewerFormat, StorageError
from penstock.core.files import another_owner, movable_above, other_writers, sync_directory, write_atomic
from penstock.runtime.storage import Owner, Ownership

FORMAT = 1
DEFAULT = Path(".penstock")
ORPHANS_S = 30.0
"""Seconds that the children of a killed owner may take to exit: the gateway drains, and the JVM stops."""
POLL_S = 0.1
LOCK_S = 1.0
"""Seconds to keep trying to take a lock, because a process that checks the lock holds it for a moment."""
LOCK_POLL_S = 0.02
AnyOwner = TypeVar("AnyOwner", bound=Owner)


@dataclass(frozen=True)
class DataDirectory:
    """The paths below one root directory. They are defined only here."""

    root: Path

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    @property
    def views(self) -> Path:
        return self.root / "views"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def control_file(self, kind: str) -> Path:
        """Return the path of the file with the latest message of a kind on the control channel."""
        return self.run / f"{kind}.json"

    @property
    def clean_mark(self) -> Path:
        """File that exists if the engine ended cleanly and its checkpoints are durable."""
        return self.checkpoints / "clean"

    @property
    def handlers(self) -> Path:
        return self.root / "handlers"

    def handler_ledger(self, name: str) -> Path:
        return self.handlers / name / "ledger.db"

    def handler_state(self, name: str, generation: int) -> Path:
        """Return the folder with the state of a handler's shards in one generation. A generation other than the one in
        the ledger is still being written or has been replaced."""
        return self.handlers / name / str(generation)

    def handler_next(self, name: str) -> Path:
        """Return the folder in which a handler's state is recomputed from the log, to replace the current one."""
        return self.handlers / name / "next"

    def claims(self, handler: str) -> Path:
        return self.run / "claims" / handler

    @property
    def keys(self) -> Path:
        """File with the API keys, as hashes. Exists if requests need keys."""
        return self.root / "keys.json"

    @property
    def ack_key(self) -> Path:
        """File with the key that signs acknowledgements."""
        return self.root / "ack_key.json"

    @property
    def webhooks(self) -> Path:
        """File with the registered webhooks, waiting messages and signing secrets."""
        return self.root / "webhooks.db"

    @property
    def declarations(self) -> Path:
        """File with the fingerprints of the declarations that computed the data."""
        return self.root / "declarations.json"

    @property
    def purge(self) -> Path:
        """File that exists while data is being deleted. If the file is left behind, the deletion must be completed
        before an app can run."""
        return self.root / "purge.json"

    def view_file(self, name: str) -> Path:
        return self.views / f"{name}.db"

    def view_next(self, name: str) -> Path:
        """Return the folder in which a view is rebuilt, to replace the current one. View names contain no dots."""
        return self.views / f"{name}.next"

    def checkpoint(self, name: str) -> Path:
        return self.checkpoints / name

    def checkpoint_next(self, name: str) -> Path:
        """Return the checkpoint of a view that is being rebuilt."""
        return self.checkpoints / f"{name}.next"

    @property
    def rebuild_lock(self) -> Path:
        """File that the rebuilding process locks; it contains the id of that process."""
        return self.root / "rebuild.lock"

    def make(self) -> None:
        """Create the data directory's missing folders, accessible only to the owner. Raises `StorageError` if other
        users can write there."""
        parts = (self.streams, self.views, self.handlers, self.checkpoints, self.logs, self.run)
        try:
            _make_durably(self.root)
            for folder in parts:
                folder.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self.root)
            for folder in (self.root, *parts):
                self._require_own(folder)
            if (problem := movable_above(self.root)) is not None:
                raise StorageError(problem)
        except OSError as error:
            raise StorageError(f"cannot use {self.root} as the data directory: {error.strerror}") from error

    def _require_own(self, path: Path) -> None:
        """Reject a data directory that belongs to another user or that other users can write to. A volume mounted at
        the root is an exception, because whoever mounts a volume decides who has access. The volume's mode may be open.
        If this process runs as root, as in a container, the volume may belong to any user."""
        mounted = os.path.ismount(self.root)
        problem = None if mounted and os.geteuid() == 0 else another_owner(path)
        if problem is None and not (mounted and path == self.root):
            problem = other_writers(path)
        if problem is not None:
            raise StorageError(problem)


def _make_durably(path: Path) -> None:
    """Create a folder of the data directory and its parents, and sync the parent of each, so that they survive a power
    cut."""
    if not path.exists():
        _make_durably(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)


def take(directory: DataDirectory, app: str) -> Ownership:
    """Become the data directory's owner. Raises `AlreadyRunning` with the current owner's pid if there is an owner."""
    directory.make()
    try:
        descriptor = os.open(directory.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot use {directory.root} as the data directory: {error.strerror}") from error
    try:
        if not lock_exclusively(descriptor):
            raise _in_use(directory)
        return Ownership(_become_owner(directory, app), (descriptor,))
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def held(directory: DataDirectory) -> Iterator[None]:
    """Prevent apps from using the data directory while a block runs. Raises `AlreadyRunning` if an app is using it."""
    descriptor = os.open(directory.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not lock_exclusively(descriptor):
            raise _in_use(directory)
        yield
    finally:
        os.close(descriptor)


def lock_exclusively(descriptor: int) -> bool:
    """Lock an open file, and return True. Blocks for up to `LOCK_S`, and returns False if another process has the
    lock."""
    deadline = time.monotonic() + LOCK_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(LOCK_POLL_S)


def _in_use(directory: DataDirectory) -> AlreadyRunning:
    owner = last_owner(directory)
    if owner is not None and not _is_running(directory, owner):
        return AlreadyRunning(
            f"{directory.root} is in use by children of process {owner.pid} (app {owner.app}), which has ended; wait "
            "until they end too, or use a different --data",
            pid=owner.pid,
        )
    who = f"process {owner.pid} (app {owner.app})" if owner else "another process"
    return AlreadyRunning(
        f"{directory.root} is in use by {who}; stop that process, or use a different --data", pid=owner and owner.pid
    )


def await_orphans(directory: DataDirectory, say: Callable[[str], None], wait_s: float = ORPHANS_S) -> None:
    """Wait for the children of a data directory's killed owner. They end on their own, but hold the lock and the port
    until then. Blocks, and prints a message. Returns at once if the directory is free or its owner is alive. Raises
    `AlreadyRunning` after `wait_s`."""
    holder = owner(directory)
    if holder is None or _is_running(directory, holder):
        return
    say(f"process {holder.pid} has ended, but its children have not; waiting up to {wait_s:g} s")
    until = time.monotonic() + wait_s
    while owner(directory) is not None:
        if time.monotonic() > until:
            raise AlreadyRunning(
                f"process {holder.pid} has ended, but its children still use {directory.root} after {wait_s:g} s; "
                "end those processes, or use a different --data",
                pid=holder.pid,
            )
        time.sleep(POLL_S)


class _StartedOwner(Owner, frozen=True):
    """An owner as stored. Includes the time when its process started, because a later process can have the same id."""

    started: int = 0


def _is_running(directory: DataDirectory, owner: Owner) -> bool:
    """Return whether the data directory's owner is running. A zombie process, which was killed but has not been waited
    for, counts as ended."""
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, started = _owner_process_state(owner.pid)
    return state != "Z" and started in (_read_owner(directory, _StartedOwner).started, 0)


def _owner_process_state(pid: int) -> tuple[str, int]:
    """Return the state of a process, and when it started, in clock ticks since the system started. The time is 0 on a
    system without /proc, where it is unknown. A process that has just ended counts as a zombie."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return values[0], int(values[19])
    except OSError:
        return ("Z" if Path("/proc/self").exists() else ""), 0


def owner(directory: DataDirectory) -> Owner | None:
    """Return the current owner of the data directory, or None if there is no owner."""
    try:
        descriptor = os.open(directory.root / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return last_owner(directory)
    finally:
        os.close(descriptor)


def _become_owner(directory: DataDirectory, app: str) -> int:
    """Record this process as the data directory's owner, and return its epoch."""
    before = last_owner(directory)
    if before is not None and before.format > FORMAT:
        raise NewerFormat(
            f"{directory.root} has format {before.format}, but this version of Penstock reads up to {FORMAT}"
        )
    if before is not None and before.app != app:
        raise AlreadyRunning(f"{directory.root} belongs to the app {before.app!r}, not {app!r}; use a different --data")
    epoch, pid = before.epoch + 1 if before else 1, os.getpid()
    owner = _StartedOwner(app, epoch, pid, started=_owner_process_state(pid)[1])
    write_atomic(directory.root / "owner.json", msgspec.json.encode(owner), durable=True)
    return owner.epoch


def last_owner(directory: DataDirectory) -> Owner | None:
    """Return the current or last owner of the data directory, or None if there has never been an owner."""
    try:
        return _read_owner(directory, Owner)
    except FileNotFoundError:
        return None


def _read_owner(directory: DataDirectory, kind: type[AnyOwner]) -> AnyOwner:
    path = directory.root / "owner.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError:
        raise Damaged(f"{path} is damaged; restore it from a backup", file=str(path)) from None
