"""The latest events of a stream, as a query reads them."""

from __future__ import annotations

import pytest

from penstock.core.schema import event_schema
from penstock.serve.query import relations as relations_module
from penstock.serve.query.relations import StreamRelation
from tests.serve.fakes import FakeLog, Reading


def latest(log: FakeLog, events_max: int, bytes_max: int = 2**30) -> list[int]:
    relation = StreamRelation("s", log, lambda: event_schema(Reading), events_max=events_max, bytes_max=bytes_max)
    numbers: list[int] = relation.prepare()().table["n"].to_pylist()
    return numbers


@pytest.mark.parametrize("step", [1, 7, 1_000])
@pytest.mark.parametrize("gap", [1, 10, 50_000])
def test_gaps_take_no_place_of_events(monkeypatch: pytest.MonkeyPatch, step: int, gap: int) -> None:
    """As many events as are asked for, if there are so many, in reads that do not grow with the gaps."""
    monkeypatch.setattr(relations_module, "STEP_ROWS", step)
    log = FakeLog(1)
    log.skip(0, gap)
    for number in range(30):
        log.write(0, number, at_s=number)
        log.skip(0, gap)
    assert latest(log, 20) == list(range(10, 30))
    assert latest(log, 100) == list(range(30))
    assert log.reads < 1_000


def test_a_stream_of_nothing_but_gaps_has_no_events() -> None:
    log = FakeLog(1)
    log.skip(0, 100_000)
    assert latest(log, 10) == []
