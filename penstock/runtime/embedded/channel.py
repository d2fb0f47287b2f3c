"""Control channel of a data directory: one file for each kind of message."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar, cast

import msgspec

from penstock.control import Edition, Editions, Message, decode, encode
from penstock.core.clock import WallClock, loop_time
from penstock.core.contracts import Clock
from penstock.core.errors import PenstockError
from penstock.core.files import write_atomic
from penstock.core.wakeups import AsyncWatch, file_watch
from penstock.runtime.embedded.directory import DataDirectory

M = TypeVar("M", bound=Message)
log = logging.getLogger("penstock.control")


class _Known(NamedTuple):
    """The last edition that was read of one kind of control message. `message` is None if it could not be decoded."""

    edition: Edition
    message: Message | None


class FileChannel:
    """`ControlChannel` with one file for each kind of message, which is replaced as a whole. A file is read again only
    if its inode, size or time has changed; `write_atomic` ensures that one of them does."""

    def __init__(self, directory: DataDirectory, clock: Clock | None = None) -> None:
        self._directory = directory
        self._clock = clock or WallClock()
        self._known: Mapping[type[Message], _Known] = MappingProxyType({})

    def publish(self, message: Message) -> bool:
        stamped = msgspec.structs.replace(message, published_at=self._clock.now())
        try:
            write_atomic(self._path(type(message)), encode(stamped), durable=False)
        except OSError:
            return False
        return True

    def latest(self, kind: type[M]) -> M | None:
        path = self._path(kind)
        edition = _file_edition(path)  # before the file is read, so the contents belong to this edition or a later one
        if edition is None:
            return None
        known = self._known.get(kind)
        if known is None or known.edition != edition:
            known = _Known(edition, _read_message(path, kind))
            self._known = {**self._known, kind: known}
        return cast("M | None", known.message)

    def withdraw(self, kind: type[Message]) -> None:
        self._path(kind).unlink(missing_ok=True)

    async def wait(self, seen: Editions, timeout_s: float) -> Editions:
        paths = {kind: self._path(kind) for kind in seen}
        deadline = loop_time() + timeout_s
        watch = AsyncWatch(*map(file_watch, paths.values()))
        try:
            while True:
                watch.arm()
                editions = {kind: _file_edition(path) for kind, path in paths.items()}
                left = deadline - loop_time()
                if editions != seen or left <= 0:
                    return editions
                await watch.wait(left)
        finally:
            watch.close()

    def _path(self, kind: type[Message]) -> Path:
        return self._directory.control_file(kind.name)


def _file_edition(path: Path) -> Edition:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_message(path: Path, kind: type[M]) -> M | None:
    try:
        return decode(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
    except PenstockError as error:
        log.warning("ignoring %s: %s", path, error.message)
        return None
