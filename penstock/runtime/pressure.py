"""Back-pressure from the engine to the front door: a stream that is read too slowly is filled more slowly.

A stream is held when a view or handler is more than so many events behind it, and let go when it has caught up by half:
so it does not go to and fro with every batch. While it is held, requests are answered 429 with the time that this takes
at the present pace, and sources are not read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.collect.intake import Hold

RETRY_AFTER_S_MAX = 60
UNKNOWN_S = 5
"""What to say as long as nobody knows the pace."""


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
