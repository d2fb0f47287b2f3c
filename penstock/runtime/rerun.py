"""A handler over the log of a data directory in plain single-threaded Python, shard by shard."""

from __future__ import annotations

from collections.abc import Callable

from penstock.analyze.batches import inputs, own_positions, rerun, spread
from penstock.analyze.inputs import Reading
from penstock.app import App
from penstock.columns import decimal_fields
from penstock.contracts import LogReader
from penstock.cursor import Positions
from penstock.declared import Handler
from penstock.machine import Effects, Machine
from penstock.rows import Inputs, Rows
from penstock.settings import Settings
from penstock.shard import Shard, digest_text
from penstock.store import Handled

Seen = Callable[[Effects], None]
Tell = Callable[[int], None]


def reads_decimals_otherwise(app: App, handler: Handler, handled: Handled) -> bool:
    """Whether a handler got Decimals with all digits of their column until now. They are the same numbers, but a state
    that has them is encoded otherwise, so the log does not lead to its digest any more."""
    return handled.padded and any(decimal_fields(stream.event) for stream in inputs(app, handler).values())


class Rerun:
    """The state of a handler's shards, each as far as it has come. `tell` is called now and then, with the number of
    events that were run.

    If a `key` is given, only its events are run. It is handled with care from the start, so that the function is called
    once for each of them.
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
        """Take a shard up from a position."""
        self.shards[number], self.positions[number] = shard, own_positions(self.placed, number, position)

    def advance(self, end: Positions, seen: Seen = lambda _: None) -> None:
        """Run every shard on to `end`; what comes of it is shown to `seen`, and is in the state."""
        for number, shard in self.shards.items():
            reading = Reading.of(self.handler, self._classes, self.placed, number, self.count)
            stop = own_positions(self.placed, number, end)
            for rows in rerun(self.log, reading, self.positions[number], stop):
                for part in (rows,) if self.key is None else (_only(each, self.key) for each in rows.pieces()):
                    self._take(shard, part, seen)
            self.positions[number] = stop

    def _take(self, shard: Shard, rows: Rows, seen: Seen) -> None:
        effects = self.machine.run(shard, rows)
        shard.apply(effects.changes)
        self.events += effects.events
        self.tell(self.events)
        seen(effects)


def _only(rows: Inputs, key: str) -> Inputs:
    """The rows of one key, and the ticks. Nothing else has to do with its state."""
    events = list(rows.events)
    mine = [
        row for row, event in enumerate(events) if rows.key(row) == key or (event is None and rows.key(row) is None)
    ]
    return Inputs.of(
        [rows.key(row) for row in mine],
        [events[row] for row in mine],
        [rows.times[row] for row in mine],
        lambda row: rows.id(mine[row]),
        lambda row: rows.place(mine[row]),
    )
