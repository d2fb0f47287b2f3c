"""A handler in a data directory: its ledger, its shard files, and how its batches are committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.core.contracts import LedgerEntry, Log, Output
from penstock.core.cursor import source_positions
from penstock.core.event_shape import EventShape
from penstock.core.failpoints import reach
from penstock.core.shapes import DECLARED, Shape
from penstock.core.times import to_micros
from penstock.handlers.contracts import (
    ChangedRows,
    HandledShard,
    HandlerBatch,
    HandlerLedgerEntry,
    OpenShard,
    StateReplacement,
    StreamOutput,
)
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.storage import OpenHandler
from penstock.store import Done, HandlerLedger, ShardFiles, StoredView, ViewTable

PARTS_MAX = 1 << 20
"""Maximum number of appends that one batch can make to one partition of a stream."""


@dataclass(frozen=True)
class ShardOpener:
    """Opens the files of a handler's shards, in any process."""

    directory: DataDirectory
    handler: str

    def __call__(self, generation: int, number: int) -> ShardFiles:
        folder = self.directory.handler_state(self.handler, generation)
        return ShardFiles(folder / str(number), self.handler, number)


@dataclass(frozen=True)
class EmbeddedHandler:
    """`OpenHandler` with a ledger file and, if the handler maintains a view, the view's file."""

    name: str
    ledger: HandlerLedger
    log: Log
    table: StoredView | None = None

    @property
    def handled(self) -> HandlerLedgerEntry:
        return self.ledger.state

    def note_inputs(self, inputs: dict[str, EventShape]) -> None:
        self.ledger.note_inputs(inputs)

    def close(self) -> None:
        self.ledger.close()
        if self.table is not None:
            self.table.close()


def opened_here(handler: OpenHandler) -> EmbeddedHandler:
    """Return an opened handler with its files. Raises TypeError if the handler was opened by a different kind of
    storage."""
    if not isinstance(handler, EmbeddedHandler):
        raise TypeError(f"handler {handler.name} was opened by a different kind of storage")
    return handler


def commit(handler: EmbeddedHandler, batch: HandlerBatch) -> bool:
    """Implement `Storage.commit` with an intent, steps that can be repeated, and the ledger entry.

    The log, the view and the ledger are separate files, and no transaction spans them. Therefore the batch's range is
    first recorded in the ledger, unless the batch changes only state. Each append and the view's change carry the batch
    number, and each is applied only once. The ledger entry is written last, and makes the shards' deltas take effect.
    """
    ledger, log, entry = handler.ledger, handler.log, batch.entry
    if not ledger.is_next(entry):
        return False
    has_rows = batch.rows is not None
    emitted, failed = list(batch.emitted), batch.failed
    if has_rows or any(output.partitions for output in (*emitted, failed)):
        ledger.intend(entry)
        reach("handler.after_intent")
    emitted_rows = sum(_append_handler_output(handler.name, entry.batch_id, output, log) for output in emitted)
    failed_rows = _append_handler_output(handler.name, entry.batch_id, failed, log)
    version = _change_view(handler, entry, batch.rows) if batch.rows is not None else 0
    reach("handler.after_append")
    ends = {output.stream: dict(log.ends(output.stream)) for output in (*emitted, failed)}
    done = Done(to_micros(datetime.now(UTC)), entry.end, ends, version)
    ledger.commit(entry, done, batch.shards, emitted_rows, failed_rows)
    return True


def replace_state(handler: EmbeddedHandler, open_shard: OpenShard, replacement: StateReplacement) -> None:
    """Implement `Storage.replace_state` with steps that can be repeated, and the ledger entry.

    The files of the next generation have no effect until the ledger, in one transaction, names that generation. The
    view's rows are replaced before that, because callers repeat the operation as long as the ledger names the old
    generation.
    """
    handled, shards = handler.handled, dict[int, HandledShard]()
    handler.ledger.require_whole()
    if replacement.rows is not None:
        _view_table(handler).replace(replacement.rows, windows_expire=not _removes_rows(replacement.shape))
        reach("renewal.after_rows")
    version, position = handled.next_id - 1, source_positions(handled.end)
    for number, shard in replacement.shards.items():
        if shard.records:
            store = open_shard(handled.generation + 1, number)
            (store.write_origin if replacement.is_origin else store.write_snapshot)(version, shard, position)
            shards[number] = HandledShard.of(shard, version)
    reach("renewal.before_adopt")
    handler.ledger.adopt(replacement.shape, shards, replacement.origin, replacement.inputs)
    reach("renewal.after_adopt")


def _append_handler_output(handler: str, batch_id: int, output: StreamOutput, log: Log) -> int:
    """Append the events that a batch emits to a stream, and return their number. Events that are already stored are
    left unchanged."""
    rows = 0
    for partition, batches in output.partitions:
        for number, batch in enumerate(batches):
            sequence = batch_id * PARTS_MAX + number
            log.append(output.stream, partition, batch, producer=handler, sequence=sequence)
            rows += batch.num_rows
    return rows


def _change_view(handler: EmbeddedHandler, entry: LedgerEntry, rows: ChangedRows) -> int:
    """Write a view handler's changed rows under the batch's number, and return the view's version. If the view already
    contains the batch, because of a crash before the ledger entry, nothing changes."""
    table = _view_table(handler)
    output = Output(entry.batch_id, entry.start, entry.end, entry.epoch, rows.upserts, rows.deletes)
    table.commit(output, windows_expire=not _removes_rows(handler.handled.shape))
    return table.version


def _view_table(handler: EmbeddedHandler) -> ViewTable:
    """Return the file of a view handler's view."""
    assert isinstance(handler.table, ViewTable)
    return handler.table


def _removes_rows(state: Shape) -> bool:
    """Return whether a view handler with this state deletes the rows of windows itself, each when `keep` has passed in
    the time of its key: `app.window` does, whose state is generated from its declaration."""
    return DECLARED in state.fields
