"""The data directory: where everything is, and who owns it.

One running app owns a data directory. The supervisor takes a `flock` and hands the open file to its children, so the
lock is held until the last of them is gone, however they end. Each owner has an epoch, one above the last owner's; the
ledger refuses an older one, so a process that was paused and comes back cannot write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.errors import AlreadyRunning, Damaged, NewerFormat, StorageError
from penstock.files import another_owner, movable_above, other_writers, sync_directory, write_atomic

FORMAT = 1
ORPHANS_S = 30.0
"""How long what a killed owner has started may take to end: a gateway drains, a JVM stops."""
POLL_S = 0.1


@dataclass(frozen=True)
class DataDirectory:
    """The paths below one root. The only place that knows them."""

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

    @property
    def engine_status(self) -> Path:
        return self.run / "engine.json"

    @property
    def health_status(self) -> Path:
        """What the gateway says of the health of the app, for the supervisor."""
        return self.run / "health.json"

    @property
    def supervisor_status(self) -> Path:
        return self.run / "supervisor.json"

    @property
    def clean_mark(self) -> Path:
        """There if the engine ended in good order and its checkpoints are durable."""
        return self.checkpoints / "clean"

    @property
    def handlers(self) -> Path:
        return self.root / "handlers"

    def handler_ledger(self, name: str) -> Path:
        return self.handlers / name / "ledger.db"

    def handler_state(self, name: str, generation: int) -> Path:
        """The state of a handler's shards. A generation that is not the ledger's is being made, or was replaced."""
        return self.handlers / name / str(generation)

    def handler_next(self, name: str) -> Path:
        """State of a handler that is made from the log, to take the place of what it has."""
        return self.handlers / name / "next"

    def claims(self, handler: str) -> Path:
        return self.run / "claims" / handler

    @property
    def successor(self) -> Path:
        """There if the app is to go on with another file."""
        return self.run / "successor.json"

    @property
    def keys(self) -> Path:
        """The API keys, as hashes. There if keys are asked for."""
        return self.root / "keys.json"

    @property
    def ack_key(self) -> Path:
        """The key that signs acknowledgements."""
        return self.root / "ack_key.json"

    @property
    def webhooks(self) -> Path:
        """What is registered and what waits, with the secrets that sign."""
        return self.root / "webhooks.db"

    @property
    def declarations(self) -> Path:
        """The fingerprints of the declarations that made the data."""
        return self.root / "declarations.json"

    @property
    def purge(self) -> Path:
        """There while data is being removed: what is left of it must go before an app may run."""
        return self.root / "purge.json"

    def view_file(self, name: str) -> Path:
        return self.views / f"{name}.db"

    def view_next(self, name: str) -> Path:
        """The folder in which a view is rebuilt, to take the place of the one that there is. No view has a dot in its
        name."""
        return self.views / f"{name}.next"

    def checkpoint(self, name: str) -> Path:
        return self.checkpoints / name

    def checkpoint_next(self, name: str) -> Path:
        """The checkpoint of a view that is rebuilt."""
        return self.checkpoints / f"{name}.next"

    @property
    def rebuild_lock(self) -> Path:
        """Locked by the process that rebuilds; its text is the id of that process."""
        return self.root / "rebuild.lock"

    @property
    def rebuild_needs(self) -> Path:
        """Which events a rebuild still has to read; counts while the lock is held."""
        return self.run / "rebuild.json"

    def make(self) -> None:
        """Make what is missing, for the owner's eyes only. Raises `StorageError` if others may write there."""
        parts = (self.streams, self.views, self.handlers, self.checkpoints, self.logs, self.run)
        try:
            _make_durably(self.root)
            for each in parts:
                each.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self.root)
            for each in (self.root, *parts):
                self._require_own(each)
            if (problem := movable_above(self.root)) is not None:
                raise StorageError(problem)
        except OSError as error:
            raise StorageError(f"cannot use {self.root} as the data directory: {error.strerror}") from error

    def _require_own(self, path: Path) -> None:
        """A volume that is mounted here may be anyone's for root, as in a container, and open to a group or to all:
        who mounts it decides who else sees it."""
        mounted = os.path.ismount(self.root)
        problem = None if mounted and os.geteuid() == 0 else another_owner(path)
        if problem is None and not (mounted and path == self.root):
            problem = other_writers(path)
        if problem is not None:
            raise StorageError(problem)


