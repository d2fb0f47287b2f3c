"""What every source does alike: connect again whenever a connection ends, and settle what was read before it stops."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from penstock.contracts import Intake, SourceStatus
from penstock.errors import PenstockError

SETTLE_S = 5.0
"""How long a source that is told to stop waits for the log to take what was read."""
HIDDEN = "(an address that cannot be read)"
_log = logging.getLogger("penstock.collect")


@dataclass(frozen=True)
class Backoff:
    """How long to wait before the next connection: a random time up to a bound that doubles from `first_s` to `most_s`,
    and starts over once a connection lasted `healthy_s`."""

    first_s: float = 0.5
    most_s: float = 30.0
    healthy_s: float = 30.0

    def wait_s(self, attempt: int, draw: float) -> float:
        """`draw` (0 to 1) of the bound. Full jitter: many clients that lost the same server come back spread out."""
        return draw * min(self.most_s, self.first_s * 2.0 ** min(attempt, 60))


async def keep_connected(
    connection: Callable[[], Awaitable[str]], intake: Intake, status: SourceStatus, backoff: Backoff, address: str
) -> None:
    """Run one connection after the other until cancelled. `connection` goes from opening to end and returns why it
    ended, for people; it says in `status` when it is connected. What it raises ends the source: so it is for errors
    that another try does not mend.

    What was put by the time of the cancellation becomes durable before that goes on.
    """
    try:
        await _one_after_the_other(connection, status, backoff, address)
    except asyncio.CancelledError:
        await _settle(intake, address)
        raise
    except PenstockError as error:
        status.state, status.error = "failed", error.message
        raise


async def _one_after_the_other(
    connection: Callable[[], Awaitable[str]], status: SourceStatus, backoff: Backoff, address: str
) -> None:
    attempt = 0
    while True:
        began = asyncio.get_running_loop().time()
        status.state = "connecting"
        reason = await connection()
        if asyncio.get_running_loop().time() - began >= backoff.healthy_s:
            attempt = 0
        _log.warning("feed %s: %s", address, reason)
        status.state, status.error = "waiting", reason
        await asyncio.sleep(backoff.wait_s(attempt, random.random()))
        attempt += 1
        status.reconnects += 1


async def _settle(intake: Intake, address: str) -> None:
    try:
        async with asyncio.timeout(SETTLE_S):
            await intake.settle()
    except (TimeoutError, PenstockError) as error:
        _log.error("feed %s ends with events that could not be written: %s", address, error)


def address_parts(url: str) -> SplitResult | None:
    """The parts of an address; None if it is none: without a host, with a port that is no number, or with an `@` where
    none belongs. The latter two are what a password with a `/`, `?`, `#` or a comma in it leads to: such characters
    are written as %XX."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    misplaced = "@" in parts.path and "@" not in parts.netloc
    return None if not parts.scheme or not parts.hostname or port == 0 or misplaced else parts


def without_secrets(url: str) -> str:
    """An address without user, password and query, any of which may be a secret. Of a text that is no address nothing
    is shown: what looks like its host may be a password."""
    parts = address_parts(url)
    if parts is None:
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
