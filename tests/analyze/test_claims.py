"""Tasks and shards: each shard is run by one task, if possible by the worker that has its state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.runtime.embedded.shard_claims import KEPT, FileClaims, new_claims


def test_every_task_gets_another_shard_whoever_is_first(tmp_path: Path) -> None:
    shards = list(range(16))

    def take(task: int, claims: FileClaims) -> int:
        return claims.take(task, shards, lambda shard: shard % 3 == 0)

    with ThreadPoolExecutor(16) as pool:
        for _ in range(20):
            assert sorted(pool.map(take, shards, [new_claims(tmp_path)] * len(shards))) == shards


def test_a_worker_takes_what_it_holds(tmp_path: Path) -> None:
    claims = new_claims(tmp_path)
    assert claims.take(0, [3, 5, 7], lambda shard: shard == 7) == 7
    assert claims.take(1, [3, 5, 7], lambda shard: shard == 7) == 3
    assert claims.take(2, [3, 5, 7], lambda shard: shard == 5) == 5


def test_a_task_that_is_run_again_takes_what_it_took(tmp_path: Path) -> None:
    claims = new_claims(tmp_path)
    first = claims.take(0, [0, 1], lambda shard: shard == 1)
    assert claims.take(0, [0, 1], lambda shard: shard == 0) == first == 1
    assert claims.take(1, [0, 1], lambda shard: shard == 1) == 0


def test_a_batch_that_is_planned_anew_begins_anew_and_old_ones_go(tmp_path: Path) -> None:
    for _ in range(3 * KEPT):
        assert new_claims(tmp_path).take(0, [4], lambda _: True) == 4
    assert len(list(tmp_path.iterdir())) <= KEPT + 1
