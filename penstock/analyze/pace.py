"""How much a batch may take when there is a backlog."""

from __future__ import annotations

from penstock.cursor import Positions

BATCH_S = 8.0
"""Long enough that what a batch costs by itself is little of it, also with a million keys; short enough to end before a
stop is forced. Nothing waits for it: if a batch is full, what it has left out would take as long anyway."""
FIRST_ROWS = 20_000
ROWS_MIN = 1_000
GROWTH_MAX = 4


class Pace:
    """The most rows of the next batch. It begins with few, since nobody knows what the handler takes for each; then as
    many as take about `BATCH_S`, going by the last batch that was full."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.rows = min(FIRST_ROWS, rows_max)
        self._full: tuple[Positions, float] | None = None

    def begin(self, position: Positions, now: float) -> int:
        """How many rows a batch from `position` may have. If the last one was full and ended there, it is done now."""
        if self._full is not None and self._full[0] == position:
            took = max(now - self._full[1], 0.001)
            wanted = min(int(self.rows * BATCH_S / took), GROWTH_MAX * self.rows)
            self.rows = min(max(wanted, ROWS_MIN), self._rows_max)
        self._full = None
        return self.rows

    def filled(self, end: Positions, now: float) -> None:
        """A batch was given as many rows as it may have, and ends at `end`."""
        self._full = end, now
