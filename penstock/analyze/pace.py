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
        self._planned: tuple[Positions, int, float] | None = None

    def begin(self, position: Positions, now: float) -> int:
        """How many rows of each stream a batch from `position` may have. If the last one ended there, it is done now;
        one that had much less than it might have says nothing of the pace."""
        if self._planned is not None:
            end, rows, began = self._planned
            if end == position and rows >= self.rows // 2:
                wanted = min(int(rows * BATCH_S / max(now - began, 0.001)), GROWTH_MAX * self.rows)
                self.rows = min(max(wanted, ROWS_MIN), self._rows_max)
        self._planned = None
        return self.rows

    def planned(self, end: Positions, rows: int, now: float) -> None:
        """A batch that ends at `end` is about to run, with so many rows."""
        self._planned = (end, rows, now) if rows else None
