"""The retry schedule of webhooks, including when to give up. Time and randomness are passed in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from penstock.core.backoff import Backoff
from penstock.core.settings import Settings
from penstock.serve.webhooks.model import DeliveryAttempts

JITTER = 0.5
"""The random part of a delay, as a fraction of the whole. It prevents many webhooks from retrying at once."""


@dataclass(frozen=True)
class Patience:
    """Limits on the number, the duration and the delays of attempts to send a webhook's message."""

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
        """Return the delay before the next delivery attempt after this many failures: doubled each time, up to a
        limit."""
        return Backoff(self.first_s, self.longest_s, JITTER).wait_s(failures - 1, chance.random())

    def after(
        self, before: DeliveryAttempts | None, error: str, now: datetime, chance: Random, asked_s: float | None = None
    ) -> DeliveryAttempts | None:
        """Return the delivery attempts after one more failure, or None if it was the last attempt.

        `asked_s` is the delay that the receiver asked for. It is respected up to `longest_s`.
        """
        count, first = (before.count + 1, before.first) if before is not None else (1, now)
        if count >= self.tries_max or now - first >= self.lasts:
            return None
        wait_s = self.delay_s(count, chance)
        if asked_s is not None:
            wait_s = min(max(wait_s, asked_s), self.longest_s)
        return DeliveryAttempts(count, first, now + timedelta(seconds=wait_s), error)
