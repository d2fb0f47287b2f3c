"""Runs a handler in one of Spark's Python workers, with replicas of its state that are kept from batch to batch.

Spark reuses its workers, but can assign any shard to any worker. Therefore a worker keeps the shards that it has run.
At the start of a batch, it brings the shard to the version in the ledger, using either the deltas that it missed, or
the last snapshot and all later deltas. The worker makes a batch's changes durable. If the batch turns out not to have
been committed, it reverts them in the replica, so a batch that runs again starts from the same state.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.app.declared import Handler, ViewHandler
from penstock.core.columns import to_batch
from penstock.core.contracts import BlockingLogReader
from penstock.core.cursor import Positions
from penstock.core.errors import BadCursor, Damaged
from penstock.core.failpoints import reach
from penstock.core.schema import Event, Failed
from penstock.core.times import from_micros
from penstock.handlers.batches import reread_rows, shard_ranges
from penstock.handlers.contracts import Claims, HandledShard, OpenShard, ShardStore
from penstock.handlers.inputs import InputSpec, chunks
from penstock.handlers.machine import Effects, Emitted, Failure, Machine, latest
from penstock.handlers.outbox import ShardOutbox
from penstock.handlers.shard import HASH_BYTES, NO_VERSION, Draft, Shard
from penstock.handlers.view_rows import as_gone

log = logging.getLogger("penstock.worker")
REPORT = -1
"""Used instead of an output number, in the row with the shard's report."""
REBUILT_SHOWN = 3
RESULT = pa.schema([("shard", pa.int32()), ("output", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class HandlerPlan:
    """Everything that a worker needs to know about a handler. All parts can be pickled, because Spark sends the plan to
    its workers.

    `placed` maps each stream that the handler reads to whether it is partitioned like the handler; if so, shard n reads
    partition n. `load` returns the handler and the classes of these streams. `open_shard` opens the store for a
    generation and shard. `new_claims` creates the claims that workers use to agree on which worker runs each shard of a
    batch.
    """

    name: str
    shards: int
    placed: dict[str, bool]
    load: Callable[[], tuple[Handler, dict[str, type[Event]]]]
    open_log: Callable[[], BlockingLogReader]
    open_shard: OpenShard
    memory_bytes: int
    new_claims: Callable[[], Claims]


@dataclass(frozen=True)
class ShardWork:
    """One batch's work on one handler shard: process the rows from `start` to `end`, which takes the shard from version
    `base` (with this digest) to `version`. `origin` is where the handler began, in case its state must be recomputed
    from the log."""

    shard: int
    generation: int
    base: int
    digest: bytes
    version: int
    origin: Positions
    start: Positions
    end: Positions


class Report(msgspec.Struct):
    """A shard's report to the driver about a batch. Reports are added up to describe the work of all of a handler's
    shards since the engine started."""

    state: HandledShard | None = None
    time: int = 0
    events: int = 0
    read_s: float = 0.0
    run_s: float = 0.0
    write_s: float = 0.0
    delta_bytes: int = 0
    snapshot_bytes: int = 0
    hits: int = 0
    catch_ups: int = 0
    loads: int = 0
    rebuilt: list[str] = []

    def add(self, other: Report) -> None:
        for name in ("events", "run_s", "read_s", "write_s", "delta_bytes", "hits", "catch_ups", "loads"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.time = max(self.time, other.time)
        self.snapshot_bytes = other.snapshot_bytes or self.snapshot_bytes
        self.rebuilt = [*self.rebuilt, *other.rebuilt][-REBUILT_SHOWN:]


@dataclass
class Replica:
    """A handler shard in memory at one version. Until the next batch shows whether that version was committed, `draft`
    can revert the shard to the previous version, `before`."""

    shard: Shard
    version: int
    before: int = NO_VERSION
    draft: Draft | None = None

    def settle(self, base: int) -> None:
        """Discard the shard's draft. If it was not committed, revert it first, so that the next batch builds on the
        committed version."""
        if self.draft is not None and self.version != base:
            self.draft.revert()
            self.version = self.before
        self.draft = None


class HandlerWorker:
    """One handler in one Spark worker process."""

    def __init__(self, plan: HandlerPlan) -> None:
        self.plan = plan
        self.handler, self.classes = plan.load()
        self.machine = Machine(self.handler)
        self.log = plan.open_log()
        self.replicas: OrderedDict[int, Replica] = OrderedDict()

    def run(self, work: ShardWork) -> Iterator[tuple[int, bytes]]:
        """Run the handler on one shard's rows. Once its state is durable, yields the emitted events with their output
        numbers, and finally the report."""
        report = Report()
        store = self.plan.open_shard(work.generation, work.shard)
        with _no_collection():
            began = time.perf_counter()
            replica = self._at_base(work, store, report)
            if work.base != NO_VERSION and (report.rebuilt or store.snapshot_is_due(work.base)):
                report.snapshot_bytes = store.write_snapshot(work.base, replica.shard, work.start)
                store.drop_before(work.base)
            draft, outbox = Draft(replica.shard), ShardOutbox(store, work.generation, work.version)
            ran = time.perf_counter()
            ranges = shard_ranges(self.plan.placed, work.shard, work.start, work.end)
            for part in chunks(self.log, self._reading(work.shard), ranges):
                effects = self.machine.run(replica.shard, part)
                draft.apply(effects.changes)
                for output, payload in self._payloads(effects):
                    outbox.add(output, payload)
                report.events += effects.events
            report.time = replica.shard.time
            written = time.perf_counter()
            self._write(work, store, replica, draft, report)
            rows = outbox.rows()
            self.replicas[work.shard] = replica  # only now, because after a failure it must be loaded again
            ended = time.perf_counter()
            report.write_s, report.run_s, report.read_s = ended - written, written - ran, ran - began
        self._evict()
        yield from rows
        yield REPORT, msgspec.msgpack.encode(report)

    def holds(self, work: ShardWork) -> bool:
        """Return whether the shard is in memory at the version that the batch needs."""
        replica = self.replicas.get(work.shard)
        return replica is not None and replica.version == work.base

    def _reading(self, shard: int) -> InputSpec:
        return InputSpec.of(self.handler, self.classes, self.plan.placed, shard, self.plan.shards)

    def _at_base(self, work: ShardWork, store: ShardStore, report: Report) -> Replica:
        """Return a replica of the shard at the version that the batch builds on. The replica is removed from the
        worker's replicas until the batch is done."""
        replica = self.replicas.pop(work.shard, None)
        if replica is not None:
            replica.settle(work.base)
            if replica.version == work.base:
                report.hits += 1
            elif replica.version < work.base and store.catch_up(replica.shard, replica.version, work.base):
                report.catch_ups += 1
                replica.version = work.base
            if replica.version != work.base or _packed_digest(replica.shard) != work.digest:
                replica = None
        if replica is None:
            replica = Replica(self._loaded(work, store, report), work.base)
        return replica

    def _loaded(self, work: ShardWork, store: ShardStore, report: Report) -> Shard:
        """Load the handler's shard from its files; recompute it from the log if they are damaged."""
        try:
            shard = store.load(work.base)
            if work.base != NO_VERSION:
                report.loads += 1
                if _packed_digest(shard) != work.digest:
                    raise Damaged(f"the state of {self.plan.name}, shard {work.shard}, does not match its ledger")
        except Damaged as error:
            shard = self._rebuilt(work, store, error)
            report.rebuilt = [error.message]
        return shard

    def _rebuilt(self, work: ShardWork, store: ShardStore, damage: Damaged) -> Shard:
        try:
            shard = store.origin()
            for rows in reread_rows(self.log, self._reading(work.shard), work.origin, work.start):
                shard.apply(self.machine.run(shard, rows).changes)
        except BadCursor:
            raise Damaged(
                f"{damage.message}; it cannot be recomputed, because the start of its log has been deleted. "
                "Restore the handler's folder from a backup"
            ) from damage
        if _packed_digest(shard) != work.digest:
            raise Damaged(f"{damage.message}; the state recomputed from the log does not match the ledger") from damage
        return shard

    def _write(self, work: ShardWork, store: ShardStore, replica: Replica, draft: Draft, report: Report) -> None:
        """Make the shard's changes durable. If nothing has changed, there is no new version."""
        shard = replica.shard
        if draft.records:
            reach("handler.before_delta")
            report.delta_bytes = store.write_delta(work.version, work.base, draft.changes, shard.digest)
            reach("handler.after_delta")
            replica.draft, replica.before, replica.version = draft, work.base, work.version
        if replica.version != NO_VERSION:
            report.state = HandledShard.of(shard, replica.version)

    def _payloads(self, effects: Effects) -> Iterator[tuple[int, bytes]]:
        """Yield the emitted events, as one record batch per output, and the failures as the last record batch."""
        by_output: dict[int, list[Emitted]] = {}
        handler, emits = self.handler, self.handler.emits
        for emission in latest(handler, effects.emitted) if isinstance(handler, ViewHandler) else effects.emitted:
            by_output.setdefault(emission.output, []).append(emission)
        for number, mine in sorted(by_output.items()):
            batch = _emitted_batch(
                emits[number], [emission.event for emission in mine], [emission.id for emission in mine], mine
            )
            if isinstance(handler, ViewHandler) and number == len(emits) - 1:
                yield number - 1, as_gone(batch, handler.row).serialize().to_pybytes()  # in order with the rows
            else:
                yield number, batch.serialize().to_pybytes()
        faults = effects.failures
        if faults:
            events, ids = [fault.event for fault in faults], [fault.id for fault in faults]
            yield len(emits), _emitted_batch(Failed, events, ids, faults).serialize().to_pybytes()

    def _evict(self) -> None:
        """Drop the least recently used replicas until the memory limit is met, but never the replica just used."""
        held = sum(replica.shard.size for replica in self.replicas.values())
        while held > self.plan.memory_bytes and len(self.replicas) > 1:
            _, replica = self.replicas.popitem(last=False)
            held -= replica.shard.size


def _emitted_batch(
    cls: type[Event], events: Sequence[Event], ids: Sequence[str | None], origins: Sequence[Emitted] | Sequence[Failure]
) -> pa.RecordBatch:
    """Convert emitted events to one Arrow record batch, with the log times of their causes as ingest times."""
    keys = [origin.key for origin in origins]
    batch = to_batch(cls, events, ids=ids, keys=keys, now=from_micros(0))
    place = batch.schema.get_field_index("_ingest_time")
    times = pa.array([origin.time for origin in origins], pa.int64()).cast(batch.schema.field(place).type)
    return batch.set_column(place, batch.schema.field(place), times)


def _packed_digest(shard: Shard) -> bytes:
    return shard.digest.to_bytes(HASH_BYTES, "little")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, which would scan a batch's events repeatedly even though they contain no
    cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_workers: dict[tuple[object, object], HandlerWorker] = {}


def worker_of(plan: HandlerPlan) -> HandlerWorker:
    """Return this process's worker for a handler and its files. It is created by the first call and kept until the
    process ends."""
    which = (plan.load, plan.open_shard)
    worker = _workers.get(which)
    if worker is None:
        worker = _workers[which] = HandlerWorker(plan)
    return worker
