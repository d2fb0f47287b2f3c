"""A handler in one of Spark's Python workers: replicas of its state, kept from batch to batch.

Spark keeps its workers, but not which of them gets which shard. So a worker holds what it has met, and at the start of
a batch brings it to the version that the ledger names: by the deltas it missed, or by the last snapshot and the deltas
since. What a batch changes is made durable here, and taken back in the replica if the batch turns out not to have been
committed: one that runs again finds everything as it was.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.analyze.batches import rerun, shard_ranges
from penstock.analyze.inputs import Reading, chunks
from penstock.analyze.keeping import as_gone
from penstock.analyze.outbox import Outbox
from penstock.columns import to_batch
from penstock.contracts import HandledShard, LogReader, ShardStore
from penstock.cursor import Positions
from penstock.declared import Handler, Keeper
from penstock.errors import BadCursor, Damaged
from penstock.failpoints import reach
from penstock.machine import Effects, Emitted, Failure, Machine, latest
from penstock.rows import from_micros
from penstock.schema import Event, Failed
from penstock.shard import HASH_BYTES, NOTHING, Draft, Shard

log = logging.getLogger("penstock.worker")
REPORT = -1
"""In place of the number of an output: what the shard has to say of itself."""
REBUILT_SHOWN = 3
RESULT = pa.schema([("shard", pa.int32()), ("output", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True)
class Plan:
    """Everything that a worker must know of a handler. Travels to it by pickle, so all parts can be pickled.

    `placed` says for each stream it reads whether that is partitioned as the handler is: then shard n is partition n.
    `load` gives the handler and the classes of those streams, `open_shard` the files of a generation and shard;
    `claims` is a folder in which workers agree on who runs which shard.
    """

    name: str
    shards: int
    placed: dict[str, bool]
    load: Callable[[], tuple[Handler, dict[str, type[Event]]]]
    open_log: Callable[[], LogReader]
    open_shard: Callable[[int, int], ShardStore]
    memory_bytes: int
    claims: Path


@dataclass(frozen=True)
class ShardWork:
    """What one batch does to one shard: from version `base` (and its digest) to `version`, by the rows from `start` to
    `end`. `origin` is where the handler began, in case the state must be made again from the log."""

    shard: int
    generation: int
    base: int
    digest: bytes
    version: int
    origin: Positions
    start: Positions
    end: Positions


class Report(msgspec.Struct):
    """What a shard tells the driver of a batch; added up, what a handler's shards did since the engine started."""

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
    """A shard in memory, at a version; and, until the next batch shows whether that was committed, the way back to
    the version before."""

    shard: Shard
    version: int
    before: int = NOTHING
    draft: Draft | None = None

    def settle(self, base: int) -> None:
        """Take the draft back, unless it has become the version that the next batch builds on."""
        if self.draft is not None and self.version != base:
            self.draft.revert()
            self.version = self.before
        self.draft = None


