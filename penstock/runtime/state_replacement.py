"""Replace all of a handler's state at once. There are three cases: the state is migrated to a changed class, it was
recomputed from the log, or it becomes the handler's new origin because events are read differently from now on.

The new state is written beside the old one, as the next generation; then the ledger adopts it in one transaction. After
a crash before that transaction, the old state is still in effect; after a later crash, the new state is. Finished
batches stay finished: no event is emitted again, and the next batch starts where the last batch ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.core.contracts import LogReader
from penstock.core.cursor import source_positions
from penstock.core.errors import DeclarationError, StorageError
from penstock.core.event_shape import EventShape
from penstock.core.failpoints import reach
from penstock.core.settings import Settings
from penstock.core.shapes import shape_of
from penstock.handlers.batches import input_shapes
from penstock.handlers.contracts import HandlerLedgerEntry, StateReplacement
from penstock.handlers.evolution import Carrier, misfit
from penstock.handlers.recomputation import Recomputation, reads_decimals_differently
from penstock.handlers.recomputed_rows import RecomputedRows
from penstock.handlers.shard import Shard
from penstock.runtime.storage import LogCatalog, OpenHandler, PreparedHandler, Storage, StoredLogReader
from penstock.store import half_done

log = logging.getLogger("penstock.engine")


def unfinished_by(app: App, handler: Handler, storage: Storage, log: LogCatalog) -> str | None:
    """Return why a handler's last batch must be finished by the code that began it, or None if this code may finish it.
    Only the classes of the handler's state and events are compared. After a clean shutdown, no batch is half done."""
    try:
        handled = storage.handled(handler.name)
    except StorageError:
        return None
    if handled is None or handled.intended is None:
        return None
    same = handled.shape == shape_of(handler.state) and not _reads_differently(app, handler, handled, log)
    return None if same else half_done(handled)


def problem_of(handler: Handler, storage: Storage) -> str | None:
    """Return why a handler cannot use its stored state, or None if it can, or if its files cannot be read."""
    try:
        handled = storage.handled(handler.name)
    except StorageError:
        return None
    if handled is None or handled.shape == shape_of(handler.state):
        return None
    return misfit(handled.shape, handler.state)


def _reads_differently(app: App, handler: Handler, handled: HandlerLedgerEntry, log: LogCatalog) -> bool:
    """Return whether earlier events are now read differently. If the ledger is too old to record how events were read,
    `log` decides, because it was opened with the app's classes."""
    if reads_decimals_differently(app, handler, handled):
        return True
    inputs = input_shapes(app, handler)
    if handled.inputs is not None:
        return any(handled.inputs[name] != shape for name, shape in inputs.items() if name in handled.inputs)
    return any(log.is_evolved(name) for name in inputs)


@dataclass(frozen=True)
class StateReplacer:
    """Replaces the state of an open handler, if necessary, before its query starts."""

    app: App
    handler: Handler
    opened: OpenHandler
    storage: Storage

    @property
    def handled(self) -> HandlerLedgerEntry:
        return self.opened.handled

    @property
    def inputs(self) -> dict[str, EventShape]:
        """Return the shapes of the event classes that the handler reads with, by stream."""
        return input_shapes(self.app, self.handler)

    def run(
        self,
        reader: StoredLogReader,
        settings: Settings,
        prepared: PreparedHandler | None = None,
        *,
        reread: bool = False,
        record: Callable[[], None] = lambda: None,
    ) -> None:
        """Adopt the state that was `prepared` by this code, or migrate the handler's state to a changed class. Raises
        `DeclarationError` if a batch is half done.

        If the version of an event class has changed, or (`reread`) a `migrate` was edited, events are read differently
        from before. The handler's state then becomes its new origin, because the same events could now produce a
        different state.

        `record` stores the fingerprint of the code that runs from now on. It is called as soon as the prepared state
        has taken effect. Between `take` and `remove`, no other code may run the handler, even after a crash.
        """
        self._clean()
        handled, name = self.handled, self.handler.name
        if prepared is not None and handled.entry is not None:
            if handled.intended is not None:  # only the code that began the batch can finish it
                raise DeclarationError(f"{self.handler.where}: handler {name}: {half_done(handled)}")
            log.info("%s: adopting the state that was computed from the log", name)
            rows = RecomputedRows(self.handler)
            shards = self._caught_up(reader, settings, rows)
            kept_rows = rows.table() if self.opened.table is not None else None
            next_handler = self.storage.next_handler(name)
            next_handler.take()
            reach("renewal.after_take")
            self._replace(shards, prepared.origin, rows=kept_rows)
            record()
            reach("renewal.after_record")
            next_handler.remove()
        elif handled.shape != shape_of(self.handler.state):
            log.info("%s: migrating its state to version %d", name, self.handler.state.__state_version__)
            self._replace(self._carried(), handled.end, is_origin=True)
        elif handled.entry is not None and (reread or _reads_differently(self.app, self.handler, handled, reader)):
            log.info("%s: using its current state as its new origin, because its events are now read differently", name)
            self._replace(self._current(), handled.end, is_origin=True)
        elif handled.inputs != self.inputs or handled.padded:
            self.opened.note_inputs(self.inputs)
        self._clean()

    def _caught_up(self, reader: LogReader, settings: Settings, rows: RecomputedRows) -> Mapping[int, Shard]:
        """Return the prepared state, advanced to the handler's position. Adds the rows of its view to `rows`."""
        prepared = self.storage.next_handler(self.handler.name)
        run = Recomputation(self.app, self.handler, reader, settings)
        for number, (shard, position) in prepared.shards(run.count).items():
            run.begin(number, shard, position)
        rows.restore(prepared.rows())
        run.advance(source_positions(self.handled.end), rows.see)
        return run.shards

    def _carried(self) -> Mapping[int, Shard]:
        handled, handler = self.handled, self.handler
        reason = misfit(handled.shape, handler.state)
        if reason is not None:
            raise DeclarationError(f"{handler.where}: handler {handler.name}: {reason}")
        carrier = Carrier(handler.state, handled.shape)
        return {number: carrier.shard(shard) for number, shard in self._current().items()}

    def _current(self) -> Mapping[int, Shard]:
        handled, name = self.handled, self.handler.name
        return {
            number: self.storage.shard(name, handled.generation, number).load(known.version)
            for number, known in handled.shards.items()
        }

    def _replace(
        self, shards: Mapping[int, Shard], origin: str, *, is_origin: bool = False, rows: pa.Table | None = None
    ) -> None:
        shape = shape_of(self.handler.state)
        replacement = StateReplacement(shape, shards, origin, self.inputs, is_origin, rows)
        self.storage.replace_state(self.opened, replacement)

    def _clean(self) -> None:
        self.storage.drop_generations(self.handler.name, self.handled.generation)
