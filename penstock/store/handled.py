"""The ledger of a handler: the last micro-batch whose output and state are durable, and each shard as it stands then.

The state itself is in the shards' own files (see `state.py`), and what was emitted in the log: both are written first,
under the batch's number, and count from the moment that this ledger has it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from penstock import failpoints, files
from penstock.contracts import HandledShard, LedgerEntry, Output
from penstock.errors import Damaged, DeclarationError, LedgerMismatch
from penstock.event_shape import EventShape
from penstock.evolution import Shape
from penstock.store import history
from penstock.store.history import Done
from penstock.store.ledger import is_next

KIND = "handler"


class Handled(msgspec.Struct, frozen=True):
    """What the ledger holds. `origin` is where the handler's first batch began, `count` how many shards it has, of
    which `shards` has those with state. `shape` says how that is written, and `generation` where: it goes up when all
    state is replaced at once. `inputs` has the event classes by which the events since `origin` were read, by stream;
    None if the ledger is from before that was kept. `padded` says that their Decimals had all digits of their column,
    as in ledgers from before that was noted. `intended` is the end of the batch after `entry`, once that has
    begun to have an effect: then it must be run over that range and no other."""

    origin: str
    count: int
    shape: Shape
    entry: LedgerEntry | None = None
    shards: dict[int, HandledShard] = {}
    failed: int = 0
    emitted: int = 0
    intended: str | None = None
    generation: int = 0
    inputs: dict[str, EventShape] | None = None
    padded: bool = True

    @property
    def next_id(self) -> int:
        return 0 if self.entry is None else self.entry.batch_id + 1

    @property
    def end(self) -> str:
        """Where the next batch begins."""
        return self.origin if self.entry is None else self.entry.end


class HandlerLedger:
    """A handler's ledger, open for writing. One process has it so at a time; `read_handled` is for the others."""

    def __init__(self, path: Path, count: int, origin: str, shape: Shape) -> None:
        """`origin` is where the handler begins, and `shape` that of its state, if it has never run."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = files.connect(path)
        with files.transaction(self._connection, path):
            files.make_head(self._connection, path, KIND)
            self._connection.execute(history.TABLE)
        self.state = _get(self._connection, path) or Handled(origin, count, shape, padded=False)
        if self.state.count != count:
            raise DeclarationError(
                f"{path} has {self.state.count} shards, and now there are {count}: the first run has fixed that. "
                "Keep the number of partitions, or remove the handler's folder and checkpoint to have it made anew"
            )

    def last(self) -> LedgerEntry | None:
        return self.state.entry

    def is_next(self, output: Output) -> bool:
        """As for a view: True if the batch is to be written, False if it is the last one again; else it raises."""
        if not is_next(self.last(), output, self.path):
            return False
        intended = self.state.intended
        if intended is not None and intended != output.end:
            raise LedgerMismatch(
                f"{self.path}: batch {output.batch_id} has begun to have an effect with its end at {intended}, and now "
                f"ends at {output.end}. Restore the checkpoint that belongs to this file"
            )
        return True

    def intend(self, output: Output) -> None:
        """Fix the range of a batch, before it has an effect outside: from now on it is this one or none."""
        self._put(msgspec.structs.replace(self.state, intended=output.end))

    def commit(self, output: Output, done: Done, shards: dict[int, HandledShard], emitted: int, failed: int) -> None:
        """Write down that a batch is done, and what `done` tells of it. `shards` has those that it touched."""
        before = self.state
        made = msgspec.structs.replace(
            before,
            entry=LedgerEntry(output.batch_id, output.start, output.end, output.epoch),
            shards=before.shards | shards,
            failed=before.failed + failed,
            emitted=before.emitted + emitted,
            intended=None,
        )
        failpoints.reach("ledger.before_commit")
        self._put(made, done)
        failpoints.reach("ledger.after_commit")

    def adopt(self, shape: Shape, shards: dict[int, HandledShard], origin: str, inputs: dict[str, EventShape]) -> None:
        """Put other state in the place of all there is; its files are those of the next generation, and are there. The
        batches that were done stay done. Not while one is half done: that must end as it began."""
        before = self.state
        if before.intended is not None:
            raise DeclarationError(f"{self.path}: {half_done(before)}")
        made = msgspec.structs.replace(before, shape=shape, shards=shards, origin=origin, inputs=inputs, padded=False)
        self._put(msgspec.structs.replace(made, generation=before.generation + 1))

    def note_inputs(self, inputs: dict[str, EventShape]) -> None:
        """Keep by which event classes the handler reads, where that makes no difference to its state."""
        self._put(msgspec.structs.replace(self.state, inputs=inputs, padded=False))

    def _put(self, made: Handled, done: Done | None = None) -> None:
        with files.transaction(self._connection, self.path):
            files.put_record(self._connection, "handled", made)
            if done is not None and made.entry is not None:
                history.add(self._connection, made.entry.batch_id, done)
        self.state = made

    def close(self) -> None:
        self._connection.close()


def half_done(handled: Handled) -> str:
    """Why the state of a handler cannot be replaced just now."""
    return (
        f"batch {handled.next_id} is half done, by the code that ran before. Run that once more, until it is ready; "
        "then this"
    )


def read_handled(path: Path) -> Handled | None:
    """What the ledger of a handler holds, None if there is none yet. Safe beside the writer; about 0.3 ms."""
    if not path.exists():
        return None
    connection = files.connect(path, read_only=True)
    try:
        with files.reading(connection, path):
            return _get(connection, path)
    finally:
        connection.close()


def _get(connection: sqlite3.Connection, path: Path) -> Handled | None:
    found = files.get_record(connection, path, "handled")
    try:
        return None if found is None else msgspec.convert(found, Handled)
    except msgspec.ValidationError as error:
        raise Damaged(f"{path} is not as this Penstock writes it: {error}", file=str(path)) from None
