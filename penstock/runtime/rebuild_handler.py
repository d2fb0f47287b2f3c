"""A handler's state made again from the log, beside the app that runs.

The log is run through the new code in plain Python, up to where the running handler stands, without its output: that
was emitted already. What has come in meanwhile is made up by the engine when it starts with the new code, before its
first batch. So the new code takes over at an exact offset: everything before it was emitted by the old code, everything
from there on is emitted by the new one.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.app import App
from penstock.contracts import LogReader
from penstock.cursor import Positions, source_positions
from penstock.declared import Handler
from penstock.errors import DeclarationError
from penstock.runtime.directory import DataDirectory
from penstock.runtime.handlers import origin
from penstock.runtime.missing import missing
from penstock.runtime.renewal import Next, Prepared
from penstock.runtime.rerows import Rerows
from penstock.runtime.rerun import Rerun
from penstock.settings import Settings
from penstock.shard import Shard
from penstock.store import Handled, read_handled

CLOSE_EVENTS = 10_000
"""A rebuild has caught up when its last pass had no more events than these: the engine makes up for them at once."""
PASSES_MAX = 10


class HandlerRebuild:
    """One handler of an app, to be rebuilt in a data directory with the code that `code` marks."""

    def __init__(
        self, app: App, handler: Handler, directory: DataDirectory, log: LogReader, settings: Settings, code: str
    ) -> None:
        self.handler, self.directory, self.log, self.code = handler, directory, log, code
        self.name = handler.name
        self.before = self._handled()
        self.run = Rerun(app, handler, log, settings)
        self.rows = Rerows(handler)
        reads = set(source_positions(self.before.end))
        if reads != set(handler.inputs) or self.run.count != self.before.count:
            raise DeclarationError(
                f"{handler.where}: handler {handler.name}: it has run on {', '.join(sorted(reads))} in "
                f"{self.before.count} shards; to rebuild it, it must read the same streams, in as many "
                "(PENSTOCK_PARTITIONS)"
            )
        self._origin = origin(log, self.run.placed)

    def _handled(self) -> Handled:
        found = read_handled(self.directory.handler_ledger(self.name))
        if found is None or found.entry is None:
            raise DeclarationError(f"{self.directory.root} has nothing of the handler {self.name!r} to rebuild")
        return found

    @property
    def origin(self) -> Positions:
        """Where the rebuild begins: with the first kept events."""
        return source_positions(self._origin)

    def missing(self) -> list[str]:
        """What the log no longer has of what the handler began with, a line for each stream."""
        if self.origin == source_positions(self.before.origin):
            return []
        return missing(self.log, self.origin, {})

    def prepare(self, tell: Callable[[int], None]) -> str:
        """Run the log through the handler until it has caught up with the one that runs; returns a sentence on it."""
        self.run.tell = tell
        for number in range(self.run.count):
            self.run.begin(number, Shard(), self.origin)
        for _ in range(PASSES_MAX):
            before = self.run.events
            self.run.advance(source_positions(self._handled().end), self.rows.see)
            if self.run.events - before <= CLOSE_EVENTS:
                break
        keys = sum(len(shard.records) for shard in self.run.shards.values())
        return f"{self.name}: {self.run.events:,} events, {keys:,} keys, digest {self.run.digest}"

    def mark(self) -> None:
        """Make the result durable, and have it count."""
        Next(self.directory, self.name).write(Prepared(self.code, self._origin), self.run, self.rows)

    def is_taken_over(self) -> bool:
        return self._handled().generation != self.before.generation
