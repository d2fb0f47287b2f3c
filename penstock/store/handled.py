"""A handler's ledger: the last micro-batch whose output and state are durable, and the shards as of this batch.

The state itself is in the shards' files (see `state.py`), and emitted events are in the log. Both are written first,
with the batch's number, and take effect once this ledger contains the batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.core import failpoints, files
from penstock.core.contracts import LedgerEntry
from penstock.core.errors import Damaged, DeclarationError, LedgerMismatch
from penstock.core.event_shape import EventShape
from penstock.core.shapes import Shape
from penstock.handlers.contracts import HandledShard, HandlerLedgerEntry
from penstock.store import history
from penstock.store.history import Done
from penstock.store.ledger import is_next

KIND = "handler"


class HandlerLedger:
    """A handler's ledger, open for writing. Only one process can have it open; other processes use `read_handled`."""

    def __init__(self, path: Path, count: int, origin: str, shape: Shape) -> None:
        """`origin` and `shape` are the start position and the shape of the state for a handler that has never run."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = files.connect(path)
        with files.transaction(self._connection, path):
            files.make_head(self._connection, path, KIND)
            self._connection.execute(history.TABLE)
        self.state = _get_handler_entry(self._connection, path) or HandlerLedgerEntry(
            origin, count, shape, padded=False
        )
        if self.state.count != count:
            raise DeclarationError(
                f"{path} has {self.state.count} shards, fixed by the first run, but the app now needs {count}. "
                "Keep the number of partitions, or delete the handler's folder and checkpoint to start over"
            )

    def last(self) -> LedgerEntry | None:
        return self.state.entry

    def is_next(self, entry: LedgerEntry) -> bool:
        """Return True if the handler's batch has to be written, False if it repeats the last batch; otherwise raise
        `LedgerMismatch`."""
        if not is_next(self.last(), entry, self.path):
            return False
        intended = self.state.intended
        if intended is not None and intended != entry.end:
            raise LedgerMismatch(
                f"{self.path}: batch {entry.batch_id} was started with its end at {intended}, but now ends at "
                f"{entry.end}. Restore the checkpoint that belongs to this file"
            )
        return True

    def intend(self, entry: LedgerEntry) -> None:
        """Record the range of a handler's batch before the batch has any external effect. From then on, the batch can
        be run only with this range."""
        self._put(msgspec.structs.replace(self.state, intended=entry.end))

    def commit(
        self, entry: LedgerEntry, done: Done, shards: Mapping[int, HandledShard], emitted: int, failed: int
    ) -> None:
        """Record that a handler's batch is done. `done` is its entry in the history, and `shards` contains the shards
        that it changed."""
        before = self.state
        state = msgspec.structs.replace(
            before,
            entry=entry,
            shards={**before.shards, **shards},
            failed=before.failed + failed,
            emitted=before.emitted + emitted,
            intended=None,
        )
        failpoints.reach("ledger.before_commit")
        self._put(state, done)
        failpoints.reach("ledger.after_commit")

    def adopt(self, shape: Shape, shards: dict[int, HandledShard], origin: str, inputs: dict[str, EventShape]) -> None:
        """Replace all of a handler's state with new state, whose files exist in the next generation. Finished batches
        stay finished.

        Raises `DeclarationError` if a batch is half done, because it must be finished by the code that began it.
        """
        self.require_whole()
        before = self.state
        state = msgspec.structs.replace(before, shape=shape, shards=shards, origin=origin, inputs=inputs, padded=False)
        self._put(msgspec.structs.replace(state, generation=before.generation + 1))

    def require_whole(self) -> None:
        """Raise `DeclarationError` if a handler's batch is half done."""
        if self.state.intended is not None:
            raise DeclarationError(f"{self.path}: {half_done(self.state)}")

    def note_inputs(self, inputs: dict[str, EventShape]) -> None:
        """Record the event classes that the handler uses to read its inputs. Called when these classes have changed in
        a way that does not affect the handler's state."""
        self._put(msgspec.structs.replace(self.state, inputs=inputs, padded=False))

    def _put(self, state: HandlerLedgerEntry, done: Done | None = None) -> None:
        with files.transaction(self._connection, self.path):
            files.put_record(self._connection, "handled", state)
            if done is not None and state.entry is not None:
                history.add(self._connection, state.entry.batch_id, done)
        self.state = state

    def close(self) -> None:
        self._connection.close()


def half_done(handled: HandlerLedgerEntry) -> str:
    """Return the error message for a handler's state that cannot be replaced because a batch is half done."""
    return (
        f"batch {handled.next_id} was started by the previous code and is half done. Run the previous code once "
        "more, until the app is ready; then run the new code"
    )


def read_handled(path: Path) -> HandlerLedgerEntry | None:
    """Return the contents of a handler's ledger, or None if the ledger does not exist yet.

    Safe to call while the writer runs. Takes about 0.3 ms.
    """
    if not path.exists():
        return None
    connection = files.connect(path, read_only=True)
    try:
        with files.reading(connection, path):
            return _get_handler_entry(connection, path)
    finally:
        connection.close()


def _get_handler_entry(connection: sqlite3.Connection, path: Path) -> HandlerLedgerEntry | None:
    record = files.get_record(connection, path, "handled")
    try:
        return None if record is None else msgspec.convert(record, HandlerLedgerEntry)
    except msgspec.ValidationError as error:
        raise Damaged(f"{path} cannot be read by this version of Penstock: {error}", file=str(path)) from None
