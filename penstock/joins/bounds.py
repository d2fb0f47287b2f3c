"""How much a join keeps of a key at most, and what it does when that is not enough."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.making import Full, bounds_faults


@dataclass(frozen=True)
class Bounds:
    """How much is kept of a key at most.

    Of a join `events` of each side: when there are more, `drop_oldest` gives up the one with the earliest time,
    `refuse_new` the one that came last; it is told. Of a table `versions`, and of a rollup so many rows: the oldest
    goes, and an event that would have needed it is told. Of events that wait for a table's late rows `waiting`: the
    oldest is answered before its time. A key that has nothing else is forgotten when no event of it has come for
    `remember`: until then an event that is late is known to be.
    """

    events: int = 10_000
    versions: int = 1_000
    waiting: int = 10_000
    full: Full = "drop_oldest"
    remember: timedelta = timedelta(days=1)

    def problems(self) -> list[str]:
        """What is wrong with them."""
        return bounds_faults(self, "events", "versions", "waiting")


def bounds_problems(bounds: Any) -> list[str]:
    """What is wrong with what was given as bounds."""
    if not isinstance(bounds, Bounds):
        return [f"bounds is {bounds!r}; write bounds=joins.Bounds(events=10_000), or leave it out"]
    return bounds.problems()


DEFAULT = Bounds()
