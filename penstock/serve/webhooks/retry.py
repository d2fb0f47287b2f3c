"""When to try again, and when to give up. Time and chance are passed in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from random import Random

from penstock.serve.webhooks.model import Tries
from penstock.settings import Settings

JITTER = 0.5
"""The least part of a delay that is waited for; the rest is left to chance, so that many do not come back at once."""
_seconds = re.compile(r"[0-9]{1,9}").fullmatch


@dataclass(frozen=True)
class Patience:
    """How often, and for how long, a message is tried."""

    tries_max: int
    lasts: timedelta
    first_s: float
    longest_s: float

    @classmethod
    def of(cls, settings: Settings) -> Patience:
        return cls(
            max(1, settings.webhook_tries_max),
            timedelta(hours=settings.webhook_hours_max),
            settings.webhook_backoff_s,
            settings.webhook_backoff_s_max,
        )

    def delay_s(self, failures: int, chance: Random) -> float:
        """Twice as long after each failure, up to a limit."""
        whole = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 64))
        return whole * (JITTER + (1 - JITTER) * chance.random())

    def after(
        self, before: Tries | None, error: str, now: datetime, chance: Random, asked_s: float | None = None
    ) -> Tries | None:
        """The tries after one more was in vain; None if it was the last. `asked_s` is how long the receiver asks us to
        wait: as long as that, within the longest delay."""
        count, first = (before.count + 1, before.first) if before is not None else (1, now)
        if count >= self.tries_max or now - first >= self.lasts:
            return None
        wait_s = self.delay_s(count, chance)
        if asked_s is not None:
            wait_s = min(max(wait_s, asked_s), self.longest_s)
        return Tries(count, first, now + timedelta(seconds=wait_s), error)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """What `Retry-After` asks for, in seconds or as a date; None if it is not there or cannot be read."""
    text = headers.get("retry-after", "").strip()
    if _seconds(text):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
