"""Limits on the state that a join keeps for a key, and the policies for exceeding them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.core.operators import Full, bounds_faults


@dataclass(frozen=True)
class Bounds:
    """Limits on a join's state for a key.

    `events` limits the stored events on each side of a join. Beyond this limit, `drop_oldest` drops the event with the
    earliest time, and `refuse_new` drops the event that arrived last. Either way, the dropped event is reported.
    `versions` limits the versions of a table's row, and the rows from a rollup. Beyond it, the oldest version or row is
    dropped, and an event that would have needed it is reported. `waiting` limits the events that wait for late rows in
    a table: beyond it, the oldest event is processed early. A key without other state is deleted when it has had no
    event for `remember`; until then, late events are recognized.
    """

    events: int = 10_000
    versions: int = 1_000
    waiting: int = 10_000
    full: Full = "drop_oldest"
    remember: timedelta = timedelta(days=1)

    def problems(self) -> list[str]:
        """Return the errors in a join's limits."""
        return bounds_faults(self, "events", "versions", "waiting")


def bounds_problems(bounds: Any) -> list[str]:
    """Return the errors in a join's bounds."""
    if not isinstance(bounds, Bounds):
        return [f"bounds is {bounds!r}; write bounds=joins.Bounds(events=10_000), or omit it"]
    return bounds.problems()


DEFAULT = Bounds()
