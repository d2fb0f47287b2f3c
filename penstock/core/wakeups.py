"""Wake-ups between processes: a writer touches a file after each commit, and the kernel wakes the processes that watch
it.

Touching sets the file's modification time, which takes a microsecond and no disk space. Watches use inotify: a process
that watches files has one descriptor and one thread for all of them. A watch fires once and must then be armed again,
so commits do not wake a process that is busy.

A wake-up only means that something may have changed. Arm the watch, check for changes, then wait: a commit made after
the check fires the watch. If the kernel does not report changes, as on some network file systems, a waiter checks again
after `UNSURE_S`; otherwise, it checks again after `SURE_S` at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from penstock.core.contracts import ChangeWatch

SURE_S = 1.0
"""Longest time between two checks for changes if the kernel reports changes."""
UNSURE_S = 0.05
"""Longest time between two checks for changes if the kernel does not report changes. A check takes about ten
microseconds."""

_ATTRIB, _MOVED_TO, _CREATE, _DELETE_SELF, _MOVE_SELF = 0x4, 0x80, 0x100, 0x400, 0x800
_ONESHOT, _MASK_ADD = 0x80000000, 0x20000000
_OVERFLOW = 0x4000
_FILE = _ATTRIB | _DELETE_SELF | _MOVE_SELF | _ONESHOT
_DIRECTORY = _CREATE | _MOVED_TO | _ONESHOT
_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


def ring(path: Path) -> None:
    """Fire all watches on a file, in every process. Call this after each commit. Errors are ignored: readers then
    notice the commit later."""
    with contextlib.suppress(OSError):
        os.utime(path)


class FileWatch:
    """A watch on one path, which need not exist. Each time it is armed, it calls `wake` once, from any thread, when the
    file is rung, replaced, created or removed. `wake` must not block."""

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        self.path, self.wake = path, wake

    def arm(self) -> bool:
        """Request one call of `wake`. Arming an armed watch changes nothing. Returns False if the kernel cannot report
        changes to this path."""
        return _inotify().arm(self)

    def close(self) -> None:
        """Disarm the watch. A call of `wake` that has already started is not interrupted."""
        _inotify().disarm(self)


Subscribe = Callable[[Callable[[], None]], ChangeWatch]
"""Creates a watch that calls the given function, as `log.watch` does for a stream."""


def file_watch(path: Path) -> Subscribe:
    """Return a function that creates a watch on a file."""
    return partial(FileWatch, path)


class BlockingWatch:
    """Waits, in a thread, for any of several changes. Use it as a context manager, and in only one thread at a time."""

    def __init__(self, *subscriptions: Subscribe) -> None:
        self._rung = threading.Event()
        self._watches = [subscribe(self._rung.set) for subscribe in subscriptions]
        self._longest_s = UNSURE_S

    def __enter__(self) -> BlockingWatch:
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.close()

    def arm(self) -> None:
        """Start watching for changes. Call this before each check for changes."""
        self._rung.clear()
        self._longest_s = _longest_s(self._watches)

    def wait(self, timeout_s: float) -> None:
        """Block until something may have changed since `arm`, or for `timeout_s`."""
        self._rung.wait(min(timeout_s, self._longest_s))

    def wake(self) -> None:
        """End the current wait. Thread-safe."""
        self._rung.set()


class AsyncWatch:
    """Waits, in an event loop, for any of several changes. Only one task at a time can use it."""

    def __init__(self, *subscriptions: Subscribe) -> None:
        self._rung = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches = [subscribe(self._wake) for subscribe in subscriptions]
        self._longest_s = UNSURE_S

    def arm(self) -> None:
        """Start watching for changes. Call this in the loop, before each check for changes."""
        self._loop = asyncio.get_running_loop()
        self._rung.clear()
        self._longest_s = _longest_s(self._watches)

    async def wait(self, timeout_s: float) -> None:
        """Return once something may have changed since `arm`, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, self._longest_s)):
                await self._rung.wait()

    def close(self) -> None:
        for watch in self._watches:
            watch.close()

    def _wake(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._rung.set)


def _longest_s(watches: Sequence[ChangeWatch]) -> float:
    """Arm watches, and return how long to wait for them before checking for changes again."""
    return UNSURE_S if False in [watch.arm() for watch in watches] else SURE_S


class _Inotify:
    """The inotify descriptor of this process, and the thread that reads it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: dict[int, set[FileWatch]] = {}
        self._numbers: dict[FileWatch, int] = {}
        self._descriptor: int | None = None
        self._started = False

    def arm(self, watch: FileWatch) -> bool:
        with self._lock:
            if watch in self._numbers:
                return True
            if not self._start():
                return False
            number = self._add(watch.path, _FILE)
            if number is None:
                number = self._add(watch.path.parent, _DIRECTORY)
                if watch.path.exists():  # created in between
                    number = self._add(watch.path, _FILE)
            if number is None:
                return False
            self._armed.setdefault(number, set()).add(watch)
            self._numbers[watch] = number
            return True

    def disarm(self, watch: FileWatch) -> None:
        with self._lock:
            number = self._numbers.pop(watch, None)
            if number is None:
                return
            watches = self._armed[number]
            watches.discard(watch)
            if not watches:
                del self._armed[number]
                _libc.inotify_rm_watch(self._descriptor, number)

    def _start(self) -> bool:
        """Open the descriptor and start the thread, on the first call. Returns False if there is no descriptor: the
        kernel limits how many each user can open."""
        if not self._started:
            self._started = True
            with contextlib.suppress(AttributeError):
                descriptor = _libc.inotify_init1(os.O_CLOEXEC)
                self._descriptor = descriptor if descriptor >= 0 else None
            if self._descriptor is not None:
                threading.Thread(target=self._run, args=(self._descriptor,), name="wake-ups", daemon=True).start()
        return self._descriptor is not None

    def _add(self, path: Path, mask: int) -> int | None:
        number = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        return int(number) if number >= 0 else None

    def _run(self, descriptor: int) -> None:
        while True:
            try:
                events = os.read(descriptor, _READ_BYTES)
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                return
            for watch in self._due(events):
                watch.wake()

    def _due(self, events: bytes) -> set[FileWatch]:
        """Return the watches that the events are for, and disarm them."""
        due: set[FileWatch] = set()
        start = 0
        with self._lock:
            while start < len(events):
                number, mask, _, length = _HEADER.unpack_from(events, start)
                start += _HEADER.size + length
                numbers = list(self._armed) if mask & _OVERFLOW else [number]
                for rung in numbers:
                    due |= self._armed.pop(rung, set())
            for watch in due:
                self._numbers.pop(watch, None)
        return due


_current: _Inotify | None = None
_lock = threading.Lock()


def _inotify() -> _Inotify:
    global _current
    with _lock:
        if _current is None:
            _current = _Inotify()
        return _current


def _after_fork() -> None:
    """Close the inotify descriptor in a forked process, which has no copy of the thread. Reading the descriptor would
    take events away from the parent."""
    global _current, _lock
    descriptor = None if _current is None else _current._descriptor
    _current, _lock = None, threading.Lock()
    if descriptor is not None:
        os.close(descriptor)


os.register_at_fork(after_in_child=_after_fork)
