"""When something that died is started again."""

from __future__ import annotations

from penstock.runtime.supervisor import Process


def test_the_wait_doubles_for_what_dies_at_once_and_starts_over_after_a_healthy_run() -> None:
    process = Process("gateway", "module", healthy_s=2.0)
    waits = []
    for died_at in (0.1, 0.2, 0.3, 0.4):
        process.started_at = 0.0
        waits.append(process.wait_before_restart(died_at, longest_s=0.5))
    assert waits == [0.1, 0.2, 0.4, 0.5]
    assert process.wait_before_restart(2.1, longest_s=0.5) == 0.1