class Worker:
    """One handler in one process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.handler, self.classes = plan.load()
        self.machine = Machine(self.handler)
        self.log = plan.open_log()
        self.replicas: OrderedDict[int, Replica] = OrderedDict()

    def run(self, work: ShardWork) -> Iterator[tuple[int, bytes]]:
        """Run one shard's rows; gives what it emitted, by output, once its state is durable, and its report last."""
        report = Report()
        store = self.plan.open_shard(work.generation, work.shard)
        with _no_collection():
            began = time.perf_counter()
            replica = self._at_base(work, store, report)
            if work.base != NOTHING and (report.rebuilt or store.snapshot_is_due(work.base)):
                report.snapshot_bytes = store.write_snapshot(work.base, replica.shard, work.start)
                store.drop_before(work.base)
            draft, outbox = Draft(replica.shard), Outbox(store.outbox(work.version))
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
            self.replicas[work.shard] = replica  # only now: after a failure it is loaded again
            ended = time.perf_counter()
            report.write_s, report.run_s, report.read_s = ended - written, written - ran, ran - began
        self._evict()
        yield from rows
        yield REPORT, msgspec.msgpack.encode(report)

    def holds(self, work: ShardWork) -> bool:
        """Whether the shard is in memory, as the batch needs it."""
        replica = self.replicas.get(work.shard)
        return replica is not None and replica.version == work.base

    def _reading(self, shard: int) -> Reading:
        return Reading.of(self.handler, self.classes, self.plan.placed, shard, self.plan.shards)

    def _at_base(self, work: ShardWork, store: ShardStore, report: Report) -> Replica:
        """The replica of a shard at the version that the batch builds on, taken out of those that are held."""
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
        """The shard from its files; made again from the log if they are damaged."""
        try:
            shard = store.load(work.base)
            if work.base != NOTHING:
                report.loads += 1
                if _packed_digest(shard) != work.digest:
                    raise Damaged(f"the state of {self.plan.name}, shard {work.shard}, is not that of its ledger")
        except Damaged as error:
            shard = self._rebuilt(work, store, error)
            report.rebuilt = [error.message]
        return shard

    def _rebuilt(self, work: ShardWork, store: ShardStore, damage: Damaged) -> Shard:
        try:
            shard = store.origin()
            for rows in rerun(self.log, self._reading(work.shard), work.origin, work.start):
                shard.apply(self.machine.run(shard, rows).changes)
        except BadCursor:
            raise Damaged(
                f"{damage.message}; and it cannot be made again, for the log is no longer kept from where it began. "
                "Restore the handler's folder from a backup"
            ) from damage
        if _packed_digest(shard) != work.digest:
            raise Damaged(f"{damage.message}; and the log leads to another state than the ledger's") from damage
        return shard

    def _write(self, work: ShardWork, store: ShardStore, replica: Replica, draft: Draft, report: Report) -> None:
        """Make the changes durable. Without any there is no new version."""
        shard = replica.shard
        if draft.records:
            reach("handler.before_delta")
            report.delta_bytes = store.write_delta(work.version, work.base, draft.changes, shard.digest)
            reach("handler.after_delta")
            replica.draft, replica.before, replica.version = draft, work.base, work.version
        if replica.version != NOTHING:
            report.state = HandledShard.of(shard, replica.version)

    def _payloads(self, effects: Effects) -> Iterator[tuple[int, bytes]]:
        """What was emitted, as a record batch for each output, and what failed as the last of them."""
        by_output: dict[int, list[Emitted]] = {}
        handler, emits = self.handler, self.handler.emits
        for each in latest(handler, effects.emitted) if isinstance(handler, Keeper) else effects.emitted:
            by_output.setdefault(each.output, []).append(each)
        for number, mine in sorted(by_output.items()):
            batch = _batch(emits[number], [each.event for each in mine], [each.id for each in mine], mine)
            if isinstance(handler, Keeper) and number == len(emits) - 1:
                yield number - 1, as_gone(batch, handler.row).serialize().to_pybytes()  # in order with the rows
            else:
                yield number, batch.serialize().to_pybytes()
        faults = effects.failures
        if faults:
            events, ids = [each.event for each in faults], [each.id for each in faults]
            yield len(emits), _batch(Failed, events, ids, faults).serialize().to_pybytes()

    def _evict(self) -> None:
        """Let go of the replicas that were not used for the longest time, but for the one just used."""
        held = sum(replica.shard.size for replica in self.replicas.values())
        while held > self.plan.memory_bytes and len(self.replicas) > 1:
            _, replica = self.replicas.popitem(last=False)
            held -= replica.shard.size


def _batch(
    cls: type[Event], events: Sequence[Event], ids: Sequence[str | None], origins: Sequence[Emitted] | Sequence[Failure]
) -> pa.RecordBatch:
    """Events as one Arrow record batch, with the log time of what they came of as ingest time."""
    keys = [each.key for each in origins]
    batch = to_batch(cls, events, ids=ids, keys=keys, now=from_micros(0))
    place = batch.schema.get_field_index("_ingest_time")
    times = pa.array([each.time for each in origins], pa.int64()).cast(batch.schema.field(place).type)
    return batch.set_column(place, batch.schema.field(place), times)


def _packed_digest(shard: Shard) -> bytes:
    return shard.digest.to_bytes(HASH_BYTES, "little")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cycle collector, which would look again and again at a batch's events: none of them is in a cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_workers: dict[tuple[object, object], Worker] = {}


def worker_of(plan: Plan) -> Worker:
    """This process's worker for a handler and its files: made at the first call, kept while the process lives."""
    which = (plan.load, plan.open_shard)
    found = _workers.get(which)
    if found is None:
        found = _workers[which] = Worker(plan)
    return found
