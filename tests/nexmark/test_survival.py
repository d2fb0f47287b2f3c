"""Results equal the reference, although events come out of order and the engine is killed meanwhile."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from examples.nexmark import QUERIES
from tests.nexmark.rows import difference
from tests.nexmark.running import survive

KINDS = ("q2", "q4", "q5", "q8")
"""A feed, handlers in a chain with a view, windows with a view on top of them, and a join."""


@pytest.mark.soak
def test_queries_of_each_kind_find_the_same_after_a_kill(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    results, world = survive(tmp_path / "data", KINDS, count=6_000, seed=seed, kills=1)
    for name in KINDS:
        expected = results.expected(name, world)
        assert expected
        assert difference(results.rows(name), expected) == "", name


@pytest.mark.soak
def test_every_query_finds_the_same_after_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("NEXMARK_SEED", random.randrange(10**6)))
    count, kills = int(os.environ.get("NEXMARK_EVENTS", "30000")), int(os.environ.get("NEXMARK_KILLS", "5"))
    print(f"seed {seed}, {count} events, {kills} kills")
    results, world = survive(tmp_path / "data", list(QUERIES), count=count, seed=seed, kills=kills)
    wrong = {}
    for name in QUERIES:
        expected = results.expected(name, world)
        wrong[name] = difference(results.rows(name), expected) if expected else "nothing to be found"
        print(f"{name}: {len(expected)} rows, {wrong[name] or 'as expected'}", flush=True)
    assert not any(wrong.values())