def _make_durably(path: Path) -> None:
    """Make a directory and those above it, and sync the one above each: a power cut takes none of them back."""
    if not path.exists():
        _make_durably(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)


class Owner(msgspec.Struct, frozen=True):
    """Who has, or last had, the data directory: the content of `owner.json`."""

    app: str
    epoch: int
    pid: int
    format: int = FORMAT


@dataclass(frozen=True)
class Ownership:
    """A held lock: `descriptor` must stay open for as long as the owner lives."""

    epoch: int
    descriptor: int


def take(directory: DataDirectory, app: str) -> Ownership:
    """Become the owner, or raise `AlreadyRunning` with the pid of who is."""
    directory.make()
    try:
        descriptor = os.open(directory.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot use {directory.root} as the data directory: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Ownership(_succeed(directory, app), descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise _in_use(directory) from None
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def held(directory: DataDirectory) -> Iterator[None]:
    """Keep every app off the directory for the length of a block; `AlreadyRunning` if one runs on it."""
    descriptor = os.open(directory.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise _in_use(directory) from None
    finally:
        os.close(descriptor)


def _in_use(directory: DataDirectory) -> AlreadyRunning:
    owner = last_owner(directory)
    who = f"process {owner.pid} (app {owner.app})" if owner else "another process"
    return AlreadyRunning(
        f"{directory.root} is in use by {who}; stop that one, or give another --data", pid=owner and owner.pid
    )


def await_orphans(directory: DataDirectory, say: Callable[[str], None], wait_s: float = ORPHANS_S) -> None:
    """Wait for what a killed owner has started: it ends by itself, and holds lock and port until then. Blocks, and says
    so; returns at once if nobody has the directory, or its owner lives. Raises `AlreadyRunning` after `wait_s`."""
    holder = owner(directory)
    if holder is None or _is_alive(holder.pid):
        return
    say(f"process {holder.pid} is gone, but what it started is still ending; waiting up to {wait_s:g} s")
    until = time.monotonic() + wait_s
    while owner(directory) is not None:
        if time.monotonic() > until:
            raise AlreadyRunning(
                f"process {holder.pid} is gone, but what it started still uses {directory.root} after {wait_s:g} s; "
                "end those processes, or give another --data",
                pid=holder.pid,
            )
        time.sleep(POLL_S)


def _is_alive(pid: int) -> bool:
    """Whether a process runs. One that was killed and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has just ended, or the system has no /proc
        return not Path("/proc/self").exists()


def owner(directory: DataDirectory) -> Owner | None:
    """Who runs on the directory now; None if nobody does."""
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


def _succeed(directory: DataDirectory, app: str) -> int:
    """Write down that this process is the owner now; returns its epoch."""
    before = last_owner(directory)
    if before is not None and before.format > FORMAT:
        raise NewerFormat(f"{directory.root} has format {before.format}, this Penstock reads up to {FORMAT}")
    if before is not None and before.app != app:
        raise AlreadyRunning(f"{directory.root} belongs to the app {before.app!r}, not {app!r}; give another --data")
    owner = Owner(app, before.epoch + 1 if before else 1, os.getpid())
    write_atomic(directory.root / "owner.json", msgspec.json.encode(owner), durable=True)
    return owner.epoch


def last_owner(directory: DataDirectory) -> Owner | None:
    """Who has, or last had, the directory; None if nobody ever did."""
    path = directory.root / "owner.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Owner)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise Damaged(f"{path} is damaged; restore it from a backup", file=str(path)) from None
