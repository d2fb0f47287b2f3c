"""Assemble handlers from the plan for Spark's workers and the sink for the output of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.analyze.handled import HandlerSource, LedgerState, result_rows
from penstock.app.app import App
from penstock.app.declared import Handler, Stream, ViewHandler
from penstock.app.fingerprints.declared import handler_functions
from penstock.app.loading import absolute, code_of, load
from penstock.control import HandlerFigures
from penstock.core.contracts import LedgerEntry, Log, LogReader, Output
from penstock.core.errors import DeclarationError
from penstock.core.schema import SYSTEM_COLUMNS, Event, event_schema
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.handlers.batches import inputs, spread
from penstock.handlers.contracts import ChangedRows, HandlerBatch, StreamOutput
from penstock.handlers.inputs import recut
from penstock.handlers.outbox import ShardInbox
from penstock.handlers.shard import digest_text
from penstock.handlers.view_rows import last_words
from penstock.handlers.worker import REPORT, HandlerPlan, Report
from penstock.runtime.events import carried_classes
from penstock.runtime.storage import OpenHandler, Storage
from penstock.store import StoredView

log = logging.getLogger("penstock.engine")
APPEND_ROWS_MAX = 20_000


@dataclass(frozen=True)
class HandlerLoader:
    """Loads a handler from the user's file, in any process. Rejects a file that has changed since the engine read it,
    and a handler that differs from the engine's although its file has not changed, because two processes could then run
    different code. `code` identifies the file, and `functions` is the fingerprint of the handler's functions."""

    target: str
    name: str
    code: str
    functions: str

    def __call__(self) -> tuple[Handler, dict[str, type[Event]]]:
        if code_of(self.target) != self.code:
            raise DeclarationError(
                f"{self.target} has changed since the app started: restart the app, or rebuild the handler"
            )
        app = load(self.target).app
        handler = next(candidate for candidate in app.handlers if candidate.name == self.name)
        if handler_functions(handler).code != self.functions:
            raise DeclarationError(
                f"{handler.where}: handler {self.name} differs from the one that the engine loaded: a value that it "
                f"uses was different when {self.target} was loaded again, for example because it comes from a file "
                "that has changed; restart the app"
            )
        return handler, {name: stream.event for name, stream in inputs(app, handler).items()}


@dataclass(frozen=True)
class LedgerStateReader:
    """Reads the state of a handler's ledger, in the process that plans the handler's batches."""

    storage: Storage
    handler: str

    def __call__(self) -> LedgerState | None:
        handled = self.storage.handled(self.handler)
        if handled is None:
            return None
        last_end = handled.entry.end if handled.entry is not None else None
        shards, generation = handled.shards, handled.generation
        return LedgerState(handled.next_id, handled.end, handled.intended, last_end, handled.origin, shards, generation)


def plan(app: App, handler: Handler, target: str, storage: Storage, settings: Settings) -> HandlerPlan:
    """Return the description of a handler that is sent to Spark's workers."""
    shards, placed = spread(app, handler, settings)
    return HandlerPlan(
        handler.name,
        shards,
        placed,
        HandlerLoader(absolute(target), handler.name, code_of(target), handler_functions(handler).code),
        storage.log_opener(carried_classes(app, target)),
        storage.shard_opener(handler.name),
        settings.replica_bytes,
        storage.claims(handler.name),
    )


def source(handler_plan: HandlerPlan, storage: Storage, settings: Settings, wait_s: float) -> HandlerSource:
    ledger_state = LedgerStateReader(storage, handler_plan.name)
    return HandlerSource(handler_plan, ledger_state, settings.handler_events_max, wait_s)


def origin(log: LogReader, streams: Iterable[str]) -> str:
    """Return the position where a handler that has never run begins: the first kept event of each stream."""
    starts = {
        f"{stream}/{partition}": start for stream in streams for partition, start in sorted(log.starts(stream).items())
    }
    return msgspec.json.encode([starts]).decode()


def open_handler(
    handler: Handler, handler_plan: HandlerPlan, storage: Storage, log: Log, table: StoredView | None = None
) -> OpenHandler:
    """Open a handler for its only writer; `table` is the view that it maintains."""
    begin, shape = origin(log, handler_plan.placed), shape_of(handler.state)
    return storage.open_handler(handler.name, log, count=handler_plan.shards, origin=begin, shape=shape, table=table)


