"""When a stream is held because it is read too slowly."""

from __future__ import annotations

import pytest

from penstock.runtime.pressure import Behind, judge


@pytest.mark.parametrize(
    ("behind", "held", "is_held"),
    [(0, False, False), (1000, False, False), (1001, False, True), (501, True, True), (500, True, False)],
)
def test_a_stream_is_held_over_the_limit_and_let_go_at_half_of_it(behind: int, held: bool, is_held: bool) -> None:
    assert (judge(Behind("view", behind, 10.0), held, 1000) is not None) == is_held


def test_the_wait_is_the_time_to_catch_up_by_half() -> None:
    found = judge(Behind("till", 2000, 100.0), False, 1000)
    assert found is not None
    assert found.retry_after_s == 15
    assert found.reason == "is 2000 events ahead of till, and at most 1000 are allowed"


@pytest.mark.parametrize(("rate", "wait_s"), [(0.0, 5), (0.001, 60), (10_000_000.0, 1)])
def test_the_wait_is_bounded_and_guessed_if_nobody_knows_the_pace(rate: float, wait_s: int) -> None:
    found = judge(Behind("till", 2000, rate), True, 1000)
    assert found is not None
    assert found.retry_after_s == wait_s


def test_without_a_limit_or_a_word_of_the_engine_nothing_is_held() -> None:
    assert judge(Behind("till", 10**9, 1.0), False, 0) is None
    assert judge(None, True, 1000) is None
