"""Handlers put together: what Spark's workers are given, and where a batch's output goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.analyze.batches import inputs, spread
from penstock.analyze.handled import Source, Standing, results
from penstock.analyze.inputs import recut
from penstock.analyze.keeping import last_words
from penstock.analyze.outbox import Inbox
from penstock.analyze.worker import REPORT, Plan, Report
from penstock.app import App
from penstock.contracts import LedgerEntry, Log, LogReader, Output
from penstock.declared import Handler, Keeper, Stream
from penstock.errors import DeclarationError
from penstock.evolution import shape_of
from penstock.failpoints import reach
from penstock.queue import EmbeddedLogOpener
from penstock.rows import to_micros
from penstock.runtime.directory import DataDirectory
from penstock.runtime.events import carried_classes
from penstock.runtime.loading import absolute, code_of, load
from penstock.runtime.states import ShardOpener
from penstock.schema import SYSTEM_COLUMNS, Event, event_schema
from penstock.settings import Settings
from penstock.shard import digest_text
from penstock.store import Done, HandlerLedger, ViewTable, read_handled

log = logging.getLogger("penstock.engine")
APPEND_ROWS_MAX = 20_000
PARTS_MAX = 1 << 20


@dataclass(frozen=True)
class HandlerLoader:
    """Loads a handler from the user's file, in whatever process it is called; never from another text of that file than
    the engine has read, since two of its processes could then differ."""

    target: str
    name: str
    code: str

    def __call__(self) -> tuple[Handler, dict[str, type[Event]]]:
        if code_of(self.target) != self.code:
            raise DeclarationError(f"{self.target} was changed while it runs: restart the app, or rebuild the handler")
        app = load(self.target).app
        handler = next(each for each in app.handlers if each.name == self.name)
        return handler, {name: stream.event for name, stream in inputs(app, handler).items()}


@dataclass(frozen=True)
class StandingReader:
    """Reads where a handler's ledger stands."""

    path: Path

    def __call__(self) -> Standing | None:
        found = read_handled(self.path)
        if found is None:
            return None
        last_end = found.entry.end if found.entry is not None else None
        shards, generation = found.shards, found.generation
        return Standing(found.next_id, found.end, found.intended, last_end, found.origin, shards, generation)


def plan(app: App, handler: Handler, target: str, directory: DataDirectory, settings: Settings) -> Plan:
    """What Spark's workers are given of a handler."""
    shards, placed = spread(app, handler, settings)
    return Plan(
        handler.name,
        shards,
        placed,
        HandlerLoader(absolute(target), handler.name, code_of(target)),
        EmbeddedLogOpener(directory.streams, carried_classes(app, target)),
        ShardOpener(DataDirectory(directory.root.resolve()), handler.name),
        settings.replica_bytes,
        directory.claims(handler.name).resolve(),
    )


def source(made: Plan, directory: DataDirectory, settings: Settings, wait_s: float) -> Source:
    standing = StandingReader(directory.handler_ledger(made.name).resolve())
    return Source(made, standing, settings.handler_events_max, wait_s)


def origin(log: LogReader, streams: Iterable[str]) -> str:
    """Where a handler begins that has never run: with the first kept event of each stream."""
    starts = {
        f"{stream}/{partition}": start for stream in streams for partition, start in sorted(log.starts(stream).items())
    }
    return msgspec.json.encode([starts]).decode()


def open_ledger(handler: Handler, made: Plan, directory: DataDirectory, log: LogReader) -> HandlerLedger:
    """A handler's ledger, for its only writer."""
    path = directory.handler_ledger(handler.name)
    return HandlerLedger(path, made.shards, origin(log, made.placed), shape_of(handler.state))


@dataclass(frozen=True)
class Kept:
    """The view that a handler keeps: its file, and what to call when a batch has been committed to it."""

    table: ViewTable
    committed: Callable[[], None] = lambda: None


