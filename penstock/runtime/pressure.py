"""Back-pressure from the engine to the ingress: if a stream is read too slowly, fewer events are accepted for it.

A stream is held when a view or handler is more than the allowed number of events behind. It is released when that view
or handler has caught up by half, so that the stream does not switch back and forth with every batch. While a stream is
held, requests get a 429 response with the time needed to catch up at the current pace, and sources of the stream are
not read.

A stream that declares `shed` sheds events instead, and is held only when a reader is twice as far behind.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from penstock.collect.group_commit import Hold
from penstock.collect.ingress import Ingress

RETRY_AFTER_S_MAX = 60
UNKNOWN_S = 5
"""Seconds to report while the pace is unknown."""
log = logging.getLogger("penstock.gateway")


class Behind(NamedTuple):
    """The view or handler that is furthest behind a stream: its name, the number of unread events, and its pace in
    events per second."""

    name: str
    events: int
    rate: float


def judge(behind: Behind | None, held: bool, most: int) -> Hold | None:
    """Return the reason for holding a stream whose slowest reader is too far `behind`, or None if the stream should not
    be held. `most` is the limit; 0 means no limit."""
    if behind is None or not most or behind.events <= (most // 2 if held else most):
        return None
    wait = (behind.events - most // 2) / behind.rate if behind.rate > 0 else UNKNOWN_S
    retry_after_s = max(1, min(RETRY_AFTER_S_MAX, math.ceil(wait)))
    return Hold(f"is {behind.events} events ahead of {behind.name}; the limit is {most}", retry_after_s)


def press(ingress: Ingress, behind: Callable[[str], Behind | None], most: int) -> None:
    """Hold streams that are read too slowly, or make them shed events, and release them again later. Called about once
    a second."""
    held, may_shed = ingress.held(), ingress.may_shed
    lagging = {name for name, shedding in ingress.shedding().items() if shedding.lags}
    for name in ingress.streams:
        lag = behind(name)
        hold = judge(lag, name in held, 2 * most if name in may_shed else most)
        _log_hold_change(name, name in held, hold, "accepts events again")
        if hold is not None or name in held:
            ingress.hold(name, hold)
        if name in may_shed:
            shed = judge(lag, name in lagging, most)
            _log_hold_change(name, name in lagging, shed, "keeps all events again", "sheds: it ")
            ingress.shed(name, shed.reason if shed is not None else None)


def _log_hold_change(stream: str, was: bool, judged: Hold | None, end: str, begin: str = "") -> None:
    if was != (judged is not None):
        log.warning("stream %s %s", stream, end if judged is None else f"{begin}{judged.reason}")
