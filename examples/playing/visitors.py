"""Users who log in, each from a different address, and occasional attackers who guess passwords."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import heappop, heappush
from random import Random

from examples.playing.message import Message, moments, stamp

HOMES = 20_000
ATTACKERS = 40
USERS = 5_000
MISTYPED = 0.08
ATTACK_EVERY_S = 15.0
ATTACK_ATTEMPTS = (12, 60)
ATTACK_GAP_S = (0.1, 0.8)
DELAYED = 0.02
SENT_TWICE = 0.005

Attempt = tuple[datetime, str, str, bool]
"""The time, the address, the user, and whether the password was correct."""


def play(seed: int, start: datetime, rate: float) -> Iterator[Message]:
    """Yield about `rate` attempts per second, plus the attackers' bursts. Some attempts arrive out of order."""
    random = Random(seed)
    coming: list[Attempt] = []
    attack_at = start + timedelta(seconds=5)
    for _, at in moments(random, start, rate):
        heappush(coming, _visit(at, random))
        while attack_at <= at:
            for attempt in _attack(attack_at, random):
                heappush(coming, attempt)
            attack_at += timedelta(seconds=random.uniform(0.5, 1.5) * ATTACK_EVERY_S)
        while coming and coming[0][0] <= at:
            yield from _sent(heappop(coming), random)


def _visit(at: datetime, random: Random) -> Attempt:
    """Return an attempt by an ordinary user. There are so many users that none of them makes ten attempts in ten
    minutes."""
    home = random.randrange(HOMES)
    return at, f"2001:db8:{home >> 8:x}::{home & 255:x}", f"user{home % USERS}", random.random() > MISTYPED


def _attack(at: datetime, random: Random) -> Iterator[Attempt]:
    """Yield attempts from one address that tries many users."""
    address = f"203.0.113.{random.randrange(ATTACKERS)}"
    for _ in range(random.randint(*ATTACK_ATTEMPTS)):
        yield at, address, f"user{random.randrange(USERS)}", False
        at += timedelta(seconds=random.uniform(*ATTACK_GAP_S))


def _sent(attempt: Attempt, random: Random) -> Iterator[Message]:
    at, address, user, success = attempt
    tried = at - timedelta(seconds=random.uniform(0, 4)) if random.random() < DELAYED else at
    event = {
        "attempt_id": f"{stamp(at)} {address}",
        "at": stamp(tried),
        "address": address,
        "user": user,
        "success": success,
    }
    yield Message(at, event)
    if random.random() < SENT_TWICE:
        yield Message(at, event)