class HandlerSink:
    """Takes what a handler's shards give: a `contracts.Sink`.

    The state is durable before it comes here, and counts when the ledger has the batch. Before anything is emitted, the
    ledger fixes the range of the batch; what is emitted is appended, or kept as the rows of a view, under the batch's
    number, which makes it happen once. So a crash at any point runs the batch again over the same range, with the same
    effects.
    """

    def __init__(self, handler: Handler, made: Plan, ledger: HandlerLedger, log: Log, kept: Kept | None = None) -> None:
        """A handler that keeps a view has its files in `kept`."""
        self.handler = handler
        self.kept = kept
        self.plan = made
        self.ledger = ledger
        self.log = log
        self.figures = Report()

    def last(self) -> LedgerEntry | None:
        return self.ledger.last()

    def close(self) -> None:
        """Let go of its files."""
        self.ledger.close()
        if self.kept is not None:
            self.kept.table.close()

    def commit(self, output: Output) -> bool:
        if not self.ledger.is_next(output):
            return False
        inbox = results(output.table)
        told = inbox.pop(REPORT)
        reports = {shard: msgspec.msgpack.decode(payload, type=Report) for shard, (payload,) in told}
        if inbox or self.kept is not None:
            self.ledger.intend(output)
        *streams, failed = self.handler.outputs
        emitted = sum(self._append(each, output.batch_id, inbox.pop(number)) for number, each in enumerate(streams))
        failures = self._append(failed, output.batch_id, inbox.pop(len(self.handler.emits)))
        version = self._keep(self.kept, output, inbox) if self.kept is not None else 0
        reach("handler.after_append")
        shards = {shard: report.state for shard, report in reports.items() if report.state is not None}
        outputs = {stream.name: dict(self.log.ends(stream.name)) for stream in self.handler.outputs}
        done = Done(to_micros(datetime.now(UTC)), output.end, outputs, version)
        self.ledger.commit(output, done, shards, emitted, failures)
        inbox.clear()
        for report in reports.values():
            self.figures.add(report)
            for damage in report.rebuilt:
                log.warning("%s: state was made again from the log: %s", self.handler.name, damage)
        return True

    def _append(self, stream: Stream, batch_id: int, by_shard: Iterable[tuple[int, list[pa.Buffer]]]) -> int:
        """Append what a batch emitted to a stream, in parts of a size: so they are the same when the batch is run
        again, and a part that is there already stays as it is."""
        schema, count = event_schema(stream.event), 0
        for shard, payloads in by_shard:
            batches = (pa.ipc.read_record_batch(each, schema) for each in payloads)
            for number, part in enumerate(recut(batches, APPEND_ROWS_MAX)):
                sequence = batch_id * PARTS_MAX + number
                self.log.append(stream.name, shard, part, producer=self.handler.name, sequence=sequence)
                count += part.num_rows
        return count

    def _keep(self, kept: Kept, output: Output, inbox: Inbox) -> int:
        """Bring the view's rows up to date under the batch's number, and tell those who read its changes; gives its
        version. A batch that the view has already, because a crash came between it and the ledger, stays as it is."""
        assert isinstance(self.handler, Keeper)
        schema, view = event_schema(self.handler.row), self.handler.view
        payloads = [each for _, found in inbox.pop(len(self.handler.emits) - 2) for each in found]
        table = pa.Table.from_batches([pa.ipc.read_record_batch(each, schema) for each in payloads], schema)
        rows, gone = last_words(table, view.key)
        kept.table.commit(replace(output, table=rows.drop(SYSTEM_COLUMNS), gone=gone.select(view.key)))
        kept.committed()
        return kept.table.version

    def describe(self) -> dict[str, Any]:
        """For `/v1/app`."""
        state = self.ledger.state
        shards = list(state.shards.values())
        figures = self.figures
        return {
            "shards": self.plan.shards,
            "keys": sum(each.keys for each in shards),
            "bytes": sum(each.size for each in shards),
            "digest": digest_text(sum(int.from_bytes(each.digest, "little") for each in shards)),
            "next_timer": min((each.due for each in shards if each.due is not None), default=None),
            "emitted": state.emitted,
            "failed": state.failed,
            "events": figures.events,
            "time": max([figures.time, *(each.time for each in shards)]),
            "run_s": round(figures.run_s, 3),
            "read_s": round(figures.read_s, 3),
            "write_s": round(figures.write_s, 3),
            "delta_bytes": figures.delta_bytes,
            "snapshot_bytes": figures.snapshot_bytes,
            "replica_hits": figures.hits,
            "replica_catch_ups": figures.catch_ups,
            "replica_loads": figures.loads,
            "rebuilt": figures.rebuilt,
        }
