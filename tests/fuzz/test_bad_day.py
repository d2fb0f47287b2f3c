"""All attackers at once, and one good client: it notices nothing, and memory and descriptors stay bounded."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.attackers import ATTACKERS, HUGE, POST, Attack, Attacker, attacked, chunked, declared, slow
from tests.fuzz.gateway import RunningGateway, gateway
from tests.fuzz.good import good_client
from tests.harness import wait_for

DAY_S = 8.0
LONG_DAY_S = 300.0
HUGE_MIB_MAX = 150
"""Memory for unfinished bodies (64 MiB), and as much for the fragments that they leave behind."""
MIB_MAX = 900
"""The gateway at rest (150) and busy (400 after a minute, and no more later), bodies that are unfinished or wait, and
one that is being split, at thirty times its 8 MiB."""
GROWTH_MIB_MAX = 100
"""Memory that half of a long test may leave behind beyond the first half: ids of the good client, about 10 MiB, and
fragmentation in the allocator."""
READERS_MAX = 100
"""Files that stay open for readers of streams: ten streams, and for each as many as have read at once."""
LET_GO_S = 60.0
"""A client that does not read is disconnected after half of this time."""
LIMITS = {"PENSTOCK_HEAD_S": "2", "PENSTOCK_BODY_S": "2", "PENSTOCK_IDLE_S": "3"}
"""Shorter than by default, so that a test reaches their end."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunningGateway]:
    with gateway(tmp_path / "data", **LIMITS) as running:
        yield running


def new_attack(served: RunningGateway) -> Attack:
    return Attack(served, random.Random(os.environ["TEST_SEED"]))


def warm(served: RunningGateway) -> None:
    """Let the gateway use each of its files once."""
    for stream in ("orders", "things", "raw", "metrics", "datagrams"):
        served.post(stream, b"{}")
        served.read(stream)
        served.read(f"{stream}.rejected")


def test_10_gb_that_are_declared_are_refused_before_they_come(served: RunningGateway) -> None:
    with served.connect() as client:
        client.sendall(POST + b"Content-Length: %d\r\n\r\n" % HUGE)
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_end_is_refused_at_the_limit(served: RunningGateway) -> None:
    """The rest of it would not be read: the connection ends."""
    sent, part = 0, b"10000\r\n%b\r\n" % bytes(64 * 1024)
    with served.connect() as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):
            while sent < HUGE:
                client.sendall(part)
                sent += len(part)
        with suppress(OSError):
            assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert sent < HUGE


@pytest.mark.parametrize("attacker", [declared, chunked, slow], ids=lambda attacker: attacker.__name__)
def test_bodies_of_10_gb_cost_no_memory_and_nobody_else(served: RunningGateway, attacker: Attacker) -> None:
    warm(served)
    before = served.forget_peak()
    with good_client(served) as good, attacked(new_attack(served), *([attacker] * 4)) as attack:
        wait_for(lambda: sum(attack.answers.values()) >= 8 and len(good.waits_s) >= 10, 60, "refusals")
    who = attacker.__name__
    assert {status for _, status in attack.answers} <= ({"408", "429"} if attacker is slow else {"413", "nothing"})
    print(
        f"{who}: {before:.0f} to {served.peak_mib:.0f} MiB, {attack.sent[who]} bytes, {dict(attack.answers)}; "
        f"{good.summary()}"
    )
    assert served.peak_mib < before + HUGE_MIB_MAX
    served.require_sound()


def bad_day(served: RunningGateway, length_s: float) -> float:
    """Run the attack; returns the memory in MiB that is still held when all clients have disconnected."""
    warm(served)
    sockets, files, before = served.descriptors("socket:"), served.descriptors(), served.forget_peak()
    with good_client(served) as good, attacked(new_attack(served), *ATTACKERS) as attack:
        end = time.monotonic() + length_s
        wait_for(lambda: time.monotonic() > end, length_s + 60, "the end of the day")
    peak = served.peak_mib
    print(f"{before:.0f} to {peak:.0f} MiB; {good.summary()}; {dict(attack.answers)}")
    assert {status for _, status in attack.answers if status.startswith("5")} == set()
    assert peak < MIB_MAX
    wait_for(lambda: served.descriptors("socket:") <= sockets, LET_GO_S, f"only {sockets} open sockets")
    assert served.descriptors() < files + READERS_MAX
    served.require_sound()
    return served.forget_peak()


def test_on_a_bad_day_a_good_client_notices_nothing(served: RunningGateway) -> None:
    bad_day(served, DAY_S)


@pytest.mark.soak
def test_on_a_long_bad_day_a_good_client_notices_nothing(served: RunningGateway) -> None:
    morning, afternoon = bad_day(served, LONG_DAY_S / 2), bad_day(served, LONG_DAY_S / 2)
    print(f"at rest {morning:.0f} MiB after half of it, {afternoon:.0f} after all")
    assert afternoon < morning + GROWTH_MIB_MAX
