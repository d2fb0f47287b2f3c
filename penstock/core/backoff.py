"""Retry delays. The caller passes in the time and the random numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

DOUBLINGS_MAX = 60
"""Maximum number of doublings. More doublings would not change a delay that has an upper limit, but would overflow a
float."""
_seconds = re.compile(r"[0-9]{1,18}").fullmatch


@dataclass(frozen=True)
class Backoff:
    """A delay that doubles with each consecutive failure, from `first_s` up to `most_s`. `jitter` is the fraction of
    the delay that is random. With a jitter of 1, the entire delay is random, which keeps clients that lost the same
    server from all reconnecting at once."""

    first_s: float = 0.5
    most_s: float = 30.0
    jitter: float = 1.0

    def wait_s(self, failures: int, draw: float = 0.0) -> float:
        """Return the delay after a failure that follows `failures` other consecutive failures. `draw` is a random
        number between 0 and 1."""
        whole = min(self.most_s, self.first_s * 2.0 ** min(failures, DOUBLINGS_MAX))
        return whole * (1 - self.jitter + self.jitter * draw)


def doubled_s(first_s: float, most_s: float, failures: int) -> float:
    """Return the delay without jitter, for a caller that does not compete with other clients."""
    return Backoff(first_s, most_s, jitter=0.0).wait_s(failures)


def retry_after_s(text: str | None, now: datetime | None = None) -> float | None:
    """Return the delay in seconds from a `Retry-After` header, or None if the header cannot be parsed. A header that
    contains a date is accepted only if `now` is passed."""
    text = (text or "").strip()
    if _seconds(text):
        return float(text)
    if now is None:
        return None
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
