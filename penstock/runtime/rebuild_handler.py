"""Recompute a handler's state from the log while the app runs.

The log is run through the new code in plain Python, up to the position of the running handler. The output is discarded,
because the running handler has already emitted it. When the engine starts with the new code, it first processes the
events since that position. So the switch to the new code happens at an exact offset: the old code emitted everything
before that offset, and the new code emits everything from there on.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.core.contracts import LogReader
from penstock.core.cursor import Positions, source_positions
from penstock.core.errors import DeclarationError
from penstock.core.settings import Settings
from penstock.core.suggestions import counted
from penstock.handlers.contracts import HandlerLedgerEntry
from penstock.handlers.recomputation import Recomputation
from penstock.handlers.recomputed_rows import RecomputedRows
from penstock.handlers.shard import Shard
from penstock.runtime.comparison import Comparison
from penstock.runtime.handlers import origin
from penstock.runtime.missing import missing
from penstock.runtime.storage import PreparedHandler, Storage

CLOSE_EVENTS = 10_000
"""A rebuild has caught up when its last pass had at most this many events. The engine can process that many in one
go."""
PASSES_MAX = 10


class HandlerRebuild:
    """The rebuild of one handler in a data directory, with the code that `comparison` compares."""

    def __init__(
        self, app: App, handler: Handler, storage: Storage, log: LogReader, settings: Settings, comparison: Comparison
    ) -> None:
        self.handler, self.storage, self.log = handler, storage, log
        self.made_with = comparison.rebuild_print(handler)
        self.name = handler.name
        storage.next_handler(self.name).require_free()
        self.before = self._handled()
        self.run = Recomputation(app, handler, log, settings)
        self.rows = RecomputedRows(handler)
        reads = set(source_positions(self.before.end))
        if reads != set(handler.inputs) or self.run.count != self.before.count:
            raise DeclarationError(
                f"{handler.where}: handler {handler.name}: it has run on {', '.join(sorted(reads))} in "
                f"{self.before.count} shards; to be rebuilt, it must read the same streams in the same number of "
                f"shards (PENSTOCK_PARTITIONS)"
            )
        self._origin = origin(log, self.run.placed)

    def _handled(self) -> HandlerLedgerEntry:
        ledger = self.storage.handled(self.name)
        if ledger is None or ledger.entry is None:
            raise DeclarationError(
                f"there is nothing to rebuild: {self.storage.location} holds no data for the handler {self.name!r}"
            )
        return ledger

    @property
    def origin(self) -> Positions:
        """Return the position where the rebuild begins, at the first kept events."""
        return source_positions(self._origin)

    def missing(self) -> list[str]:
        """Return a line for each stream that no longer contains the first events of the handler."""
        if self.origin == source_positions(self.before.origin):
            return []
        return missing(self.log, self.origin, {})

    def prepare(self, tell: Callable[[int], None]) -> str:
        """Run the log through the handler until it has caught up with the running handler, and return a sentence that
        describes the result."""
        self.run.tell = tell
        for number in range(self.run.count):
            self.run.begin(number, Shard(), self.origin)
        for _ in range(PASSES_MAX):
            before = self.run.events
            self.run.advance(source_positions(self._handled().end), self.rows.see)
            if self.run.events - before <= CLOSE_EVENTS:
                break
        keys = sum(len(shard.records) for shard in self.run.shards.values())
        return f"{self.name}: {counted(self.run.events, 'event')}, {counted(keys, 'key')}, digest {self.run.digest}"

    def mark(self) -> None:
        """Make the rebuilt state durable, then make it take effect."""
        shards = {number: (shard, self.run.positions[number]) for number, shard in self.run.shards.items()}
        prepared = PreparedHandler(self._origin, self.made_with)
        self.storage.next_handler(self.name).write(prepared, shards, self.rows.stored())

    def is_taken_over(self) -> bool:
        return self._handled().generation != self.before.generation
