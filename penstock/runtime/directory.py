"""The data directory: where everything is, and who owns it.

One running app owns a data directory. The supervisor takes a `flock` and hands the open file to its children, so the
lock is held until the last of them is gone, however they end. Each owner has an epoch, one above the last owner's; the
ledger refuses an older one, so a process that was paused and comes back cannot write.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.errors import AlreadyRunning, Damaged, NewerFormat, StorageError
from penstock.files import sync_directory, write_atomic

FORMAT = 1


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
    def webhooks(self) -> Path:
        """What is registered and what waits, with the secrets that sign."""
        return self.root / "webhooks.db"

    def view_file(self, name: str) -> Path:
        return self.views / f"{name}.db"

    def checkpoint(self, name: str) -> Path:
        return self.checkpoints / name

    def make(self) -> None:
        """Make what is missing, for the owner's eyes only."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in (self.streams, self.views, self.handlers, self.checkpoints, self.logs, self.run):
                each.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self.root)
        except OSError as error:
            raise StorageError(f"cannot use {self.root} as the data directory: {error.strerror}") from error


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
        owner = _owner(directory)
        who = f"process {owner.pid} (app {owner.app})" if owner else "another process"
        raise AlreadyRunning(
            f"{directory.root} is in use by {who}; stop that one, or give another --data", pid=owner and owner.pid
        ) from None
    except BaseException:
        os.close(descriptor)
        raise


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
        return _owner(directory)
    finally:
        os.close(descriptor)


def _succeed(directory: DataDirectory, app: str) -> int:
    """Write down that this process is the owner now; returns its epoch."""
    before = _owner(directory)
    if before is not None and before.format > FORMAT:
        raise NewerFormat(f"{directory.root} has format {before.format}, this Penstock reads up to {FORMAT}")
    if before is not None and before.app != app:
        raise AlreadyRunning(f"{directory.root} belongs to the app {before.app!r}, not {app!r}; give another --data")
    owner = Owner(app, before.epoch + 1 if before else 1, os.getpid())
    write_atomic(directory.root / "owner.json", msgspec.json.encode(owner), durable=True)
    return owner.epoch


def _owner(directory: DataDirectory) -> Owner | None:
    path = directory.root / "owner.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Owner)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise Damaged(f"{path} is damaged; restore it from a backup", file=str(path)) from None
