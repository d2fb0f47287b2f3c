"""Counts of received events by ingestion path and by outcome, since the process started."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

POST, ONE_WAY, PUBLISH = "POST", "POST ack=none", "WS"
"""The ingestion paths that are not sources. They contain capitals, which the names of sources do not."""


@dataclass
class IngressTally:
    """Counters for one ingestion path.

    Every `received` event ends up as exactly one of: `accepted`, a duplicate, `rejected` (a dead letter), `shed`
    (dropped while the stream was overloaded, as its declaration allows), `failed` (its sender got an error), or `lost`
    (it was sent one-way, so its sender could not get an error). Events in `refused` were turned away before they were
    received. `waited_s` is the total time that `waits` requests took to become durable, measured from their receipt.
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

    def figures(self) -> dict[str, float | None]:
        """Return the counters as the API shows them. Times are in milliseconds, or None if no request has become
        durable."""
        counts: dict[str, float | None] = {figure.name: getattr(self, figure.name) for figure in fields(self)[:9]}
        counts["received_bytes"] = counts.pop("bytes")
        times = (self.wait_s_min, self.waited_s / self.waits, self.wait_s_max) if self.waits else (None,) * 3
        shown = [None if seconds is None else round(1000 * seconds, 3) for seconds in times]
        return counts | dict(zip(("durable_ms_min", "durable_ms_mean", "durable_ms_max"), shown, strict=True))


def total(tallies: Iterable[IngressTally]) -> IngressTally:
    totals = IngressTally()
    for tally in tallies:
        for figure in fields(IngressTally):
            if figure.name not in ("wait_s_min", "wait_s_max"):
                setattr(totals, figure.name, getattr(totals, figure.name) + getattr(tally, figure.name))
        totals.wait_s_min = min(totals.wait_s_min, tally.wait_s_min)
        totals.wait_s_max = max(totals.wait_s_max, tally.wait_s_max)
    return totals


@dataclass
class Audit:
    """The counters of one stream, by ingestion path."""

    by_source: dict[str, IngressTally] = field(default_factory=dict)
    commits: int = 0

    def of(self, source: str) -> IngressTally:
        tally = self.by_source.get(source)
        if tally is None:
            tally = self.by_source[source] = IngressTally()
        return tally

    def total(self) -> IngressTally:
        return total(self.by_source.values())
