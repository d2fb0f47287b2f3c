"""Nothing is lost or doubled while processes are killed: at random moments, and at every failpoint."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.e2e.load import Producer, Reader
from tests.harness import RunningApp, running, wait_for

APP = Path(__file__).parent / "counting.py"
SETTLE_S = 120.0

pytestmark = pytest.mark.spark

POINTS = {
    "collect.before_append": 4,
    "collect.after_append": 5,
    "collect.before_answer": 6,
    "queue.before_commit": 7,
    "queue.after_commit": 8,
    "engine.before_commit": 2,
    "ledger.after_commit": 3,
}
"""The failpoints, and the count at which the process dies at each: once each, over all restarts. The engine starts
for ten seconds, so it dies at the others in the handlers' test."""


def counted(app: RunningApp) -> dict[str, int]:
    return {row["page"]: row["hits"] for row in app.view("pages")}


def require_exactly_once(app: RunningApp, producer: Producer, reader: Reader) -> None:
    """Check that every acknowledged event is counted once, and that the reader saw every change once, in order."""
    producer.finish.set()
    producer.join(60)
    assert not producer.is_alive()
    expected = dict(producer.expected)
    wait_for(lambda: counted(app) == expected, SETTLE_S, "the view to have every event exactly once")
    wait_for(lambda: {page: row["hits"] for page, row in reader.rows.items()} == expected, 30, "the reader to catch up")
    assert reader.events["reset"] == 0
    assert reader.events["snapshot"] == 1
    first, last = reader.versions[0], reader.versions[-1]
    assert reader.versions == list(range(first, last + 1)), "each change once, none missing, in order"
    total = sum(row["total"] for row in app.view("pages"))
    assert total == sum(range(producer.acknowledged))


def survive(app: RunningApp, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    producer, reader = Producer(lambda: app.url, seed), Reader(lambda: app.url, "pages")
    done = {"gateway": 0, "engine": 0}
    with reader:
        wait_for(lambda: reader.versions, 30, "the first snapshot")
        with producer:
            while sum(done.values()) < kills:
                time.sleep(chance.uniform(0.2, 3.0))  # the moment of the kill is the random part of this test
                victim = "gateway" if done["gateway"] <= done["engine"] else "engine"
                if chance.random() < 0.8 and victim == "engine":
                    wait_for(lambda: app.health()["ready"], 90, "readiness between kills")
                    time.sleep(chance.uniform(0.0, 3.0))  # the others die while they start
                if app.kill(victim):
                    done[victim] += 1
            require_exactly_once(app, producer, reader)
    print(
        f"seed {seed}: {done}, {producer.acknowledged} events, {producer.retries} retries, "
        f"{producer.duplicates} duplicates refused, {reader.connections} connections, {len(reader.versions)} changes"
    )


@pytest.mark.soak
def test_fifty_random_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    with running(APP, tmp_path / "data") as app:
        survive(app.ready(), kills=50, seed=seed)


def test_a_kill_at_every_failpoint_loses_and_doubles_nothing(tmp_path: Path) -> None:
    marks = {name: tmp_path / f"{name}.reached" for name in POINTS}
    setting = ";".join(f"{name}@{count}=kill:{marks[name]}" for name, count in POINTS.items())
    with running(APP, tmp_path / "data", PENSTOCK_FAILPOINTS=setting) as app:
        app.ready()
        with Reader(lambda: app.url, "pages") as reader, Producer(lambda: app.url, 1) as producer:
            wait_for(lambda: all(mark.exists() for mark in marks.values()), 180, "every failpoint to be reached")
            app.ready()
            require_exactly_once(app, producer, reader)
        restarts = {name: process["restarts"] for name, process in app.describe()["processes"].items()}
        assert restarts == {"gateway": 5, "engine": 2}
