"""The gateway's in-memory copy of a view, kept up to date from the file that the engine writes."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from penstock.core.contracts import ViewChange, ViewSnapshot
from penstock.core.errors import PenstockError
from penstock.core.wakeups import AsyncWatch, file_watch
from penstock.store.memory import ServedRows
from penstock.store.reader import ChangeBatch, Gap, LoadedView, ViewReader
from penstock.store.spec import ViewSpec

PAUSE_S = 0.005
"""Pause after each read, so that changes in quick succession are read together."""
RETRY_MIN_S, RETRY_MAX_S = 0.5, 10.0
"""Minimum and maximum delay before an unreadable file is read again."""
PIECE_CHANGES, PIECE_BYTES = 1_000, 8 * 1024 * 1024
"""Maximum number and total size of the changes that are read and applied at once while catching up."""
HISTORY_BYTES = 256 * 1024
"""Maximum number of bytes that one call to `changes` reads from the file. The read takes about two milliseconds, and
runs in the event loop."""
BUFFER_BYTES = 32 * 1024 * 1024
"""Maximum memory for a view's latest changes."""

T = TypeVar("T")


class InMemoryView:
    """A view in memory: a `contracts.LiveView`. Belongs to the event loop that runs `run`.

    The file does not have to exist yet: until the engine creates it, the view is empty, at version 0 of generation 0.
    If the file cannot be read or is damaged, `error` contains the reason, the rows in memory stay at the last good
    version, and reading is retried from time to time. Data that fails its checks is never served.
    """

    def __init__(self, path: Path, spec: ViewSpec, *, buffered_changes: int) -> None:
        self._path, self._spec = path, spec
        self._buffer_max = buffered_changes
        self._follower: ViewReader | None = None
        self._historian: ViewReader | None = None
        self._behind = False
        self._follow_error: str | None = None
        self._history_error: str | None = None
        self._moved = asyncio.Event()
        self._snapshot: ViewSnapshot | None = None
        self._buffer: deque[ViewChange] = deque()
        self._install(LoadedView(0, 0, ServedRows(False, ())))

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def version(self) -> int:
        return self._version

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    @property
    def error(self) -> str | None:
        """The error that occurred when reading the file, in one sentence, for the health report, or None if there is no
        error."""
        return self._follow_error or self._history_error

    @property
    def size(self) -> int:
        """The number of rows served."""
        return len(self._rows)

    def snapshot(self) -> ViewSnapshot:
        """Return the view's rows and their version at one instant.

        The first call at a version sorts the rows. Later calls cost nothing.
        """
        if self._snapshot is None:
            self._snapshot = ViewSnapshot(self._version, self._rows.in_order())
        return self._snapshot

    def row(self, key: str) -> bytes | None:
        """Return the view's row with a key, or None if it is not served. A key is a JSON object of the key columns."""
        return self._rows.get(key)

    def changes(self, after: int, limit: int) -> Sequence[ViewChange] | None:
        """Return the view's changes after a version: from memory if they are there, otherwise a limited number from the
        file.

        Returns None if some of them are no longer kept, or if `after` is ahead of the view, which is possible after a
        backup has been restored.
        """
        if after > self._version or after < 0:
            return None
        if after == self._version:
            return ()
        if self._buffer and self._buffer[0].version <= after + 1:
            first = after + 1 - self._buffer[0].version
            return tuple(islice(self._buffer, first, first + limit))
        return self._history(after, limit)

    async def wait(self, after: int, timeout_s: float) -> bool:
        """Wait for a version of the view above `after`, or until the view is recreated, and return True. Returns False
        after `timeout_s`."""
        generation = self._generation
        try:
            async with asyncio.timeout(timeout_s):
                while self._version <= after and self._generation == generation:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def load(self) -> None:
        """Load the current contents of the view's file.

        Await this before serving, so that resumed readers do not see an empty view.
        """
        try:
            await self._look()
        except PenstockError as error:
            self._follow_error = error.message
            self._close_follower()

    async def run(self) -> None:
        """Follow the view's file until cancelled. Cancelling waits for a read in progress, so that nothing is left
        open."""
        watch, retry_s = AsyncWatch(file_watch(self._path)), 0.0
        try:
            while True:
                watch.arm()
                try:
                    moved = await self._look()
                except PenstockError as error:
                    self._follow_error = error.message
                    self._close_follower()
                    retry_s = min(max(retry_s * 2, RETRY_MIN_S), RETRY_MAX_S)
                    await asyncio.sleep(retry_s)
                else:
                    retry_s = 0.0
                    await (asyncio.sleep(PAUSE_S) if moved else watch.wait(math.inf))
        finally:
            watch.close()
            self.close()

    def close(self) -> None:
        """Close the view's file. `run` does this when it ends."""
        self._close_follower()
        self._close_historian()

    def _close_follower(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _close_historian(self) -> None:
        if self._historian is not None:
            self._historian.close()
            self._historian = None

    async def _look(self) -> bool:
        """Load whatever is new in the view's file; return False if nothing is new. The check is cheap and runs in the
        event loop."""
        if self._follower is not None and self._follower.replaced():
            self._close_follower()
        if self._follower is None:
            if not self._path.exists():
                return False
            self._follower = ViewReader(self._path, self._spec)
        if not (self._follower.moved() or self._behind):
            return False
        news = await _in_thread(self._read, self._follower)
        if isinstance(news, LoadedView):
            self._install(news)
        elif news is not None:
            self._apply(news)
        self._follow_error = None
        return True

    def _read(self, reader: ViewReader) -> LoadedView | ChangeBatch | None:
        """Read the view's changes since the version in memory, or everything if they are no longer kept. Called in a
        thread."""
        try:
            return reader.steps(self._generation, self._version, limit=PIECE_CHANGES, bytes_max=PIECE_BYTES)
        except Gap:
            return reader.load()

    def _install(self, loaded: LoadedView) -> None:
        self._generation, self._version, self._rows = loaded.generation, loaded.version, loaded.rows
        self._schema = loaded.schema
        self._buffer.clear()
        self._buffer_bytes = 0
        self._behind = False
        self._history_error = None
        self._close_historian()
        self._wake()

    def _apply(self, piece: ChangeBatch) -> None:
        for step in piece.steps:
            before = tuple(map(self._rows.get, chain(step.delta.keys, step.delta.deletes)))
            self._rows.apply(step.delta)
            self._version = step.version
            self._remember(ViewChange(step.version, step.data, before))
        self._schema = piece.schema
        self._behind = piece.more
        if piece.steps:
            self._wake()

    def _remember(self, change: ViewChange) -> None:
        self._buffer.append(change)
        self._buffer_bytes += _change_size(change)
        while self._buffer and (len(self._buffer) > self._buffer_max or self._buffer_bytes > BUFFER_BYTES):
            self._buffer_bytes -= _change_size(self._buffer.popleft())

    def _wake(self) -> None:
        self._snapshot = None
        self._moved.set()
        self._moved = asyncio.Event()

    def _history(self, after: int, limit: int) -> Sequence[ViewChange] | None:
        """Return older changes from the view's file, up to the version in memory, which can be behind the file."""
        wanted = min(limit, self._version - after)
        try:
            if self._historian is None:
                self._historian = ViewReader(self._path, self._spec)
            piece = self._historian.steps(self._generation, after, limit=wanted, bytes_max=HISTORY_BYTES)
        except Gap:
            return None
        except PenstockError as error:
            self._history_error = error.message
            self._close_historian()
            return None
        return tuple(ViewChange(step.version, step.data) for step in piece.steps)


def _change_size(change: ViewChange) -> int:
    """Return the memory used by a view's change, including the rows that it replaced, which are referenced nowhere
    else."""
    return len(change.data) + sum(len(row) for row in change.before or () if row is not None)


async def _in_thread(function: Callable[[ViewReader], T], reader: ViewReader) -> T:
    """Run a blocking read in a thread.

    If cancelled, waits for the read to end first, because the reader must not be closed before that.
    """
    reading = asyncio.ensure_future(asyncio.to_thread(function, reader))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        await asyncio.wait([reading])
        raise
