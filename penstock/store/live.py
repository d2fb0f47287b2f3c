"""The gateway's side of a view: its rows in memory, following the file that the engine writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from penstock.contracts import Change, Snapshot
from penstock.errors import PenstockError
from penstock.store.memory import ServedRows
from penstock.store.reader import Gap, Loaded, Piece, ViewReader
from penstock.store.spec import ViewSpec

POLL_MIN_S, POLL_MAX_S, POLL_GROWTH = 0.005, 0.05, 1.1
"""Wait between two looks at the file: the shortest after a change, growing while there is none."""
RETRY_MIN_S, RETRY_MAX_S = 0.5, 10.0
"""Wait before a file that could not be read is read again."""
PIECE_CHANGES, PIECE_BYTES = 1_000, 8 * 1024 * 1024
"""Most that is read and applied in one go while catching up."""
HISTORY_BYTES = 256 * 1024
"""Most that one call of `changes` reads from the file, in the event loop: some two milliseconds."""
BUFFER_BYTES = 32 * 1024 * 1024
"""Most that the latest changes of a view take in memory."""

T = TypeVar("T")


class LiveTable:
    """A view in memory: a `contracts.LiveView`. Belongs to the event loop that runs `run`.

    The file need not exist yet: until the engine makes it, the view is empty, at version 0 of generation 0. If the file
    cannot be read or is damaged, `error` says so, memory stays at the last good version, and the file is tried again
    now and then; nothing that fails its checks is ever served.
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
        self._snapshot: Snapshot | None = None
        self._buffer: deque[Change] = deque()
        self._install(Loaded(0, 0, ServedRows(False, ())))

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
        """What is wrong with the file, in one sentence, for health; None if nothing is."""
        return self._follow_error or self._history_error

    @property
    def size(self) -> int:
        """The number of rows served."""
        return len(self._rows)

    def snapshot(self) -> Snapshot:
        """Rows and version of one instant. The first call at a version orders the rows, later ones cost nothing."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self._version, self._rows.in_order())
        return self._snapshot

    def row(self, key: str) -> bytes | None:
        """The row of a key, which is the JSON object of the key's columns; None if it is not served."""
        return self._rows.get(key)

    def changes(self, after: int, limit: int) -> Sequence[Change] | None:
        """Changes above `after`: from memory if they are there, else a bounded piece from the file. None if some are no
        longer kept, or if `after` is ahead of the view, as a cursor is that outlived a restored backup."""
        if after > self._version or after < 0:
            return None
        if after == self._version:
            return ()
        if self._buffer and self._buffer[0].version <= after + 1:
            first = after + 1 - self._buffer[0].version
            return tuple(islice(self._buffer, first, first + limit))
        return self._history(after, limit)

    async def wait(self, after: int, timeout_s: float) -> bool:
        """True as soon as there is a version above `after`, or the view was made anew; False after `timeout_s`."""
        generation = self._generation
        try:
            async with asyncio.timeout(timeout_s):
                while self._version <= after and self._generation == generation:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def load(self) -> None:
        """Take what the file has now. Await this before serving: a reader who comes back must find its place, and not
        the empty view of before the first look."""
        try:
            await self._look()
        except PenstockError as error:
            self._follow_error = error.message
            self._close_follower()

    async def run(self) -> None:
        """Follow the file until cancelled. Cancelling waits for a read under way, so that nothing is left open."""
        pause = POLL_MIN_S
        try:
            while True:
                try:
                    moved = await self._look()
                    pause = POLL_MIN_S if moved else min(pause * POLL_GROWTH, POLL_MAX_S)
                except PenstockError as error:
                    self._follow_error = error.message
                    self._close_follower()
                    pause = min(max(pause * 2, RETRY_MIN_S), RETRY_MAX_S)
                await asyncio.sleep(pause)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file. `run` does this when it ends."""
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
        """Take what is new in the file; False if there was nothing. The look itself is cheap and stays in the loop."""
        if self._follower is not None and self._follower.replaced():
            self._close_follower()
        if self._follower is None:
            if not self._path.exists():
                return False
            self._follower = ViewReader(self._path, self._spec)
        if not (self._follower.moved() or self._behind):
            return False
        news = await _in_thread(self._read, self._follower)
        if isinstance(news, Loaded):
            self._install(news)
        elif news is not None:
            self._apply(news)
        self._follow_error = None
        return True

    def _read(self, reader: ViewReader) -> Loaded | Piece | None:
        """In a thread: the changes since the version in memory or, if they do not lead on from it, everything."""
        try:
            return reader.steps(self._generation, self._version, limit=PIECE_CHANGES, bytes_max=PIECE_BYTES)
        except Gap:
            return reader.load()

    def _install(self, loaded: Loaded) -> None:
        self._generation, self._version, self._rows = loaded.generation, loaded.version, loaded.rows
        self._schema = loaded.schema
        self._buffer.clear()
        self._buffer_bytes = 0
        self._behind = False
        self._history_error = None
        self._close_historian()
        self._wake()

    def _apply(self, piece: Piece) -> None:
        for step in piece.steps:
            before = tuple(map(self._rows.get, chain(step.delta.keys, step.delta.deletes)))
            self._rows.apply(step.delta)
            self._version = step.version
            self._remember(Change(step.version, step.data, before))
        self._schema = piece.schema
        self._behind = piece.more
        if piece.steps:
            self._wake()

    def _remember(self, change: Change) -> None:
        self._buffer.append(change)
        self._buffer_bytes += _size(change)
        while self._buffer and (len(self._buffer) > self._buffer_max or self._buffer_bytes > BUFFER_BYTES):
            self._buffer_bytes -= _size(self._buffer.popleft())

    def _wake(self) -> None:
        self._snapshot = None
        self._moved.set()
        self._moved = asyncio.Event()

    def _history(self, after: int, limit: int) -> Sequence[Change] | None:
        """Changes that memory holds no more. The file may be ahead of memory: nothing above its version is given."""
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
        return tuple(Change(step.version, step.data) for step in piece.steps)


def _size(change: Change) -> int:
    """What a change holds in memory: also the rows that it replaced, which nobody else holds any more."""
    return len(change.data) + sum(len(row) for row in change.before or () if row is not None)


async def _in_thread(function: Callable[[ViewReader], T], reader: ViewReader) -> T:
    """Run a blocking read in a thread. If cancelled, wait for its end first: the reader must not be closed under it."""
    reading = asyncio.ensure_future(asyncio.to_thread(function, reader))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        await asyncio.wait([reading])
        raise
