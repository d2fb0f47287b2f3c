"""The size of batches during a backlog."""

from __future__ import annotations

from penstock.core.cursor import Positions

BATCH_S = 8.0
"""Target duration of a batch: long enough to keep its fixed cost relatively small, even with a million keys, and short
enough to end before a stop is forced. Splitting a backlog into batches of this length delays nothing, because the
remaining rows would take just as long in one batch."""
FIRST_ROWS = 20_000
ROWS_MIN = 1_000
GROWTH_MAX = 4


class Pace:
    """The maximum number of rows in the handler's next batch. It starts small, because the handler's speed is unknown;
    after that, it is the number of rows that take about `BATCH_S`, judging by the last full batch."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.rows = min(FIRST_ROWS, rows_max)
        self._planned: tuple[Positions, int, float] | None = None

    def begin(self, position: Positions, now: float) -> int:
        """Return the maximum number of rows per stream in a batch from `position`. If the last batch ended at
        `position`, it is done, and its duration sets the pace, unless it had far fewer rows than allowed."""
        if self._planned is not None:
            end, rows, began = self._planned
            if end == position and rows >= self.rows // 2:
                wanted = min(int(rows * BATCH_S / max(now - began, 0.001)), GROWTH_MAX * self.rows)
                self.rows = min(max(wanted, ROWS_MIN), self._rows_max)
        self._planned = None
        return self.rows

    def planned(self, end: Positions, rows: int, now: float) -> None:
        """Record that a handler's batch with this many rows, up to `end`, is about to run."""
        self._planned = (end, rows, now) if rows else None
