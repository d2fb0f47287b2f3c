"""Adopt a rebuilt view when the engine starts, before the view's query starts.

Each step can be repeated after a crash. The rebuild's id shows which steps have been completed:

1. the rebuilt view reads the events that arrived since it was prepared, so that it includes all events that the old
   view included;
2. its rows replace the view's rows (`store/adoption.py`); from then on, any version of the code finishes the swap;
3. events that arrived too late for the rebuilt view, and are not in VIEW.late yet, are appended to VIEW.late;
4. its checkpoint replaces the view's checkpoint;
5. its remaining files are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.analyze.session import Session
from penstock.app.app import App
from penstock.app.declared import View
from penstock.app.fingerprints.stored import ViewPrint
from penstock.core.contracts import BlockingLogReader, Log, LogReader, StreamSpec
from penstock.core.cursor import source_positions
from penstock.core.errors import AlreadyRunning, Busy
from penstock.core.event_shape import event_spec
from penstock.core.failpoints import reach
from penstock.core.schema import OFFSET_COLUMN, Late
from penstock.core.settings import Settings
from penstock.runtime.late import PART_EVENTS, PARTS_MAX
from penstock.runtime.storage import NextView, PreparedView, Storage
from penstock.runtime.viewrun import ViewRun
from penstock.runtime.views import view_spec

log = logging.getLogger("penstock.engine")
Fits = Callable[[ViewPrint], bool]
Record = Callable[[ViewPrint], None]


@dataclass(frozen=True)
class Swap:
    """Adopts rebuilt views in the engine. `epoch` is the engine's epoch, and `opener` opens the log for Spark's
    workers."""

    app: App
    storage: Storage
    settings: Settings
    epoch: int
    opener: Callable[[], BlockingLogReader]

    def run(self, spark: Session, view: View, into: Log, fits: Fits, record: Record) -> None:
        """Adopt a rebuilt view if it `fits` the code, or if an earlier adoption was started but not finished. Append
        late events to the log `into`. Before the rebuild's files are deleted, call `record` with the fingerprint of the
        code that the view was rebuilt with."""
        next_view = self.storage.next_view(view.name)
        prepared = next_view.read()
        if prepared is None:
            return
        if not next_view.is_taken():
            if not fits(prepared.made_with):
                log.warning("%s: ignoring the rebuild, because different code made it", view.name)
                return
            self._adopt(spark, view, next_view, prepared)
        self._tell_late(view, next_view, into)
        reach("swap.after_late")
        self.storage.adopt_checkpoint(view.name, prepared)
        record(prepared.made_with)
        next_view.remove()
        log.info("%s: adopted the rebuilt view", view.name)

    def _adopt(self, spark: Session, view: View, next_view: NextView, prepared: PreparedView) -> None:
        """Bring the prepared view up to date and adopt its rows. Raises `Busy` if another rebuild is running, because
        it might delete the prepared view; the engine starts this view again later."""
        try:
            with self.storage.rebuild_lock():
                self._catch_up(spark, view, next_view, prepared)
                reach("swap.before_adoption")
                self.storage.adopt_view(view_spec(view, self.settings), prepared, epoch=self.epoch)
        except AlreadyRunning as error:
            raise Busy(f"{view.where}: the rebuilt view {view.name} will be adopted later: {error}") from None

    def _catch_up(self, spark: Session, view: View, next_view: NextView, prepared: PreparedView) -> None:
        log.info("%s: bringing the rebuilt view up to date", view.name)
        run = ViewRun(spark, self.app, view, self.storage, self.settings, self.opener)
        try:
            events = run.advance(source_positions(prepared.origin))
        finally:
            run.close()
        next_view.mark(prepared)  # durable again, before it takes effect
        log.info("%s: read the %d events that have arrived since", view.name, events)

    def _tell_late(self, view: View, next_view: NextView, into: Log) -> None:
        """Append the events that arrived too late for the rebuilt view and are not in VIEW.late yet, in fixed parts. A
        part that is already stored is left unchanged."""
        stream, adopted = self.app.late.get(view.name), self.storage.rebuilt(view.name)
        late_log = next_view.late_reader()
        if stream is None or adopted is None or late_log is None:
            return
        into.declare(StreamSpec.of(stream.name, event_spec(Late), 1))
        try:
            wanted = {
                event_id for part in _late_parts(late_log, stream.name) for event_id in part.column("_id").to_pylist()
            }
            known_ids = (
                {event_id for event_id in _late_ids(into, stream.name) if event_id in wanted} if wanted else set()
            )
            for number, part in enumerate(_late_parts(late_log, stream.name)):
                new = part.filter(pa.array([event_id not in known_ids for event_id in part.column("_id").to_pylist()]))
                sequence = (adopted.batches - 1) * PARTS_MAX + number
                if new.num_rows:
                    into.append(stream.name, 0, new, producer=view.name, sequence=sequence)
        finally:
            late_log.close()


def _late_parts(log: LogReader, stream: str) -> Iterator[pa.RecordBatch]:
    """Yield the late events of a stream with one partition, in parts that are the same each time."""
    start, end = log.starts(stream)[0], log.ends(stream)[0]
    while start < end:
        stop = min(end, start + PART_EVENTS)
        batches = list(log.read(stream, 0, start, stop))
        if batches:
            (part,) = pa.Table.from_batches(batches).drop([OFFSET_COLUMN]).combine_chunks().to_batches()
            yield part
        start = stop


def _late_ids(log: LogReader, stream: str) -> Iterator[str | None]:
    for batch in log.read(stream, 0, log.starts(stream)[0], log.ends(stream)[0]):
        yield from batch.column("_id").to_pylist()
