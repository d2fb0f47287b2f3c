"""Taking a rebuilt view over when the engine starts, before the view's query does.

Each step can be done again after a crash, and what is done is known by the id of the rebuild:

1. the rebuilt view reads what has come since it was prepared, so that nobody who saw an event in the view misses it;
2. its rows take the place of the view's rows (`store/adoption.py`): from here on the swap is finished, by any code;
3. events that came too late for it, and that VIEW.late does not have, are appended there;
4. its checkpoint takes the place of the view's;
5. what is left of it is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.analyze.checkpoint import Checkpoint
from penstock.analyze.session import Session
from penstock.app import App
from penstock.contracts import Log, LogReader, StreamSpec
from penstock.cursor import source_positions
from penstock.declared import View
from penstock.errors import AlreadyRunning, Busy
from penstock.event_shape import event_spec
from penstock.failpoints import reach
from penstock.fingerprints.stored import ViewPrint
from penstock.queue import EmbeddedLog, EmbeddedLogOpener
from penstock.runtime.directory import DataDirectory
from penstock.runtime.hold import rebuild_lock
from penstock.runtime.late import PART_EVENTS, PARTS_MAX
from penstock.runtime.nextview import NextView, PreparedView
from penstock.runtime.viewrun import ViewRun
from penstock.runtime.views import view_spec
from penstock.schema import Late
from penstock.settings import Settings
from penstock.store import adopt, rebuilt

log = logging.getLogger("penstock.engine")
Fits = Callable[[ViewPrint], bool]
Record = Callable[[ViewPrint], None]


@dataclass(frozen=True)
class Swap:
    """What the engine has, to take rebuilt views over. `epoch` is its own, and `opener` opens the log for
    Spark's workers."""

    app: App
    directory: DataDirectory
    settings: Settings
    epoch: int
    opener: EmbeddedLogOpener

    def run(self, spark: Session, view: View, into: Log, fits: Fits, record: Record) -> None:
        """Take a view over if it was rebuilt and `fits` the code, or if that was begun. Late events go `into` the log;
        what the view was made with is given to `record` before the traces of the rebuild go."""
        files = NextView(self.directory, view.name)
        prepared = files.read()
        if prepared is None:
            return
        if not files.is_taken():
            if not fits(prepared.made_with):
                log.warning("%s: was rebuilt by other code than this; left aside", view.name)
                return
            self._adopt(spark, view, files, prepared)
        self._tell_late(view, files, into)
        reach("swap.after_late")
        Checkpoint(self.directory.checkpoint(view.name)).replace(files.checkpoint, prepared.id)
        record(prepared.made_with)
        files.remove()
        log.info("%s: took over what was rebuilt", view.name)

    def _adopt(self, spark: Session, view: View, files: NextView, prepared: PreparedView) -> None:
        """Raises `Busy` beside another rebuild, which may remove what is prepared: the view is started again later."""
        try:
            with rebuild_lock(self.directory):
                self._catch_up(spark, view, files, prepared)
                reach("swap.before_adoption")
                path, spec = self.directory.view_file(view.name), view_spec(view, self.settings)
                adopt(path, files.file, spec, identity=prepared.id, origin=prepared.origin, epoch=self.epoch)
        except AlreadyRunning as error:
            raise Busy(f"{view.where}: view {view.name} was rebuilt, and is taken over later: {error}") from None

    def _catch_up(self, spark: Session, view: View, files: NextView, prepared: PreparedView) -> None:
        log.info("%s: bringing up to date what was rebuilt", view.name)
        run = ViewRun(spark, self.app, view, files, self.settings, self.opener)
        try:
            events = run.advance(source_positions(prepared.origin))
        finally:
            run.close()
        files.mark(prepared)  # durable again, before it counts
        log.info("%s: read the %d events since", view.name, events)

    def _tell_late(self, view: View, files: NextView, into: Log) -> None:
        """Append what came too late for the rebuilt view and is not in VIEW.late yet, in fixed parts: a part that is
        there stays."""
        stream, adopted = self.app.late.get(view.name), rebuilt(self.directory.view_file(view.name))
        if stream is None or adopted is None or not files.late.is_dir():
            return
        found = EmbeddedLog(files.late, read_only=True)
        into.declare(StreamSpec.of(stream.name, event_spec(Late), 1))
        try:
            wanted = {each for part in _parts(found, stream.name) for each in part.column("_id").to_pylist()}
            told = {each for each in _ids(into, stream.name) if each in wanted} if wanted else set()
            for number, part in enumerate(_parts(found, stream.name)):
                new = part.filter(pa.array([each not in told for each in part.column("_id").to_pylist()]))
                sequence = (adopted.batches - 1) * PARTS_MAX + number
                if new.num_rows:
                    into.append(stream.name, 0, new, producer=view.name, sequence=sequence)
        finally:
            found.close()


def _parts(log: LogReader, stream: str) -> Iterator[pa.RecordBatch]:
    """All of a stream with one partition, in parts that are the same each time."""
    start, end = log.starts(stream)[0], log.ends(stream)[0]
    while start < end:
        stop = min(end, start + PART_EVENTS)
        (part,) = pa.Table.from_batches(log.read(stream, 0, start, stop)).combine_chunks().to_batches()
        yield part
        start = stop


def _ids(log: LogReader, stream: str) -> Iterator[str | None]:
    for batch in log.read(stream, 0, log.starts(stream)[0], log.ends(stream)[0]):
        yield from batch.column("_id").to_pylist()
