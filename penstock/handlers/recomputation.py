"""Recompute a handler's state from the log, in plain single-threaded Python, shard by shard."""

from __future__ import annotations

from collections.abc import Callable

from penstock.app.app import App
from penstock.app.declared import Handler
from penstock.core.columns import decimal_fields
from penstock.core.contracts import LogReader
from penstock.core.cursor import Positions
from penstock.core.settings import Settings
from penstock.handlers.batches import inputs, own_positions, reread_rows, spread
from penstock.handlers.contracts import HandlerLedgerEntry
from penstock.handlers.inputs import InputSpec
from penstock.handlers.machine import Effects, Machine
from penstock.handlers.rows import Inputs, ShardRows
from penstock.handlers.shard import Shard, digest_text

Seen = Callable[[Effects], None]
Tell = Callable[[int], None]


def reads_decimals_differently(app: App, handler: Handler, handled: HandlerLedgerEntry) -> bool:
    """Return whether a handler has so far received Decimals padded to the full scale of their column. The numbers are
    equal, but state that contains them is encoded differently, so the log no longer reproduces the state's digest."""
    return handled.padded and any(decimal_fields(stream.event) for stream in inputs(app, handler).values())


class Recomputation:
    """A handler's shards as they are recomputed from the log, each at a separate position. `tell` is called from time
    to time with the number of events so far.

    With `key`, only the events for that key are run. The key is handled carefully from the start, so that the function
    is called once for each event.
    """

    def __init__(
        self, app: App, handler: Handler, log: LogReader, settings: Settings, *, key: str | None = None
    ) -> None:
        self.handler, self.log, self.key = handler, log, key
        self.count, self.placed = spread(app, handler, settings)
        self.machine = Machine(handler, careful=() if key is None else (key,))
        self.shards: dict[int, Shard] = {}
        self.positions: dict[int, Positions] = {}
        self.events = 0
        self.tell: Tell = lambda _: None
        self._classes = {name: stream.event for name, stream in inputs(app, handler).items()}

    @property
    def digest(self) -> str:
        return digest_text(sum(shard.digest for shard in self.shards.values()))

    def begin(self, number: int, shard: Shard, position: Positions) -> None:
        """Start the recomputation of a handler's shard at a position."""
        self.shards[number], self.positions[number] = shard, own_positions(self.placed, number, position)

    def advance(self, end: Positions, seen: Seen = lambda _: None) -> None:
        """Run every shard of the handler up to `end`. The output goes to `seen`, and the state is updated."""
        for number, shard in self.shards.items():
            reading = InputSpec.of(self.handler, self._classes, self.placed, number, self.count)
            stop = own_positions(self.placed, number, end)
            for rows in reread_rows(self.log, reading, self.positions[number], stop):
                for part in (rows,) if self.key is None else (_rows_of_key(piece, self.key) for piece in rows.pieces()):
                    self._take(shard, part, seen)
            self.positions[number] = stop

    def _take(self, shard: Shard, rows: ShardRows, seen: Seen) -> None:
        effects = self.machine.run(shard, rows)
        shard.apply(effects.changes)
        self.events += effects.events
        self.tell(self.events)
        seen(effects)


def _rows_of_key(rows: Inputs, key: str) -> Inputs:
    """Return a handler's rows for one key, and the ticks. No other row affects the state of that key."""
    events = list(rows.events)
    mine = [
        row for row, event in enumerate(events) if rows.key(row) == key or (event is None and rows.key(row) is None)
    ]
    return Inputs.of(
        [rows.key(row) for row in mine],
        [events[row] for row in mine],
        [rows.times[row] for row in mine],
        lambda row: rows.id(mine[row]),
        lambda row: rows.position(mine[row]),
    )