class HandlerSink:
    """Commits the output of a handler's shards: a `contracts.Sink`.

    The deltas of the shards are durable before a batch arrives here. `Storage.commit` makes them take effect, together
    with the emitted events and the rows of the handler's view. After a crash at any point the batch runs again over the
    same range, with the same effects.
    """

    def __init__(
        self,
        handler: Handler,
        handler_plan: HandlerPlan,
        storage: Storage,
        opened: OpenHandler,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` is called after each batch, even if the batch had already been committed."""
        self.handler = handler
        self.plan = handler_plan
        self.storage = storage
        self.opened = opened
        self.committed = committed
        self.figures = Report()

    def last(self) -> LedgerEntry | None:
        return self.opened.handled.entry

    def close(self) -> None:
        """Close the ledger, and the handler's view if it has one."""
        self.opened.close()

    def commit(self, output: Output) -> bool:
        inbox = ShardInbox(result_rows(output.table), self.plan.open_shard)
        reports = {shard: msgspec.msgpack.decode(payload, type=Report) for shard, (payload,) in inbox.pop(REPORT)}
        written = self.storage.commit(self.opened, self._batch(output, inbox, reports))
        self.committed()
        inbox.clear()
        if written:
            for report in reports.values():
                self.figures.add(report)
                for damage in report.rebuilt:
                    log.warning("%s: state was recomputed from the log: %s", self.handler.name, damage)
        return written

    def _batch(self, output: Output, inbox: ShardInbox, reports: Mapping[int, Report]) -> HandlerBatch:
        """Return the output of Spark's workers in the format that the storage accepts."""
        *streams, failed = self.handler.outputs
        return HandlerBatch(
            LedgerEntry(output.batch_id, output.start, output.end, output.epoch),
            {shard: report.state for shard, report in reports.items() if report.state is not None},
            [_stream_output(stream, inbox.pop(number)) for number, stream in enumerate(streams)],
            _stream_output(failed, inbox.pop(len(self.handler.emits))),
            self._rows(inbox) if isinstance(self.handler, ViewHandler) else None,
        )

    def _rows(self, inbox: ShardInbox) -> ChangedRows:
        """Return the last row for each key, and the deleted keys, of a view handler."""
        assert isinstance(self.handler, ViewHandler)
        schema, view = event_schema(self.handler.row), self.handler.view
        payloads = [payload for _, shard in inbox.pop(len(self.handler.emits) - 2) for payload in shard]
        table = pa.Table.from_batches([pa.ipc.read_record_batch(payload, schema) for payload in payloads], schema)
        rows, deletes = last_words(table, view.key)
        return ChangedRows(rows.drop(SYSTEM_COLUMNS), deletes.select(view.key))

    def describe(self) -> HandlerFigures:
        """Return figures on the state, and on the work done since the engine started."""
        state, figures = self.opened.handled, self.figures
        shards = list(state.shards.values())
        return HandlerFigures(
            shards=self.plan.shards,
            keys=sum(shard.keys for shard in shards),
            state_bytes=sum(shard.size for shard in shards),
            digest=digest_text(sum(int.from_bytes(shard.digest, "little") for shard in shards)),
            next_timer_us=min((shard.due for shard in shards if shard.due is not None), default=None),
            emitted=state.emitted,
            failed=state.failed,
            events=figures.events,
            time_us=max([figures.time, *(shard.time for shard in shards)]),
            run_s=round(figures.run_s, 3),
            read_s=round(figures.read_s, 3),
            write_s=round(figures.write_s, 3),
            delta_bytes=figures.delta_bytes,
            snapshot_bytes=figures.snapshot_bytes,
            replica_hits=figures.hits,
            replica_catch_ups=figures.catch_ups,
            replica_loads=figures.loads,
            rebuilt=tuple(figures.rebuilt),
        )


def _stream_output(stream: Stream, by_shard: Iterable[tuple[int, list[pa.Buffer]]]) -> StreamOutput:
    """Return the payloads for one stream as batches whose size does not depend on how the payloads were split."""
    schema = event_schema(stream.event)
    return StreamOutput(stream.name, [(shard, _payload_batches(payloads, schema)) for shard, payloads in by_shard])


def _payload_batches(payloads: list[pa.Buffer], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return recut((pa.ipc.read_record_batch(payload, schema) for payload in payloads), APPEND_ROWS_MAX)
