"""What came in, by which way, and what became of it: figures since the process began."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

POST, ONE_WAY, PUBLISH = "POST", "POST ack=none", "WS"
"""The ways in that are not sources. Names of sources have no capitals."""


@dataclass
class Tally:
    """What came by one way.

    Every event that was `received` ends up as exactly one of: `accepted`, a duplicate, `rejected` (a dead letter),
    `shed` (given up while the stream was overloaded, as it allows), `failed` (its sender was told so), or `lost` (it
    was sent one-way, so nobody could be told). Those `refused` were turned away before. `waited_s` adds up the time
    from receipt to durable over `waits` requests.
    """

    received: int = 0
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    refused: int = 0
    failed: int = 0
    lost: int = 0
    shed: int = 0
    bytes: int = 0
    waits: int = 0
    waited_s: float = 0.0
    wait_s_min: float = math.inf
    wait_s_max: float = 0.0

    def waited(self, seconds: float) -> None:
        self.waits += 1
        self.waited_s += seconds
        if seconds < self.wait_s_min:
            self.wait_s_min = seconds
        if seconds > self.wait_s_max:
            self.wait_s_max = seconds

    def told(self) -> dict[str, float | None]:
        """As the API tells it. Times in milliseconds, None if there are none."""
        counts: dict[str, float | None] = {each.name: getattr(self, each.name) for each in fields(self)[:9]}
        counts["received_bytes"] = counts.pop("bytes")
        times = (self.wait_s_min, self.waited_s / self.waits, self.wait_s_max) if self.waits else (None,) * 3
        shown = [None if each is None else round(1000 * each, 3) for each in times]
        return counts | dict(zip(("durable_ms_min", "durable_ms_mean", "durable_ms_max"), shown, strict=True))


def total(tallies: Iterable[Tally]) -> Tally:
    found = Tally()
    for each in tallies:
        for figure in fields(Tally):
            if figure.name not in ("wait_s_min", "wait_s_max"):
                setattr(found, figure.name, getattr(found, figure.name) + getattr(each, figure.name))
        found.wait_s_min = min(found.wait_s_min, each.wait_s_min)
        found.wait_s_max = max(found.wait_s_max, each.wait_s_max)
    return found


@dataclass
class Audit:
    """The figures of one stream, by the way that events came."""

    by_source: dict[str, Tally] = field(default_factory=dict)
    commits: int = 0

    def of(self, source: str) -> Tally:
        found = self.by_source.get(source)
        if found is None:
            found = self.by_source[source] = Tally()
        return found

    def total(self) -> Tally:
        return total(self.by_source.values())
