"""When a stream is held because it is read too slowly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.app.app import App
from penstock.app.shed import Shed
from penstock.collect.ingress import Ingress
from penstock.core.schema import Event
from penstock.core.settings import Settings
from penstock.runtime.pressure import Behind, judge, press
from tests.clocks import ManualClock
from tests.memory_log import MemoryLog


@pytest.mark.parametrize(
    ("behind", "held", "is_held"),
    [(0, False, False), (1000, False, False), (1001, False, True), (501, True, True), (500, True, False)],
)
def test_a_stream_is_held_over_the_limit_and_let_go_at_half_of_it(behind: int, held: bool, is_held: bool) -> None:
    assert (judge(Behind("view", behind, 10.0), held, 1000) is not None) == is_held


def test_the_wait_is_the_time_to_catch_up_by_half() -> None:
    hold = judge(Behind("till", 2000, 100.0), False, 1000)
    assert hold is not None
    assert hold.retry_after_s == 15
    assert hold.reason == "is 2000 events ahead of till; the limit is 1000"


@pytest.mark.parametrize(("rate", "wait_s"), [(0.0, 5), (0.001, 60), (10_000_000.0, 1)])
def test_the_wait_is_bounded_and_guessed_if_nobody_knows_the_pace(rate: float, wait_s: int) -> None:
    hold = judge(Behind("till", 2000, rate), True, 1000)
    assert hold is not None
    assert hold.retry_after_s == wait_s


def test_without_a_limit_or_a_word_of_the_engine_nothing_is_held() -> None:
    assert judge(Behind("till", 10**9, 1.0), False, 0) is None
    assert judge(None, True, 1000) is None


class Reading(Event):
    severity: int


@contextmanager
def ingress() -> Iterator[Ingress]:
    app = App("test")
    app.stream("held", Reading)
    app.stream("shed", Reading, shed=Shed(keep=0.5))
    log = MemoryLog()
    yield Ingress(app.streams, log, Settings(), ManualClock(), lambda error: None, lambda name: None)


def test_a_stream_that_may_shed_does_so_first_and_is_held_at_twice_the_limit() -> None:
    """The lag goes up, and down again: each begins over its limit and ends at half of it."""
    with ingress() as front:
        seen = []
        for behind in (1000, 1001, 2000, 2001, 1001, 1000, 501, 500, 1000):
            press(front, lambda name: Behind("till", behind, 10.0), 1000)  # noqa: B023
            assert "shed" not in front.held() or "shed" in front.shedding()
            seen.append(("held" in front.held(), "shed" in front.shedding(), "shed" in front.held()))
    assert [shed for _, shed, _ in seen] == [False, True, True, True, True, True, True, False, False]
    assert [held for _, _, held in seen] == [False, False, False, True, True, False, False, False, False]
    assert [held for held, _, _ in seen] == [False, True, True, True, True, True, True, False, False]


def test_why_a_stream_sheds_and_is_held_is_told_with_each_limit() -> None:
    with ingress() as front:
        press(front, lambda name: Behind("till", 2001, 10.0), 1000)
        shedding = front.shedding()["shed"]
        assert shedding.reason == "is 2001 events ahead of till; the limit is 1000"
        assert shedding.lags
        assert front.held()["shed"].reason == "is 2001 events ahead of till; the limit is 2000"
        press(front, lambda name: None, 1000)
        assert not front.shedding()
        assert not front.held()


def test_the_log_tells_when_shedding_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    with ingress() as front:
        for behind in (1001, 1001, 500):
            press(front, lambda name: Behind("till", behind, 10.0), 1000)  # noqa: B023
    messages = [record.message for record in caplog.records if "stream shed" in record.message]
    assert messages == [
        "stream shed sheds: it is 1001 events ahead of till; the limit is 1000",
        "stream shed keeps all events again",
    ]
