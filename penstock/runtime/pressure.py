"""Back-pressure from the engine to the front door: a stream that is read too slowly is filled more slowly.

A stream is held when a view or handler is more than so many events behind it, and let go when it has caught up by half:
so it does not go to and fro with every batch. While it is held, requests are answered 429 with the time that this takes
at the present pace, and sources are not read.

A stream that may shed does so instead, and is held at twice the distance if that is not enough.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from penstock.collect.door import FrontDoor
from penstock.collect.intake import Hold

RETRY_AFTER_S_MAX = 60
UNKNOWN_S = 5
"""What to say as long as nobody knows the pace."""
log = logging.getLogger("penstock.gateway")


class Behind(NamedTuple):
    """The view or handler that is furthest behind a stream: by how many events, and how many a second it takes."""

    name: str
    events: int
    rate: float


def judge(behind: Behind | None, held: bool, most: int) -> Hold | None:
    """Whether a stream is to be held, by how far behind it is read, if that is known. `most` is 0 for no limit."""
    if behind is None or not most or behind.events <= (most // 2 if held else most):
        return None
    wait = (behind.events - most // 2) / behind.rate if behind.rate > 0 else UNKNOWN_S
    retry_after_s = max(1, min(RETRY_AFTER_S_MAX, math.ceil(wait)))
    return Hold(f"is {behind.events} events ahead of {behind.name}, and at most {most} are allowed", retry_after_s)


def press(door: FrontDoor, behind: Callable[[str], Behind | None], most: int) -> None:
    """Hold streams that are read too slowly, or make them shed, and let them go again. To be called now and then."""
    held, may_shed = door.held(), door.may_shed
    lagging = {name for name, shedding in door.shedding().items() if shedding.lags}
    for name in door.streams:
        found = behind(name)
        hold = judge(found, name in held, 2 * most if name in may_shed else most)
        _note(name, name in held, hold, "takes events again")
        if hold is not None or name in held:
            door.hold(name, hold)
        if name in may_shed:
            shed = judge(found, name in lagging, most)
            _note(name, name in lagging, shed, "keeps all events again", "sheds: it ")
            door.shed(name, shed.reason if shed is not None else None)


def _note(stream: str, was: bool, judged: Hold | None, end: str, begin: str = "") -> None:
    if was != (judged is not None):
        log.warning("stream %s %s", stream, end if judged is None else f"{begin}{judged.reason}")
